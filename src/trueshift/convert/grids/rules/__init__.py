"""What each operation does to grids, by its name."""

from trueshift.convert.grids.analysis import Rule
from trueshift.convert.grids.rules import (
    axes,
    pointwise,
    reshaping,
    resizing,
    shapes,
    slices,
    strides,
)

RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **axes.RULES,
    **shapes.RULES,
    **reshaping.RULES,
    **strides.RULES,
    **resizing.RULES,
    **slices.RULES,
}
