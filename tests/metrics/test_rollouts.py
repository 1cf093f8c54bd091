"""Roll-outs and their metrics, against numbers made by hand."""

import copy
import math
import pickle

import pytest
import torch

from trueshift.metrics import (
    GridImprint,
    RelativeError,
    RolloutExactness,
    SpectrumError,
    ValidTime,
    rollout,
)
from trueshift.metrics.rollout import energy_spectrum


def states(*values):
    """Trajectories of one point from their values, one list each: ``(B, T, 1, 1)``."""
    return torch.tensor(values)[:, :, None, None]


def waves(k, n=16, phase=0.0):
    return (2 * math.pi * k * torch.arange(n) / n + phase).cos()


def test_a_blow_up_is_named_with_its_step():
    start = torch.tensor([[[1.0]], [[1e20]]])
    with pytest.raises(FloatingPointError, match=r"1 of 2 trajectories blew up in step 2 of 5"):
        rollout(lambda x: x * 1e10, start, 5)
    unchecked = rollout(lambda x: x * 1e10, start, 3, check=False)
    assert torch.isfinite(unchecked).flatten(2).all(2).tolist() == [
        [True] * 3,
        [True, False, False],
    ]
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        rollout(torch.clone, start, 0)


def test_relative_error_of_every_step_is_the_mean_over_trajectories():
    metric = RelativeError()
    metric.update(states([1.1, 2.0], [1.3, 2.0]), states([1.0, 2.0], [1.0, 2.0]))
    metric.update(states([2.0, 1.0]), states([2.0, 2.0]))
    torch.testing.assert_close(metric.compute().float(), torch.tensor([0.4 / 3, 0.5 / 3]))
    with pytest.raises(ValueError, match=r"must have one shape .* got \(1, 2, 1, 1\) and \(1, 1,"):
        metric.update(states([1.0, 1.0]), states([1.0]))


def test_valid_time_ends_at_the_first_step_beyond_the_threshold():
    metric = ValidTime(0.2)
    truth = [1.0] * 4
    late, never, nan = [1.1, 1.1, 2.0, 1.0], [1.1] * 4, [1.0, math.nan, 1.0, 1.0]
    metric.update(states(late, never, nan), states(truth, truth, truth))
    assert float(metric.compute()) == pytest.approx((2 + 4 + 1) / 3)
    with pytest.raises(ValueError, match="threshold must be positive, got 0"):
        ValidTime(0)


def test_a_spectrum_has_the_energy_of_its_waves():
    x = 3 * waves(2) + waves(5, phase=1.0)
    (bins,) = energy_spectrum(x[None], [-1])
    assert len(bins) == 9
    assert [round(float(bins[k]), 4) for k in (0, 2, 5, 8)] == [0, 4.5, 0.5, 0]
    plane = waves(3)[:, None] * waves(4)  # of length 5
    (bins,) = energy_spectrum(plane[None], [-2, -1])
    assert float(bins[5]) == pytest.approx(0.25, abs=1e-5)
    (bins,) = energy_spectrum(plane[None], [-1])  # a channel: waves along, mean across
    assert float(bins[4]) == pytest.approx(0.25, abs=1e-5)


def test_spectrum_error_is_in_decades_and_does_not_see_shifts():
    metric = SpectrumError()
    truth = (waves(1) + waves(2))[None, None, None]  # (1, 1, 1, 16)
    metric.update(truth.roll(3, -1), truth)
    assert float(metric.compute()) < 1e-6
    metric.reset()
    metric.update(10 * truth, truth)  # two of nine bins are a hundred times too high
    assert float(metric.compute()) == pytest.approx(2 * 2 / 9, rel=1e-4)


def test_the_imprint_is_the_share_of_the_error_that_repeats_with_the_grid():
    metric = GridImprint(stride=4)
    truth = torch.zeros(64, 1, 16)
    grid = torch.tensor([1.0, -1.0, 0.0, 0.0]).repeat(4)
    metric.update(truth + grid, truth)
    assert float(metric.compute()) == pytest.approx(1)
    metric.reset()
    metric.update(truth + 1.0, truth)  # the same everywhere
    assert float(metric.compute()) == pytest.approx(0)
    metric.reset()
    moved = torch.stack([waves(3).roll(k % 16) for k in range(64)])[:, None]
    metric.update(truth + grid + moved, truth)  # an error that is elsewhere in every state
    assert float(metric.compute()) == pytest.approx(0.5, rel=1e-5)


def test_the_imprint_in_a_channel_is_counted_along_it():
    metric = GridImprint(stride=2, wraps=(False, True))
    across = torch.arange(6.0)[:, None].expand(3, 1, 6, 8)  # depends on the distance to the walls
    along = torch.tensor([1.0, -1.0]).repeat(4).expand(3, 1, 6, 8)
    metric.update(across, torch.zeros_like(across))
    assert float(metric.compute()) == pytest.approx(0)
    metric.reset()
    metric.update(along, torch.zeros_like(along))
    assert float(metric.compute()) == pytest.approx(1)


@pytest.mark.parametrize("shifts", [3, "all"])
def test_exactness_tells_networks_that_commute_with_shifts(shifts):
    x = torch.randn(2, 1, 6, 8)
    metric = RolloutExactness(num_steps=3, num_shifts=shifts)
    metric.update(lambda u: u + 0.1 * u.roll(1, -1), x)
    assert float(metric.compute()) == 1
    assert int(metric.num) == 2 * (47 if shifts == "all" else 3)
    metric.reset()
    ramp = torch.linspace(0, 1, 6)[:, None]
    metric.update(lambda u: u * ramp, x)
    assert float(metric.compute()) < 0.5
    along = RolloutExactness(num_steps=3, num_shifts=shifts, wraps=(False, True))
    along.update(lambda u: u * ramp, x)
    assert float(along.compute()) == 1


def test_exactness_draws_the_same_shifts_again_and_nan_is_not_exact():
    x, metric = torch.randn(1, 1, 16), RolloutExactness(2, num_shifts=4)
    first = [list(metric._shifts(x)) for _ in range(2)]
    assert first[0] == first[1]
    assert all(shift != (0,) for shift in first[0])
    metric.update(lambda u: (u / 0) * 0, x)
    assert float(metric.compute()) == 0


@pytest.mark.parametrize(
    "metric", [RelativeError(), ValidTime(), SpectrumError(), GridImprint(2), RolloutExactness(2)]
)
def test_metrics_are_copied_and_pickled(metric):
    assert type(copy.deepcopy(pickle.loads(pickle.dumps(metric)))) is type(metric)


def test_errors_name_the_rule():
    x = torch.zeros(1, 1, 6, 8)
    with pytest.raises(ValueError, match=r"multiples of stride=4 along axes that wrap"):
        GridImprint(4).update(x, x)
    GridImprint(4, wraps=(False, True)).update(x, x)
    for wraps in ((True,), (False, False)):
        with pytest.raises(ValueError, match=r"for each of 2 spatial axes whether it wraps"):
            RolloutExactness(1, wraps=wraps).update(torch.clone, x)
