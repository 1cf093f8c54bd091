"""What is measured: networks, and one row for every way to down-sample them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from trueshift import models
from trueshift._torchvision import import_torchvision
from trueshift.layers.resample import PolyphaseDown
from trueshift.layers.selectors import FixedSelector
from trueshift.layers.spec import Sampling


class NotAvailable(Exception):
    """A row that a network does not have, or whose package is not installed: the reason."""


@dataclass(frozen=True)
class Workload:
    """A network at the size and batch that it is measured at.

    Attributes:
        title: How tables call it.
        builder: Its name in :mod:`trueshift.models`.
        batch: Images per call.
        size: Pixels of both axes.
        num_classes: Outputs.
        hidden: Width of learned selectors, as the paper has it for this data.
        options: Further arguments of the builder.
        in_channels: Channels of the images.
    """

    title: str
    builder: str
    batch: int
    size: int
    num_classes: int = 1000
    hidden: str = "eighth"
    options: Mapping[str, Any] | None = None
    in_channels: int = 3

    def build(self, spec: Sampling) -> nn.Module:
        """Build our network with a sampling."""
        options = {"num_classes": self.num_classes, **(self.options or {})}
        return getattr(models, self.builder)(spec.replace(hidden=self.hidden), **options)

    @property
    def has_cifar_stem(self) -> bool:
        """Whether it begins with a 3x3 convolution and has no max pooling."""
        return (self.options or {}).get("stem") == "cifar"


NETWORKS = {
    "resnet18-cifar": Workload(
        "ResNet-18, CIFAR stem", "resnet18", 128, 32, 10, "same", {"stem": "cifar"}
    ),
    "resnet18": Workload("ResNet-18", "resnet18", 16, 224),
    "resnet50": Workload("ResNet-50", "resnet50", 8, 224),
    "resnet101": Workload("ResNet-101", "resnet101", 8, 224),
    "deeplab-resnet18": Workload(
        "DeepLabV3+ ResNet-18", "deeplabv3plus_resnet18", 4, 224, num_classes=21
    ),
    "unet-flow": Workload(
        "U-Net, one step of a flow",
        "unet",
        16,
        64,
        1,
        options={"in_channels": 1, "widths": (16, 32, 64, 64)},
        in_channels=1,
    ),
}


def _torchvision(network: Workload) -> nn.Module:
    others = _package("torchvision.models", "torchvision", network, cifar_stem=True)
    model = others.get_model(network.builder, num_classes=network.num_classes)
    if network.has_cifar_stem:  # as is usual for images of 32 pixels; torchvision itself has none
        model.conv1 = nn.Conv2d(3, model.conv1.out_channels, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def _antialiased_cnns(network: Workload) -> nn.Module:
    build_other = getattr(
        _package("antialiased_cnns", "antialiased-cnns", network), network.builder
    )
    return build_other(pretrained=False, filter_size=3, num_classes=network.num_classes)


def _timm(network: Workload) -> nn.Module:
    package = _package("timm", "timm", network)
    options = {"num_classes": network.num_classes, "aa_layer": package.layers.BlurPool2d}
    return package.create_model(network.builder, pretrained=False, **options)


def _package(module: str, name: str, network: Workload, cifar_stem: bool = False) -> Any:
    """Import another package's networks, if this one is among them."""
    if not network.builder.startswith("resnet") or (network.has_cifar_stem and not cifar_stem):
        raise NotAvailable(f"{name} has no {network.title}")
    try:
        import_torchvision()
        return importlib.import_module(module)
    except ImportError as error:
        raise NotAvailable(f"{name} is not installed (pip install {name})") from error


def _floor(network: Workload) -> nn.Module:
    """The convolutions of a polyphase network; every layer keeps the first component."""
    model = network.build(Sampling("aps"))
    for layer in model.modules():
        if isinstance(layer, PolyphaseDown):
            layer.selector = FixedSelector()
    return model


@dataclass(frozen=True)
class Variant:
    """One way to down-sample.

    Attributes:
        title: How tables call it.
        source: A :class:`Sampling` for our network, or a function that builds another one.
        floor: Key of the row with the same convolutions that chooses nothing.
    """

    title: str
    source: Sampling | Callable[[Workload], nn.Module]
    floor: str | None = None


ROWS = {
    "torchvision": Variant("torchvision, plain", _torchvision),
    "stride": Variant("stride", Sampling("stride")),
    "floor": Variant("floor: dense convolutions, no choice", _floor),
    "lpf-tri3": Variant("LPF tri3", Sampling("stride", "tri3")),
    "aps": Variant("APS", Sampling("aps"), "floor"),
    "aps-tri3": Variant("APS tri3", Sampling("aps", "tri3"), "floor"),
    "lps": Variant("LPS", Sampling("lps"), "floor"),
    "lps-tri3": Variant("LPS tri3", Sampling("lps", "tri3"), "floor"),
    "ddac": Variant("DDAC", Sampling("stride", "adapt3")),
    "lps-ddac": Variant("LPS + DDAC", Sampling("lps", "adapt3"), "floor"),
    # Selected from the input, the convolutions run strided: the plain network is their floor.
    "aps-input": Variant(
        'APS, select_from="input"', Sampling("aps", select_from="input"), "stride"
    ),
    "lps-input": Variant(
        'LPS, select_from="input"', Sampling("lps", select_from="input"), "stride"
    ),
    "lps-tri3-input": Variant(
        'LPS tri3, select_from="input"', Sampling("lps", "tri3", select_from="input"), "lpf-tri3"
    ),
    "antialiased-cnns": Variant("antialiased-cnns, size 3", _antialiased_cnns),
    "timm-blur": Variant("timm, aa_layer=BlurPool2d", _timm),
}


def build(network: Workload, row: Variant) -> nn.Module:
    """Build a network of a row, with random weights.

    Raises:
        NotAvailable: If the row does not exist for the network, or its package is missing.
    """
    return network.build(row.source) if isinstance(row.source, Sampling) else row.source(network)
