"""Frames to outputs, through windows that the content chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from trueshift._validate import check_positive
from trueshift.anchor import calls, maps, stability
from trueshift.anchor.places import Places
from trueshift.anchor.score import DifferenceOfGaussians, strongest
from trueshift.anchor.windows import (
    Size,
    check_frames,
    check_sizes,
    crop,
    per_axis,
    residues_of,
)
from trueshift.functional import order_free_mean


class Anchored(nn.Module):
    """A network that sees its frames through windows that the content chooses.

    Built by :func:`trueshift.anchor`, which explains the arguments.

    Shape:
        Frames ``(B, C, *spatial)`` of one size to the network's output for ``B`` images. Maps get
        the spatial size of the frames.
    """

    def __init__(
        self,
        network: Any,
        window: Size | None = None,
        modulus: Size = 16,
        size: Size | None = None,
        anchors: int = 1,
        score: Callable[[Tensor], Tensor] | None = None,
        batch: int | None = None,
        maps: bool | None = None,
    ) -> None:
        super().__init__()
        self.network = calls.as_module("network", network)
        window = calls.known_window(self.network) if window is None and size is None else window
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
        self.window, self.modulus = check_sizes("window", window), check_sizes("modulus", modulus)
        self.size = None if size is None else check_sizes("size", size)
        self.score = DifferenceOfGaussians() if score is None else calls.as_module("score", score)
        self.anchors, self.maps = anchors, maps
        self.batch = calls.known_batch(self.network) if batch is None else batch

    def forward(self, frames: Tensor, return_anchor: bool = False) -> Any:
        position, value = self._strongest(frames)
        if self.maps is not True:
            places = self._places(frames.shape[2:])
            corners = places.corners(residues_of(places, position, value))
            output = self._run(frames, corners)
            if self.maps is False or not self._returned_maps(output, frames.ndim - 2):
                output = pytree.tree_map(lambda leaf: self._averaged(leaf, len(frames)), output)
                return (output, corners) if return_anchor else output
            if self.anchors > 1:
                raise ValueError(
                    "anchor: the network returns maps, and a map takes each pixel from one window,"
                    f" got anchors={self.anchors}. Pass anchors=1, or maps=False to average."
                )
        places = self._tiling(frames.shape[2:])
        corners, index, inside = maps.tiles(places, residues_of(places, position, value))
        output = pytree.tree_map(
            lambda leaf: maps.put_back(leaf, index, inside, places.window),
            self._run(frames, corners),
        )
        return (output, corners) if return_anchor else output

    def corners(self, frames: Tensor) -> Tensor:
        """Return the corners of the windows in each frame, int64 ``(B, K, dim)``."""
        position, value = self._strongest(frames)
        places = self._places(frames.shape[2:])
        return places.corners(residues_of(places, position, value))

    def tiles(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a map is assembled from.

        Returns:
            The corners of the tiles in each frame, int64 ``(B, K, dim)``, and for every pixel the
            index of its tile, int64 ``(B, *spatial)``. Where two frames use the same tile of the
            scene for a pixel, the values are equal.
        """
        places = self._tiling(frames.shape[2:])
        corners, index, _ = maps.tiles(places, residues_of(places, *self._strongest(frames)))
        return corners, index

    def slack(self, frames: Tensor) -> Tensor:
        """Return how far the content of each frame may move before its windows change.

        Returns:
            Pixels towards lower and towards higher indices, int64 ``(B, dim, 2)``. They hold for a
            move along one axis or several, as long as no stronger point enters the frame. Frames
            without any point, constant ones, have none.
        """
        return stability.slack(self._places(frames.shape[2:]), self._scores(frames))

    def margin(self, frames: Tensor) -> Tensor:
        """Return by what share the strongest point exceeds all that would choose other windows.

        Returns:
            Between 0, a tie, and 1, ``(B,)``. The windows stay the same if no score changes by more
            than half of that share of the strongest.
        """
        return stability.margin(self._places(frames.shape[2:]), self._scores(frames))

    def agreement(self, frame: Size, move: Size) -> float:
        """Return the probability that two frames choose the same windows, if places are uniform.

        Args:
            frame: Size of the frames: one integer for two axes, or one per axis.
            move: Pixels between the frames along every axis, or along each.
        """
        sizes = (frame, frame) if isinstance(frame, int) else tuple(frame)
        moves = (move,) * len(sizes) if isinstance(move, int) else tuple(move)
        return stability.agreement(self._places(sizes), self._points(sizes), moves)

    def extra_repr(self) -> str:
        return f"window={self.window}, modulus={self.modulus}, anchors={self.anchors}"

    def _places(self, frame: Sequence[int]) -> Places:
        dim = len(frame)
        count = round(self.anchors ** (1 / dim))
        if count**dim != self.anchors:
            near = sorted({max(1, count - 1) ** dim, count**dim, (count + 1) ** dim})
            raise ValueError(
                f"anchor: anchors must be n ** {dim}, n windows along each of {dim} axes, got"
                f" {self.anchors}. Choose from: {', '.join(map(str, near))}."
            )
        window, modulus = self._window_and_modulus(dim)
        return Places(tuple(frame), window, modulus, (count,) * dim)

    def _tiling(self, frame: Sequence[int]) -> Places:
        return maps.tiling(tuple(frame), *self._window_and_modulus(len(frame)))

    def _window_and_modulus(self, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return per_axis("window", self.window, dim), per_axis("modulus", self.modulus, dim)

    def _points(self, frame: Sequence[int]) -> tuple[int, ...]:
        border = getattr(self.score, "support", 1) - 1
        return tuple(f - border for f in frame)

    def _scores(self, frames: Tensor) -> Tensor:
        check_frames(frames)
        dim = frames.ndim - 2
        if min(self._points(frames.shape[2:])) < 1:
            raise ValueError(
                f"anchor: the score needs frames of at least {self.score.support} pixels, got"
                f" shape {tuple(frames.shape)}. Pass larger frames, or a score of smaller support."
            )
        score: Tensor = self.score(frames)
        if score.ndim == dim + 2 and score.shape[1] == 1:
            score = score[:, 0]
        if score.ndim != dim + 1 or score.shape[0] != frames.shape[0] or 0 in score.shape[1:]:
            raise ValueError(
                f"anchor: the score must have shape (B, *spatial) or (B, 1, *spatial), got"
                f" {tuple(score.shape)} for frames of shape {tuple(frames.shape)}."
            )
        return score

    @torch.no_grad()
    def _strongest(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        return strongest(self._scores(frames))

    def _run(self, frames: Tensor, corners: Tensor) -> Any:
        dim = frames.ndim - 2
        windows = crop(frames, corners, per_axis("window", self.window, dim))
        if self.size is not None:
            windows = F.interpolate(
                windows,
                per_axis("size", self.size, dim),
                mode=maps.LINEAR[dim],
                antialias=dim == 2,
            )
        return calls.call(self.network, windows, self.batch)

    def _returned_maps(self, output: Any, dim: int) -> bool:
        seen = per_axis("size", self.size or self.window, dim)
        return any(
            leaf.ndim == dim + 2 and tuple(leaf.shape[2:]) == seen
            for leaf in pytree.tree_leaves(output)
        )

    def _averaged(self, leaf: Tensor, count: int) -> Tensor:
        if self.anchors == 1:
            return leaf
        if not leaf.dtype.is_floating_point:
            raise TypeError(
                f"anchor: labels of {self.anchors} windows cannot be averaged, got {leaf.dtype}."
                " Return scores, or pass anchors=1."
            )
        return order_free_mean(leaf.unflatten(0, (count, self.anchors)), 1).to(leaf.dtype)
