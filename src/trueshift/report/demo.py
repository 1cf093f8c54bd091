"""The page of ``trueshift demo``: drag an image and see what networks say of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trueshift.report.html import template
from trueshift.report.images import data_uri


def render_demo(names: Sequence[str], images: Tensor) -> str:
    """Return the page, which asks its server for predictions.

    Args:
        names: What the networks are called.
        images: Pictures ``(N, 3, H, W)``, uint8.
    """
    height, width = images.shape[2:]
    return template("demo.html.j2").render(
        names=list(names),
        images=[data_uri(image) for image in images],
        height=height,
        width=width,
    )
