"""Public networks, with random weights, that conversion is tested on."""

import functools

import torch

from trueshift._torchvision import import_torchvision

import_torchvision()
import segmentation_models_pytorch as smp  # noqa: E402
import timm  # noqa: E402
from networks import trained  # noqa: E402
from torchvision import models  # noqa: E402

TORCHVISION = [
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "densenet121",
    "convnext_tiny",
    "regnet_y_400mf",
    "shufflenet_v2_x1_0",
    "googlenet",
    "squeezenet1_1",
    "inception_v3",
]
SEGMENTERS = ["deeplabv3_resnet50", "fcn_resnet50"]
TIMM = [
    "resnet18d",
    "resnetv2_50",
    "convnextv2_atto",
    "efficientnet_b0",
    "tf_efficientnet_b0",
    "mobilenetv4_conv_small",
    "mobilenetv4_hybrid_medium",
    "regnety_002",
    "hrnet_w18_small",
    "dla34",
    "res2net50_26w_4s",
    "fastvit_t8",
    "repvgg_a0",
    "ghostnet_100",
]
SMP = [
    "Unet",
    "UnetPlusPlus",
    "FPN",
    "DeepLabV3",
    "DeepLabV3Plus",
    "PSPNet",
    "Linknet",
    "UPerNet",
    "Segformer",
]
SIZES = {"torchvision.inception_v3": 96}
NAMES = [
    *(f"torchvision.{name}" for name in (*TORCHVISION, *SEGMENTERS)),
    *(f"timm.{name}" for name in TIMM),
    *(f"smp.{name}" for name in SMP),
]


def _torchvision(name):
    if name in SEGMENTERS:
        return getattr(models.segmentation, name)(weights=None, weights_backbone=None)
    extra = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **extra)


def _smp(name):
    return getattr(smp, name)("resnet18", encoder_weights=None, classes=3)


MAKERS = {
    "torchvision": _torchvision,
    "timm": functools.partial(timm.create_model, pretrained=False),
    "smp": _smp,
}


def build(name):
    """Return a network in eval mode whose batch norms look trained."""
    library, own = name.split(".", 1)
    torch.manual_seed(0)
    return trained(MAKERS[library](own))


def example(name, batch=1):
    """Return noise of a size that the network takes."""
    size = SIZES.get(name, 64)
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))
