"""Frames to outputs, through windows that the content chooses."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trueshift._validate import check_map, check_positive
from trueshift.anchor.networks import as_module, calls_of, in_batches, known_window
from trueshift.anchor.places import (
    Line,
    Size,
    agreement,
    central_corner,
    check_sizes,
    lines,
    per_axis,
    residues,
    spread,
)
from trueshift.anchor.score import DifferenceOfGaussians, ordered, peaks, relative
from trueshift.anchor.tiles import put_back, resized, tiles, tiling
from trueshift.functional import order_free_mean

Corners = list[list[list[int]]]  # of the windows in each frame, (B, K, dim)


class Anchored(nn.Module):
    """Let a network see its frames through windows that move with the content.

    The strongest point of a frame fixes the place of its window, near the centre, modulo some
    pixels; the network sees this window instead of the central one. Two frames of a moving camera
    that choose the same windows give the network the same pixels, so its outputs are equal to the
    bit. Robust inference by crop selection is due to Shifman & Weiss, "Lost in Translation" (ECCV
    2024); the modulus, which keeps windows near the centre, is ours.

    Args:
        network: A module in eval mode, a function of one tensor, or a session of onnxruntime.
        window: Pixels that the network sees: one integer, or one per axis, which also fixes the
            number of axes. By default the input size that the network states (timm, vision
            transformers, ONNX).
        modulus: Number of places of a window: one integer, or one per axis. It lies at most half of
            it off the centre, and jumps once in so many pixels of motion. By default 32, or as many
            as frames have room for.
        size: Resize windows to this size, if the network needs another than ``window``.
        anchors: Number of windows whose outputs are averaged, each fixed by a point: the strongest,
            the strongest that is not near it, and so on. A frame with fewer points sees the window
            of the strongest again.
        score: Frames to scores ``(B, *spatial)`` of their points, whose bits must move with the
            content; only points above zero count. By default :class:`DifferenceOfGaussians`.
        batch: Windows in one call of the network, so that rounding does not depend on the number
            of frames: the last call is filled up. By default as many as there are frames, or 8.
        maps: Whether outputs are maps, to be put back into the frame. By default those of the size
            of the windows ``(N, C, *window)`` are; saying so saves a call.

    Shape:
        Frames ``(B, C, *spatial)`` of one size to the network's output for ``B`` images; maps get
        the spatial size of the frames. With ``return_anchor=True`` also the corners of the windows
        in each frame, int64 ``(B, K, dim)``; for maps of one, the tile in the middle.

    Examples:
        >>> anchored = Anchored(lambda windows: windows.amax((1, 2, 3)), window=32)
        >>> scene = torch.rand(1, 3, 80, 80, generator=torch.Generator().manual_seed(0))
        >>> _, first = anchored(scene[..., :64, 3:67], return_anchor=True)
        >>> _, second = anchored(scene[..., :64, 4:68], return_anchor=True)  # one pixel further
        >>> (first - second).tolist()
        [[[0, 1]]]
    """

    def __init__(
        self,
        network: Any,
        window: Size | None = None,
        modulus: Size | None = None,
        size: Size | None = None,
        anchors: int = 1,
        score: Callable[[Tensor], Tensor] | None = None,
        batch: int | None = None,
        maps: bool | None = None,
    ) -> None:
        super().__init__()
        self.network = as_module("network", network)
        window = known_window(self.network) if window is None and size is None else window
        if window is None:
            raise ValueError(
                "anchor: the network does not state its input size. Pass window, for instance"
                " window=224."
            )
        check_positive("anchor", anchors=anchors)
        if batch is not None:
            check_positive("anchor", batch=batch)
        if maps and anchors > 1:
            raise ValueError(
                f"anchor: a map takes each pixel from one window, got anchors={anchors}. Pass"
                " anchors=1."
            )
        self.window = check_sizes("window", window)
        self.modulus = None if modulus is None else check_sizes("modulus", modulus)
        self.size = None if size is None else check_sizes("size", size)
        self.score = DifferenceOfGaussians() if score is None else as_module("score", score)
        self.anchors, self.batch, self.maps = anchors, batch, maps

    def forward(self, frames: Tensor, return_anchor: bool = False) -> Any:
        if not self.maps:
            chosen = self._corners(frames)
            output = self._run(frames, chosen)
            if self.maps is False or not self._returned_maps(output, frames.ndim - 2):
                output = pytree.tree_map(lambda leaf: self._averaged(leaf, len(frames)), output)
                return (output, self._stacked(chosen, frames)) if return_anchor else output
            if self.anchors > 1:
                raise ValueError(
                    "anchor: the network returns maps, and a map takes each pixel from one window,"
                    f" got anchors={self.anchors}. Pass anchors=1, or maps=False to average."
                )
        place, (corners, index, inside) = self._tiles(frames)
        window = per_axis("window", self.window, frames.ndim - 2)
        output = pytree.tree_map(
            lambda leaf: put_back(leaf, index, inside, window), self._run(frames, corners.tolist())
        )
        return (output, place) if return_anchor else output

    def corners(self, frames: Tensor) -> Tensor:
        """Return the corners of the windows in each frame, int64 ``(B, K, dim)``."""
        return self._stacked(self._corners(frames), frames)

    def _stacked(self, corners: Corners, frames: Tensor) -> Tensor:
        shape = len(frames), self.anchors, frames.ndim - 2
        return _integers(corners, frames).view(shape)

    def _corners(self, frames: Tensor) -> Corners:
        score = self._scores(frames)
        axes = self._axes(frames.shape[2:])
        found = [
            (residues(axes, points.positions, points.values), points.values)
            for points in peaks(score, self.anchors)
        ]
        # A frame with fewer points than windows sees that of the strongest again.
        return [
            [
                central_corner(axes, (chosen if values[i] > 0 else found[0][0])[i])
                for chosen, values in found
            ]
            for i in range(len(frames))
        ]

    def tiles(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a map is assembled from.

        Returns:
            The corners of the tiles in each frame, int64 ``(B, K, dim)``, and for every pixel the
            index of its tile, int64 ``(B, *spatial)``. Where two frames use the same tile of the
            scene for a pixel, the values are equal.
        """
        return self._tiles(frames)[1][:2]

    def slack(self, frames: Tensor) -> Tensor:
        """Return how far the content of each frame may move before its windows change.

        Returns:
            Pixels towards lower and towards higher indices, int64 ``(B, dim, 2)``. They hold for a
            move along one axis or several, as long as no stronger point enters the frame. Frames
            without any point, constant ones, have none.
        """
        score, slack = self._scores(frames), list[Tensor]()
        axes, dim = self._axes(frames.shape[2:]), frames.ndim - 2
        for positions, values, _ in peaks(score, self.anchors):
            position = _integers(positions, frames).view(-1, dim)
            lower = _integers(residues(axes, positions, values), frames).view(-1, dim)
            last = lower.new_tensor(score.shape[1:]) - 3  # of the inner points
            upper = lower.new_tensor([axis.modulus - 1 for axis in axes]) - lower
            both = torch.stack([lower, torch.minimum(upper, last - position)], -1)
            any_left = (score.new_tensor(values) > 0)[:, None, None]
            slack.append(torch.where(any_left, both, slack[0] if slack else 0))
        return torch.stack(slack).amin(0)

    def margin(self, frames: Tensor) -> Tensor:
        """Return by what share of the strongest point the chosen ones exceed their rivals.

        Rivals are all points that would choose other windows.

        Returns:
            Between 0, a tie, and 1, ``(B,)``. The windows stay the same if every score changes by
            less than half of that share of the strongest; several windows also need a modulus of at
            least 13, the distance between their points.
        """
        score, gaps, strongest = ordered(self._scores(frames)), list[Tensor](), None
        axes = self._axes(frames.shape[2:])
        for positions, values, left in peaks(score, self.anchors):
            value = score.new_tensor(values)
            strongest = value if strongest is None else strongest
            others = [
                place % axis.modulus != 0
                for axis, place in zip(axes, relative(score, positions), strict=True)
            ]
            rivals = functools.reduce(torch.logical_or, spread(others))
            rival = torch.where(rivals, left, 0.0).flatten(1).amax(1).clamp(min=0)
            gap = (value - rival).clamp(min=0) / strongest
            gaps.append(torch.where(value > 0, gap, 0.0))
        return torch.stack(gaps).amin(0)

    def agreement(self, frame: Size, move: Size) -> float:
        """Return the probability that two frames choose the same windows.

        The points of all windows are taken to be independent and equally likely to be anywhere.

        Args:
            frame: Size of the frames: one integer for two axes, or one per axis.
            move: Pixels between the frames along every axis, or along each.
        """
        sizes = (frame, frame) if isinstance(frame, int) else tuple(frame)
        moves = (move,) * len(sizes) if isinstance(move, int) else tuple(move)
        points = tuple(size - self._needed() + 1 for size in sizes)
        return agreement(self._axes(sizes), points, moves) ** self.anchors

    def extra_repr(self) -> str:
        return f"window={self.window}, modulus={self.modulus}, anchors={self.anchors}"

    def _axes(self, frame: Sequence[int], maps: bool | None = None) -> tuple[Line, ...]:
        dim = len(frame)
        modulus = None if self.modulus is None else per_axis("modulus", self.modulus, dim)
        axes = lines(frame, per_axis("window", self.window, dim), modulus)
        if all(axis.frame == axis.window for axis in axes):
            warnings.warn(
                f"anchor: frames of {tuple(frame)} leave no choice of a window of {self.window}."
                " Pass larger frames, or a smaller window with size=.",
                stacklevel=2,
            )
        return tiling(axes) if self.maps or maps else axes

    def _tiles(self, frames: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, list[Tensor]]]:
        points = next(peaks(self._scores(frames)))
        axes = self._axes(frames.shape[2:], maps=True)
        chosen = residues(axes, points.positions, points.values)
        middle = _integers([[central_corner(axes, residue)] for residue in chosen], frames)
        residue = _integers(chosen, frames).view(-1, len(axes))
        return middle.view(-1, 1, len(axes)), tiles(axes, residue)

    def _needed(self) -> int:
        """Pixels that tell whether a point is a local maximum: the score's, and a neighbour's."""
        support: int = getattr(self.score, "support", 1)
        return support + 2

    @torch.no_grad()
    def _scores(self, frames: Tensor) -> Tensor:
        _check_frames(frames, self._needed())
        score: Tensor = self.score(frames)
        dim = frames.ndim - 2
        if score.ndim == dim + 2 and score.shape[1] == 1:
            score = score[:, 0]
        if score.ndim != dim + 1 or len(score) != len(frames) or min(score.shape[1:]) < 3:
            raise ValueError(
                f"anchor: the score must have shape (B, *spatial) or (B, 1, *spatial), at least 3"
                f" along each axis, got {tuple(score.shape)} for frames of shape"
                f" {tuple(frames.shape)}."
            )
        return score

    def _run(self, frames: Tensor, corners: Corners) -> Any:
        dim = frames.ndim - 2
        windows = _crop(frames, corners, per_axis("window", self.window, dim))
        if self.size is not None:
            size = per_axis("size", self.size, dim)
            windows = resized(windows, size, antialias=dim == 2)
        batch = calls_of(len(windows), len(frames)) if self.batch is None else self.batch
        return in_batches(self.network, windows, batch)

    def _returned_maps(self, output: Any, dim: int) -> bool:
        seen = per_axis("size", self.size or self.window, dim)
        leaves = pytree.tree_leaves(output)
        return any(leaf.ndim == dim + 2 and tuple(leaf.shape[2:]) == seen for leaf in leaves)

    def _averaged(self, leaf: Tensor, count: int) -> Tensor:
        if self.anchors == 1:
            return leaf
        if not leaf.dtype.is_floating_point:
            raise TypeError(
                f"anchor: labels of {self.anchors} windows cannot be averaged, got {leaf.dtype}."
                " Return scores, or pass anchors=1."
            )
        return order_free_mean(leaf.unflatten(0, (count, self.anchors)), 1).to(leaf.dtype)


def _crop(frames: Tensor, corners: Corners, window: tuple[int, ...]) -> Tensor:
    """Cut out windows ``(B * K, C, *window)``."""
    cut = []
    for frame, places in zip(frames, corners, strict=True):
        for corner in places:
            part = frame
            for axis, (start, length) in enumerate(zip(corner, window, strict=True), start=1):
                part = part.narrow(axis, start, length)
            cut.append(part)
    return torch.stack(cut) if cut else frames.new_empty(0, frames.shape[1], *window)


def _integers(values: Any, frames: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=frames.device)


def _check_frames(frames: object, support: int) -> None:
    """Raise unless ``frames`` are frames of one size ``(B, C, *spatial)`` that the score takes."""
    if isinstance(frames, list | tuple):
        shapes = sorted({tuple(getattr(frame, "shape", ())) for frame in frames})
        raise TypeError(
            f"anchor: frames must be one tensor (B, C, *spatial), got {len(frames)} frames of"
            f" shapes {shapes}. Stack frames of one size; call once for each size."
        )
    check_map("anchor", frames, name="frames")  # type: ignore[arg-type]  # refuses the rest
    if min(frames.shape[2:]) < support:  # type: ignore[attr-defined]
        raise ValueError(
            f"anchor: the score needs frames of at least {support} pixels, got shape"
            f" {tuple(frames.shape)}. Pass larger frames, or a score of smaller support."  # type: ignore[attr-defined]
        )
