"""Transformers, with random weights, that conversion is tested on: small ones, and the public list.

A row: how to build it, the size of its input, and whether positions must be counted from an origin.
"""

import torch
import zoo
from torch import nn

timm, models = zoo.timm, zoo.models


def _timm(name, size, canonical=False, **options):
    return lambda: timm.create_model(name, num_classes=10, **options), size, canonical


def _swin(block):
    return models.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 2], [2, 2], num_classes=10, block=block,
        downsample_layer=models.swin_transformer.PatchMerging,
    )  # fmt: skip


def _maxvit():
    return models.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=10)


def _vit():
    return models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10)


_swins = models.swin_transformer
SMALL_SWIN = {"img_size": 32, "depths": (2, 2), "num_heads": (2, 2), "embed_dim": 16}
SMALL_VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 16, "num_heads": 2}
SMALL = {
    "torchvision swin": (lambda: _swin(_swins.SwinTransformerBlock), 32, False),
    "torchvision swin v2": (lambda: _swin(_swins.SwinTransformerBlockV2), 32, False),
    "torchvision maxvit": (_maxvit, 32, False),
    "torchvision vit": (_vit, 32, True),
    "timm swin": _timm("swin_tiny_patch4_window7_224", 32, window_size=4, **SMALL_SWIN),
    "timm swin v2": _timm("swinv2_tiny_window8_256", 32, window_size=4, **SMALL_SWIN),
    "timm vit": _timm("vit_tiny_patch16_224", 32, True, **SMALL_VIT),
    "levit": _timm("levit_128s", 128, img_size=128),
    "pvt": _timm("pvt_v2_b0", 32, depths=(1, 1, 1, 1)),
}
LIST = {
    "torchvision swin_t": (lambda: models.swin_t(num_classes=10), 224, False),
    "torchvision swin_v2_t": (lambda: models.swin_v2_t(num_classes=10), 256, False),
    "torchvision vit_b_16": (lambda: models.vit_b_16(num_classes=10, image_size=32), 32, True),
    "torchvision maxvit_t": (lambda: models.maxvit_t(num_classes=10), 224, False),
    "vit_tiny_patch16_224": _timm("vit_tiny_patch16_224", 64, True, img_size=64),
    "deit_tiny": _timm("deit_tiny_patch16_224", 64, True, img_size=64),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224", 224),
    "swinv2_tiny_window8_256": _timm("swinv2_tiny_window8_256", 256),
    "twins_pcpvt_small": _timm("twins_pcpvt_small", 64),
    "pvt_v2_b0": _timm("pvt_v2_b0", 64),
    "mvitv2_tiny": _timm("mvitv2_tiny", 224, True),
    "xcit_nano_12_p8": _timm("xcit_nano_12_p8_224", 64, True),
    "coat_tiny": _timm("coat_tiny", 64, img_size=64),
    "levit_128s": _timm("levit_128s", 256, img_size=256),
    "poolformer_s12": _timm("poolformer_s12", 64),
    "mobilevit_xxs": _timm("mobilevit_xxs", 64),
    "efficientformer_l1": _timm("efficientformer_l1", 224),
    "fastvit_t8": _timm("fastvit_t8", 64),
    "vit_small_patch14_dinov2": _timm("vit_small_patch14_dinov2", 56, True, img_size=56),
}


def build(make):
    """Return a network with seeded weights, none of them zero, in eval mode."""
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        if not parameter.any():  # as embeddings and biases begin
            nn.init.normal_(parameter, std=0.1)
    return model


def options(canonical):
    return {"positions": "canonical" if canonical else "refuse"}
