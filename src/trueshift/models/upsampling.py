"""Ways back to a finer grid: by the phases of the encoder, or by plain interpolation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from trueshift._validate import check_choice
from trueshift.layers.spec import Sampling
from trueshift.models.features import Step

UPS = ("polyphase", "linear")
_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


class PolyphaseUps(nn.Module):
    """Undo several down-samplings, the coarsest first, each with its phase and a low-pass filter.

    Args:
        spec: How the network samples. Its filter is used if it is a fixed one, ``tri3`` otherwise:
            values placed on a grid need a low-pass filter to fill the gaps between them.
        channels: Channels of the map.
        num_steps: How many down-samplings to undo.
    """

    def __init__(self, spec: Sampling, channels: int, num_steps: int) -> None:
        super().__init__()
        fixed = spec.antialias is not None and not spec.antialias.startswith("adapt")
        spec = spec if fixed else spec.replace(antialias="tri3")
        self.ups = nn.ModuleList(spec.up(channels) for _ in range(num_steps))

    def forward(self, x: Tensor, steps: Sequence[Step]) -> Tensor:
        for up, step in zip(self.ups, reversed(steps), strict=True):
            x = up(x, step.phase, output_size=step.size)
        return x


class LinearUps(nn.Module):
    """Interpolate linearly back to the size before several down-samplings; not equivariant."""

    def forward(self, x: Tensor, steps: Sequence[Step]) -> Tensor:
        return F.interpolate(x, steps[0].size, mode=_LINEAR[x.ndim], align_corners=False)


def build_ups(
    up: str | None, spec: Sampling, channels: int, num_steps: int
) -> PolyphaseUps | LinearUps:
    """Build the way up; ``None`` means by phases where the method selects them."""
    if up is None:
        up = "linear" if spec.method == "stride" else "polyphase"
    check_choice("model", "up", up, UPS)
    return PolyphaseUps(spec, channels, num_steps) if up == "polyphase" else LinearUps()
