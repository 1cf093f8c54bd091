"""Real shifts: windows of a frame that the content chooses, for any network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from trueshift.anchor.module import Anchored
from trueshift.anchor.score import DifferenceOfGaussians
from trueshift.anchor.windows import Size

__all__ = ["Anchored", "DifferenceOfGaussians", "anchor"]


def anchor(
    network: Any,
    window: Size | None = None,
    modulus: Size = 16,
    size: Size | None = None,
    anchors: int = 1,
    score: Callable[[Tensor], Tensor] | None = None,
    batch: int | None = None,
    maps: bool | None = None,
) -> Anchored:
    """Let a network see its frames through windows that move with the content.

    The strongest point of a frame fixes a lattice of windows, ``modulus`` pixels apart; the network
    sees the window of that lattice nearest the centre instead of the central one. Two frames of a
    moving camera that choose the same windows give the network the same pixels, so its outputs are
    equal to the bit. Robust inference by crop selection is due to Shifman & Weiss, "Lost in
    Translation" (ECCV 2024); the modulus, which keeps windows near the centre, is ours.

    Args:
        network: A module in eval mode, a function of one tensor, or a session of onnxruntime.
        window: Pixels that the network sees: one integer, or one per axis, which also fixes the
            number of axes. By default the input size that the network states (timm, vision
            transformers, ONNX).
        modulus: Distance of the lattice: one integer, or one per axis. The window lies at most half
            of it off the centre, and jumps once in so many pixels of motion.
        size: Resize windows to this size, if the network needs another than ``window``.
        anchors: Number of windows whose outputs are averaged: ``n ** dim``, the ``n`` nearest the
            centre along each axis.
        score: Frames to scores ``(B, *spatial)`` of their points, whose bits must move with the
            content; only points above zero count. By default :class:`DifferenceOfGaussians`.
        batch: Windows in one call of the network; all by default. The last call is filled up, so
            that rounding does not depend on the number of frames.
        maps: Whether outputs are maps, to be put back into the frame. By default those of the size
            of the windows ``(N, C, *window)`` are; saying so saves a call.

    Returns:
        A module that takes frames ``(B, C, *spatial)``, and ``return_anchor=True`` to return also
        the corners of the windows in each frame, int64 ``(B, K, dim)``.

    Examples:
        >>> import torch
        >>> anchored = anchor(lambda windows: windows.amax((1, 2, 3)), window=32)
        >>> scene = torch.rand(1, 3, 80, 80, generator=torch.Generator().manual_seed(0))
        >>> _, first = anchored(scene[..., :64, 3:67], return_anchor=True)
        >>> _, second = anchored(scene[..., :64, 4:68], return_anchor=True)  # one pixel further
        >>> (first - second).tolist()
        [[[0, 1]]]
    """
    return Anchored(network, window, modulus, size, anchors, score, batch, maps)
