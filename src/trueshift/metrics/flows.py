"""How well an emulator follows a flow, and whether its roll-outs move with their start."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor

from trueshift._torchvision import import_torchvision
from trueshift._validate import check_positive
from trueshift.metrics.protocol import process_generator
from trueshift.metrics.rollout import (
    Model,
    energy_spectrum,
    relative_errors,
    valid_times,
)
from trueshift.shifts import check_wraps, circular_shift

with suppress(ImportError):  # torchmetrics imports torchvision where it is installed
    import_torchvision()
from torchmetrics import Metric


class _Mean(Metric):
    """A sum of float64 values, of any shape, and how many they are."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    num: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("num", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, values: Tensor) -> None:
        """Add values ``(B, ...)``."""
        self.total = self.total + values.double().sum(0)
        self.num += len(values)

    def compute(self) -> Tensor:
        """Return the mean."""
        return self.total / self.num


class RelativeError(_Mean):
    """``|preds - target| / |target|`` after each step, mean over trajectories, ``(T,)``."""

    higher_is_better = False

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add states ``(B, T, C, *shape)``."""
        self._add(relative_errors(preds, target))


class ValidTime(_Mean):
    """Steps until the relative error passes a threshold, mean over trajectories.

    A trajectory that never passes it counts with all its steps.

    Args:
        threshold: The largest relative error that is valid.
    """

    higher_is_better = True

    def __init__(self, threshold: float = 0.2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not threshold > 0:
            raise ValueError(f"ValidTime: threshold must be positive, got {threshold}.")
        self.threshold = threshold

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add states ``(B, T, C, *shape)``."""
        self._add(valid_times(relative_errors(preds, target), self.threshold))


class SpectrumError(_Mean):
    """Distance of energy spectra: the mean over wave numbers of ``|log10(E_preds / E_target)|``.

    Both spectra are means over all states. A millionth of the target's energy is added to every
    bin, so that waves that the flow does not have count only once they are seen.

    Args:
        wraps: Which axes wrap; ``None`` means all. Waves along these are counted.
    """

    higher_is_better = False

    def __init__(self, wraps: Sequence[bool] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wraps = wraps

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add states ``(B, T, C, *shape)``."""
        axes = wrapping_axes("SpectrumError", preds.ndim - 3, self.wraps)
        spectra = [energy_spectrum(states, axes) for states in (preds, target)]
        self._add(torch.stack(spectra, 1))  # (B, 2, bins)

    def compute(self) -> Tensor:
        preds, target = self.total / self.num
        floor = 1e-6 * target.sum()
        return ((preds + floor) / (target + floor)).log10().abs().mean()


class GridImprint(_Mean):
    """Share of the error that repeats with the sampling grid of a network.

    The statistics of a flow are the same everywhere, and so is the mean error of an equivariant
    network over many states. A network that samples every ``stride`` points may be wrong in a way
    that repeats with its grid: then the mean error has power at multiples of ``N / stride`` waves.
    That power, by the power of all errors, is the imprint. A mean over ``n`` independent states
    leaves about ``1 / n`` of the share that these waves have of the error.

    Args:
        stride: Points between two samples of the coarsest map.
        wraps: Which axes wrap; ``None`` means all.
    """

    higher_is_better = False
    power: Tensor

    def __init__(self, stride: int, wraps: Sequence[bool] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive("GridImprint", stride=stride)
        self.stride, self.wraps = stride, wraps
        self.add_state("power", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add states ``(B, C, *shape)`` one step after true ones."""
        for axis in wrapping_axes("GridImprint", preds.ndim - 2, self.wraps):
            if preds.shape[axis] % self.stride:
                raise ValueError(
                    f"GridImprint: sizes must be multiples of stride={self.stride} along axes that"
                    f" wrap, got states of shape {tuple(preds.shape)}."
                )
        error = preds.double() - target.double()
        self._add(error)
        self.power = self.power + error.flatten(1).square().mean(1).sum()

    def compute(self) -> Tensor:
        mean = self.total / self.num  # (C, *shape)
        axes = wrapping_axes("GridImprint", mean.ndim - 1, self.wraps)
        waves = torch.fft.fftn(mean, dim=axes, norm="forward").abs().square()
        others = [axis for axis in range(mean.ndim) if axis - mean.ndim not in axes]
        waves = waves.mean(others)
        grid = waves[tuple(slice(None, None, n // self.stride) for n in waves.shape)]
        constant = waves[(0,) * waves.ndim]
        return (grid.sum() - constant) / (self.power / self.num)


class RolloutExactness(_Mean):
    """Share of shifts under which a roll-out ends, bit for bit, where the shifted one does.

    One that ends in NaN is equal to none.

    Args:
        num_steps: Steps of the roll-out.
        num_shifts: Shifts of every batch, drawn from all along the axes that wrap; or ``"all"``.
        wraps: Which axes wrap; ``None`` means all.
        seed: Seed of the shifts.
    """

    higher_is_better = True

    def __init__(
        self,
        num_steps: int,
        num_shifts: int | Literal["all"] = 5,
        wraps: Sequence[bool] | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive("RolloutExactness", num_steps=num_steps)
        if num_shifts != "all":
            check_positive("RolloutExactness", num_shifts=num_shifts)
        self.num_steps, self.num_shifts, self.wraps = num_steps, num_shifts, wraps
        self.seed = seed

    def update(self, model: Model, state: Tensor) -> None:
        """Roll out states ``(B, C, *shape)`` and their shifted copies."""
        with torch.no_grad():
            end = self._end(model, state)
            for shift in self._shifts(state):
                moved = self._end(model, circular_shift(state, *shift))
                self._add((moved == circular_shift(end, *shift)).flatten(1).all(1))

    def _end(self, model: Model, state: Tensor) -> Tensor:
        for _ in range(self.num_steps):
            state = model(state)
        return state

    def _shifts(self, state: Tensor) -> Iterator[tuple[int, ...]]:
        dim = state.ndim - 2
        axes = wrapping_axes("RolloutExactness", dim, self.wraps)
        sizes = [state.shape[axis] if axis in axes else 1 for axis in range(-dim, 0)]
        if self.num_shifts == "all":
            yield from itertools.islice(itertools.product(*map(range, sizes)), 1, None)
            return
        source = process_generator(self.seed + int(self.num))  # the same after a reset
        drawn = torch.randint(1, math.prod(sizes), (self.num_shifts,), generator=source)
        for shift in torch.stack(torch.unravel_index(drawn, sizes), 1).tolist():
            yield tuple(shift)


def wrapping_axes(who: str, dim: int, wraps: Sequence[bool] | None) -> tuple[int, ...]:
    """Return the spatial axes that wrap, negative; raise unless ``wraps`` fits and one does."""
    wraps = check_wraps(who, wraps, dim) or (True,) * dim
    return tuple(axis - dim for axis, yes in enumerate(wraps) if yes)
