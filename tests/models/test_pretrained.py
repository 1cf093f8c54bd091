"""Weights from elsewhere: torchvision's names, and the numbers of the authors' own networks."""

import pytest
import torch
from authors import GOLDEN, KEYS, authors_state

import trueshift as ts
from trueshift._torchvision import import_torchvision
from trueshift.models import load_authors_checkpoint

SPECS = {
    "resnet18_cifar_lps": ("resnet18", "cifar", ts.Sampling("lps")),
    "resnet18_cifar_lps_c8_lpf3": (
        "resnet18",
        "cifar",
        ts.Sampling("lps", "tri3", hidden="eighth"),
    ),
    "resnet18_cifar_lps_ddac3": ("resnet18", "cifar", ts.Sampling("lps", "adapt3")),
    "resnet18_cifar_aps_lpf3": ("resnet18", "cifar", ts.Sampling("aps", "tri3")),
    "resnet18_cifar_decimation_lpf3": ("resnet18", "cifar", ts.Sampling("stride", "tri3")),
    "resnet18_imagenet_lps_lpf2_circular": ("resnet18", "imagenet", ts.Sampling("lps", "rect2")),
    "resnet18_imagenet_lps_lpf3_zeros_convex": (
        "resnet18",
        "imagenet",
        ts.Sampling("lps", "tri3", padding_mode="zeros", test_rule="softmax"),
    ),
    "resnet50_imagenet_lps_lpf3_zeros": (
        "resnet50",
        "imagenet",
        ts.Sampling("lps", "tri3", padding_mode="zeros"),
    ),
    "resnet101_imagenet_lps_c8_ddac3": (
        "resnet101",
        "imagenet",
        ts.Sampling("lps", "adapt3", hidden="eighth"),
    ),
}
DEEPLAB = "deeplabv3plus_resnet18_lps_lpf3"


def build(name):
    network, stem, spec = SPECS[name]
    classes = KEYS[name]["core.fc.weight"][0]
    return getattr(ts.models, network)(spec, num_classes=classes, stem=stem)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_of_the_authors_networks(name, dtype):
    golden = GOLDEN[name]
    model = load_authors_checkpoint(build(name), authors_state(name)).eval().to(dtype)
    with torch.no_grad():
        ours = model(golden["input"].to(dtype)).log_softmax(1)
    theirs = golden["output_f32" if dtype == torch.float32 else "output_f64"].to(dtype)
    torch.testing.assert_close(ours, theirs, atol=1e-3 if dtype == torch.float32 else 1e-6, rtol=0)


@pytest.mark.parametrize("name", ["resnet18_cifar_lps", "resnet18_imagenet_lps_lpf2_circular"])
def test_logits_of_the_authors_selectors(name):
    golden = GOLDEN[name]
    model = load_authors_checkpoint(build(name), authors_state(name)).eval().double()
    seen = []
    for module in model.modules():
        if isinstance(module, ts.PolyphaseDown) and module.selector is not None:
            selector = module.selector
            selector.chosen.register_forward_hook(
                lambda _, args, __, selector=selector: seen.append(selector(args[1], args[3]))
            )
    with torch.no_grad():
        model(golden["input"].double())
    assert len(seen) == len(golden["selection_f64"])
    for ours, theirs in zip(seen, golden["selection_f64"], strict=True):
        torch.testing.assert_close(ours, theirs.double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", SPECS)
def test_every_key_of_the_authors_networks_has_a_place(name):
    model = build(name)
    state = {key: torch.full(shape, 0.5) for key, shape in KEYS[name].items()}
    load_authors_checkpoint(model, {"state_dict": state})
    assert all(bool((p == 0.5).all()) for p in model.parameters())


def test_every_key_of_the_authors_deeplab_has_a_place():
    model = ts.models.deeplabv3plus_resnet18(ts.Sampling("lps", "tri3"), num_classes=21)
    state = {key: torch.full(shape, 0.5) for key, shape in KEYS[DEEPLAB].items()}
    load_authors_checkpoint(model, state)
    assert all(bool((p == 0.5).all()) for p in model.parameters())
    assert model.backbone.maxpool_down.antialias is not None


def test_an_imported_network_keeps_the_habit_of_its_authors(tmp_path):
    name = "resnet18_imagenet_lps_lpf3_zeros_convex"
    model = load_authors_checkpoint(build(name), authors_state(name)).eval()
    assert model.maxpool_down.selector.padding_mode == "circular"
    assert model.layer2[0].conv1.padding_mode == "zeros"
    ts.save(model, tmp_path / "net.safetensors")
    again = ts.load(tmp_path / "net.safetensors")
    assert again.maxpool_down.selector.padding_mode == "circular"
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_a_checkpoint_file_is_read_without_unpickling(tmp_path):
    name = "resnet18_cifar_lps_c8_lpf3"
    torch.save({"state_dict": authors_state(name), "epoch": 3}, tmp_path / "last.ckpt")
    model = load_authors_checkpoint(build(name), tmp_path / "last.ckpt")
    assert torch.equal(model.conv1.weight, authors_state(name)["core.conv1.weight"])

    class Evil:
        def __reduce__(self):
            return (print, ("unpickled",))

    torch.save({"state_dict": Evil()}, tmp_path / "evil.ckpt")
    with pytest.raises(Exception, match="weights_only"):
        load_authors_checkpoint(model, tmp_path / "evil.ckpt")


def test_checkpoints_that_do_not_fit_say_why():
    model = build("resnet18_cifar_lps")
    with pytest.raises(ValueError, match=r"does not fit ResNet.*shape \(16, 128, 3, 3\)"):
        load_authors_checkpoint(
            model, _without_filters(authors_state("resnet18_cifar_lps_c8_lpf3"))
        )
    model = ts.models.resnet18(ts.Sampling("stride", "bin5"), num_classes=10, stem="cifar")
    with pytest.raises(ValueError, match=r"has 5 taps, the checkpoint 3"):
        load_authors_checkpoint(model, authors_state("resnet18_cifar_decimation_lpf3"))
    with pytest.raises(FileNotFoundError, match="no weights at nowhere"):
        load_authors_checkpoint(model, "nowhere.pt")
    with pytest.raises(TypeError, match="must be a state dict or a path, got int"):
        load_authors_checkpoint(model, 5)


def _without_filters(state):
    return {key: value for key, value in state.items() if not key.endswith(".filt")}


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("size", [64, 75])
def test_torchvisions_network_is_method_stride(name, size):
    torch.manual_seed(0)
    theirs = import_torchvision().models.get_model(name, weights=None).eval()
    _randomize_norms(theirs)
    spec = ts.Sampling("stride", padding_mode="zeros")
    ours = getattr(ts.models, name)(spec, weights=theirs.state_dict()).eval()
    x = torch.randn(2, 3, size, size + 5, dtype=torch.float64)
    with torch.no_grad():
        ours, theirs = ours.double()(x), theirs.double()(x)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "spec",
    [
        ts.Sampling("lps", "tri3", hidden="eighth"),
        ts.Sampling("aps"),
        ts.Sampling("stride", "adapt3"),
        ts.Sampling("lps", padding_mode="zeros"),
    ],
    ids=str,
)
def test_torchvisions_weights_load_into_every_variant(spec):
    theirs = import_torchvision().models.resnet18(weights=None).state_dict()
    model = ts.models.resnet18(spec, weights=theirs)
    for key, value in theirs.items():
        assert torch.equal(model.state_dict()[key], value), key
    other = ts.models.resnet18(spec, num_classes=7, weights=theirs)
    assert other.fc.out_features == 7
    assert torch.equal(other.layer4[1].conv2.weight, theirs["layer4.1.conv2.weight"])


def test_foreign_weights_are_refused(tmp_path):
    theirs = import_torchvision().models.resnet34(weights=None).state_dict()
    with pytest.raises(ValueError, match="resnet18: the weights does not fit"):
        ts.models.resnet18(ts.Sampling("aps"), weights=theirs)


def _randomize_norms(model):
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.3, 0.3)
            module.running_var.uniform_(0.5, 1.5)
