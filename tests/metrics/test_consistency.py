"""The metrics against slow oracles that shift by indexing and count one pair at a time."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection

from trueshift.metrics import (
    CircularConsistency,
    MaskCircularConsistency,
    MaskShiftConsistency,
    ShiftConsistency,
)
from trueshift.metrics.base import Consistency

ALL = [CircularConsistency, ShiftConsistency, MaskCircularConsistency, MaskShiftConsistency]


def classifier(images):
    """Strides over the image: not invariant."""
    return images[:, :, ::3, ::2].square().mean((2, 3)) * torch.tensor([1.0, 1.1, 0.9])


def segmenter(images):
    """Labels that depend on the position as well as on the pixel."""
    rows = torch.arange(images.shape[2])[:, None] % 3 * 0.2
    return images + rows * torch.tensor([1.0, 0.0, -1.0])[:, None, None]


def roll_slowly(image, dy, dx):
    height, width = image.shape[-2:]
    out = torch.empty_like(image)
    for y in range(height):
        for x in range(width):
            out[..., (y + dy) % height, (x + dx) % width] = image[..., y, x]
    return out


def drawn_pairs(num_images, num_pairs, max_shift, seed):
    source = torch.Generator().manual_seed(seed)
    flat = torch.randint(0, max_shift + 1, (num_images * num_pairs, 4), generator=source)
    return flat.view(num_images, num_pairs, 4).tolist()


def circular_oracle(images, num_pairs, max_shift, seed, targets=None):
    pairs = drawn_pairs(len(images), num_pairs, max_shift, seed)
    same, given = [], []
    for k, image in enumerate(images):
        for h1, w1, h2, w2 in pairs[k]:
            a, b = (
                int(classifier(roll_slowly(image, dy, dx)[None]).argmax())
                for dy, dx in ((h1, w1), (h2, w2))
            )
            same.append(a == b)
            if targets is not None and a == int(targets[k]):
                given.append(a == b)
    return same, given


def window_oracle(images, size, num_pairs, max_shift, seed, model, targets=None):
    """Mean share over common pixels (or equal labels) of crops taken by hand."""
    shares, given = [], []
    for k, pairs in enumerate(drawn_pairs(len(images), num_pairs, max_shift, seed)):
        height, width = images[k].shape[-2:]
        h, w = size or (height - max_shift, width - max_shift)
        middle = (max_shift + 1) // 2
        for h1, w1, h2, w2 in pairs:
            labels = []
            for dy, dx in ((h1 - middle, w1 - middle), (h2 - middle, w2 - middle)):
                top, left = (height - h) // 2 - dy, (width - w) // 2 - dx
                crop = images[k][:, top : top + h, left : left + w]
                label = model(crop[None])[0].argmax(0)
                if label.ndim == 0:
                    labels.append({None: int(label)})
                else:
                    labels.append(
                        {(top + y, left + x): int(label[y, x]) for y in range(h) for x in range(w)}
                    )
            common = [p for p in labels[0] if p in labels[1]]
            right = []
            if targets is not None:
                common = [p for p in common if int(targets[k][p]) != 255]
                right = [p for p in common if int(targets[k][p]) == labels[0][p]]
            for places, out in ((common, shares), (right, given)):
                if places:
                    out.append(sum(labels[0][p] == labels[1][p] for p in places) / len(places))
    return sum(shares) / len(shares), sum(given) / len(given) if given else math.nan


@pytest.fixture
def images(generator):
    return torch.rand(6, 3, 12, 9, generator=generator)


def test_circular_consistency_is_the_oracles(images):
    targets = classifier(images).argmax(1)
    metric = CircularConsistency(num_pairs=3, max_shift=14, seed=5)
    metric.update(classifier, images[:4], targets[:4])
    metric.update(classifier, images[4:], targets[4:])
    same, given = circular_oracle(images, 3, 14, 5, targets)
    assert 0 < sum(same) < len(same)
    assert float(metric.compute()) == sum(same) / len(same)
    assert metric.given_correct == pytest.approx(sum(given) / len(given))


@pytest.mark.parametrize("size", [None, (8, 6), 5])
@pytest.mark.parametrize("max_shift", [2, 3])
def test_shift_consistency_is_the_oracles(images, size, max_shift):
    metric = ShiftConsistency(size, num_pairs=4, max_shift=max_shift, seed=2)
    metric.update(classifier, images)
    size = (size, size) if isinstance(size, int) else size
    expected, _ = window_oracle(images, size, 4, max_shift, 2, classifier)
    assert 0 < expected < 1
    assert float(metric.compute()) == pytest.approx(expected)


def test_mask_circular_consistency_is_the_oracles_for_sizes_that_vary(generator):
    images = [torch.rand(3, h, w, generator=generator) for h, w in ((8, 5), (6, 9), (7, 7))]
    targets = [torch.randint(0, 3, x.shape[1:], generator=generator) for x in images]
    targets[0][2:5] = 255
    metric = MaskCircularConsistency(max_shift=6, seed=3)
    metric.update(segmenter, images, targets)
    shares, given = [], []
    for image, target, pairs in zip(images, targets, drawn_pairs(3, 5, 6, 3), strict=True):
        for h1, w1, h2, w2 in pairs:
            a, b = (
                roll_slowly(segmenter(roll_slowly(image, dy, dx)[None])[0].argmax(0), -dy, -dx)
                for dy, dx in ((h1, w1), (h2, w2))
            )
            shares.append((a == b)[target != 255].double().mean())
            given.append((a == b)[(target != 255) & (a == target)].double().mean())
    assert 0 < sum(shares) / 15 < 1
    assert float(metric.compute()) == pytest.approx(float(sum(shares) / 15))
    assert metric.given_correct == pytest.approx(float(sum(given) / 15))


@pytest.mark.parametrize("size", [None, (5, 4)])
def test_mask_shift_consistency_is_the_oracles_for_sizes_that_vary(size, generator):
    images = [torch.rand(3, h, w, generator=generator) for h, w in ((9, 8), (10, 13), (8, 8))]
    targets = [torch.randint(0, 3, x.shape[1:], generator=generator) for x in images]
    targets[1][2:5] = 255
    metric = MaskShiftConsistency(size, max_shift=3, seed=3)
    metric.update(segmenter, images, targets)
    expected, given = window_oracle(images, size, 5, 3, 3, segmenter, targets)
    assert 0 < expected < 1
    assert float(metric.compute()) == pytest.approx(expected)
    assert metric.given_correct == pytest.approx(given)


def test_all_circular_shifts_are_compared_with_the_unshifted_image(images):
    metric = CircularConsistency(shifts="all", max_shift=10)
    metric.update(classifier, images)
    same = [
        int(classifier(roll_slowly(image, dy, dx)[None]).argmax())
        == int(classifier(image[None]).argmax())
        for image in images
        for dy in range(11)
        for dx in range(9)  # the ninth column is the image itself again
        if (dy, dx) != (0, 0)
    ]
    assert int(metric.num_compared) == len(same)
    assert float(metric.compute()) == pytest.approx(sum(same) / len(same))


def test_all_windows_are_compared_with_the_centre(images):
    metric = ShiftConsistency(shifts="all", max_shift=3, size=None)
    metric.update(classifier, images)
    crops = [(y, x) for y in range(4) for x in range(4)]
    labels = {p: classifier(images[..., p[0] : p[0] + 9, p[1] : p[1] + 6]).argmax(1) for p in crops}
    centre = labels.pop((1, 1))
    expected = torch.cat([(other == centre) for other in labels.values()]).double().mean()
    assert 0 < expected < 1
    assert float(metric.compute()) == pytest.approx(float(expected))


def test_masks_that_follow_the_content_are_consistent(generator):
    images = torch.rand(3, 4, 12, 16, generator=generator)
    for metric in (MaskCircularConsistency(), MaskShiftConsistency(max_shift=5)):
        for shifts in ("random", "all"):
            metric.shifts, metric.max_shift = shifts, 5
            metric.update(lambda x: x, images)
            assert float(metric.compute()) == 1
            metric.reset()


def test_predictions_made_elsewhere_are_counted(generator):
    a, b = torch.randn(2, 50, 4, generator=generator)
    target = torch.randint(0, 4, (50,), generator=generator)
    for metric in (CircularConsistency(), ShiftConsistency()):
        metric.update(a, b.argmax(1), target)
        same = a.argmax(1) == b.argmax(1)
        assert float(metric.compute()) == pytest.approx(float(same.double().mean()))
        right = a.argmax(1) == target
        assert metric.given_correct == pytest.approx(float(same[right].double().mean()))


def test_masks_made_elsewhere_are_counted_where_they_are_not_ignored(generator):
    a, b = torch.randint(0, 3, (2, 4, 6, 5), generator=generator)
    target = torch.randint(0, 3, (4, 6, 5), generator=generator)
    target[:, :2], target[3] = 255, 255
    for metric in (MaskCircularConsistency(), MaskShiftConsistency()):
        metric.update(a, b, target)
        metric.update(list(a[:3]), list(b[:3]), list(target[:3]))
        expected = (a == b)[:3, 2:].double().mean()
        assert float(metric.compute()) == pytest.approx(float(expected))
        assert int(metric.num_images) == 6


def test_nothing_compared_is_not_a_number():
    metric = MaskCircularConsistency()
    metric.update(
        torch.zeros(1, 2, 2).long(), torch.zeros(1, 2, 2).long(), torch.full((1, 2, 2), 255)
    )
    assert math.isnan(metric.compute())
    assert metric.interval == (0.0, 1.0)
    assert math.isnan(metric.given_correct)


def test_an_empty_batch_changes_nothing():
    metric = CircularConsistency()
    metric.update(torch.tensor([1, 1]), torch.tensor([1, 2]))
    metric.update(classifier, torch.zeros(0, 3, 8, 8))
    metric.update(torch.zeros(0, 3), torch.zeros(0, 3))
    assert float(metric.compute()) == 0.5


def test_the_interval_counts_images_not_pairs(images):
    one, many = CircularConsistency(num_pairs=1), CircularConsistency(num_pairs=8)
    for metric in (one, many):
        metric.update(lambda x: x.new_tensor([[1.0, 0.0]]).expand(len(x), 2), images)
        assert float(metric.compute()) == 1
    assert int(many.num_compared) == 8 * int(one.num_compared) == 48
    assert one.interval == many.interval
    assert 0.5 < one.interval[0] < 0.7
    assert one.interval[1] == 1
    wide = CircularConsistency(confidence=0.999)
    wide.update(classifier, images)
    narrow = CircularConsistency(confidence=0.5)
    narrow.update(classifier, images)
    assert wide.interval[0] < narrow.interval[0]


@pytest.mark.parametrize("kind", ALL)
def test_shifts_are_the_same_after_reset_and_leave_the_global_generator_alone(kind, generator):
    images = torch.rand(5, 3, 12, 12, generator=generator)
    options = {"size": None} if issubclass(kind, ShiftConsistency) else {}
    metric = kind(max_shift=4, **options)
    seen = []

    def model(x):
        seen.append(x.clone())
        return x if metric.spatial else x.mean((2, 3))

    before = torch.get_rng_state()
    metric.update(model, images)
    first, seen = seen, []
    metric.update(model, images)
    second, seen = seen, []
    metric.reset()
    metric.update(model, images)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, seen, first))
    assert not all(map(torch.equal, second, first))


def test_forward_gives_the_batch_and_goes_on_drawing(images):
    metric, other = CircularConsistency(max_shift=5), CircularConsistency(max_shift=5)
    parts = [float(metric(classifier, part)) for part in (images[:3], images[3:])]
    for part in (images[:3], images[3:]):
        other.update(classifier, part)
    assert metric.compute() == other.compute()
    assert sum(parts) / 2 == pytest.approx(float(other.compute()))


def test_other_seeds_draw_other_shifts(images):
    values = set()
    for seed in range(8):
        metric = CircularConsistency(seed=seed, num_pairs=3)
        metric.update(classifier, images)
        values.add(float(metric.compute()))
    assert len(values) > 1


@pytest.mark.parametrize("kind", ALL)
def test_metrics_copy_pickle_and_collect(kind, generator):
    spatial = kind.spatial
    preds = torch.randint(0, 2, (2, 6, 4, 4) if spatial else (2, 6), generator=generator)
    metric = kind()
    metric.update(*preds)
    value = metric.compute()
    assert copy.deepcopy(metric).compute() == value
    assert pickle.loads(pickle.dumps(metric)).compute() == value
    collection = MetricCollection([kind()])
    collection.update(*preds)
    assert collection.compute()[kind.__name__] == value


def test_a_copy_in_the_middle_draws_what_the_original_draws(images):
    metric = CircularConsistency()
    metric.update(classifier, images)
    twin = pickle.loads(pickle.dumps(metric))
    for one in (metric, twin):
        one.update(classifier, images)
    assert metric.compute() == twin.compute()


@pytest.mark.parametrize(
    ("make", "args", "message"),
    [
        (CircularConsistency, (nn.Flatten(), torch.zeros(1, 3, 4, 4)), "is in training mode"),
        (
            CircularConsistency,
            (classifier, torch.zeros(3, 4, 4)),
            r"\(B, C, H, W\), got \(3, 4, 4\)",
        ),
        (
            CircularConsistency,
            (classifier, torch.zeros(2, 3, 4, 4), torch.zeros(3)),
            "2 images and 3",
        ),
        (
            MaskCircularConsistency,
            (lambda x: x[..., ::2, ::2], torch.zeros(2, 3, 4, 4)),
            r"predictions for \(2, 4, 4\), got \(2, 2, 2\)",
        ),
        (
            MaskCircularConsistency,
            (lambda x: x, torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 5)),
            r"shape of the labels \(1, 4, 4\), got \(1, 4, 5\)",
        ),
        (
            ShiftConsistency,
            (classifier, torch.zeros(1, 3, 224, 224)),
            r"size=224 and max_shift=32 need images of at least \(256, 256\), got \(224, 224\)",
        ),
        (
            MaskShiftConsistency,
            (classifier, torch.zeros(1, 3, 20, 40)),
            r"size=None and max_shift=32 need images of at least \(33, 40\), got \(20, 40\)",
        ),
    ],
)
def test_wrong_input_is_refused(make, args, message):
    with pytest.raises(ValueError, match=message):
        make().update(*args)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="num_pairs must be at least 1, got 0"):
        CircularConsistency(num_pairs=0)
    with pytest.raises(ValueError, match="MaskShiftConsistency: unknown shifts 'al'"):
        MaskShiftConsistency(shifts="al")
    with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\)"):
        ShiftConsistency(confidence=1)
    with pytest.raises(TypeError, match="abstract"):
        Consistency(1, 1, "all", 0, 0.95)
