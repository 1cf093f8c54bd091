"""Networks that keep their own padding and count from the seam of a picture."""

import copy
import itertools
import pickle

import pytest
import torch
import zoo
from networks import trained
from torch import nn
from user_nets import NETS, FunctionalUnet, JumpUnet, Residual, fit, image

from trueshift.convert import ConversionError, convert, plan
from trueshift.convert.parts.seam import roll_each, seam_scores
from trueshift.convert.trace.trees import leaves
from trueshift.export import check, export
from trueshift.layers.selectors import set_tau
from trueshift.layers.spec import Sampling
from trueshift.shifts import circular_shift

X = image(2, 3, 16, 32)
SPECS = {
    "stride": Sampling("stride"),
    "lpf": Sampling("stride", "tri3"),
    "aps": Sampling("aps"),
    "aps on input": Sampling("aps", "tri3", select_from="input"),
    "lps": Sampling("lps", "adapt3", groups=2),
    "lps on input": Sampling("lps", select_from="input"),
}


def gradient(*shape):
    """A picture that grows along every axis: its seam is at the border."""
    axes = [torch.arange(float(size)) for size in shape[2:]]
    ramps = torch.meshgrid(*axes, indexing="ij")
    return sum(ramps).expand(shape) + 0.1 * torch.rand(shape)


def shifted(tree, *shift):
    return [circular_shift(y, *shift) if y.ndim > 2 else y for y in leaves(tree)]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("make", [Residual, FunctionalUnet, JumpUnet])
def test_every_shift_gives_the_same_bits(make, spec):
    new = convert(trained(make()), SPECS[spec], X, padding="seam")
    with torch.no_grad():
        y = new(X)
        for shift in itertools.product(range(0, 16, 3), range(0, 32, 7)):
            (expected,) = shifted([y], *shift)
            assert torch.equal(new(circular_shift(X, *shift)), expected), shift


@pytest.mark.parametrize("name", NETS)
def test_networks_of_users(name):
    make, example = NETS[name]
    convert(trained(make()), "stride", example, padding="seam")  # verifies all shifts
    convert(trained(make()), "aps", example, padding="seam")


@pytest.mark.parametrize("make", [Residual, FunctionalUnet, JumpUnet])
def test_pictures_at_their_seam_are_seen_as_by_the_original(make):
    model, x = trained(make()), gradient(2, 3, 16, 32)
    new = convert(model, "stride", x, padding="seam")
    with torch.no_grad():
        torch.testing.assert_close(new(x), model(x), rtol=1e-4, atol=1e-5)
        moved = circular_shift(x, 5, -7)
        (expected,) = shifted([model(x)], 5, -7)
        torch.testing.assert_close(new(moved), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 1, 12), (2, 3, 9, 14), (1, 2, 5, 6, 7)])
def test_scores_find_the_seam_and_move_with_the_picture(shape):
    x = gradient(*shape)
    sizes = shape[2:]
    scores = seam_scores(x).view(-1, *sizes)
    assert scores.flatten(1).argmax(1).eq(0).all()
    for shift in itertools.product(*(range(0, size, 2) for size in sizes)):
        moved = seam_scores(circular_shift(x, *shift)).view(-1, *sizes)
        assert torch.equal(moved, scores.roll(shift, tuple(range(1, len(shape) - 1))))


def test_scores_do_not_go_by_brightness():
    x = gradient(2, 3, 9, 14)
    torch.testing.assert_close(seam_scores(x), seam_scores(8 * x + 4))


def ties():
    one_hot = torch.zeros(1, 1, 8, 8)
    one_hot[..., 3, 5] = 1
    stripes = torch.arange(8.0).remainder(2).expand(1, 1, 8, 8)
    bars = torch.tensor([1.0, 1, 0, 0, 1, 1, 0, 0]).expand(1, 1, 8, 8).clone()
    bars[..., 2, 3] = 0.5
    squares = torch.zeros(1, 1, 8, 8)
    squares[..., :2, :2] = squares[..., 4:6, 4:6] = 1
    named = {"constant": torch.ones(1, 1, 8, 8), "one-hot": one_hot, "stripes": stripes}
    return named | {"bars": bars, "squares": squares}


class Both(nn.Module):
    """Scores and a map."""

    def __init__(self):
        super().__init__()
        self.down, self.same = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 2, 3, 1, 1)

    def forward(self, x):
        y = self.same(nn.functional.interpolate(self.down(x).relu(), scale_factor=2))
        return y.mean((2, 3)), y


@pytest.mark.parametrize("name", ties())
def test_ties(name):
    x = ties()[name]
    new = convert(Both().eval(), "stride", x, padding="seam")
    scores, maps = new(x)
    for shift in itertools.product(range(8), range(8)):
        moved = circular_shift(x, *shift)
        assert torch.equal(new(moved)[0], scores), shift
        if name in ("one-hot", "bars"):  # the others repeat themselves: they have several seams
            assert torch.equal(new(moved)[1], circular_shift(maps, *shift)), shift


def test_networks_with_weights_for_positions():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 32, 8))
            self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 5)

        def forward(self, x):
            y = self.embed(x).flatten(2).transpose(1, 2) + self.place
            return self.head(self.attend(y, y, y, need_weights=False)[0][:, 0])

    model = Patches().eval()
    with pytest.raises(ConversionError):
        convert(model, "stride", X)
    new = convert(model, "stride", X, padding="seam")
    with torch.no_grad():
        assert torch.equal(new(X), new(circular_shift(X, 3, 7)))
        x = gradient(2, 3, 16, 32)
        torch.testing.assert_close(new(x), model(x))


def test_flattened_maps_need_no_option():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 8 * 16, 5)).eval()
    x = gradient(2, 3, 16, 32)
    for spec in ("stride", "aps"):
        new = convert(model, spec, x, padding="seam")
        assert torch.equal(new(x), new(circular_shift(x, 3, 7)))
    torch.testing.assert_close(convert(model, "stride", x, padding="seam")(x), model(x))


class Coordinates(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 3, 16, 32))
        self.down, self.up = nn.Conv2d(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 2, 2, 2)

    def forward(self, x):
        return self.up(self.down(x + self.places))


@pytest.mark.parametrize("spec", ["stride", "aps"])
def test_maps_may_depend_on_positions_from_the_seam_on(spec):
    model = Coordinates().eval()
    with pytest.raises(ConversionError, match="pass padding='seam'"):
        convert(model, spec, X)
    new = convert(model, spec, X, padding="seam")
    with torch.no_grad():
        assert torch.equal(new(circular_shift(X, 3, 7)), circular_shift(new(X), 3, 7))


def test_maps_that_are_not_understood_are_refused():
    class Sorted(nn.Module):
        def forward(self, x):
            return x.sort(dim=-1).values

    with pytest.raises(ConversionError, match="order of positions"):
        convert(Sorted(), "stride", X, padding="seam")


def test_the_plan_names_the_seam():
    planned = plan(trained(Residual()), X, padding="seam")
    assert [site.role for site in planned.sites].count("seam") == 1
    assert "begins at its seam" in str(planned)
    assert "with their own padding" in str(planned)
    assert "seam" not in str(plan(trained(Residual()), X))


def test_selectors_learn_and_networks_fit():
    new = convert(trained(FunctionalUnet("bilinear", False)), "lps", X, padding="seam")
    set_tau(new, 0.5)
    goal = torch.randn(2, 3, 16, 32)
    losses, unchanged = fit(new, lambda net: (net(X) - goal).square().mean())
    assert losses[-1] < losses[0]
    assert all(name.endswith("conv2.bias") for name in unchanged)
    assert torch.equal(new(circular_shift(X, 3, 7)), circular_shift(new(X), 3, 7))


def test_copies_batches_types_and_layouts():
    new = convert(trained(Residual()), "lps", X, padding="seam")
    y = new(X)
    assert torch.equal(copy.deepcopy(new)(X), y)
    assert torch.equal(pickle.loads(pickle.dumps(new))(X), y)
    assert new(X[:0]).shape == (0, 5)
    with torch.no_grad():
        for x in (X[:1], X.bfloat16(), X.double(), torch.cat([X] * 3)):
            net = copy.deepcopy(new).to(x.dtype)
            assert torch.equal(net(x), net(circular_shift(x, 5, 9)))


def small_segmenter():
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2))


@pytest.mark.parametrize(
    "make",
    [
        small_segmenter,
        *(pytest.param(m, marks=pytest.mark.slow) for m in (Residual, FunctionalUnet)),
    ],
)
def test_compiles(make):
    new = convert(trained(make()), "aps", X, padding="seam", verify=False)
    compiled = torch.compile(new, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for x in (X, circular_shift(X, 3, 5)):
            torch.testing.assert_close(compiled(x), new(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "spec"),
    [("onnx", "stride"), pytest.param("pt2", "aps", marks=pytest.mark.slow)],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_files_for_other_runtimes(form, spec, tmp_path):
    new = convert(trained(FunctionalUnet()), spec, X, padding="seam", verify=False)
    exported = export(new, X, tmp_path / f"net.{form}", form)
    checked = check(new, exported, X, repeats=1)
    assert exported.batch[1] is None
    assert all(smallest < 16 and largest > 512 for smallest, largest in exported.sizes)
    assert checked.agrees
    assert checked.exactness.equal == checked.exactness.total


def test_each_item_rolls_by_its_own_shift():
    x = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    shifts = torch.tensor([[1, -2], [3, 7]])
    rolled = roll_each(x, shifts, (2, 3))
    expected = [item.roll(shift.tolist(), (1, 2)) for item, shift in zip(x, shifts, strict=True)]
    assert torch.equal(rolled, torch.stack(expected))
    last = x.float().contiguous(memory_format=torch.channels_last)
    assert roll_each(last, shifts, (2, 3)).is_contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(roll_each, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, shifts, (2, 3)), rolled)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.NAMES)
def test_public_networks(name):
    model, x = zoo.build(name), zoo.example(name)
    for spec in ("stride", Sampling("aps", select_from="input")):
        new = convert(model, spec, x, padding="seam")
        with torch.no_grad():
            (y, *_), moved = leaves(new(x)), circular_shift(x, 5, 9)
            expected = circular_shift(y, 5, 9) if y.ndim > 2 else y
            assert torch.equal(next(iter(leaves(new(moved)))), expected)
