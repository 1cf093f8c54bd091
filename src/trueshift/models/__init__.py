"""The paper's networks, a U-Net for any dimension, small transformers: from a ``Sampling``."""

from trueshift.models.anysize import predict_mask, segment
from trueshift.models.deeplab import (
    DeepLabV3Plus,
    deeplabv3plus_resnet18,
    deeplabv3plus_resnet50,
    deeplabv3plus_resnet101,
)
from trueshift.models.features import Feature, Step
from trueshift.models.pretrained import load_authors_checkpoint
from trueshift.models.resnet import (
    ResNet,
    resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
)
from trueshift.models.resnet9 import ResNet9, resnet9
from trueshift.models.saving import load, resample, save
from trueshift.models.summary import Site, summary
from trueshift.models.swin import Swin, swin
from trueshift.models.unet import UNet, unet
from trueshift.models.vit import ViT, vit

BUILDERS = (
    "deeplabv3plus_resnet18",
    "deeplabv3plus_resnet50",
    "deeplabv3plus_resnet101",
    "resnet",
    "resnet9",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "swin",
    "unet",
    "vit",
)

__all__ = [
    "BUILDERS",
    "DeepLabV3Plus",
    "Feature",
    "ResNet",
    "ResNet9",
    "Site",
    "Step",
    "Swin",
    "UNet",
    "ViT",
    "deeplabv3plus_resnet18",
    "deeplabv3plus_resnet50",
    "deeplabv3plus_resnet101",
    "load",
    "load_authors_checkpoint",
    "predict_mask",
    "resample",
    "resnet",
    "resnet9",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "save",
    "segment",
    "summary",
    "swin",
    "unet",
    "vit",
]
