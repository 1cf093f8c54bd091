"""How offsets of maps are computed from phases: recipes, made from the lattice."""

from __future__ import annotations

from collections.abc import Sequence

from trueshift.convert.grids.lattice import Digit, Lattice, Phase, Space
from trueshift.convert.parts.phases import Recipe

Weighted = Sequence[tuple[Digit, int]]


def steps_of(phase: Phase) -> tuple[int, ...]:
    """Return the stride of each axis that a phase's map has."""
    return tuple(phase.steps.get(axis, 1) for axis in sorted(phase.parents))


def weighted(digits: Sequence[Digit]) -> Weighted:
    """Pair digits, lowest first, with what one step of each is worth."""
    pairs, weight = [], 1
    for digit in digits:
        pairs.append((digit, weight))
        weight *= digit.base
    return pairs


def recipe_of(lattice: Lattice, axes: Sequence[Weighted]) -> tuple[Recipe, list[int]]:
    """Return the recipe of the offset of each axis, and the numbers of the phases it takes."""
    sources = sorted({digit.phase for axis in axes for digit, _ in axis})
    phases = [lattice.phases[index] for index in sources]
    places = [sorted(phase.parents) for phase in phases]
    terms = []
    for axis in axes:
        own = []
        for digit, weight in axis:
            source = sources.index(digit.phase)
            place = places[source].index(digit.axis)
            own.append((source, place, digit.div, digit.base, weight))
        terms.append(tuple(own))
    return (tuple(terms), tuple(steps_of(phase) for phase in phases)), sources


def offset_of(
    lattice: Lattice, spaces: Sequence[Space]
) -> tuple[Recipe, tuple[int, ...], list[int]]:
    """Return recipe, strides and phases of the offset of a map, on each axis of its input."""
    by_axis = {space.axis: space for space in spaces}
    digits: list[Weighted] = []
    strides = []
    for axis in range(len(lattice.sizes[spaces[0].root])):
        space = by_axis.get(axis, Space(spaces[0].root, axis))
        digits.append(weighted(lattice.expand(space.digits)))
        strides.append(lattice.stride(space))
    recipe, sources = recipe_of(lattice, digits)
    return recipe, tuple(strides), sources
