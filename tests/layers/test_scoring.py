"""What learned selectors compute while training."""

import pytest
import torch

from trueshift import _chunks
from trueshift.layers import selectors
from trueshift.layers.scoring import ComponentMeans
from trueshift.layers.selectors import ConvSelector

CASES = [
    ((3, 2, 12), (3,)),
    ((3, 2, 8, 6), (2, 2)),
    ((2, 2, 6, 4), (3, 2)),
    ((2, 2, 4, 4, 2), (2, 2, 1)),
]


@pytest.mark.parametrize(("shape", "stride"), CASES)
@pytest.mark.parametrize("last", [False, True])
def test_logits_and_gradients_are_those_of_the_components(monkeypatch, shape, stride, last):
    torch.manual_seed(0)
    selector = ConvSelector(2, 5, dim=len(stride)).double().train()
    x = torch.randn(shape, dtype=torch.float64)
    if last and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    monkeypatch.setattr(_chunks, "_CHUNK_ELEMENTS", 2 * 5 * x[0, 0].numel())
    found, calls = selector(x, stride), []
    apply = ComponentMeans.apply
    monkeypatch.setattr(ComponentMeans, "apply", lambda *args: calls.append(1) or apply(*args))
    torch.testing.assert_close(selector(x, stride), found)
    assert calls
    monkeypatch.setattr(selectors, "by_hand", lambda *tensors: False)
    expected = selector(x, stride)
    torch.testing.assert_close(found, expected)
    sources = (x, *selector.parameters())
    weights = torch.randn_like(found)
    grads = [torch.autograd.grad(y, sources, weights) for y in (found, expected)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_second_derivatives():
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(2, 3, 3).double()
    x = torch.randn(2, 2, 4, 6, dtype=torch.float64, requires_grad=True)

    def means(*tensors):
        return ComponentMeans.apply(*tensors, (2, 2))[0]

    inputs = (x, conv.weight.detach().requires_grad_(), conv.bias.detach().requires_grad_())
    assert torch.autograd.gradcheck(means, inputs)
    assert torch.autograd.gradgradcheck(means, inputs)


def test_little_is_kept_for_the_backward_pass():
    selector = ConvSelector(64, 8).train()
    x = torch.randn(4, 64, 32, 32, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        selector(x)
    others = {t.data_ptr(): t.nbytes for t in kept if t.data_ptr() != x.data_ptr()}
    assert sum(others.values()) < x.nbytes / 16


def test_functional_gradients_are_the_same():
    selector = ConvSelector(3, 4).train()
    x = torch.randn(2, 3, 4, 6)
    parameters = dict(selector.named_parameters())

    def score(parameters):
        return torch.func.functional_call(selector, parameters, (x,))[:, 0].sum()

    found = torch.func.grad(score)(parameters)
    score(parameters).backward()
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[name], parameter.grad)


def test_frozen_selectors_still_pass_a_gradient_on():
    selector = ConvSelector(3, 4).train()
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    selector(x)[:, 0].sum().backward()
    expected, x.grad = x.grad, None
    frozen = ConvSelector(3, 4).train().requires_grad_(False)
    frozen.load_state_dict(selector.state_dict())
    frozen(x)[:, 0].sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert frozen.conv1.weight.grad is None


def test_going_back_within_autocast_keeps_full_precision():
    selector = ConvSelector(3, 4).train()
    x = torch.randn(2, 3, 4, 6, requires_grad=True)
    sources = (x, selector.conv1.weight)
    expected = torch.autograd.grad(selector(x)[:, 0].sum(), sources)
    logits = selector(x)[:, 0].sum()
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(logits, sources)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
