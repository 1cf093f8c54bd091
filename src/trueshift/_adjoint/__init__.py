"""Eager kernels: linear maps written next to their adjoints.

Down-sampling by a phase and up-sampling by the same phase are each other's adjoint, and so are
wrapping a border and folding it back. Each pair here is two autograd functions that serve as each
other's backward: no full-size temporary, no slow scatter, and higher derivatives for free. Tracers
never get here: ``functional.py`` gives them the plain formulas.
"""

from trueshift._adjoint.borders import (
    CircularFold,
    CircularPad,
    circular_windows,
    filled_windows,
    inner_region,
)
from trueshift._adjoint.mixing import mix_by_convolution, mixes_by_convolution
from trueshift._adjoint.picking import image_by_image, pick
from trueshift._adjoint.sampling import (
    HardDown,
    HardUp,
    SoftDown,
    SoftSpread,
    SoftUp,
    SoftWindow,
    inner_products,
)
from trueshift._adjoint.views import (
    Slices,
    Widths,
    axis_length,
    component_view,
    offset_blocks,
    phase_offsets,
    phase_slices,
    unravel,
    window_slices,
    wrap,
)
from trueshift._layout import channels_innermost, channels_last, empty_map, last_format

__all__ = [
    "CircularFold",
    "CircularPad",
    "HardDown",
    "HardUp",
    "Slices",
    "SoftDown",
    "SoftSpread",
    "SoftUp",
    "SoftWindow",
    "Widths",
    "axis_length",
    "channels_innermost",
    "channels_last",
    "circular_windows",
    "component_view",
    "empty_map",
    "filled_windows",
    "image_by_image",
    "inner_products",
    "inner_region",
    "last_format",
    "mix_by_convolution",
    "mixes_by_convolution",
    "offset_blocks",
    "phase_offsets",
    "phase_slices",
    "pick",
    "unravel",
    "window_slices",
    "wrap",
]
