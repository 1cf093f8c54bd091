import pytest
import torch
from networks import trained
from user_nets import NETS, FunctionalUnet, Profile, Residual, image

from trueshift.convert import convert
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

SPECS = {
    "aps": Sampling("aps"),
    "lps": Sampling("lps", hidden=4),
    "lps+tri3": Sampling("lps", "tri3", hidden=4),
    "aps+adapt3": Sampling("aps", "adapt3", groups=2),
}


def build(name):
    make, example = NETS[name]
    return trained(make()), example


@pytest.mark.parametrize("select", ["output", "input"])
@pytest.mark.parametrize("spec", ["aps", "lps"])
@pytest.mark.parametrize("name", NETS)
def test_every_network_is_verified_exact(name, spec, select):
    model, example = build(name)
    new = convert(model, SPECS[spec], example, select_from=select)  # raises unless exact in float64
    before = [y.shape for y in _tensors(model(*example))]
    assert [y.shape for y in _tensors(new(*example))] == before or name == "focus"


@pytest.mark.parametrize("spec", ["lps+tri3", "aps+adapt3"])
@pytest.mark.parametrize("select", ["output", "input"])
def test_filters_keep_it_exact(spec, select):
    for name in ("residual", "jump unet"):
        model, example = build(name)
        new = convert(model, SPECS[spec], example, select_from=select)
        assert any("antialias" in key for key, _ in new.named_modules())


@pytest.mark.parametrize("select", ["output", "input"])
@pytest.mark.parametrize("name", ["residual", "two inputs", "signal", "focus", "unet nearest"])
def test_float32_outputs_are_equal_bit_by_bit(name, select):
    model, example = build(name)
    new = convert(model, "aps", example, select_from=select)
    with torch.no_grad():
        y = new(*example)
        for n in range(1, 12):
            maps = [x.ndim > 2 for x in example]
            moved = [_shift(x, n) if is_map else x for x, is_map in zip(example, maps, strict=True)]
            expected = _shift(y, n) if y.ndim > 2 else y
            assert torch.equal(new(*moved), expected), n


def test_the_original_is_not_invariant():
    model, (x,) = build("residual")
    with torch.no_grad():
        assert not torch.allclose(model(x), model(_shift(x, 1)), atol=1e-3)


@pytest.mark.parametrize("name", NETS)
def test_phase_0_with_the_original_padding_reproduces_the_original(name):
    model, example = build(name)
    new = convert(model, "stride", example, padding="keep", verify=False)
    with torch.no_grad():
        for one, other in zip(_tensors(model(*example)), _tensors(new(*example)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_plain_strides_with_circular_padding_are_only_equivariant_to_their_stride():
    model, (x,) = build("residual")
    new = convert(model, "stride", x)
    with torch.no_grad():
        y = new(x)
        torch.testing.assert_close(new(circular_shift(x, 16, 16)), y)
        assert not torch.allclose(new(circular_shift(x, 1, 1)), y, atol=1e-4)


def dead_blocks(model):
    for block in (model.block1, model.block2):
        block.bn1.weight.data.zero_()
        block.bn1.bias.data.fill_(-1.0)


def dead_profile(model):
    model.down.weight.data.zero_()
    model.down.bias.data.fill_(-1.0)


@pytest.mark.parametrize("select", ["output", "input"])
@pytest.mark.parametrize(("make", "kill"), [(Residual, dead_blocks), (Profile, dead_profile)])
def test_ties_in_one_branch_do_not_break_the_other(make, kill, select):
    # The leader's map is dead (all zeros), its follower's is not: only the image shows the phase.
    model, x = trained(make()), image(2, 3, 32, 48)
    kill(model)
    new = convert(model, "aps", x, select_from=select)
    with torch.no_grad():
        y = new(x)
        assert all(torch.equal(new(_shift(x, n)), y) for n in range(1, 9))


@pytest.mark.parametrize("kind", ["constant", "periodic", "one pixel"])
def test_special_images(kind):
    x = torch.zeros(1, 3, 32, 16)
    if kind == "constant":
        x += 0.7
    elif kind == "periodic":
        x[..., ::4, ::2] = 1.0
    else:
        x[..., 5, 3] = 1.0
    model = trained(FunctionalUnet())
    new = convert(model, "aps", x)
    with torch.no_grad():
        y = new(x)
        for n in range(1, 9):
            assert torch.equal(new(_shift(x, n)), _shift(y, n)), n


def test_other_batches_and_sizes():
    model, (x,) = build("unet bilinear")
    new = convert(model, "aps", x[:1])
    with torch.no_grad():
        for shape in ((3, 3, 8, 12), (1, 3, 40, 4), (0, 3, 8, 8)):
            z = image(*shape)
            assert new(z).shape == model(z).shape


def _shift(x, n):
    return circular_shift(x, *[(3 * n + k) for k in range(x.ndim - 2)])


def _tensors(y):
    return list(y) if isinstance(y, tuple) else [y]
