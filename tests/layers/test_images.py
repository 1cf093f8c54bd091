"""The convolution that reads images at a soft phase."""

import pytest
import torch

from trueshift.layers.conv import same_conv
from trueshift.layers.images import ImageConv, reads_images
from trueshift.layers.steady import convolve
from trueshift.layers.window import phase_window

CASES = [
    ((3, 2, 12), (3,), 5, 1),
    ((3, 3, 8, 6), (2, 2), 7, 1),
    ((2, 4, 6, 6), (3, 2), 3, 2),
    ((2, 1, 4, 4, 2), (2, 2, 1), 3, 1),
]


def build(shape, stride, kernel, groups, mode="circular", bias=True):
    torch.manual_seed(0)
    conv = same_conv(shape[1], 4, kernel, mode, dim=len(stride), bias=bias, groups=groups).double()
    x = torch.randn(shape, dtype=torch.float64)
    logits = torch.randn(shape[0], torch.tensor(stride).prod(), dtype=torch.float64)
    return conv, x, logits.requires_grad_()


@pytest.mark.parametrize("mode", ["circular", "zeros", "reflect"])
@pytest.mark.parametrize(("shape", "stride", "kernel", "groups"), CASES)
def test_gradients_are_those_of_mixed_windows(shape, stride, kernel, groups, mode):
    if mode == "reflect":
        kernel = 3  # smaller than any image
    conv, x, logits = build(shape, stride, kernel, groups, mode)
    phase = logits.softmax(1)
    y = conv.at(x, phase, stride)
    assert reads_images(x, conv.weight, phase, conv.dilation)
    assert not reads_images(x, conv.weight, phase.detach(), conv.dilation)
    mixed = phase_window(x, phase, stride, conv.widths, mode)
    plain = convolve(mixed, conv.weight, conv.bias, stride, 0, groups)
    torch.testing.assert_close(y, plain)
    weights = torch.randn_like(y)
    sources = (conv.weight, conv.bias, logits)
    grads = [torch.autograd.grad(out, sources, weights, retain_graph=True) for out in (y, plain)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_no_gradient_of_images_is_computed_on_the_way():
    conv, x, logits = build((3, 3, 8, 6), (2, 2), 7, 1, bias=False)
    y = conv.at(x, logits.softmax(1), 2)
    assert "ImageConv" in type(y.grad_fn).__name__
    y = conv.at(x.requires_grad_(), logits.softmax(1), 2)
    assert "ImageConv" not in type(y.grad_fn).__name__


def test_second_derivatives():
    conv, x, logits = build((2, 3, 6, 4), (2, 2), 3, 1)

    def at(weight, phase):
        padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
        return ImageConv.apply(padded, weight, phase, (2, 2), 1)

    inputs = (conv.weight.detach().requires_grad_(), logits)
    assert torch.autograd.gradcheck(at, inputs)
    assert torch.autograd.gradgradcheck(at, inputs)
