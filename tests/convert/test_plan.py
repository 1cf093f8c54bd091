"""A plan is what rewriting consumes: plan() builds nothing, rewrite() does only what it says."""

import copy
import dataclasses
import pickle

import pytest
import torch
from networks import trained
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from user_nets import NETS, FunctionalUnet, Residual, image

from trueshift.convert import ConversionError, convert, plan, rewrite
from trueshift.convert.build.rewrite import Rewriter
from trueshift.convert.parts.choices import Lead
from trueshift.convert.parts.part import Part
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

X = image(4, 3, 32, 16)


class Remembers(nn.Module):
    """Changes itself whenever it runs."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        self.latest = self.conv(x) * torch.full((4, 1, 1), 2.0)
        return self.latest.mean((2, 3))


@pytest.mark.parametrize("make", [Residual, FunctionalUnet, Remembers])
def test_plan_builds_nothing(make, monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("plan() builds something")

    def own(module):  # a Sampling checks its norm by making a selector
        assert not type(module).__module__.startswith("trueshift.convert")
        original(module)

    original, model = nn.Module.__init__, make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = [set(vars(module)) for module in model.modules()]
    for spec in ("stride", "aps", Sampling("lps", "tri3")):
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "__init__", own)
            patch.setattr(copy, "deepcopy", forbidden)
            patch.setattr(Part, "build", forbidden)
            patch.setattr(Rewriter, "__init__", forbidden)
            planned = plan(model, X, spec)
        assert planned.converts
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert all(module.training for module in model.modules())


def test_plans_are_readable():
    planned = plan(trained(Residual()), X, "aps")
    roles = {site.name: (site.role, site.stride, site.detail) for site in planned.sites}
    assert roles["stem"] == ("leads", (2, 2), "")
    assert roles["block1.conv1"] == ("leads", (2, 2), "")
    assert roles["block1.short"] == ("follows", (2, 2), "block1_conv1")
    assert roles["block1.conv2"] == ("padding", (), "")
    assert planned.required_multiple == 16
    shown = str(planned)
    assert "block1.short" in shown
    assert "follows" in shown
    assert "FLOPs on the example" in shown


def test_plans_of_segmenters_name_what_is_undone():
    planned = plan(trained(FunctionalUnet("bilinear", True)), X)
    ups = [site for site in planned.sites if site.role == "up"]
    assert len(ups) == 2
    assert all("undoes" in site.detail and "align_corners" in site.detail for site in ups)


def test_plans_collect_refusals():
    planned = plan(nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten()), X)
    assert not planned.converts
    assert "refused: 1 (Flatten)" in str(planned)
    with pytest.raises(ConversionError, match="flatten"):
        rewrite(planned)


@pytest.mark.parametrize("spec", [Sampling("aps"), Sampling("lps"), Sampling(select_from="input")])
def test_flops_are_those_of_the_network(spec):
    new = rewrite(plan(trained(Residual()), X, spec))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        new(X)
    assert new.plan.flops_after == counter.get_total_flops() > new.plan.flops


def test_selecting_from_the_input_costs_no_dense_operation():
    model = trained(Residual())
    planned = plan(model, X, "aps", select_from="input")
    assert planned.flops_after == planned.flops
    assert plan(model, X, Sampling("aps", select_from="input")) == planned


@pytest.mark.parametrize("name", ["residual", "jump unet", "pyramid", "attention"])
def test_converting_is_planning_and_rewriting(name):
    make, example = NETS[name]
    model = trained(make())
    planned = plan(model, example, "aps")
    new = rewrite(planned).eval()
    assert new.plan == planned
    assert torch.equal(new(*example), convert(model, "aps", example)(*example))
    assert str(new.plan) == str(planned)
    assert pickle.loads(pickle.dumps(new.plan)) == planned


def test_every_new_part_is_in_the_plan():
    planned = plan(trained(Residual()), X, Sampling("lps", "tri3"))
    new = rewrite(planned)
    labels = {site.label for site in planned.sites}
    leaders = {f"{site.label}_phase" for site in planned.sites if site.selection}
    assert {name for name, _ in new.sampling.named_children()} == labels | leaders
    for site in planned.sites:
        module = new.sampling.get_submodule(site.label)
        assert type(module) is site.part.make
        assert all(getattr(module, key) == value for key, value in site.part.options.items())


def test_a_plan_without_sites_changes_nothing():
    model = trained(Residual())
    planned = plan(model, X)
    new = rewrite(dataclasses.replace(planned, sites=()))
    assert not list(new.sampling.children())
    torch.testing.assert_close(new(X), model(X))


def test_edited_sites_are_built_as_edited():
    model = trained(Residual())
    planned = plan(model, X).edit("block1.conv1", spec=Sampling("lps", hidden=3))
    new = rewrite(planned)
    leaders = {n: m for n, m in new.sampling.named_children() if isinstance(m, Lead)}
    kinds = {name: type(lead.down.selector).__name__ for name, lead in leaders.items()}
    assert kinds.pop("block1_conv1_phase") == "ConvSelector"
    assert set(kinds.values()) == {"NormSelector"}
    with torch.no_grad():
        assert torch.equal(new(X), new(circular_shift(X, 3, 5)))
    new.train()(X).sum().backward()
    assert new.sampling.block1_conv1_phase.down.selector.conv1.weight.grad is not None
    with pytest.raises(ValueError, match=r"no site is called 'block9'. Choose from: stem, "):
        planned.edit("block9", spec=Sampling("aps"))
    with pytest.raises(ValueError, match=r"block1.short chooses nothing, so it has no spec"):
        planned.edit("block1.short", spec=Sampling("aps"))


def test_sites_say_who_follows_whom():
    sites = {site.name: site for site in plan(trained(Residual()), X).sites}
    leader, follower = sites["block1.conv1"], sites["block1.short"]
    assert follower.recipe.phases == (leader.number,)
    assert leader.selection.offset.phases == (0, 1)  # stem and pooling
    assert leader.selection.strides == (4, 4)
    assert leader.selection.reads == "relu_1"


def test_plans_of_converted_networks_hold_no_original():
    new = convert(trained(Residual()), "aps", X)
    with pytest.raises(ValueError, match="without the original"):
        rewrite(new.plan)
