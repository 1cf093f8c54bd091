"""Make any network faster at test time, by what has nothing to do with shifts.

Batch norms are folded into the convolutions before them, once, and weights are stored
channels-last. This helps our networks, converted ones and those of other libraries, so a comparison
of optimized networks shows what shift invariance itself costs.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from trueshift.exact import sum_dtype
from trueshift.shifts import circular_shift

_SHIFTS = (1, 2, 5)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.inference_mode(False)  # tensors made in it do not count changes, by which folding is checked
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
        tolerance: How far outputs may differ, as a share of the largest; in half precision, at
            least eight roundings.

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
        for call, norm in list(_foldable(new, args, kwargs)):
            _fold(new, call, norm, tolerance)
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


class _Call(NamedTuple):
    """What a convolution was called with and what it returned."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor  # kept, so that nothing else gets its id
    version: int

    def again(self) -> Any:
        return self.module(*self.args, **self.kwargs)


def _foldable(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[_Call, nn.Module]]:
    """Yield the call of every convolution whose output only one batch norm reads, and that norm."""
    calls: dict[int, _Call] = {}  # by the id of the output
    counts: Counter[nn.Module] = Counter()
    read: dict[nn.Module, list[_Call | None]] = defaultdict(list)

    def convolved(
        module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        counts[module] += 1
        if isinstance(output, Tensor) and not output.is_inference():
            calls[id(output)] = _Call(module, given, named, output, output._version)

    def normed(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = given[0] if given else named.get("input")
        call = calls.get(id(x))
        changed = call is not None and call.output._version != call.version  # in place, since
        read[module].append(None if changed else call)

    hooks = [
        module.register_forward_pre_hook(normed, with_kwargs=True)
        if isinstance(module, _NORMS)
        else module.register_forward_hook(convolved, with_kwargs=True)
        for module in model.modules()
        if (isinstance(module, (*_CONVS, *_NORMS)) or hasattr(module, "fold_norm"))
        and not _does_more(module)
    ]
    try:
        model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    for norm, sources in read.items():
        call = sources[0]
        if call is None or {source and source.module for source in sources} != {call.module}:
            continue
        if len(sources) == counts[call.module] and norm.running_mean is not None:
            yield call, norm


def _does_more(module: nn.Module) -> bool:
    """Whether somebody reads or changes what a module gets, returns or computes with."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or is_parametrized(module)


def _fold(model: nn.Module, call: _Call, norm: Any, tolerance: float) -> None:
    conv: Any = call.module
    wide = sum_dtype(norm.running_var)
    scale = (norm.running_var.to(wide) + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    shift = shift if norm.bias is None else shift + norm.bias
    # timm's norms include an activation; it stays.
    rest = nn.Sequential(*(p for p in norm.children() if not isinstance(p, nn.Identity)))
    expected, before = norm(call.again()), (conv.weight, conv.bias)
    if hasattr(conv, "fold_norm"):
        conv.fold_norm(scale, shift, call.args)
    else:
        fold_into(conv, conv.weight, conv.bias, scale, shift)
    if _is_close(expected, rest(call.again()), tolerance):
        _replace(model, norm, rest if len(rest) else nn.Identity())
    else:  # a subclass that does more with its weight than to convolve
        conv.weight, conv.bias = before


def fold_into(
    conv: nn.Module, weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor
) -> None:
    """Give a convolution the weight and bias with which it also scales and shifts its output."""
    scaled = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    moved = shift if bias is None else shift + bias * scale
    conv.weight = nn.Parameter(scaled.to(weight.dtype), requires_grad=False)
    conv.bias = nn.Parameter(moved.to(weight.dtype), requires_grad=False)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in model.modules():
        for name, child in parent._modules.items():  # one child may have several names
            if child is old:
                parent._modules[name] = new


def _check_outputs(
    original: nn.Module, new: nn.Module, args: Any, kwargs: Any, tolerance: float
) -> None:
    expected = _tensors(original(*args, **kwargs))
    if not expected:
        raise TypeError("optimize: the network returns no tensors, so nothing can be compared.")
    for a, b in zip(expected, _tensors(new(*args, **kwargs)), strict=True):
        if not _is_close(a, b, tolerance):
            off, largest = _off(a, b)
            raise RuntimeError(
                f"optimize: outputs differ by {off:.3g}, where the largest is {largest:.3g}. Either"
                " the network also uses the output of a convolution before its batch norm: then it"
                " cannot be optimized. Or phases are tied on this example, as on constant or"
                " periodic images, and rounding decides: pass an example of real pictures."
            )


def _is_close(expected: Tensor, output: Tensor, tolerance: float) -> bool:
    if expected.dtype.is_floating_point:
        tolerance = max(tolerance, 8 * torch.finfo(expected.dtype).eps)
    off, largest = _off(expected, output)
    return off <= tolerance * max(largest, 1e-30)


def _off(expected: Tensor, output: Tensor) -> tuple[float, float]:
    """Return the largest difference and the largest value; equal infinities do not differ."""
    if not expected.numel():
        return 0.0, 0.0
    wide = torch.promote_types(expected.dtype, torch.float32)
    a, b = expected.to(wide), output.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    largest = torch.where(a.isfinite(), a.abs(), 0.0).max()
    return float(torch.where(same, 0.0, (a - b).abs()).max()), float(largest)


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
    if isinstance(output, Mapping):
        output = output.values()
    if isinstance(output, str) or not isinstance(output, Iterable):
        return []
    return [t for item in output for t in _tensors(item)]
