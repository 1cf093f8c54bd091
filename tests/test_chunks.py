"""Working on a few images at a time changes nothing but the memory that is needed."""

import pytest
import torch

from trueshift import Sampling
from trueshift import _chunks as chunks
from trueshift._chunks import by_chunks, by_chunks_twice
from trueshift.layers.resample import LPU
from trueshift.models import resnet


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 100)


@pytest.mark.usefixtures("small_chunks")
def test_images_are_taken_in_turn_and_results_joined():
    seen = []

    def double(x, y):
        seen.append(len(x))
        return 2 * x, x + y

    x, y = torch.randn(7, 5, 10), torch.randn(7, 1, 1)
    with torch.no_grad():
        first, second = by_chunks(double, x, y)
    assert seen == [2, 2, 2, 1]
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, x + y)


@pytest.mark.usefixtures("small_chunks")
def test_all_at_once_where_a_backward_pass_may_follow():
    seen = []
    by_chunks(lambda x: seen.append(len(x)) or x, torch.randn(7, 50))
    assert seen == [7]


@pytest.mark.parametrize("select", ["input", "output"])
@pytest.mark.parametrize("antialias", [None, "tri3"])
def test_a_network_gives_the_same_bits_in_chunks(monkeypatch, select, antialias):
    spec = Sampling("lps", antialias, hidden=4, select=select)
    model = resnet(spec, (1, 1), (8, 16), num_classes=3).eval()
    x = torch.randn(5, 3, 32, 32)
    with torch.inference_mode():
        whole = model(x)
        monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 2 * 8 * 32 * 32)
        assert torch.equal(model(x), whole)
        assert torch.equal(model(x.roll((3, 6), (2, 3))), whole)


@pytest.mark.parametrize("name", ["conv1", "bn1", "conv1_down", "maxpool_down"])
def test_hooks_see_the_whole_batch(monkeypatch, name):
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 100)
    model = resnet(Sampling("aps"), (1, 1), (8, 16), num_classes=3).eval()
    seen = []
    model.get_submodule(name).register_forward_hook(lambda *args: seen.append(len(args[1][0])))
    with torch.inference_mode():
        model(torch.randn(5, 3, 32, 32))
    assert seen == [5]


def test_batch_norms_in_training_see_the_whole_batch(monkeypatch):
    model = resnet(Sampling("aps"), (1, 1), (8, 16), num_classes=3).train()
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        whole = model(x)
        monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 100)
        assert torch.equal(model(x), whole)


def test_parts_are_made_again_for_the_backward_pass(monkeypatch):
    seen = []

    def mix(x, weight):
        seen.append(len(x))
        return (x.exp() * weight).sin()

    x = torch.randn(7, 5, 10, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 1, 1, dtype=torch.float64, requires_grad=True)
    whole = mix(x, weight)
    expected = torch.autograd.grad(whole.square().sum(), (x, weight))
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 100)
    seen.clear()
    y = by_chunks_twice(mix, x, weight)
    assert seen == [2, 2, 2, 1]
    assert torch.equal(y, whole)
    found = torch.autograd.grad(y.square().sum(), (x, weight))
    assert sorted(seen) == [1, 1, 2, 2, 2, 2, 2, 2]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradgradcheck(
        lambda x, weight: by_chunks_twice(mix, x, weight), (x[:3], weight[:3])
    )


@pytest.mark.parametrize("spec", [Sampling("stride", "tri3"), Sampling("lps", "tri3", hidden=4)])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_network_learns_the_same_in_chunks(monkeypatch, spec, autocast):
    dtype = torch.float32 if autocast else torch.float64  # selectors' gradients nearly cancel
    model = resnet(spec.replace(select="input"), (1, 1), (8, 16), num_classes=3).to(dtype)
    x = torch.randn(5, 3, 32, 32, dtype=dtype)

    def gradients():
        torch.manual_seed(1)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(x).float().square().sum()
        loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    whole = gradients()
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 2 * 8 * 16 * 16)
    for name, found in gradients().items():
        scale = whole[name].abs().max().item()
        if name.endswith("selector.conv2.bias"):  # the same for all logits: only rounding is left
            scale = whole[name.replace("bias", "weight")].abs().max().item()
        atol = (2e-2 if autocast else 1e-5) * scale
        torch.testing.assert_close(found, whole[name], rtol=0, atol=atol)


def test_hooks_see_the_whole_batch_in_training(monkeypatch):
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 100)
    model = resnet(Sampling("stride", "tri3"), (1, 1), (8, 16), num_classes=3)
    seen = []
    model.maxpool_down.register_forward_hook(lambda *args: seen.append(len(args[1][0])))
    model(torch.randn(5, 3, 32, 32))
    assert seen == [5]


@pytest.mark.parametrize("soft", [False, True])
def test_up_sampling_keeps_only_its_input_in_training(monkeypatch, soft):
    up = LPU(3, antialias="tri3").train()
    y = torch.randn(4, 3, 4, 6, requires_grad=True)
    phase = torch.randn(4, 4).softmax(1).requires_grad_() if soft else torch.arange(4)
    sources = (y, phase) if soft else (y,)
    whole = up(y, phase)
    weights = torch.randn_like(whole)
    expected = torch.autograd.grad(whole, sources, weights)
    monkeypatch.setattr(chunks, "_CHUNK_ELEMENTS", 3 * 3 * 8 * 12)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = up(y, phase)
    assert max([t.numel() for t in kept], default=0) <= y.numel()
    torch.testing.assert_close(found, whole)
    for one, other in zip(torch.autograd.grad(found, sources, weights), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.func.grad(lambda y: (up(y, phase) * weights).sum())(y).shape == y.shape
