import pytest
import torch
from lightning.pytorch import Trainer

import trueshift as ts
from trueshift.data import Flows, Shapes
from trueshift.training import AuditTested, Classifier, Emulator, Segmenter, tested

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")


def run_test(module, flows=None, **data):
    callback = AuditTested()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    options = {"batch_size": 3, "num_train": 1, "num_val": 1, "num_test": 7, **data}
    trainer.test(module, datamodule=flows or Shapes(**options), verbose=False)
    return callback.result


def classifier(padding_mode="circular", **options):
    return Classifier(
        network="resnet",
        network_options={"depths": (1, 1), "widths": (4, 8), "stem": "cifar"},
        spec=ts.Sampling("lps", padding_mode=padding_mode, hidden=2),
        num_classes=10,
        max_shift=4,
        **options,
    )


def test_an_emulator_has_no_images_to_audit(tmp_path, capsys):
    module = Emulator(
        network="unet",
        network_options={"widths": (4, 8), "in_channels": 1},
        spec=ts.Sampling("lps", dim=1),
        num_classes=1,
        exact_steps=2,
    )
    few = {"num_train": 1, "num_val": 1, "num_test": 1, "num_states": 2, "num_test_states": 3}
    assert run_test(module, Flows("burgers", root=str(tmp_path), **few)) is None
    assert "audit" not in capsys.readouterr().err


def test_a_segmenter_is_audited_as_the_test_saw_it():
    module = Segmenter(
        network="unet",
        network_options={"widths": (4, 8), "in_channels": 3},
        spec=ts.Sampling("lps"),
        num_classes=11,
        max_shift=2,
    )
    result = run_test(module, size=9, masks=True)
    assert (result.name, result.task) == ("unet, lps", "segmentation")
    assert result.bitwise_equal
    assert result.images_from == "7 of the test images of Shapes"
    assert (result.num_images, result.image_shape) == (7, (3, 10, 10))  # extended
    assert result.examples
    assert result.choices


@pytest.mark.parametrize(
    ("padding_mode", "kind", "shape"),
    [("circular", "circular", (3, 8, 8)), ("zeros", "standard", (3, 12, 12))],
)
def test_the_window_is_that_of_the_test(padding_mode, kind, shape):
    result = run_test(classifier(padding_mode, crop_size=8), size=12)
    (measured,) = result.measurements
    assert (measured.kind, measured.window) == (kind, (8, 8))
    assert (result.num_images, result.image_shape) == (7, shape)


def test_why_there_is_no_audit_is_said(monkeypatch, capsys):
    def fail(*args, **options):
        raise MemoryError("audit: no memory.")

    monkeypatch.setattr(tested, "audit", fail)
    assert run_test(classifier(), size=8) is None
    assert "no audit: audit: no memory." in capsys.readouterr().err


@pytest.mark.parametrize(("num_batches", "batch"), [(1, 100), (3, 8), (16, 4), (500, 4), (2, 3)])
def test_images_are_spread_over_the_data(num_batches, batch):
    kept = []
    for index in range(num_batches):
        images = torch.arange(batch) + index * batch
        kept += tested._some((images, images), index, num_batches)
    places = [int(image) for image, _ in kept]
    assert len(set(places)) == len(places)
    assert min(16, num_batches * batch) <= len(places) < 32
    assert places[0] == 0
    assert places[-1] >= num_batches * batch * 0.75


def test_images_of_several_sizes_give_those_of_the_commonest():
    items = [(torch.zeros(3, size, 8), torch.tensor(k)) for k, size in enumerate((8, 4, 8))]
    images, targets = tested._of_one_size(items)
    assert images.shape == (2, 3, 8, 8)
    assert targets.tolist() == [0, 2]
    with pytest.raises(ValueError, match="no images"):
        tested._of_one_size([])


def test_larger_images_are_fewer():
    pairs = [
        num * shifts for num, shifts in (tested.budget(side * side) for side in (8, 64, 300, 2000))
    ]
    assert pairs == sorted(pairs, reverse=True)
    assert pairs[0] <= 1024
    assert pairs[-1] == 32
