import copy
import io
import pickle

import pytest
import torch
from networks import trained
from torch import nn
from torch.nn import functional as F
from user_nets import NETS, FunctionalUnet, JumpUnet, Residual, SamePadding, fit, image

from trueshift.convert import convert
from trueshift.convert.parts.phases import Recipe, Unshift
from trueshift.layers.selectors import set_tau
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

X = image(4, 3, 32, 16)


class WithAux(nn.Module):
    """A head that only training uses, a buffer, a plain tensor and a constant in the code."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 2, 1)
        self.aux, self.head = nn.Linear(8, 3), nn.Linear(8, 3)
        self.register_buffer("scale", torch.full((8, 1, 1), 2.0))
        self.offset = torch.full((1, 8, 1, 1), 0.5)

    def forward(self, x):
        y = (self.body(x) * self.scale + self.offset + torch.ones(8, 1, 1)).mean((2, 3))
        return (self.head(y), self.aux(y)) if self.training else self.head(y)


def test_weights_and_names_are_kept_and_new_ones_have_one_prefix():
    model = trained(WithAux())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    new = convert(model, "lps", X)
    state = new.state_dict()
    assert list(state)[: len(before)] == list(before)
    assert all(torch.equal(state[key], value) for key, value in before.items())
    added = list(state)[len(before) :]
    assert added
    assert all(key.startswith("sampling.") for key in added)
    assert {"aux.weight", "scale"} <= set(state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())  # untouched
    new.load_state_dict(model.state_dict() | {key: state[key] for key in added})


def test_the_weights_are_copies_and_in_use():
    model = trained(Residual())
    new = convert(model, "aps", X)
    y = new(X)
    model.stem.weight.data.zero_()
    assert torch.equal(new(X), y)
    new.get_submodule("stem").weight.data.mul_(2)
    assert not torch.equal(new(X), y)


@pytest.mark.parametrize("name", ["residual", "jump unet", "pyramid"])
def test_copies_and_pickles_compute_the_same(name):
    make, example = NETS[name]
    new = convert(trained(make()), "lps", example, verify=False).eval()
    y = new(*example)
    assert torch.equal(copy.deepcopy(new)(*example), y)
    assert torch.equal(pickle.loads(pickle.dumps(new))(*example), y)
    file = io.BytesIO()
    torch.save(new.state_dict(), file)
    file.seek(0)
    other = convert(trained(make(), seed=1), "lps", example, verify=False)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(*example), y)


class InPlace(Residual):
    def forward(self, x):
        return super().forward(x.mul_(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_changes_its_input_leaves_the_example_alone(dtype):
    model, x = trained(InPlace()).to(dtype), X.to(dtype)
    example = x.clone()
    new = convert(model, "aps", example)
    convert(model, "stride", example, padding="keep")
    assert torch.equal(example, x)
    torch.testing.assert_close(new(x.clone()), new(circular_shift(x, 3, 5)))


def test_converts_inside_inference_mode_to_a_network_that_trains():
    model = trained(Residual())
    with torch.inference_mode():
        new = convert(model, "aps", X.clone())
    new.train()(X).sum().backward()
    assert all(parameter.grad is not None for parameter in new.parameters())


def test_modes_types_and_devices():
    new = convert(trained(WithAux()), "lps", X)
    assert not new.training
    assert not new.get_submodule("sampling").training
    new.train()
    assert all(module.training for module in new.modules())
    wide = copy.deepcopy(new).eval().double()
    assert wide(X.double()).dtype == torch.float64
    assert new.to("meta").get_submodule("body").weight.is_meta
    assert new.offset.is_meta


def test_a_training_model_stays_in_training_mode():
    model = Residual().train()
    new = convert(model, "aps", X)
    assert model.training
    assert new.training
    assert not new.eval().training


@pytest.mark.parametrize("select", ["output", "input"])
@pytest.mark.parametrize("make", [Residual, FunctionalUnet, JumpUnet])
def test_soft_phases_train_every_selector(make, select):
    new = convert(make(), Sampling("lps", hidden=4), X, select_from=select).train()
    new(X).square().mean().backward()
    names = [name for name, _ in new.named_parameters() if "selector" in name]
    assert names
    for name, parameter in new.named_parameters():
        if "selector" in name and "conv2.bias" not in name:  # the same for all phases
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_fine_tuning_lowers_the_loss_and_moves_the_selectors():
    new = convert(Residual(), Sampling("lps", hidden=4), X)
    labels = torch.arange(4)
    losses, unchanged = fit(new, lambda net: F.cross_entropy(net(X), labels), steps=25)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert all(name.endswith("conv2.bias") for name in unchanged)  # the same for all phases
    with torch.no_grad():
        assert torch.equal(new(X), new(circular_shift(X, 3, 5)))


@pytest.mark.parametrize("select_from", ["input", "output"])
def test_training_with_random_phases_draws_them_and_stays_exact_at_test_time(select_from):
    spec = Sampling("aps", "tri3", select_from=select_from, train_rule="random")
    new = convert(Residual(), spec, X).train()
    torch.manual_seed(0)
    first, second = new(X), new(X)
    assert not torch.allclose(first, second)
    labels = torch.arange(4)
    _, unchanged = fit(new, lambda net: F.cross_entropy(net(X), labels), steps=2)
    assert not unchanged
    with torch.no_grad():
        assert torch.equal(new.eval()(X), new(circular_shift(X, 3, 5)))


@pytest.mark.parametrize("name", ["residual", "jump unet", "volume", "focus"])
def test_a_soft_phase_near_one_hot_is_the_hard_one(name):
    make, example = NETS[name]
    spec = Sampling("lps", hidden=4, train_rule="softmax")
    new = convert(trained(make()), spec, example, verify=False)
    new.double()
    for module in new.modules():
        if hasattr(module, "conv2") and hasattr(module, "tau"):  # distinguish phases well
            module.conv2.weight.data.mul_(50)
    example = [x.double() for x in example]
    set_tau(new, 1e-9)
    with torch.no_grad():
        hard = new.eval()(*example)
        for module in new.modules():
            module.training = type(module).__name__ == "ConvSelector"
        soft = new(*example)
    torch.testing.assert_close(soft, hard, rtol=1e-6, atol=1e-6)


def test_dropout_in_the_code_is_active_while_training():
    new = convert(SamePadding(), "aps", X).train()
    assert (new(X) == 0).any()
    assert not torch.equal(new(X), new(X))
    assert torch.equal(new.eval()(X), new(X))


def test_a_soft_phase_spreads_an_up_sampled_map():
    terms = (((0, 0, 1, 2, 1),), ((0, 1, 1, 2, 1),))
    unshift = Unshift(Recipe((0,), ((2, 2),), terms))
    x = image(1, 2, 4, 6)
    phase = torch.tensor([[0.5, 0.0, 0.0, 0.5]], requires_grad=True)
    y = unshift(x, phase)
    torch.testing.assert_close(y, (x + circular_shift(x, 1, 1)) / 2)
    y.square().sum().backward()
    assert (phase.grad != 0).all()
    assert torch.equal(unshift(x, torch.tensor([3])), circular_shift(x, 1, 1))
