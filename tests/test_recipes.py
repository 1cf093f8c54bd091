"""Every recipe parses, builds its network and makes one training step."""

from pathlib import Path

import pytest
import torch
import yaml

from trueshift.data import make_shapes
from trueshift.report.paper import TABLES
from trueshift.report.tables import belongs
from trueshift.training import Emulator, NetworkModule, Segmenter, parameter_groups

from lightning.pytorch import LightningDataModule, Trainer  # isort: skip
from lightning.pytorch.cli import LightningArgumentParser  # isort: skip

ROOT = Path(__file__).parents[1] / "recipes"
FILES = sorted(ROOT.rglob("*.yaml"))
NAMES = [str(path.relative_to(ROOT).with_suffix("")) for path in FILES]
ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows if row.recipe]
PREFIXES = "fast long mobilenet quick record small swin vit"  # budgets that the paper does not have
OURS = tuple(f"{prefix}_" for prefix in PREFIXES.split())
PAPER = [
    name
    for name in NAMES
    if not name.split("/")[1].startswith(OURS) and not name.startswith("flows/")
]
LARGE = ("resnet50", "resnet101")
NETWORK = ("network", "network_options", "spec", "tau")


def is_large(name):
    return any(part in name for part in LARGE)


@pytest.fixture(scope="module")
def parser():
    made = LightningArgumentParser()
    made.add_argument("--seed_everything", type=int)
    made.add_lightning_class_args(Trainer, "trainer")
    made.add_lightning_class_args(NetworkModule, "model", subclass_mode=True)
    made.add_lightning_class_args(LightningDataModule, "data", subclass_mode=True)
    return made


@pytest.fixture(scope="module")
def model_parser():
    made = LightningArgumentParser()
    made.add_subclass_arguments(NetworkModule, "model")
    return made


def read(name):
    return yaml.safe_load((ROOT / f"{name}.yaml").read_text())


def build(model_parser, name):
    config = model_parser.parse_object({"model": read(name)["model"]})
    return model_parser.instantiate(config).model


def test_every_row_of_the_paper_has_a_recipe_and_the_other_way_round():
    assert {row.recipe for _, row in ROWS} == set(PAPER)


@pytest.mark.parametrize("name", NAMES)
def test_parses_and_unknown_keys_fail(parser, name):
    config = read(name)
    parsed = parser.parse_object(config)
    assert parsed.trainer.max_epochs == config["trainer"]["max_epochs"]
    config["model"]["init_args"]["learning_rate"] = 1
    with pytest.raises(SystemExit):
        parser.parse_object(config)


@pytest.mark.parametrize("name", PAPER)
def test_header_says_command_row_and_number(name):
    lines = (ROOT / f"{name}.yaml").read_text().splitlines()
    head = "\n".join(line for line in lines if line.startswith("#"))
    assert f"trueshift fit --config recipes/{name}.yaml" in head
    assert "Hours:" in head
    for table, row in ROWS:
        if row.recipe == name:
            for metric in TABLES[table].metrics:
                value = row.numbers[metric]
                value = value[0] if isinstance(value, tuple) else value
                assert f"{TABLES[table].metrics[metric]} {value}" in head


@pytest.mark.parametrize("name", PAPER)
def test_builds_the_network_of_its_row(model_parser, name):
    with torch.device("meta"):
        module = build(model_parser, name)
    config = read(name)
    described = {
        "data": config["data"]["class_path"].rpartition(".")[2].lower(),
        "network": module.hparams["network"],
        "network_options": module.hparams["network_options"],
        "spec": module.hparams["spec"],
    }
    rows = [row.recipe for _, row in ROWS if belongs(row, {"row": described})]
    assert set(rows) == {name}
    assert module.hparams["weight_decay"] == 1e-4
    assert module.hparams["momentum"] == 0.9
    assert (module.tau_schedule is not None) == (module.spec.method == "lps")
    assert module.num_parameters()["total"] > 1e7


def batch_for(module, size):
    if isinstance(module, Emulator):
        shape = (1, *[16] * module.spec.dim)
        return torch.randn(2, *shape), torch.randn(2, module.hparams["unroll"], *shape)
    images, labels, masks = make_shapes(2, size, seed=0)
    target = masks if isinstance(module, Segmenter) else labels
    return images / 255, target.long()


def one_step(module, size):
    batch = batch_for(module, size)
    module.log = lambda *_, **__: None
    module.train()
    optimizer = torch.optim.SGD(parameter_groups(module.network, 1e-4), lr=0.1)
    first = next(p for p in module.network.parameters() if p.requires_grad)
    before = first.detach().clone()
    loss = module.training_step(batch, 0)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert not torch.equal(before, first)


FLOWS = [name for name in NAMES if name.startswith("flows/")]


def test_flows_of_one_equation_differ_in_the_network_only():
    budgets = {}
    for name in FLOWS:
        config = read(name)
        network = [config["model"]["init_args"].pop(key, None) for key in NETWORK]
        budgets.setdefault(config["data"]["init_args"]["equation"], []).append((config, network))
    for rows in budgets.values():
        assert len(rows) >= 6
        assert all(config == rows[0][0] for config, _ in rows)
        assert len({repr(network) for _, network in rows}) == len(rows)


OWN = [name for name in NAMES if not name.endswith("_fno")]  # that one needs another package


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if is_large(name) else name for name in OWN],
)
def test_makes_one_training_step(model_parser, name):
    module = build(model_parser, name)
    small = 32 if "vit_" in name or "swin_" in name else 16
    one_step(module, small if "cifar" in name else 64)  # small, so that all of them are quick
