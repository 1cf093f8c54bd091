"""On which grid a tensor lives: per axis a stride and an offset that phases determine.

A feature map at stride ``S`` holds the positions ``o + S n`` of the input. The offset is a number
in mixed radix: the first down-sampling chooses its lowest digit, the next one the digit above, and
so on. Up-sampling removes the highest digits. Maps may meet only if all their digits are the same
choice, so meeting *unifies* phases: all but the first become followers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from trueshift.convert.errors import Refused

_APART = "Down-sample both branches by the same strides in the same order before they are combined."


@dataclass(frozen=True)
class Digit:
    """One digit of an offset: ``offset(phase)[axis] // div % base``."""

    phase: int
    axis: int
    div: int
    base: int


@dataclass(frozen=True)
class Space:
    """A spatial axis of an input, sampled at ``digits`` (lowest first), ``fine`` times finer."""

    root: int
    axis: int
    digits: tuple[Digit, ...] = ()
    fine: int = 1


@dataclass
class Phase:
    """A choice made at run time for every image.

    Args:
        index: Its number, in the order of the network.
        site: Name of the operation that down-samples.
        strides: Stride of each sampled axis of the input, by axis.
        parents: The grid that is sampled, by axis.
        digits: Where another phase determines this one: the digits to use, by axis.
    """

    index: int
    site: str
    strides: dict[int, int]
    parents: dict[int, Space]
    digits: dict[int, tuple[Digit, ...]] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this phase is chosen, not computed from others."""
        return not self.digits


class Lattice:
    """All inputs and phases of a network, and what is known to be equal.

    Args:
        at_seam: Whether inputs are moved to begin at their seam; then positions may be
            distinguished.
    """

    def __init__(self, at_seam: bool = False) -> None:
        self.at_seam = at_seam
        self.phases: list[Phase] = []
        self.sizes: list[tuple[int, ...]] = []
        self._same_root: list[int] = []

    def add_root(self, sizes: tuple[int, ...]) -> list[Space]:
        """Register an input with these spatial sizes; return its axes."""
        self.sizes.append(sizes)
        self._same_root.append(len(self.sizes) - 1)
        return [Space(len(self.sizes) - 1, axis) for axis in range(len(sizes))]

    def root(self, index: int) -> int:
        """Return the first of the inputs that move together with this one."""
        while self._same_root[index] != index:
            index = self._same_root[index]
        return index

    def down(
        self, site: str, spaces: list[Space], strides: tuple[int, ...]
    ) -> tuple[Phase | None, list[Space]]:
        """Sample axes by ``strides``: a new phase (``None`` if none is needed) and the new axes."""
        if all(space.fine % step == 0 for space, step in zip(spaces, strides, strict=True)):
            # Finer than the input: every position of the result is one of the input's.
            coarse = [
                replace(space, fine=space.fine // step)
                for space, step in zip(spaces, strides, strict=True)
            ]
            return None, coarse
        if any(space.fine > 1 and step > 1 for space, step in zip(spaces, strides, strict=True)):
            raise Refused(
                f"down-sampling by {strides} after up-sampling beyond the input's resolution.",
                "Use a factor that divides the up-sampling.",
            )
        index = len(self.phases)
        pairs = [(space, step) for space, step in zip(spaces, strides, strict=True) if step > 1]
        by_axis = {space.axis: step for space, step in pairs}
        phase = Phase(index, site, by_axis, {space.axis: space for space in spaces})
        self.phases.append(phase)
        result = [
            replace(space, digits=(*space.digits, Digit(index, space.axis, 1, step)))
            if step > 1
            else space
            for space, step in zip(spaces, strides, strict=True)
        ]
        return phase, result

    def up(self, space: Space, factor: int) -> tuple[Space, list[tuple[Digit, int]]]:
        """Undo sampling by ``factor``: the new axis and the digits removed, with weights.

        The weights say by how many positions of the new grid one step of a digit moves the map.
        """
        digits, removed, rest = list(self.expand(space.digits)), [], factor
        while digits and rest > 1:
            top = digits.pop()
            part = math.gcd(top.base, rest)
            if part == 1:
                raise Refused(
                    f"up-sampling by {factor} does not undo the down-sampling before it.",
                    "Up-sample by the factors of the encoder.",
                )
            if part < top.base:
                digits.append(replace(top, base=top.base // part))
                top = replace(top, div=top.div * (top.base // part), base=part)
                if rest > part:
                    raise Refused(
                        f"up-sampling by {factor} does not undo the down-sampling before it.",
                        "Up-sample by the factors of the encoder.",
                    )
            removed.append(top)
            rest //= part
        weighted, weight = [], rest
        for digit in reversed(removed):
            weighted.append((digit, weight))
            weight *= digit.base
        return replace(space, digits=tuple(digits), fine=space.fine * rest), weighted

    def expand(self, digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
        """Replace every digit of a following phase by those that determine it."""
        result: list[Digit] = []
        for digit in digits:
            parts = self.phases[digit.phase].digits.get(digit.axis)
            if parts is None:
                result.append(digit)
                continue
            weight = 1
            for part in self.expand(parts):
                low = max(digit.div, weight)
                high = min(digit.div * digit.base, weight * part.base)
                if high > low:
                    result.append(replace(part, div=part.div * (low // weight), base=high // low))
                weight *= part.base
        return tuple(result)

    def unify(self, a: Space, b: Space) -> None:
        """Make two axes the same grid, or refuse."""
        if a.axis != b.axis or a.fine != b.fine:
            raise Refused("two maps on different grids or axes are combined.", _APART)
        self._join(a.root, b.root)
        left, right = list(self.expand(a.digits)), list(self.expand(b.digits))
        while left and right:
            if left[0] == right[0]:
                left.pop(0), right.pop(0)
            elif self._defined_later(left[0], right[0]):
                self._define(left, right)
            else:
                self._define(right, left)
        if left or right:
            raise Refused("two maps of different strides are combined.", _APART)

    def settle(self) -> None:
        """Complete phases that are known on some axes only."""
        for phase in self.phases:
            missing = [axis for axis in phase.strides if axis not in phase.digits]
            if not phase.digits or not missing:
                continue
            leaders = {digit.phase for digits in phase.digits.values() for digit in digits}
            leader = self.phases[leaders.pop()]
            if leaders or leader.strides != phase.strides:
                raise Refused(f"{phase.site} follows another branch on one axis only.", _APART)
            for axis in missing:
                self.unify(phase.parents[axis], leader.parents[axis])
                phase.digits[axis] = (Digit(leader.index, axis, 1, phase.strides[axis]),)

    def stride(self, space: Space) -> int:
        """Return how many positions of the input lie between two of the axis."""
        return math.prod(digit.base for digit in space.digits)

    def _join(self, a: int, b: int) -> None:
        first, second = sorted((self.root(a), self.root(b)))
        if self.sizes[first] != self.sizes[second]:
            raise Refused(
                f"inputs of sizes {self.sizes[first]} and {self.sizes[second]} are combined.",
                "Pass inputs of one size.",
            )
        self._same_root[second] = first

    def _whole(self, digit: Digit) -> bool:
        phase = self.phases[digit.phase]
        return digit.div == 1 and digit.base == phase.strides[digit.axis]

    def _defined_later(self, a: Digit, b: Digit) -> bool:
        """Tell whether ``a`` must be expressed by ``b``'s side: it is coarser, or comes later."""
        if not self._whole(b) or not self._whole(a):
            return self._whole(a)
        return a.base > b.base or (a.base == b.base and a.phase > b.phase)

    def _define(self, own: list[Digit], others: list[Digit]) -> None:
        digit = own.pop(0)
        parts: list[Digit] = []
        rest = digit.base
        while rest > 1 and others:
            part = others.pop(0)
            if rest % part.base:
                if part.base % rest:
                    break
                others.insert(0, replace(part, div=part.div * rest, base=part.base // rest))
                part = replace(part, base=rest)
            parts.append(part)
            rest //= part.base
        if rest > 1 or not self._whole(digit) or digit.phase in {part.phase for part in parts}:
            raise Refused("two maps whose strides do not match are combined.", _APART)
        self.phases[digit.phase].digits[digit.axis] = tuple(parts)
