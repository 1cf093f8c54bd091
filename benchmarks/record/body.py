"""A ResNet-9 body trained in bfloat16 with phases chosen from the input of every stage.

The training path uses a few custom autograd functions. The result is a state dict of
``trueshift.models.resnet9(Sampling("lps", "tri3", select_from="input"), ...)``: the library
evaluates it, in float32 and exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-5


def _indices(phase: Tensor, size: int, border: int, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    n = torch.arange(-border, size + border)
    rows = (n[None] + sign * (phase // 2)[:, None]) % size
    columns = (n[None] + sign * (phase % 2)[:, None]) % size
    return torch.arange(len(phase))[:, None, None], rows[:, :, None], columns[:, None, :]


class ShiftPad(torch.autograd.Function):
    """Move each image so that its phase becomes the first one, and add a circular border of 1."""

    @staticmethod
    def forward(ctx, x: Tensor, phase: Tensor | None) -> Tensor:
        ctx.phase = phase
        if phase is not None:
            index = _indices(phase, x.shape[2], 1, 1)
            return x.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2)
        b, c, h, w = x.shape
        y = x.new_empty((b, h + 2, w + 2, c)).permute(0, 3, 1, 2)
        y[:, :, 1:-1, 1:-1] = x
        y[:, :, 1:-1, 0], y[:, :, 1:-1, -1] = x[:, :, :, -1], x[:, :, :, 0]
        y[:, :, 0], y[:, :, -1] = y[:, :, -2], y[:, :, 1]
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        rows = grad[:, :, 1:-1].contiguous(memory_format=torch.channels_last)
        rows[:, :, 0] += grad[:, :, -1]
        rows[:, :, -1] += grad[:, :, 0]
        g = rows[:, :, :, 1:-1].contiguous(memory_format=torch.channels_last)
        g[:, :, :, 0] += rows[:, :, :, -1]
        g[:, :, :, -1] += rows[:, :, :, 0]
        if ctx.phase is not None:
            index = _indices(ctx.phase, g.shape[2], 0, -1)
            g = g.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2)
        return g, None


def tri3_down(x: Tensor) -> Tensor:
    """Triangle filter and stride 2, in channels-last."""
    even, odd = x[:, :, :, ::2], x[:, :, :, 1::2]
    x = torch.add(odd, even, alpha=2) + odd.roll(1, 3)
    even, odd = x[:, :, ::2], x[:, :, 1::2]
    return (torch.add(odd, even, alpha=2) + odd.roll(1, 2)).mul_(1 / 16)


def tri3_down_backward(g: Tensor) -> Tensor:
    """Return the gradient of :func:`tri3_down`."""
    b, c, h, w = g.shape
    rows = g.new_empty((b, 2 * h, w, c)).permute(0, 3, 1, 2)
    torch.mul(g, 1 / 8, out=rows[:, :, ::2])
    torch.add(g, g.roll(-1, 2), out=rows[:, :, 1::2]).mul_(1 / 16)
    y = g.new_empty((b, 2 * h, 2 * w, c)).permute(0, 3, 1, 2)
    torch.mul(rows, 2, out=y[:, :, :, ::2])
    torch.add(rows, rows.roll(-1, 3), out=y[:, :, :, 1::2])
    return y


class Keep(torch.autograd.Function):
    """Filter and keep the first phase; the gradient of ``weights`` is what each phase is worth.

    ``weights`` (B, 4) are those of the phases *relative* to the one kept: straight-through.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor | None) -> Tensor:
        if weights is not None:
            ctx.save_for_backward(x)
        return tri3_down(x)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor | None]:
        worth = None
        if ctx.saved_tensors:
            (x,) = ctx.saved_tensors
            parts = [tri3_down(x.roll((-i, -j), (2, 3))) for i in (0, 1) for j in (0, 1)]
            worth = torch.stack([(g * p).flatten(1).sum(1, dtype=torch.float32) for p in parts], 1)
        return tri3_down_backward(g), worth


class Mix(torch.autograd.Function):
    """Filter and take the weighted sum of the four phases (the soft choice of the paper)."""

    @staticmethod
    def forward(ctx, x: Tensor, weights: Tensor) -> Tensor:
        parts = [tri3_down(x.roll((-i, -j), (2, 3))) for i in (0, 1) for j in (0, 1)]
        ctx.save_for_backward(weights, *parts)
        w = weights.to(x.dtype)[:, :, None, None, None]
        return sum(w[:, k] * part for k, part in enumerate(parts))

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:
        weights, *parts = ctx.saved_tensors
        worth = torch.stack([(g * p).flatten(1).sum(1, dtype=torch.float32) for p in parts], 1)
        w = weights.to(g.dtype)[:, :, None, None, None]
        total = 0
        for k in range(4):
            part = tri3_down_backward(w[:, k] * g)
            total = total + part.roll((k // 2, k % 2), (2, 3))
        return total, worth


class Selector(nn.Module):
    """Logits of the phases of a map: the paper's f_theta, its second convolution as one vector.

    With ``calibrate`` every hidden mean is measured against its spread over the phases of an image
    (a running root mean square), so that logits differ by about one from the start.
    """

    def __init__(self, channels: int, hidden: int, calibrate: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, hidden, 3)
        self.tap = nn.Parameter(torch.randn(hidden) / hidden**0.5 if calibrate else _tap(hidden))
        self.calibrate = calibrate
        self.register_buffer("spread", torch.ones(hidden))
        self.register_buffer("count", torch.zeros(()))

    def means(self, x: Tensor) -> Tensor:
        """Return the hidden means (B, 4, hidden) of the components of ``x``."""
        b, _, h, w = x.shape
        wide = torch.cat([x[:, :, -2:], x, x[:, :, :2]], 2)
        wide = torch.cat([wide[:, :, :, -2:], wide, wide[:, :, :, :2]], 3)
        dtype = x.dtype
        y = F.conv2d(wide, self.conv.weight.to(dtype), self.conv.bias.to(dtype), dilation=2).relu()
        y = y.permute(0, 2, 3, 1).reshape(b, h // 2, 2, w // 2, 2, -1)
        return y.float().mean((1, 3)).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        m = self.means(x)
        if not self.calibrate:
            return m @ self.tap
        m = m - m.mean(1, keepdim=True)
        if self.training:
            with torch.no_grad():
                now = m.square().mean((0, 1)).sqrt()
                self.count += 1
                self.spread.lerp_(now, float(1 / min(self.count, 50)))
        return (m / self.scale()) @ self.tap

    def scale(self) -> Tensor:
        """Return what hidden means are divided by; a unit that is nearly dead is not blown up."""
        return self.spread.clamp(min=0.1 * float(self.spread.max()) + 1e-12)


def _tap(hidden: int) -> Tensor:
    return nn.Conv2d(hidden, hidden, 3).weight.detach().mean(0).sum((1, 2))


class ConvNorm(nn.Module):
    """3x3 convolution and batch norm without scale."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, in_channels, 3, 3))
        nn.init.kaiming_uniform_(self.weight, nonlinearity="linear")
        n = min(channels, in_channels)  # the identity for the first channels
        nn.init.dirac_(self.weight.data[:n])
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("one", torch.ones(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, x: Tensor, phase: Tensor | None, stats: list | None) -> Tensor:
        weight = self.weight.to(x.dtype).contiguous(memory_format=torch.channels_last)
        y = F.conv2d(ShiftPad.apply(x, phase), weight)
        if stats is None:
            y = F.batch_norm(y, self.mean, self.var, self.one, self.bias, False, 0.0, EPS)
        else:
            y, mean, inv = torch.native_batch_norm(
                y, self.one, self.bias, None, None, True, 0.0, EPS
            )
            stats.append((self, mean.detach(), inv.detach().pow(-2) - EPS))
        return F.relu_(y)


class Body(nn.Module):
    """Whitening stem, three stages with residual pairs, mean, linear.

    Args:
        widths: Channels of the stages.
        residual: Which stages end with a residual pair.
        stem: Channels of the whitening convolution, even.
        hidden: Width of the selectors of all stages; 0 for none.
        calibrate: See :class:`Selector`.
    """

    def __init__(self, widths, residual, stem=32, hidden=0, calibrate=True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3)
        self.stem.weight.requires_grad_(False)
        ins = (stem, *widths[:-1])
        self.convs = nn.ModuleList(ConvNorm(i, w) for i, w in zip(ins, widths, strict=True))
        self.pairs = nn.ModuleList(
            nn.ModuleList(ConvNorm(w, w) for _ in range(2 if r else 0))
            for w, r in zip(widths, residual, strict=True)
        )
        self.fc = nn.Linear(widths[-1], 10)
        self.selectors = None
        if hidden:
            self.selectors = nn.ModuleList(Selector(i, hidden, calibrate) for i in ins)

    @torch.no_grad()
    def whiten(self, x: Tensor) -> None:
        """Set the stem to the leading eigenvectors of 3x3 patches, and their negatives."""
        patches = F.unfold(F.pad(x.float(), (1,) * 4, "circular"), 3).movedim(1, 2).reshape(-1, 27)
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).double())
        n = self.stem.weight.shape[0] // 2
        v = (vectors / (values + 5e-4).sqrt()).T.flip(0)[:n].view(n, 3, 3, 3).float()
        self.stem.weight.copy_(torch.cat([v, -v]))
        self.stem.bias.zero_()

    def begin(self, x: Tensor) -> Tensor:
        weight = self.stem.weight.to(x.dtype).contiguous(memory_format=torch.channels_last)
        return F.relu_(F.conv2d(ShiftPad.apply(x, None), weight, self.stem.bias.to(x.dtype)))

    def stage(self, k: int, x: Tensor, phase, weights, soft: bool, stats) -> Tensor:
        y = self.convs[k](x, phase, stats)
        x = Mix.apply(y, weights) if soft else Keep.apply(y, weights)
        if len(self.pairs[k]):
            y = x
            for conv in self.pairs[k]:
                y = conv(y, None, stats)
            x = x + y
        return x

    def end(self, x: Tensor) -> Tensor:
        return self.fc(x.float().mean((2, 3)))

    def forward(self, x: Tensor, choose, stats=None, log=None) -> Tensor:
        x = self.begin(x)
        for k in range(len(self.convs)):
            phase, weights, soft = choose(self, k, x)
            if log is not None:
                log.append(phase)
            x = self.stage(k, x, phase, weights, soft, stats)
        return self.end(x)


def aps_phase(x: Tensor) -> Tensor:
    """Return the component of the largest norm."""
    power = x.float().square().sum(1)
    b, h, w = power.shape
    return power.view(b, h // 2, 2, w // 2, 2).sum((1, 3)).flatten(1).argmax(1)


def to_library(body: Body) -> dict[str, Tensor]:
    """Return the state dict of the library's ResNet-9 with the same function at test time."""
    state = {}

    def norm(name: str, mean: Tensor, var: Tensor, bias: Tensor) -> None:
        state[f"{name}.running_mean"], state[f"{name}.running_var"] = mean, var
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.ones_like(mean), bias
        state[f"{name}.num_batches_tracked"] = torch.tensor(1)

    state["stem.conv.weight"], bias = body.stem.weight, body.stem.bias
    norm("stem.norm", torch.zeros_like(bias), torch.full_like(bias, 1 - EPS), bias)
    for k, conv in enumerate(body.convs):
        state[f"stages.{k}.conv.weight"] = conv.weight
        norm(f"stages.{k}.norm", conv.mean, conv.var, conv.bias)
        for n, pair in enumerate(body.pairs[k]):
            state[f"stages.{k}.residual.{n}.conv.weight"] = pair.weight
            norm(f"stages.{k}.residual.{n}.norm", pair.mean, pair.var, pair.bias)
        if body.selectors is not None:
            s, name = body.selectors[k], f"stages.{k}.down.selector"
            tap = s.tap / s.scale() if s.calibrate else s.tap
            hidden = len(tap)
            state[f"{name}.conv1.weight"], state[f"{name}.conv1.bias"] = s.conv.weight, s.conv.bias
            state[f"{name}.conv2.weight"] = (tap / 9).view(1, -1, 1, 1).expand(hidden, -1, 3, 3)
            state[f"{name}.conv2.bias"] = torch.zeros(hidden)
            state[f"{name}.tau"] = torch.tensor(1.0)
    state["fc.weight"], state["fc.bias"] = body.fc.weight, body.fc.bias
    return {name: value.detach().clone().float().contiguous() for name, value in state.items()}
