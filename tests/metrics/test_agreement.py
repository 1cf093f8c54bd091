import pytest
import torch

from trueshift.metrics import agreement, predicted_labels, random_pairs, wilson_interval


def test_logits_become_the_label_of_the_largest():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 0.0]])
    assert predicted_labels(logits).tolist() == [1, 0]
    assert predicted_labels(torch.tensor([4, 2], dtype=torch.int32)).tolist() == [4, 2]
    assert predicted_labels(logits.half()[..., None, None], spatial=2).tolist() == [[[1]], [[0]]]


@pytest.mark.parametrize(
    ("preds", "spatial", "error", "message"),
    [
        (torch.zeros(2, 3, 4, 4), 0, ValueError, r"logits \(B, C\) or integer labels \(B\)"),
        (torch.zeros(2, 3), 2, ValueError, r"logits \(B, C, H, W\) or integer labels \(B, H, W\)"),
        (torch.zeros(2, 3, 4, 4).long(), 2, ValueError, "got torch.int64 of shape"),
        (torch.ones(2).bool(), 0, ValueError, "got torch.bool"),
        (torch.full((1, 2), float("nan")), 0, ValueError, "the logits hold NaN"),
        ({"out": 1}, 0, TypeError, "got dict. Wrap the model"),
    ],
)
def test_what_is_not_a_prediction_is_refused(preds, spatial, error, message):
    with pytest.raises(error, match=message):
        predicted_labels(preds, spatial)


def test_agreement_counts_pixel_by_pixel(generator):
    a, b = torch.randint(0, 3, (2, 4, 5, 6), generator=generator)
    where = torch.rand(4, 5, 6, generator=generator) < 0.5
    where[2] = False
    shares, counted = agreement(a, b, where)
    for image in range(4):
        places = [tuple(p) for p in where[image].nonzero().tolist()]
        equal = sum(bool(a[image][p] == b[image][p]) for p in places)
        assert bool(counted[image]) == bool(places)
        assert shares[image] == (equal / len(places) if places else 0)


def test_agreement_needs_equal_shapes():
    with pytest.raises(ValueError, match=r"same shape, got \(2,\) and \(3,\)"):
        agreement(torch.zeros(2).long(), torch.zeros(3).long())


# Values of the closed form, from an independent evaluation of the quadratic |p - x| = z s(x).
@pytest.mark.parametrize(("fraction", "num"), [(0.5, 10), (0.97, 1000), (0.0, 7), (1.0, 7)])
def test_wilson_ends_solve_the_score_equation(fraction, num):
    z = 1.959963984540054
    low, high = wilson_interval(fraction, num)
    assert 0 <= low <= fraction <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(fraction - end) == pytest.approx(z * (end * (1 - end) / num) ** 0.5)


def test_wilson_covers_as_often_as_it_says(generator):
    hits = torch.distributions.Binomial(40, torch.tensor(0.9)).sample((2000,))
    covered = sum(low <= 0.9 <= high for low, high in (wilson_interval(h / 40, 40) for h in hits))
    assert 0.93 < covered / 2000 < 0.98


def test_wilson_without_samples_knows_nothing():
    assert wilson_interval(0.3, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\), got 95"):
        wilson_interval(0.3, 5, 95)


def test_draws_are_uniform_inclusive_and_do_not_depend_on_batching():
    draws = random_pairs(4000, 2, 4, torch.Generator().manual_seed(1))
    counts = draws.flatten().bincount()
    assert draws.shape == (4000, 2, 2, 2)
    assert len(counts) == 5
    assert (counts / draws.numel() - 0.2).abs().max() < 0.01
    source = torch.Generator().manual_seed(1)
    parts = [random_pairs(size, 2, 4, source) for size in (1, 7, 3992)]
    assert torch.equal(torch.cat(parts), draws)
