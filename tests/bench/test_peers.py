"""The claims of docs/peers.md about single layers."""

from __future__ import annotations

import torch
from torch import nn

import trueshift as ts
from benchmarks.peers import errors, layers


def test_tips_as_published_is_not_shift_equivariant_and_ours_are() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 16, 16).relu()
    conv = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    head = nn.Sequential(conv, nn.ReLU(), ts.GlobalAvgPool()).eval()
    measured = {name: errors(layer, head, x) for name, layer in layers(8).items()}
    for name in ("plain stride", "LPF Tri-3", "TIPS"):
        assert min(measured[name]) > 1e-3, name
    for name in ("APS", "LPS", "LPS Tri-3"):
        assert measured[name] == (0.0, 0.0), name
