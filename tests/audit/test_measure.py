import dataclasses
import json

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.audit import audit
from trueshift.data import make_shapes


def small(method, **options):
    torch.manual_seed(1)
    spec = ts.Sampling(method)
    return ts.models.resnet(spec, (1, 1), (4, 8), num_classes=4, stem="cifar", **options)


@pytest.fixture
def images():
    pictures, _, _ = make_shapes(5, size=12)
    return pictures.float() / 255


class Striped(nn.Module):
    """Depends on where the image is: reads every other pixel only."""

    def forward(self, x):
        sampled = x[:, :, ::2, ::2].mean((2, 3))
        return sampled - x.mean((2, 3))


def by_loops(model, images, labels, shifts):
    """Consistency, accuracies and changes in plain loops."""
    still = model(images)
    shares, accuracies, changes = [], [], []
    for dy, dx in shifts:
        moved = model(images.roll((dy, dx), (2, 3)))
        shares.append(float((moved.argmax(1) == still.argmax(1)).double().mean()))
        accuracies.append(float((moved.argmax(1) == labels).double().mean()))
        changes += (moved - still).abs().amax(1).tolist()
    return shares, accuracies, changes


def test_numbers_of_a_classifier_are_those_of_plain_loops(images):
    labels, model = torch.tensor([0, 1, 2, 0, 1]), Striped()
    shifts = [(dy, dx) for dy in range(-6, 6) for dx in range(-6, 6) if (dy, dx) != (0, 0)]
    shares, accuracies, changes = by_loops(model, images, labels, shifts)
    measured = audit(model, images, labels, batch_size=3).measurements[0]
    assert list(measured.shifts) == shifts
    assert measured.shares == pytest.approx(shares)
    assert measured.consistency == pytest.approx(sum(shares) / len(shares))
    assert 0 < measured.consistency < 1
    assert measured.shares[shifts.index(measured.worst_shift)] == min(measured.shares)
    assert measured.accuracy.worst == pytest.approx(min(accuracies))
    assert measured.accuracy.best == pytest.approx(max(accuracies))
    assert measured.accuracy.mean == pytest.approx(sum(accuracies) / len(accuracies))
    assert measured.largest_change == pytest.approx(max(changes), abs=1e-6)
    middle = sorted(changes)[(len(changes) - 1) // 2]
    assert measured.median_change == pytest.approx(middle, abs=1e-6)
    assert measured.interval[0] < measured.consistency < measured.interval[1]
    assert not measured.bitwise_equal


def test_a_polyphase_network_is_bitwise_invariant(images):
    result = audit(small("lps"), images, shifts=20)
    assert (result.consistency, result.bitwise_equal) == (1.0, True)
    assert result.measurements[0].largest_change == 0
    assert result.first_break is None
    assert result.largest_increase is None


def test_the_batch_size_does_not_matter(images):
    few, many = (audit(Striped(), images, shifts=9, batch_size=b) for b in (2, 100))
    assert few.measurements[0].shares == many.measurements[0].shares
    assert few.measurements[0].image_shares == many.measurements[0].image_shares


def test_masks_are_moved_back(images):
    class Pixelwise(nn.Module):
        def forward(self, x):
            return torch.cat([x, 1 - x], 1)

    class Still(nn.Module):
        def forward(self, x):
            ramp = torch.linspace(-1, 1, x.shape[-1]).expand(len(x), 1, x.shape[-2], -1)
            return torch.cat([ramp, -ramp], 1)

    for kind in ("circular", "standard"):
        exact = audit(Pixelwise(), images, kind=kind, shifts=12)
        assert (exact.task, exact.consistency) == ("segmentation", 1.0)
        assert exact.bitwise_equal
    stuck = audit(Still(), images, shifts=[(0, 1), (1, 0)]).measurements[0]
    assert stuck.shares == pytest.approx((1 - 2 / 12, 1.0))  # sorted: (0, 1), (1, 0)


def test_accuracy_of_masks_follows_the_shift(images):
    class Bright(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0] * 0 + 0.5, x[:, 0]], 1)

    masks = (images[:, 0] > 0.5).long()
    masks[:, 0] = 255  # does not count
    for kind in ("circular", "standard"):
        spread = audit(Bright(), images, masks, kind=kind, shifts=8).measurements[0].accuracy
        assert dataclasses.astuple(spread) == (1, 1, 1, 1)


def test_standard_shifts_see_windows(images):
    seen = []

    def model(x):
        seen.append(x)
        return x.mean((2, 3))

    result = audit(model, images[:1], kind="standard", window=10, examples=0)
    assert len(result.measurements[0].shifts) == 8
    assert result.measurements[0].window == (10, 10)
    windows = torch.cat(seen)
    corners = {tuple(w.flatten().tolist()) for w in windows}
    wanted = {
        tuple(images[0, :, i : i + 10, j : j + 10].flatten().tolist())
        for i in range(3)
        for j in range(3)
    }
    assert corners == wanted


def test_both_kinds_are_measured(images):
    result = audit(Striped(), images, kind="both", shifts=5)
    assert [m.kind for m in result.measurements] == ["circular", "standard"]
    assert result.consistency == min(m.consistency for m in result.measurements)


def test_random_shifts_follow_from_the_seed(images):
    first, again, other = (
        audit(Striped(), images, shifts=7, seed=s).measurements[0].shifts for s in (0, 0, 1)
    )
    assert first == again != other
    assert len(first) == 7
    assert (0, 0) not in first


def test_parts_of_dicts_and_tuples(images):
    def nested(x):
        return {"aux": x, "out": (x.mean(), x.mean((2, 3)))}

    assert audit(nested, images, output="out.1", shifts=3).consistency == 1
    with pytest.raises(ValueError, match=r"returns a dict, not a tensor.*from: aux, out"):
        audit(nested, images, shifts=3)
    with pytest.raises(ValueError, match=r"has no part 'logits'. Choose output from: aux, out"):
        audit(nested, images, output="logits", shifts=3)


def test_a_single_logit_is_yes_or_no(images):
    def model(x):
        return x[:, :1, 0, 0] - 0.4

    result = audit(model, images).measurements[0]
    corner = (images[:, 0] > 0.4).double()
    same = torch.where(images[:, 0, 0, 0] > 0.4, corner.mean((1, 2)), 1 - corner.mean((1, 2)))
    wanted = (same * 144 - 1) / 143  # without the unshifted one
    assert result.image_shares == pytest.approx(wanted.tolist())


def test_the_network_is_left_as_it_was(images):
    model = small("lps")
    model.train()
    model.bn1.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    audit(model, images, shifts=2)
    assert model.training
    assert not model.bn1.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
    assert all("_logits" not in vars(m) for m in model.modules())


def test_sequences_are_read_when_needed(images):
    class Folder:
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            return images[index], index % 3

    result = audit(Striped(), Folder(), shifts=4, batch_size=2)
    whole = audit(Striped(), images, torch.arange(5) % 3, shifts=4, batch_size=2)
    assert result.measurements == whole.measurements
    assert result.measurements[0].accuracy is not None


def test_examples_are_the_least_consistent(images):
    result = audit(Striped(), images, examples=3)
    shares = result.measurements[0].image_shares
    assert [e.consistency for e in result.examples] == sorted(shares)[:3]
    first = result.examples[0]
    assert first.picture.shape == (3, 12, 12)
    for k in (0, len(result.view) // 2, len(result.view) - 1):
        moved = images[first.index][None].roll(result.view[k], (2, 3))
        logits = Striped()(moved)
        assert int(first.labels[k]) == int(logits.argmax(1))
        assert float(first.confidences[k]) == pytest.approx(float(logits.softmax(1).max()))
    chosen = audit(Striped(), images, shifts=2, examples=[4, 0])
    assert [e.index for e in chosen.examples] == [4, 0]


def test_progress_counts_to_the_end(images):
    calls = []
    options = {"shifts": 4, "batch_size": 4, "progress": lambda *n: calls.append(n)}
    result = audit(small("lps"), images, kind="both", examples=3, **options)
    measured = 5 * sum(len(m.shifts) for m in result.measurements)
    inside = 2 * len(result.layer_shifts)  # half a batch of images at a time
    selection = 5 * (2 + len(result.selection.random))
    total = measured + 3 * len(result.view) + inside + selection
    assert calls[-1] == (total, total)
    assert {total for _, total in calls} == {total}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    calls.clear()
    audit(Striped(), images, examples=0, layers=False, **options)
    assert calls[-1] == (20, 20)


def test_json_holds_the_numbers(images, tmp_path):
    result = audit(small("stride"), images, torch.zeros(5).long(), shifts=6, kind="both")
    read = json.loads(result.to_json(tmp_path / "out.json").read_text())
    assert (read["format"], read["format_version"]) == ("trueshift-audit", 1)
    assert read["consistency"] == result.consistency
    assert read["measurements"][1]["shares"] == list(result.measurements[1].shares)
    assert read["measurements"][0]["accuracy"]["worst"] <= 1
    assert len(read["layers"]) == len(result.layers)
    assert "against" not in read
    other = audit(small("lps"), images, shifts=6)
    both = json.loads(result.to_json(tmp_path / "both.json", other).read_text())
    against = both.pop("against")
    assert both == read
    assert (against["name"], against["bitwise_equal"]) == (other.name, True)
    with pytest.raises(FileNotFoundError, match="no folder"):
        result.to_json(tmp_path / "missing" / "out.json")


def test_the_heat_map_has_every_shift(images):
    measured = audit(Striped(), images).measurements[0]
    rows, columns, grid = measured.heat_map()
    assert (rows, columns) == (list(range(-6, 6)), list(range(-6, 6)))
    assert grid[6, 6] == 1
    assert grid[6 + 1, 6 - 3] == measured.shares[measured.shifts.index((1, -3))]
    assert not grid.isnan().any()
    few = audit(Striped(), images, shifts=[(0, 2)]).measurements[0]
    assert few.heat_map()[2].isnan().tolist() == [[False, True, False]]


def test_images_need_not_be_square():
    images = torch.randn(3, 3, 12, 8)
    result = audit(small("lps"), images, kind="both")
    circular, standard = result.measurements
    assert (circular.window, standard.window) == ((12, 8), (8, 6))
    assert len(circular.shifts) == 12 * 8 - 1
    assert circular.bitwise_equal
    assert max(dy for dy, _ in circular.shifts) == 5
    assert max(dx for _, dx in circular.shifts) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_network_says_which_type_it_takes(images, dtype):
    result = audit(small("lps").to(dtype), images, shifts=5)
    assert result.dtype == str(dtype).removeprefix("torch.")
    assert result.consistency == 1


def test_no_memory_is_said_plainly(images):
    def model(x):
        raise torch.OutOfMemoryError

    with pytest.raises(MemoryError, match=r"for 5 images at once. Use a smaller batch_size"):
        audit(model, images, shifts=1)


def test_images_that_are_not_kept_in_memory_are_read_once_for_each_kind(images):
    reads = []

    class Folder:
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            reads.append(index)
            return images[index]

    audit(Striped(), Folder(), shifts=10, examples=0, layers=False, batch_size=2)
    assert reads == [0, *range(5)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": torch.rand(3, 8, 8)}, ValueError, r"must have shape \(N, C, H, W\)"),
        ({"images": torch.rand(0, 3, 8, 8)}, ValueError, "got no images"),
        ({"images": torch.rand(2, 3, 8, 1)}, ValueError, "at least 2 x 2 pixels"),
        ({"images": torch.ones(2, 3, 8, 8).byte()}, TypeError, r"got torch.uint8.*/ 255"),
        ({"images": torch.full((2, 3, 8, 8), torch.nan)}, ValueError, "image 0 holds NaN"),
        ({"images": [torch.rand(3, 8, 8), torch.rand(3, 8, 9)]}, ValueError, "of the first one"),
        ({"images": torch.rand(2, 1, 8, 8)}, ValueError, r"does not take images of shape \(\d, 1"),
        ({"labels": torch.zeros(3)}, ValueError, "got 2 images and 3 labels"),
        ({"labels": torch.zeros(2, 8, 8)}, ValueError, r"labels must have shape \(2,\)"),
        ({"labels": torch.tensor([1, 2])}, ValueError, r"labels must be in 0..1, .* got 2"),
        ({"shifts": "some"}, ValueError, "must be 'all', a number or a list"),
        ({"shifts": 0}, ValueError, "shifts must be at least 1"),
        ({"shifts": [(0, 0)]}, ValueError, "no shift to compare"),
        ({"shifts": [1, 2]}, ValueError, r"must be a pair \(dy, dx\), got 1"),
        ({"shifts": [(9, 0)], "kind": "standard"}, ValueError, r"out of the image; allowed"),
        ({"kind": "circlar"}, ValueError, "Did you mean 'circular'"),
        ({"kind": "standard", "window": 9}, ValueError, "window=9 is larger than the images"),
        ({"kind": "standard", "window": 8}, ValueError, "no shift to compare"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"examples": [7]}, ValueError, r"examples must be in 0..1, got 7"),
        ({"model": "resnet"}, TypeError, "model must be a network, got str"),
        ({"model": lambda x: x.log() * 0}, ValueError, "NaN or infinity"),
        ({"model": lambda x: x[:, :, ::2]}, ValueError, "as large as the images"),
        ({"model": lambda x: x.mean((2, 3)).argmax(1)}, ValueError, "got torch.int64"),
        ({"model": lambda x: None}, ValueError, "returns a NoneType"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    given = {"model": model, "images": torch.zeros(2, 3, 8, 8), "shifts": 2, **change}
    with pytest.raises(error, match=message):
        audit(**given)


def test_a_result_prints_in_words(images):
    text = str(ts.audit(Striped(), images, shifts=4))
    assert "Consistency" in text
    assert len(text) < 2000
