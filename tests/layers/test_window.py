import pytest
import torch

import trueshift._adjoint as adjoint
from trueshift._adjoint import picking
from trueshift.layers.window import phase_window
from trueshift.padding import pad

CASES = [
    ((3, 2, 12), (3,), ((1, 2),)),
    ((4, 3, 6, 8), (2, 2), ((1, 1), (1, 1))),
    ((4, 3, 6, 8), (2, 4), ((0, 3), (2, 0))),
    ((2, 2, 4, 4), (2, 2), ((9, 9), (5, 6))),  # wraps more than once
    ((2, 2, 4, 6, 2), (2, 3, 1), ((1, 1), (0, 0), (1, 1))),
]


def one_by_one(x, phase, stride, widths):
    padded = pad(x, widths, "circular")
    parts = []
    for image, place in zip(padded, phase.tolist(), strict=True):
        offsets = adjoint.phase_offsets(place, stride)
        ends = [o + n - s + 1 for o, n, s in zip(offsets, image.shape[1:], stride, strict=True)]
        window = (slice(None), *(slice(o, e) for o, e in zip(offsets, ends, strict=True)))
        parts.append(image[window])
    return torch.stack(parts)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("elements", [0, 2**40], ids=["copies", "gather"])
@pytest.mark.parametrize(("shape", "stride", "widths"), CASES)
def test_cuts_the_window_of_every_phase(shape, stride, widths, elements, last, monkeypatch):
    monkeypatch.setattr(adjoint.image_by_image, "__defaults__", (elements,))
    x = torch.randn(shape)
    if last and x.ndim > 3:
        x = x.contiguous(memory_format=adjoint.last_format(x.ndim))
    num_phases = torch.tensor(stride).prod().item()
    phase = torch.arange(shape[0]) * 5 % num_phases
    found = phase_window(x, phase, stride, widths, "circular")
    assert torch.equal(found, one_by_one(x, phase, stride, widths))
    assert adjoint.channels_last(found) == adjoint.channels_last(x)


@pytest.mark.parametrize("elements", [0, 2**40], ids=["copies", "gather"])
def test_keeps_components_by_copies_and_by_a_gather(elements, monkeypatch):
    monkeypatch.setattr(picking, "_PICK_ELEMENTS", elements)
    x = torch.randn(5, 3, 6, 4).contiguous(memory_format=torch.channels_last)
    phase = torch.tensor([0, 3, 1, 2, 3])
    found = adjoint.HardDown.apply(x, phase, (2, 2))
    for image, kept, place in zip(x, found, phase.tolist(), strict=True):
        assert torch.equal(kept, image[:, place // 2 :: 2, place % 2 :: 2])


def test_gradients_flow_through_windows_of_large_images(monkeypatch):
    monkeypatch.setattr(adjoint.image_by_image, "__defaults__", (0,))
    x = torch.randn(2, 1, 4, 4, requires_grad=True)
    phase_window(x, torch.tensor([0, 3]), (2, 2), ((1, 1), (1, 1)), "circular").sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == 2 * 5 * 5
