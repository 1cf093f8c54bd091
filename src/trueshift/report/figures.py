"""The paper's figures, drawn with matplotlib: components and selector filters."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from trueshift._validate import Stride, check_map, check_phase, stride_per_axis
from trueshift.functional import polyphase_split
from trueshift.layers.selectors import ConvSelector
from trueshift.report.pictures import picture_grid, save_figure

CHOSEN, LARGEST = "#1f6feb", "#d1242f"  # blue and red, as in the paper


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


def _box(panel: Any, colour: str, inset: float) -> None:
    from matplotlib.patches import Rectangle

    side = 1 - 2 * inset
    style: dict[str, Any] = {"fill": False, "edgecolor": colour, "linewidth": 4}
    panel.add_patch(Rectangle((inset, inset), side, side, transform=panel.transAxes, **style))
