import math

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.training import MultiStep, OneCycle, Poly, parameter_groups
from trueshift.training.optim import Muon, orthogonal, rate_factor


def test_everything_decays_but_the_selectors():
    spec = ts.Sampling("lps", "adapt3", hidden=2)
    network = ts.models.resnet(spec, (1, 1), (8, 16), num_classes=2, stem="cifar")
    decayed, exempt = parameter_groups(network, 1e-4)
    names = {id(p): name for name, p in network.named_parameters()}
    assert decayed["weight_decay"] == 1e-4
    assert exempt["weight_decay"] == 0
    assert {names[id(p)].split(".selector.")[1] for p in exempt["params"]} == {
        "conv1.weight",
        "conv1.bias",
        "conv2.weight",
        "conv2.bias",
    }
    assert any("antialias" in names[id(p)] for p in decayed["params"])  # DDAC decays
    assert any("bn1" in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(exempt["params"]) == len(names)


def test_no_second_group_without_selectors():
    assert len(parameter_groups(nn.Linear(2, 2), 0.1)) == 1


def test_frozen_parameters_are_left_out():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    assert parameter_groups(layer, 0.1)[0]["params"] == [layer.weight]


def test_multi_step_is_torchs():
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    theirs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5], 0.1)
    for epoch in range(7):
        assert MultiStep((3, 5))(epoch, 7) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_poly_and_one_cycle():
    assert [Poly(0.9)(e, 10) for e in (0, 10, 11)] == [1, 0, 0]
    assert Poly(0.9)(5, 10) == pytest.approx(0.5**0.9)
    triangle = OneCycle(0.25)
    assert [triangle(e, 8) for e in (0, 1, 2, 5, 8)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert OneCycle(0.5, "cosine")(1, 4) == pytest.approx((1 - math.cos(math.pi / 2)) / 2)


def test_warmup_rises_step_by_step_to_the_full_rate():
    factor = rate_factor(MultiStep((30, 60)), 5, steps_per_epoch=10, epochs=90)
    assert [factor(step) for step in (0, 24, 49, 50)] == pytest.approx([0.02, 0.5, 1, 1])
    assert factor(300) == pytest.approx(0.1)
    assert rate_factor(None, 0, 10, 1)(7) == 1


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: MultiStep((5, 3)), "increase"),
        (lambda: OneCycle(1.0), "peak"),
        (lambda: OneCycle(0.5, "square"), "shape"),
    ],
)
def test_wrong_schedules(build, match):
    with pytest.raises(ValueError, match=match):
        build()


def test_orthogonal_brings_singular_values_near_one():
    generator = torch.Generator().manual_seed(0)
    for shape in ((24, 60), (60, 24)):
        matrix = torch.randn(shape, generator=generator)
        values = torch.linalg.svdvals(orthogonal(matrix))
        assert values.shape == (24,)
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3
        cosine = torch.cosine_similarity(orthogonal(matrix).flatten(), matrix.flatten(), 0)
        assert cosine > 0.8  # same singular vectors, flatter values


def _muon(network, **options):
    options = {"lr": 0.1, "momentum": 0.6, "adam_lr": 0.01, **options}
    return Muon(parameter_groups(network, 0.0), **options)


def test_muon_trains_filters_and_leaves_the_rest_to_adam():
    torch.manual_seed(0)
    network = ts.models.resnet9(ts.Sampling("lps", hidden=2), 3, stem=4, widths=(4, 6, 8))
    optimizer = _muon(network)
    names = {id(p): name for name, p in network.named_parameters()}
    filters, body, selectors = ([names[id(p)] for p in g["params"]] for g in optimizer.param_groups)
    assert all(name.endswith("conv.weight") for name in filters)
    assert "fc.weight" in body
    assert "stem.norm.bias" in body
    assert all(".selector." in name for name in selectors)
    assert len(filters) + len(body) + len(selectors) == len(names)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    network(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    for name, parameter in network.named_parameters():
        assert not torch.equal(before[name], parameter), name
        if name in filters:  # rows of norm 1 in the mean, then a step of singular values near lr
            start = before[name] * len(parameter) ** 0.5 / before[name].norm()
            largest = torch.linalg.matrix_norm((parameter.detach() - start).flatten(1), 2)
            assert 0.05 < float(largest) < 0.13, name
        elif name == "fc.bias":  # the first step of Adam has the size of its rate
            torch.testing.assert_close((parameter - before[name]).abs(), torch.full((3,), 0.01))


def test_muon_resumes_and_lowers_a_loss():
    torch.manual_seed(0)
    x, layer = torch.randn(64, 4, 6), nn.Conv1d(4, 4, 3)
    target = nn.Conv1d(4, 4, 3, bias=False)(x).detach()
    optimizer, losses = _muon(layer), []
    for step in range(60):
        if step == 30:  # a second optimizer goes on where the first one stopped
            state, optimizer = optimizer.state_dict(), _muon(layer)
            optimizer.load_state_dict(state)
            assert optimizer.state[layer.weight]["mean"].abs().sum() > 0
        optimizer.zero_grad()
        y = layer(x)
        loss = (y / y.norm() - target / target.norm()).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_muon_calls_a_closure_with_gradients():
    layer = nn.Conv1d(2, 2, 3)

    def closure():
        loss = layer(torch.ones(1, 2, 4)).sum()
        loss.backward()
        return loss

    assert _muon(layer).step(closure).requires_grad
