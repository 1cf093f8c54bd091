"""How offsets of maps are computed from phases: recipes, derived from the lattice."""

from __future__ import annotations

from collections.abc import Sequence

from trueshift.convert.grids.lattice import Digit, Lattice, Phase, Space
from trueshift.convert.parts.phases import Recipe

Weighted = Sequence[tuple[Digit, int]]


def stride_of(phase: Phase) -> tuple[int, ...]:
    """Return the stride of each axis that a phase's map has."""
    return tuple(phase.strides.get(axis, 1) for axis in sorted(phase.parents))


def weighted(digits: Sequence[Digit]) -> Weighted:
    """Pair digits, lowest first, with how far one unit of each moves the map."""
    pairs, weight = [], 1
    for digit in digits:
        pairs.append((digit, weight))
        weight *= digit.base
    return pairs


def recipe_of(lattice: Lattice, axes: Sequence[Weighted]) -> Recipe:
    """Return the recipe of an offset, given the digits of each axis."""
    axes = [
        [
            (part, weight * within)
            for digit, weight in axis
            for part, within in weighted(lattice.expand((digit,)))
        ]
        for axis in axes
    ]
    numbers = sorted({digit.phase for axis in axes for digit, _ in axis})
    phases = [lattice.phases[number] for number in numbers]
    places = [sorted(phase.parents) for phase in phases]
    terms = []
    for axis in axes:
        own = []
        for digit, weight in axis:
            source = numbers.index(digit.phase)
            place = places[source].index(digit.axis)
            own.append((source, place, digit.div, digit.base, weight))
        terms.append(tuple(own))
    return Recipe(tuple(numbers), tuple(map(stride_of, phases)), tuple(terms))


def followed(lattice: Lattice, phase: Phase) -> Recipe:
    """Return the recipe of a phase that others determine."""
    digits = [phase.digits.get(axis, ()) for axis in sorted(phase.parents)]
    return recipe_of(lattice, [weighted(axis) for axis in digits])


def offset_of(lattice: Lattice, spaces: Sequence[Space]) -> tuple[Recipe, tuple[int, ...]]:
    """Return recipe and strides of the offset of a map, on each axis of its input."""
    by_axis = {space.axis: space for space in spaces}
    digits: list[Weighted] = []
    strides = []
    for axis in range(len(lattice.sizes[spaces[0].root])):
        space = by_axis.get(axis, Space(spaces[0].root, axis))
        digits.append(weighted(space.digits))
        strides.append(lattice.stride(space))
    return recipe_of(lattice, digits), tuple(strides)
