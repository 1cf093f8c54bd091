import pytest
import torch

from trueshift import Sampling, _eager
from trueshift._eager import (
    faster_layout,
    faster_map_layout,
    in_layout_of,
    only_result,
    usual_layout,
)
from trueshift.models import deeplabv3plus_resnet18, resnet9, unet

LAST = torch.channels_last


def test_only_result():
    assert not only_result()
    with torch.no_grad():
        assert only_result()


@torch.no_grad()
def test_batches_of_images_take_the_faster_layout():
    assert faster_layout(torch.randn(4, 3, 8, 8)).is_contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    "shape", [(1, 3, 8, 8), (3, 3, 8, 8), (4, 3, 8), (4, 3, 4, 4, 4), (0, 3, 8, 8)]
)
@torch.no_grad()
def test_other_inputs_stay_as_they_are(shape):
    x = torch.randn(shape)
    assert faster_layout(x) is x


@pytest.mark.parametrize("layout", [faster_layout, faster_map_layout, usual_layout])
def test_training_stays_as_it_is(layout):
    x = torch.randn(4, 3, 8, 8)
    last = x.contiguous(memory_format=LAST)
    assert layout(x) is x
    assert layout(last).is_contiguous()  # eval mode, with gradients
    assert layout(last, training=True) is last
    assert in_layout_of(x, last, training=True) is last


def test_a_classifier_uses_it_at_test_time_only():
    seen = []
    model = resnet9(Sampling("lps")).eval()
    model.stem.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = torch.randn(4, 3, 16, 16)
    recorded = model(x)
    with torch.no_grad():
        found, asked = model(x), model(x.contiguous(memory_format=LAST))
    assert [images.is_contiguous() for images in seen] == [True, False, False]
    assert torch.equal(found, asked)
    torch.testing.assert_close(found, recorded.detach())


@pytest.mark.parametrize("batch", [1, 5])
@torch.no_grad()
def test_large_images_take_it_in_any_batch_where_a_map_is_wanted(batch):
    x = torch.randn(batch, 3, 256, 128)
    faster = faster_map_layout(x)
    assert faster.is_contiguous(memory_format=LAST)
    assert in_layout_of(x, faster).is_contiguous()
    assert faster_map_layout(faster) is faster
    assert in_layout_of(faster, faster) is faster
    assert in_layout_of(faster, x).is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("shape", [(4, 3, 64, 64), (4, 3, 2**16), (1, 3, 4, 128, 128)])
@torch.no_grad()
def test_other_maps_stay_as_they_are(shape):
    x = torch.randn(shape)
    assert faster_map_layout(x) is x
    assert in_layout_of(x, x) is x


NARROW = {"widths": (8, 8, 8, 8)}
SEGMENTERS = {
    "deeplab": lambda spec: deeplabv3plus_resnet18(spec, 3, decoder_width=16, **NARROW),
    "unet": lambda spec: unet(spec, 3, 3, widths=(4, 8, 8)),
}


@pytest.mark.parametrize("name", SEGMENTERS)
@pytest.mark.parametrize("method", ["stride", "lps"])
def test_maps_of_large_images_are_the_same_in_every_batch(monkeypatch, name, method):
    monkeypatch.setattr(_eager, "_LARGE_IMAGE", 32 * 64)
    torch.manual_seed(0)
    seen, model = [], SEGMENTERS[name](Sampling(method, "tri3", select="input")).eval()
    *_, head = (m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    head.register_forward_pre_hook(lambda _, args: seen.append(args[0].is_contiguous()))
    x = torch.randn(6, 3, 32, 64)
    recorded = model(x)
    with torch.no_grad():
        found = model(x)
        assert found.is_contiguous()
        assert all(torch.equal(model(x[i : i + 1])[0], found[i]) for i in range(6))
        assert torch.equal(model(x.contiguous(memory_format=LAST)), found)
        if method == "lps":
            assert torch.equal(model(x.roll((3, 5), (2, 3))), found.roll((3, 5), (2, 3)))
    assert seen[0]
    assert not any(seen[1:])
    torch.testing.assert_close(found, recorded.detach(), atol=1e-4, rtol=1e-4)


NETWORKS = {
    **SEGMENTERS,
    "resnet9": lambda spec: resnet9(spec, 4),
    "grayscale": lambda spec: unet(spec, 1, 3, widths=(4, 8, 8)),
    "without padding": lambda spec: unet(
        spec.replace(padding_mode="zeros"), 1, 3, widths=(4, 8, 8)
    ),
    "volumes": lambda spec: unet(spec.replace(dim=3), 2, 3, widths=(4, 8)),
}
SHAPES = {"grayscale": (1, 32, 32), "without padding": (1, 32, 32), "volumes": (2, 8, 4, 8)}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_the_layout_of_images_changes_no_bit(monkeypatch, name, batch, grad, large):
    if large:
        monkeypatch.setattr(_eager, "_LARGE_IMAGE", 32 * 32)
    torch.manual_seed(0)
    model = NETWORKS[name](Sampling("lps", "bin5")).eval()
    x = torch.randn(batch, *SHAPES.get(name, (3, 32, 32)))
    axes = tuple(range(2, x.ndim))
    by = (1,) + (0,) * (len(axes) - 1)  # torch.roll by nothing forgets the layout
    last = x.movedim(1, -1).contiguous().movedim(-1, 1)  # in one channel, by its strides alone
    with torch.set_grad_enabled(grad):
        found, asked, moved = model(x), model(last), model(last.roll(by, axes))
        maps, same = (([f.x for f in model.features(image)]) for image in (x, last))
    assert torch.equal(found, asked)
    assert all(torch.equal(one, other) for one, other in zip(maps, same, strict=True))
    if found.ndim > 2 and x.shape[1] > 1:
        assert not asked.is_contiguous()
        assert asked.stride(1) == 1
    if found.ndim > 2:
        moved = moved.roll([-n for n in by], axes)
    if name != "without padding":
        assert torch.equal(moved, found)
