"""The paper's figures, drawn with matplotlib: components, selector filters, masks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trueshift._files import check_parent
from trueshift._validate import Stride, check_map, check_phase, stride_per_axis
from trueshift.audit.masks import Masks
from trueshift.functional import polyphase_split
from trueshift.layers.selectors import ConvSelector
from trueshift.report.images import colour_mask

CHOSEN, LARGEST = "#1f6feb", "#d1242f"  # blue and red, as in the paper
_MARK = torch.tensor([255, 0, 60], dtype=torch.uint8)


def components_figure(
    x: Tensor, phase: Tensor, path: str | os.PathLike[str], stride: Stride = 2
) -> Path:
    """Draw the polyphase components of maps: the kept one boxed in blue, the largest in red.

    The red box is on the component of the largest l2 norm, which APS would keep. Values are means
    over channels, on one grey scale for each map.

    Args:
        x: Maps ``(B, C, H, W)`` with sizes divisible by the stride; a row each.
        phase: Hard phase ``(B,)``, what a layer returns with ``return_phase=True``.
        path: Picture to write; it is returned.
        stride: Sampling factor.
    """
    check_map("components_figure", x, 2)
    steps = stride_per_axis("components_figure", stride, 2)
    components = polyphase_split(x.detach().float(), stride)  # (B, P, C, h, w)
    num_images, num_phases = components.shape[:2]
    check_phase("components_figure", phase, x, num_phases)
    if phase.dtype.is_floating_point:
        raise ValueError("components_figure: phase must be hard, int64 (B,). Use eval mode.")
    largest = components.flatten(2).norm(dim=2).argmax(1)
    grey = components.mean(2).cpu()  # (B, P, h, w)
    figure, axes = picture_grid(num_images, num_phases, 1.5)
    for b in range(num_images):
        low, high = float(grey[b].min()), float(grey[b].max())
        for k in range(num_phases):
            panel = axes[b][k]
            panel.imshow(grey[b, k].numpy(), cmap="gray", vmin=low, vmax=high)
            if b == 0:
                panel.set_title(f"({k // steps[1]}, {k % steps[1]})", fontsize=8)
            if k == int(largest[b]):
                _box(panel, LARGEST, inset=0.0)
            if k == int(phase[b]):
                _box(panel, CHOSEN, inset=0.06 if k == int(largest[b]) else 0.0)
    return save_figure(figure, path)


def filters_figure(
    selector: ConvSelector, path: str | os.PathLike[str], channel: int | None = None
) -> Path:
    """Draw the filters of a learned selector's first convolution, red positive, blue negative.

    Args:
        selector: A 2-D selector.
        path: Picture to write; it is returned.
        channel: Input channel to show; None shows the mean over all.
    """
    if not isinstance(selector, ConvSelector) or selector.dim != 2:
        raise TypeError(
            f"filters_figure: selector must be a ConvSelector for 2-D maps, got {selector!r}."
        )
    if channel is not None and not 0 <= channel < selector.channels:
        raise ValueError(
            f"filters_figure: channel must be in 0..{selector.channels - 1}, got {channel}."
        )
    weight = selector.conv1.weight.detach().float().cpu()  # (F, C, 3, 3)
    taps = weight.mean(1) if channel is None else weight[:, channel]
    columns = min(len(taps), 8)
    rows = math.ceil(len(taps) / columns)
    largest = float(taps.abs().max())
    figure, axes = picture_grid(rows, columns, 0.9)
    for k, panel in enumerate(panel for row in axes for panel in row):
        if k < len(taps):
            panel.imshow(taps[k].numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest)
        else:
            panel.set_axis_off()
    return save_figure(figure, path)


def qualitative_figure(
    images: Sequence[Tensor],
    masks: Mapping[str, Sequence[Masks]],
    path: str | os.PathLike[str],
    truth: Sequence[Tensor] = (),
) -> Path:
    """Draw images and, for each network, its masks before and after a shift (paper appendix).

    A column for each image; a row of inputs, one of true masks, then two rows for each network.
    Masks of shifted images are moved back; where the label is another one than before,
    every second pixel is red.

    Args:
        images: uint8 ``(3, h, w)``, of the size of their masks.
        masks: Network to its masks, one for each image.
        path: Picture to write; it is returned.
        truth: True masks ``(h, w)``, one for each image, or none.
    """
    wanted = [tuple(image.shape[1:]) for image in images]
    drawn = {name: [pair.still for pair in pairs] for name, pairs in masks.items()}
    for name, stills in {**({"truth": truth} if truth else {}), **drawn}.items():
        sizes = [tuple(still.shape) for still in stills]
        if sizes != wanted:
            raise ValueError(
                f"qualitative_figure: the masks of {name!r} must have the sizes of the images"
                f" {wanted}, got {sizes}."
            )
    first = 2 if truth else 1  # row of the first network
    figure, axes = picture_grid(first + 2 * len(masks), len(images), 1.5)
    axes[0][0].set_ylabel("input", fontsize=8)
    for panel, image in zip(axes[0], images, strict=True):
        panel.imshow(image.permute(1, 2, 0).numpy())
    if truth:
        axes[1][0].set_ylabel("truth", fontsize=8)
        for panel, mask in zip(axes[1], truth, strict=True):
            panel.imshow(_picture(mask).numpy())
    for row, (name, pairs) in zip(range(first, len(axes), 2), masks.items(), strict=True):
        axes[row][0].set_ylabel(f"{name}\non input", fontsize=8)
        axes[row + 1][0].set_ylabel(f"{name}\non shifted", fontsize=8)
        for column, pair in enumerate(pairs):
            axes[row][column].imshow(_picture(pair.still).numpy())
            marked = _picture(pair.moved)
            marked[pair.changed.cpu() & _chequered(*pair.changed.shape)] = _MARK
            axes[row + 1][column].imshow(marked.numpy())
            share = float(pair.changed.double().mean())
            axes[row + 1][column].set_xlabel(f"{share:.1%} changed", fontsize=7)
    return save_figure(figure, path)


def picture_grid(rows: int, columns: int, size: float) -> tuple[Any, list[list[Any]]]:
    """Make a figure of panels without ticks.

    Args:
        rows: Panels from top to bottom.
        columns: Panels from left to right.
        size: Width and height of a panel in inches.

    Returns:
        The figure and its panels, row by row.
    """
    figure = _empty(max(columns * size + 0.6, 2), rows * size + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.set_xticks([])
        panel.set_yticks([])
    return figure, [list(row) for row in axes]


def save_figure(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure to a folder that exists, and return its path."""
    path = Path(path)
    check_parent(path)
    figure.savefig(path, dpi=150)
    return path


def _empty(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('figures need matplotlib: pip install "trueshift[report]".') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _box(panel: Any, colour: str, inset: float) -> None:
    from matplotlib.patches import Rectangle

    side = 1 - 2 * inset
    style: dict[str, Any] = {"fill": False, "edgecolor": colour, "linewidth": 4}
    panel.add_patch(Rectangle((inset, inset), side, side, transform=panel.transAxes, **style))


def _picture(mask: Tensor) -> Tensor:
    return colour_mask(mask.long().cpu()).permute(1, 2, 0).clone()  # (H, W, 3)


def _chequered(height: int, width: int) -> Tensor:
    return (torch.arange(height)[:, None] + torch.arange(width)) % 2 == 0
