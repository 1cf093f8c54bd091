"""Where a network samples, and what each place costs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from trueshift.layers.filters import filter_name
from trueshift.layers.resample import PolyphaseDown, PolyphaseUp
from trueshift.layers.selectors import METHODS


@dataclass(frozen=True)
class Site:
    """One place of a network that down- or up-samples.

    Attributes:
        name: Where in the network.
        kind: ``"down"``, ``"follow"`` (down by the phase of another place), ``"up"``,
            ``"origin"`` (where positions are counted from), or ``"stride"`` (an operation that
            strides by itself).
        method: ``"lps"``, ``"aps"``, ``"stride"``, or empty where no choice is made.
        stride: Sampling factor.
        antialias: Name of the filter, or ``None``.
        channels: Channels of the map, where a layer knows them.
        hidden: Width of a learned selector.
        parameters: Trainable numbers of the selector and the filter.
    """

    name: str
    kind: str
    method: str
    stride: int | tuple[int, ...]
    antialias: str | None
    channels: int | None
    hidden: int | None
    parameters: int


class Summary(list[Site]):
    """The sites of a network in order; prints as a table."""

    def __str__(self) -> str:
        head = ("place", "kind", "method", "stride", "filter", "channels", "hidden", "parameters")
        rows = [head, *(_cells(site) for site in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        total = sum(site.parameters for site in self)
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([line.rstrip() for line in lines] + [f"{total:,} parameters for sampling"])


def summary(model: nn.Module) -> Summary:
    """List every down- and up-sampling place of a network.

    Args:
        model: Any network that holds trueshift's layers, or strided convolutions and pooling.

    Returns:
        A list of :class:`Site` that prints as a table.

    Examples:
        >>> from trueshift import Sampling, models
        >>> net = models.resnet18(Sampling("lps", hidden="eighth"), num_classes=10, stem="cifar")
        >>> [site.name for site in summary(net) if site.kind == "down"]
        ['layer2.0.down', 'layer3.0.down', 'layer4.0.down']
    """
    return Summary(
        site for name, module in model.named_modules() if (site := _site(name, module)) is not None
    )


_STRIDED = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)


def _site(name: str, module: nn.Module) -> Site | None:
    selector = getattr(module, "selector", None)
    names: dict[type, str] = {selects: method for method, selects in METHODS.items()}
    method = names.get(type(selector), "")
    if isinstance(module, PolyphaseDown):
        return _layer_site(name, "follow" if selector is None else "down", method, module)
    if isinstance(module, PolyphaseUp):
        return _layer_site(name, "up", "", module)
    if method:
        return Site(name, "origin", method, 1, None, None, None, 0)
    if isinstance(module, _STRIDED):
        steps = module.stride if isinstance(module.stride, tuple) else (module.stride,)
        stride = steps if len(set(steps)) > 1 else steps[0]
        if max(steps) > 1:
            channels = getattr(module, "in_channels", None)
            return Site(name, "stride", "stride", stride, None, channels, None, 0)
    return None


def _layer_site(name: str, kind: str, method: str, layer: PolyphaseDown | PolyphaseUp) -> Site:
    selector, blur = getattr(layer, "selector", None), layer.antialias
    channels = getattr(selector, "channels", getattr(blur, "channels", None))
    first = getattr(selector, "conv1", None)
    hidden = None if first is None else first.out_channels
    count = sum(p.numel() for p in layer.parameters())
    return Site(name, kind, method, layer.stride, filter_name(blur), channels, hidden, count)


def _cells(site: Site) -> tuple[str, ...]:
    def text(value: object) -> str:
        return "-" if value is None or value == "" else str(value)

    return (
        site.name,
        site.kind,
        text(site.method),
        text(site.stride),
        text(site.antialias),
        text(site.channels),
        text(site.hidden),
        f"{site.parameters:,}",
    )
