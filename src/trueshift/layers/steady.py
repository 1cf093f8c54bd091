"""Operations that give each pixel the same bits wherever it stands.

Bitwise equivariance needs more than circular padding: the rounding of a pixel must not depend on
its place. Elementwise operations have this property, and so do the convolutions of oneDNN. Sums and
softmax over channels and matrix products do not: they treat the last few pixels of a row, or of a
thread's share, differently.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_CONV_FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

# Up to this size, torch sends a single image to a matrix product instead of a convolution.
_MATRIX_PRODUCT = 20480


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
    conv = _CONV_FUNCTIONS[x.ndim - 2]
    if torch.compiler.is_compiling():
        return conv(x, weight, bias, stride, padding, dilation, groups)
    if torch.get_num_threads() == 1 and x.shape[0] < 16 and math.prod(weight.shape[2:]) == 1:
        dilation = 2  # changes nothing but keeps torch from calling a matrix product
    if x.shape[0] != 1 or x.numel() > _MATRIX_PRODUCT:
        return conv(x, weight, bias, stride, padding, dilation, groups)
    twice = torch.cat([x, x])  # keeps the layout, which an expanded view would not
    return conv(twice, weight, bias, stride, padding, dilation, groups)[:1]


def channel_sum(x: Tensor) -> Tensor:
    """Sum ``(B, C, *spatial)`` over channels to ``(B, 1, *spatial)``, by adding halves."""
    while x.shape[1] > 1:
        half, odd = divmod(x.shape[1], 2)
        total = x[:, :half] + x[:, half : 2 * half]
        if odd:
            total = torch.cat([total[:, :-1], total[:, -1:] + x[:, -1:]], dim=1)
        x = total
    return x
