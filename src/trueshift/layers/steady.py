"""Operations that give each pixel the same bits wherever it stands.

Bitwise equivariance needs more than circular padding: the rounding of a pixel must not depend on
its place. Arithmetic has this property, and so do the convolutions of oneDNN. Sums and softmax over
channels and matrix products do not: they treat the last few pixels of a row, or of a thread's
share, differently. Nor do activations like SiLU: the end of a thread's share, if it is not a whole
number of vectors, goes through other code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._adjoint import channels_last

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CONV_FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

# Up to this size, torch sends a single image to a matrix product instead of a convolution.
_MATRIX_PRODUCT = 20480

_GRAIN = 32768  # torch gives a thread at least so many values of a map
_WHOLE = 64  # values: a multiple of what any of its vectorised loops takes at once


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
) -> Tensor:
    """Convolve in 1-D, 2-D or 3-D, steadily at test time."""
    conv = CONV_FUNCTIONS[x.ndim - 2]
    if torch.compiler.is_compiling():
        return conv(x, weight, bias, stride, padding, dilation, groups)
    if torch.get_num_threads() == 1 and x.shape[0] < 16 and math.prod(weight.shape[2:]) == 1:
        dilation = 2  # changes nothing but keeps torch from calling a matrix product
    if x.shape[0] != 1 or x.numel() > _MATRIX_PRODUCT:
        return conv(x, weight, bias, stride, padding, dilation, groups)
    twice = torch.cat([x, x])  # keeps the layout, which an expanded view would not
    return conv(twice, weight, bias, stride, padding, dilation, groups)[:1]


def weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, stride: tuple[int, ...] | None = None, groups: int = 1
) -> Tensor:
    """Return the gradient of a convolution's weight; the values of the weight are not read."""
    dim = x.ndim - 2
    none, one = [0] * dim, [1] * dim
    _, found, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride or one, none, one, False, none, groups, [False, True, False]
    )
    return cast(Tensor, found)


def steadily(function: Callable[[Tensor], Tensor], x: Tensor, *, inplace: bool = False) -> Tensor:
    """Apply an elementwise function so that every value takes the vectorised way.

    Args:
        function: Elementwise.
        x: Any tensor.
        inplace: Whether it overwrites its argument.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return function(x)
    last = channels_last(x)
    dense = x if last else x.contiguous()
    y = function(dense) if _is_whole(x.numel()) else _in_whole_parts(function, dense, last)
    return x.copy_(y) if inplace and y is not x else y


def _in_whole_parts(function: Callable[[Tensor], Tensor], x: Tensor, last: bool) -> Tensor:
    dense = x.movedim(1, -1) if last else x
    flat = dense.reshape(-1)
    shared = _whole_part(flat.numel())
    parts = [flat[:shared], *flat[shared:].split(_GRAIN)]
    results = [function(F.pad(part, (0, -part.numel() % _WHOLE)))[: part.numel()] for part in parts]
    y = torch.cat(results).view(dense.shape)
    return y.movedim(-1, 1) if last else y


def _is_whole(count: int) -> bool:
    """Whether torch cuts so many values into shares that are whole numbers of vectors."""
    shares = min(torch.get_num_threads(), -(-count // _GRAIN))
    return shares == 0 or count % (_WHOLE * shares) == 0


def _whole_part(count: int) -> int:
    """Return up to how many values of ``count`` torch can cut into such shares."""
    threads = torch.get_num_threads()
    step = _WHOLE * threads if count >= _GRAIN * threads else _GRAIN
    return count // step * step


def channel_sum(x: Tensor) -> Tensor:
    """Sum ``(B, C, *spatial)`` over channels to ``(B, 1, *spatial)``, by adding halves."""
    while x.shape[1] > 1:
        half, odd = divmod(x.shape[1], 2)
        total = x[:, :half] + x[:, half : 2 * half]
        if odd:
            total = torch.cat([total[:, :-1], total[:, -1:] + x[:, -1:]], dim=1)
        x = total
    return x
