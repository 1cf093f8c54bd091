"""How far single sampling layers are from shift equivariance, peers included.

    python -m benchmarks.peers

A layer that samples by 2 is equivariant if a circular shift of its input only moves its output on
the coarse grid. *Map* is what remains after the best such move, relative to the output: the worst
over all shifts of up to three pixels, averaged over images. *Features* is the change of what a
classifier would see: a convolution, ReLU and the mean over space. Weights are random, because the
property does not depend on them.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueshift as ts
from trueshift.shifts import circular_shift


class TIPS(nn.Module):
    """The published layer of TIPS (Saha & Gokhale, WACV 2025), from its formula.

    Every channel mixes its polyphase components with softmax weights. Those come from a depthwise
    convolution and ReLU, averaged over the *quadrants* of the map, one per component: they do not
    permute with the components when the map shifts.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(
            channels, channels, 3, padding=1, padding_mode="circular", groups=channels, bias=False
        )
        self.conv2 = nn.Conv2d(channels, channels, 1, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        quadrants = F.adaptive_avg_pool2d(self.conv1(x).relu(), 2)
        weights = self.conv2(quadrants).flatten(2).softmax(2)  # (B, C, P)
        components = ts.functional.polyphase_split(x, 2)  # (B, P, C, h, w)
        return torch.einsum("bcp,bpchw->bchw", weights, components)


def layers(channels: int) -> dict[str, nn.Module]:
    """Return the layers to compare, in eval mode."""
    blur = ts.Blur(channels, size=3)
    return {
        "plain stride": ts.PolyphaseDown(ts.FixedSelector(0)).eval(),
        "LPF Tri-3": ts.PolyphaseDown(ts.FixedSelector(0), antialias=blur).eval(),
        "TIPS": TIPS(channels).eval(),
        "APS": ts.APS(channels).eval(),
        "LPS": ts.LPD(channels).eval(),
        "LPS Tri-3": ts.LPD(channels, antialias="tri3").eval(),
    }


@torch.no_grad()
def errors(layer: nn.Module, head: nn.Module, x: Tensor, reach: int = 3) -> tuple[float, float]:
    """Return the worst relative error over shifts, of the map and of the features."""
    y = layer(x)
    features = head(y)
    of_map, of_features = [], []
    for shift in itertools.product(range(reach + 1), repeat=2):
        moved = layer(circular_shift(x, *shift))
        coarse = itertools.product(range(-1, reach // 2 + 2), repeat=2)
        gaps = torch.stack([_gap(circular_shift(y, *by), moved) for by in coarse])
        of_map.append(gaps.amin(0))
        of_features.append(_gap(features, head(moved)))
    worst = [torch.stack(gaps).amax(0).mean().item() for gaps in (of_map, of_features)]
    return worst[0], worst[1]


def _gap(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).flatten(1).norm(dim=1) / a.flatten(1).norm(dim=1)


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    x = F.conv2d(F.pad(torch.randn(16, 3, 32, 32), (1,) * 4, "circular"), torch.randn(16, 3, 3, 3))
    conv = nn.Conv2d(16, 32, 3, padding=1, padding_mode="circular")
    head = nn.Sequential(conv, nn.ReLU(), ts.GlobalAvgPool()).eval()
    print("| layer | map | features |\n|---|---|---|")
    for name, layer in layers(16).items():
        shown = (f"{error:.1%}" if error else "0, exact" for error in errors(layer, head, x.relu()))
        print("|", name, "|", " | ".join(shown), "|")


if __name__ == "__main__":
    main()
