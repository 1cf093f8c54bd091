"""Make any network faster at test time, by what has nothing to do with shifts.

Batch norms are folded into the convolutions before them, once, and weights are stored
channels-last. Networks of this package, converted ones and anybody else's gain alike, so that a
comparison of optimized networks shows what shift invariance costs.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.shifts import circular_shift

_SHIFTS = (1, 2, 5)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def optimize(
    model: nn.Module,
    example: Any,
    *,
    channels_last: bool = True,
    compile: bool = False,
    tolerance: float = 1e-4,
) -> nn.Module:
    """Return a copy of a network for inference: the same function, faster.

    Outputs on the example are compared with those of the original. Where the original is exactly
    invariant or equivariant to circular shifts of the example, the copy is checked to be so too.

    Args:
        model: Any network. It is not changed.
        example: A batch as ``forward`` takes it: a tensor, a tuple of arguments or a dict of them.
        channels_last: Store the weights of 2-D convolutions channels-last.
        compile: Also compile the copy with ``torch.compile``. Compiled graphs round differently
            from run to run of the compiler, so that only the tolerance is checked.
        tolerance: How far outputs may differ, as a share of the largest.

    Returns:
        The copy, in eval mode and without gradients. It cannot be trained: its norms are gone.

    Examples:
        >>> import trueshift as ts
        >>> net = ts.models.resnet18(ts.Sampling("lps"), num_classes=10, stem="cifar").eval()
        >>> x = torch.randn(2, 3, 32, 32)
        >>> fast = optimize(net, x)
        >>> torch.equal(fast(x), fast(x.roll((3, 5), (2, 3))))
        True
    """
    args, kwargs = _arguments(example)
    original = copy.deepcopy(model).eval().requires_grad_(False)
    new = copy.deepcopy(original)
    with torch.no_grad():
        for conv, norm, inputs in _foldable(new, args, kwargs):
            _fold(new, conv, norm, inputs)
        if channels_last and any(p.ndim == 4 for p in new.parameters()):
            new = new.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        _check_outputs(original, new, args, kwargs, tolerance)
        if not compile:
            _check_shifts(original, new, args, kwargs)
            return new
        compiled: nn.Module = torch.compile(new)  # type: ignore[assignment]
        _check_outputs(original, compiled, args, kwargs, tolerance)
        return compiled


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


def _foldable(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[nn.Module, nn.Module, tuple[Any, ...]]]:
    """Yield every convolution whose output only one batch norm reads, that norm, and its inputs."""
    made_by: dict[int, tuple[nn.Module, Tensor]] = {}
    inputs: dict[nn.Module, tuple[Any, ...]] = {}
    norms: dict[nn.Module, list[nn.Module | None]] = defaultdict(list)
    readers: dict[nn.Module, list[nn.Module]] = defaultdict(list)

    def convolved(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            made_by[id(output)], inputs[module] = (module, output), given  # keeps the id in use
            readers[module].append(module)

    def normed(module: nn.Module, given: tuple[Any, ...]) -> None:
        conv, _ = made_by.get(id(given[0]), (None, None))
        norms[module].append(conv)

    hooks = [
        module.register_forward_hook(convolved)
        if isinstance(module, _CONVS) or hasattr(module, "fold_norm")
        else module.register_forward_pre_hook(normed)
        for module in model.modules()
        if isinstance(module, (*_CONVS, *_NORMS)) or hasattr(module, "fold_norm")
    ]
    model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    for norm, convs in norms.items():
        conv = convs[0]
        if conv is None or set(convs) != {conv} or len(convs) != len(readers[conv]):
            continue
        if norm.running_mean is not None:
            yield conv, norm, inputs[conv]


def _fold(model: nn.Module, conv: nn.Module, norm: Any, inputs: tuple[Any, ...]) -> None:
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    shift = shift if norm.bias is None else shift + norm.bias
    if hasattr(conv, "fold_norm"):
        conv.fold_norm(scale, shift, inputs)  # type: ignore[operator]
    else:
        fold_into(conv, conv.weight, conv.bias, scale, shift)  # type: ignore[arg-type]
    # timm's norms include an activation; it stays.
    rest = [part for part in norm.children() if not isinstance(part, nn.Identity)]
    _replace(model, norm, nn.Sequential(*rest) if rest else nn.Identity())


def fold_into(
    conv: nn.Module, weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor
) -> None:
    """Give a convolution the weight and bias with which it also scales and shifts its output."""
    scaled = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    moved = shift if bias is None else shift + bias * scale
    conv.weight = nn.Parameter(scaled, requires_grad=False)
    conv.bias = nn.Parameter(moved, requires_grad=False)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)


def _check_outputs(
    original: nn.Module, new: nn.Module, args: Any, kwargs: Any, tolerance: float
) -> None:
    pairs = zip(_tensors(original(*args, **kwargs)), _tensors(new(*args, **kwargs)), strict=True)
    for expected, output in pairs:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        off = float((expected - output).abs().max()) if expected.numel() else 0.0
        if not off <= tolerance * max(largest, 1e-30):
            raise RuntimeError(
                f"optimize: outputs differ by {off:.3g}, where the largest is {largest:.3g}. Does"
                " the network use the output of a convolution that a batch norm follows elsewhere?"
                " Or does it choose phases that are nearly tied: try another example."
            )


def _check_shifts(original: nn.Module, new: nn.Module, args: Any, kwargs: Any) -> None:
    for shift in _SHIFTS:
        before, after = (_is_exact(model, args, kwargs, shift) for model in (original, new))
        if before and not after:
            raise RuntimeError(
                f"optimize: the network is exact under a shift by {shift}, its optimized copy is"
                " not. Please report it; channels_last=False may help."
            )


def _is_exact(model: nn.Module, args: Any, kwargs: Any, shift: int) -> bool:
    """Whether outputs for shifted maps are the same, or the shifted ones, to the bit."""

    def moved(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim < 3:
            return x
        return circular_shift(x, *[shift] * (x.ndim - 2))

    try:
        results = model(*map(moved, args), **{name: moved(x) for name, x in kwargs.items()})
    except (RuntimeError, ValueError):  # a network that does not take it is not exact
        return False
    outputs = _tensors(model(*args, **kwargs))
    pairs = zip(outputs, _tensors(results), strict=True)
    return all(torch.equal(b, a) or torch.equal(b, moved(a)) for a, b in pairs)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    items = output.values() if isinstance(output, Mapping) else output
    return [t for item in items for t in _tensors(item)]
