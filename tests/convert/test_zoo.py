import pytest
import torch
import zoo

from trueshift.convert import convert
from trueshift.shifts import circular_shift

QUICK = [
    "torchvision.resnet18",
    "torchvision.mobilenet_v3_small",
    "timm.tf_efficientnet_b0",
    "smp.Unet",
]


def check(name, select, spec="aps"):
    """Convert (which verifies float64 on 8 shifts) and compare float32 labels bit by bit.

    Four shifts come one by one and four as a batch, which is computed in another layout.
    """
    model, x = zoo.build(name), zoo.example(name)
    new = convert(model, spec, x, select_from=select)
    generator = torch.Generator().manual_seed(3)
    shifts = torch.randint(0, x.shape[-1], (8, 2), generator=generator).tolist()
    with torch.no_grad():
        for part in [*([shift] for shift in shifts[:4]), shifts[4:]]:
            labels = _labels(new(torch.cat([x] * len(part))))
            moved = _labels(new(torch.cat([circular_shift(x, *shift) for shift in part])))
            if labels.ndim > 1:
                pairs = zip(labels.split(len(x)), part, strict=True)
                labels = torch.cat([circular_shift(label, *shift) for label, shift in pairs])
            assert torch.equal(moved, labels), part
    return model, x, new


def check_weights(model, new):
    old, state = model.state_dict(), new.state_dict()
    added = [key for key in state if key not in old]
    assert all(torch.equal(state[key], value) for key, value in old.items())
    assert all(key.startswith("sampling.") for key in added)


def check_phase_0(model, x):
    convert(model, "stride", x, padding="keep")  # raises unless equal to 1e-10 in float64


def _labels(y):
    return (y["out"] if isinstance(y, dict) else y).argmax(1)


@pytest.mark.parametrize("name", QUICK)
def test_quick(name):
    model, _x, new = check(name, "input" if name.startswith("timm") else "output")
    check_weights(model, new)


def test_phase_0_reproduces_a_resnet():
    check_phase_0(zoo.build("torchvision.resnet18"), zoo.example("torchvision.resnet18"))


@pytest.mark.slow
@pytest.mark.parametrize("select", ["output", "input"])
@pytest.mark.parametrize("name", zoo.NAMES)
def test_converts_exactly(name, select):
    model, _, new = check(name, select)
    check_weights(model, new)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.NAMES)
def test_phase_0_with_the_original_padding_reproduces_the_original(name):
    check_phase_0(zoo.build(name), zoo.example(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchvision.vgg11_bn", "torchvision.alexnet"])
def test_flatten_converts_by_an_origin(name):
    model = zoo.build(name)
    x = torch.randn(1, 3, 224 if "alex" in name else 64, 224 if "alex" in name else 64)
    new = convert(model, "aps", x, flatten="canonical")
    with torch.no_grad():
        assert torch.equal(_labels(new(x)), _labels(new(circular_shift(x, 5, 9))))
