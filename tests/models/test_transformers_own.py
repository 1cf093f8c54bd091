import copy

import pytest
import torch
from networks import trained

import trueshift as ts
from trueshift.shifts import circular_shift

SMALL = {
    "vit": {"image_size": 16, "depth": 2, "width": 24},
    "swin": {"widths": (12, 24), "depths": (2, 2), "heads": (2, 2), "window": 2},
}
X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def build(name, spec):
    torch.manual_seed(0)
    return trained(getattr(ts.models, name)(spec, **SMALL[name]))


def largest_change(model):
    """Return by how much outputs change under all shifts, as a fraction of their spread."""
    wide = copy.deepcopy(model).double()
    moved = torch.cat([circular_shift(X, i, j) for i in range(16) for j in range(16)])
    with torch.no_grad():
        y = wide(moved.double())
    return float((y - y[0]).abs().max() / y[0].std())


@pytest.mark.parametrize("spec", [ts.Sampling("aps"), ts.Sampling("lps", "tri3", hidden=4)])
@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_the_same_for_every_shift(name, spec):
    assert largest_change(build(name, spec)) <= 1e-10


@pytest.mark.parametrize("name", SMALL)
def test_float32_outputs_keep_their_bits(name):
    model, x = build(name, ts.Sampling("lps", hidden=4)), torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert all(torch.equal(model(circular_shift(x, i, 7 * i)), model(x)) for i in range(1, 16))


@pytest.mark.parametrize("name", SMALL)
def test_plain_strides_change_them(name):
    assert largest_change(build(name, ts.Sampling("stride"))) > 1e-3


@pytest.mark.parametrize("name", SMALL)
def test_learned_selectors_train_and_are_listed(name):
    model = build(name, ts.Sampling("lps", hidden=4)).train()
    model(X.expand(2, -1, -1, -1)).square().mean().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if n.endswith("selector.conv1.weight")}
    assert len(grads) == (1 if name == "vit" else 2)
    assert all(grad.abs().max() > 0 for grad in grads.values())
    assert [site.method for site in ts.summary(model)].count("lps") == len(grads)


@pytest.mark.parametrize("name", SMALL)
def test_saved_networks_are_loaded(name, tmp_path):
    model = build(name, ts.Sampling("aps"))
    ts.models.save(model, tmp_path / "net.safetensors")
    assert torch.equal(ts.models.load(tmp_path / "net.safetensors")(X), model(X))


def test_bad_arguments():
    with pytest.raises(ValueError, match="image_size must be a multiple of patch"):
        ts.models.vit(ts.Sampling("aps"), image_size=30)
    with pytest.raises(ValueError, match="one value per stage"):
        ts.models.swin(ts.Sampling("aps"), widths=(8,))
    with pytest.raises(ValueError, match="must be a multiple of 8"):
        build("swin", ts.Sampling("aps"))(torch.zeros(1, 3, 12, 12))
    with pytest.raises(ValueError, match="built for images of size 16"):
        build("vit", ts.Sampling("aps"))(torch.zeros(1, 3, 32, 32))
