"""What cannot be converted, where, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from trueshift._validate import nearest_multiples


@dataclass(frozen=True)
class Refusal:
    """One place of a network that has no shift-equivariant version.

    Args:
        place: Name of the module or line of code.
        op: The operation.
        reason: Why it depends on absolute positions, or cannot be understood.
        advice: What the user can do.
    """

    place: str
    op: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.place} ({self.op}): {self.reason} {self.advice}"


class ConversionError(ValueError):
    """The network was not converted; ``refusals`` lists every place and reason.

    Args:
        network: Name of the network's class.
        refusals: What was refused.
    """

    def __init__(self, network: str, refusals: Sequence[Refusal]) -> None:
        self.network, self.refusals = network, tuple(refusals)
        places = "place" if len(self.refusals) == 1 else "places"
        lines = [f"  {number}. {text}" for number, text in enumerate(self.refusals, start=1)]
        head = f"convert: {network} was refused at {len(self.refusals)} {places}:"
        super().__init__("\n".join([head, *lines]))

    def __reduce__(self) -> tuple[type[ConversionError], tuple[str, tuple[Refusal, ...]]]:
        return type(self), (self.network, self.refusals)


class SizeError(ConversionError):
    """The network converts, but not for the example's size."""


class Refused(Exception):
    """Raised by a rule that refuses an operation."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.reason, self.advice = reason, advice


class Flattened(Refused):
    """Raised where positions become features."""

    def __init__(self) -> None:
        super().__init__(
            "positions become features (flatten before a linear layer), so every position has"
            " weights of its own.",
            "Use global pooling, or pass flatten='canonical': the origin of the map is then chosen"
            " from its contents. Or pass padding='seam'.",
        )


def check_multiple(who: str, name: str, x: Tensor, multiples: tuple[int, ...]) -> None:
    """Raise unless the sizes of a map are multiples; name the nearest sizes that are."""
    problem = wrong_size(name, x, multiples)
    if problem is not None:
        raise ValueError(f"{who}: {' '.join(problem)}")


def wrong_size(name: str, x: Tensor, multiples: tuple[int, ...]) -> tuple[str, str] | None:
    """Say why sizes of a map are no multiples, and which are; ``None`` if they are."""
    sizes = x.shape[2:]
    strides = multiples[: len(sizes)]
    if all(size % stride == 0 for size, stride in zip(sizes, strides, strict=True)):
        return None
    up, down = nearest_multiples(sizes, strides)
    shown = strides[0] if len(set(strides)) == 1 else strides
    crop = f" or crop to {down}" if min(down) > 0 else ""
    got = f"got {name} of shape {tuple(x.shape)}."
    return f"spatial sizes must be multiples of {shown}, {got}", f"Pad or resize to {up}{crop}."
