"""Transformers, with random weights, that conversion is tested on: small ones, and public ones.

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
    "beit": _timm("beit_base_patch16_224", 32, True, **SMALL_VIT),
    "cait": _timm("cait_xxs24_224", 32, True, **SMALL_VIT),
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
OTHERS = {  # with few blocks, where the depth is an option
    "torchvision swin_v2_s": (lambda: models.swin_v2_s(num_classes=10), 256, False),
    "coat_lite_tiny": _timm("coat_lite_tiny", 224),
    "coatnet_pico_rw_224": _timm("coatnet_pico_rw_224", 64, img_size=64),
    "davit_tiny": _timm("davit_tiny", 224),
    "efficientformerv2_s0": _timm("efficientformerv2_s0", 224),
    "efficientvit_b0": _timm("efficientvit_b0", 64),
    "efficientvit_l1": _timm("efficientvit_l1", 64),
    "fastvit_mci0": _timm("fastvit_mci0", 64),
    "focalnet_tiny_srf": _timm("focalnet_tiny_srf", 64),
    "caformer_s18": _timm("caformer_s18", 64),
    "levit_conv_128s": _timm("levit_conv_128s", 256, img_size=256),
    "maxvit_tiny_tf_224": _timm("maxvit_tiny_tf_224", 224),
    "maxvit_rmlp_pico_rw_256": _timm("maxvit_rmlp_pico_rw_256", 256),
    "maxxvit_rmlp_nano_rw_256": _timm("maxxvit_rmlp_nano_rw_256", 256),
    "mobilenetv4_hybrid_medium": _timm("mobilenetv4_hybrid_medium", 64),
    "mobilevitv2_050": _timm("mobilevitv2_050", 64),
    "repvit_m1": _timm("repvit_m1", 64),
    "swiftformer_xs": _timm("swiftformer_xs", 64),
    "swin_s3_tiny_224": _timm("swin_s3_tiny_224", 224),
    "swinv2_cr_tiny_ns_224": _timm("swinv2_cr_tiny_ns_224", 224),
    "swinv2_tiny_window16_256": _timm("swinv2_tiny_window16_256", 256),
    "tiny_vit_5m_224": _timm("tiny_vit_5m_224", 224),
    "twins_svt_small": _timm("twins_svt_small", 224),
    "vit_relpos_small_patch16_224": _timm("vit_relpos_small_patch16_224", 64, img_size=64, depth=2),
    "beit_base_patch16_224": _timm("beit_base_patch16_224", 64, True, img_size=64, depth=2),
    "botnet26t_256": _timm("botnet26t_256", 256, True),
    "cait_xxs24_224": _timm("cait_xxs24_224", 64, True, img_size=64),
    "convit_tiny": _timm("convit_tiny", 64, True, img_size=64),
    "crossvit_tiny_240": _timm("crossvit_tiny_240", 240, True),
    "deit_tiny_distilled_patch16_224": _timm(
        "deit_tiny_distilled_patch16_224", 64, True, img_size=64, depth=2
    ),
    "edgenext_xx_small": _timm("edgenext_xx_small", 64, True),
    "efficientvit_m0": _timm("efficientvit_m0", 224, True),
    "eva02_tiny_patch14_224": _timm("eva02_tiny_patch14_224", 56, True, img_size=56, depth=2),
    "gcvit_xxtiny": _timm("gcvit_xxtiny", 224, True),
    "gmlp_ti16_224": _timm("gmlp_ti16_224", 64, True, img_size=64),
    "halonet26t": _timm("halonet26t", 256, True),
    "hiera_tiny_224": _timm("hiera_tiny_224", 224, True),
    "mixer_s32_224": _timm("mixer_s32_224", 64, True, img_size=64),
    "mvitv2_small_cls": _timm("mvitv2_small_cls", 224, True),
    "nest_tiny": _timm("nest_tiny", 64, True, img_size=64),
    "nextvit_small": _timm("nextvit_small", 64, True),
    "pit_ti_224": _timm("pit_ti_224", 224, True),
    "sam2_hiera_tiny": _timm("sam2_hiera_tiny", 224, True),
    "sequencer2d_s": _timm("sequencer2d_s", 224, True),
    "tnt_s_legacy_patch16_224": _timm("tnt_s_legacy_patch16_224", 64, True, img_size=64, depth=2),
    "visformer_tiny": _timm("visformer_tiny", 64, True, img_size=64),
    "vit_base_patch16_rope_reg1_gap_256": _timm(
        "vit_base_patch16_rope_reg1_gap_256", 64, True, img_size=64, depth=2
    ),
    "vit_base_patch16_siglip_224": _timm(
        "vit_base_patch16_siglip_224", 64, True, img_size=64, depth=2
    ),
    "vit_small_patch14_reg4_dinov2": _timm(
        "vit_small_patch14_reg4_dinov2", 56, True, img_size=56, depth=2
    ),
    "vit_tiny_r_s16_p8_224": _timm("vit_tiny_r_s16_p8_224", 64, True, img_size=64),
    "vitamin_small_224": _timm("vitamin_small_224", 64, True, img_size=64),
    "levit_128s at 224": _timm("levit_128s", 224, True),
    "resnetv2_50x1_bit": _timm("resnetv2_50x1_bit", 64),
    "samvit_base_patch16_224": _timm("samvit_base_patch16_224", 64, True, img_size=64, depth=2),
    "shvit_s1": _timm("shvit_s1", 224, True),
    "swin_tiny at 256": _timm(
        "swin_tiny_patch4_window7_224", 256, True, img_size=256, depths=(1, 1, 1, 1)
    ),
    "vit_base_patch16_rope_mixed_ape_224": _timm(
        "vit_base_patch16_rope_mixed_ape_224", 64, True, img_size=64, depth=2
    ),
    "vit_small_patch16_dinov3": _timm("vit_small_patch16_dinov3", 64, True, img_size=64, depth=2),
    "volo_d1_224": _timm("volo_d1_224", 64, True, img_size=64),
    "xcit_nano_12_p16_224": _timm("xcit_nano_12_p16_224", 64, True),
}


def _maps(name, size, canonical=False, **options):
    return lambda: timm.create_model(name, features_only=True, **options), size, canonical


MAPS = {  # networks that return maps of several strides
    "pvt_v2_b0": _maps("pvt_v2_b0", 64),
    "levit_128s": _maps("levit_128s", 256, img_size=256),
    "swin_tiny": _maps("swin_tiny_patch4_window7_224", 224, depths=(1, 1, 1, 1)),
    "edgenext_xx_small": _maps("edgenext_xx_small", 64, True),
    "gcvit_xxtiny": _maps("gcvit_xxtiny", 224, True),
    "hiera_tiny_224": _maps("hiera_tiny_224", 224, True),
    "mvitv2_tiny": _maps("mvitv2_tiny", 224, True),
    "nest_tiny": _maps("nest_tiny", 64, True, img_size=64),
    "nextvit_small": _maps("nextvit_small", 64, True),
    "vit_tiny_patch16_224": _maps("vit_tiny_patch16_224", 64, True, img_size=64, depth=4),
    "volo_d1_224": _maps("volo_d1_224", 64, True, img_size=64),
    "xcit_nano_12_p8_224": _maps("xcit_nano_12_p8_224", 64, True),
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
