"""Checks of arguments, so that every error names the argument, what was given and what to do."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from trueshift._dispatch import readable

PADDING_MODES = ("circular", "zeros", "reflect", "replicate")
AXES = (1, 2, 3)  # numbers of spatial axes
_USUAL_STRIDES = {axes: tuple((step,) * axes for step in (2, 3, 4)) for axes in AXES}
_LISTED = 40  # names that one error lists next to a suggestion

Stride = int | Sequence[int]
Mode = str | tuple[str, ...]  # of all axes, or one per axis


def check_choice(who: str, what: str, value: object, choices: Iterable[str | None]) -> None:
    """Raise unless ``value`` is one of ``choices``; suggest the nearest name."""
    known = tuple(choices)
    if value in known:
        return
    names = [name for name in known if name is not None]
    near = difflib.get_close_matches(str(value).lower(), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(str(name) for name in known)
    if not near or len(known) <= _LISTED:
        hint += f" Choose from: {listed}."
    raise ValueError(f"{who}: unknown {what} {value!r}.{hint}")


def check_mode(who: str, mode: Mode, dim: int | None, name: str = "padding_mode") -> Mode:
    """Raise unless ``mode`` is a padding mode or one per axis; return one if all are equal.

    ``dim=None`` leaves the number of axes open, and returns all of them.
    """
    if isinstance(mode, str) or not isinstance(mode, Sequence):
        check_choice(who, name, mode, PADDING_MODES)
        return mode
    for axis in mode:
        check_choice(who, name, axis, PADDING_MODES)
    if dim is not None and len(mode) != dim:
        raise ValueError(
            f"{who}: {name} {tuple(mode)} names {len(mode)} modes for {dim} spatial axes."
            f" Pass one mode, or {dim}."
        )
    return mode[0] if dim is not None and len(set(mode)) == 1 else tuple(mode)


def axis_modes(mode: Mode, dim: int) -> tuple[str, ...]:
    """Return the padding mode of each axis."""
    return (mode,) * dim if isinstance(mode, str) else mode


def check_positive(who: str, **numbers: int) -> None:
    """Raise unless every number is an integer of at least 1."""
    for name, value in numbers.items():
        if _as_int(value) is None:
            raise TypeError(f"{who}: {name} must be an integer, got {value!r}.")
        if value < 1:
            raise ValueError(f"{who}: {name} must be at least 1, got {value}.")


def check_dim(who: str, dim: int) -> None:
    """Raise unless ``dim`` is a supported number of spatial axes."""
    if _as_int(dim) not in (1, 2, 3):
        raise ValueError(f"{who}: dim must be 1, 2 or 3, got {dim!r}.")


def check_stride(who: str, stride: Stride) -> None:
    """Raise unless ``stride`` is an integer >= 2, or one integer per axis of which one is >= 2."""
    rule = f"{who}: stride must be an integer >= 2, or one integer >= 1 per axis with one >= 2"
    is_sequence = isinstance(stride, Sequence) and not isinstance(stride, str)
    steps = tuple(stride) if isinstance(stride, Sequence) else (stride,)
    if not steps or any(_as_int(step) is None for step in steps):
        raise TypeError(f"{rule}, got {stride!r}.")
    if min(steps) < (1 if is_sequence else 2) or max(steps) < 2:
        raise ValueError(f"{rule}, got {stride!r}.")


def stride_per_axis(who: str, stride: Stride, dim: int) -> tuple[int, ...]:
    """Return ``stride`` as one integer per spatial axis."""
    check_stride(who, stride)
    if not isinstance(stride, Sequence):
        return (int(stride),) * dim
    if len(stride) != dim:
        raise ValueError(
            f"{who}: stride {tuple(stride)} has {len(stride)} entries for {dim} spatial axes."
            f" Pass one integer, or {dim}."
        )
    return tuple(int(step) for step in stride)


def check_input(
    who: str,
    x: Tensor,
    stride: Stride,
    *,
    dim: int | None = None,
    channels: int | None = None,
    name: str = "x",
    divisible: bool = True,
) -> tuple[int, ...]:
    """Raise unless a layer takes ``x`` and its stride; return the stride of each axis."""
    if not isinstance(x, Tensor) or x.ndim - 2 not in (AXES if dim is None else (dim,)):
        check_map(who, x, dim, name)
    if channels is not None and x.shape[1] != channels:
        raise ValueError(
            f"{who}: built for {channels} channels, got x of shape {tuple(x.shape)}"
            f" with {x.shape[1]}. Build it with channels={x.shape[1]}."
        )
    axes = x.ndim - 2
    if type(stride) is int and stride > 1:
        strides: tuple[int, ...] = (stride,) * axes
    elif stride in _USUAL_STRIDES.get(axes, ()):
        strides = stride
    else:
        strides = stride_per_axis(who, stride, axes)
    if divisible:
        for size, step in zip(x.shape[2:], strides, strict=True):
            if size % step or size == 0:
                check_divisible(who, x, strides)
    return strides


def check_components(who: str, components: Tensor, stride: Stride) -> tuple[int, ...]:
    """Raise unless a tensor holds the components of a stride; return the stride of each axis."""
    if components.ndim not in (4, 5, 6):
        raise ValueError(
            f"{who}: components must have 4 to 6 dimensions (B, P, C, *spatial), got"
            f" shape {tuple(components.shape)}."
        )
    strides = stride_per_axis(who, stride, components.ndim - 3)
    if components.shape[1] != math.prod(strides):
        raise ValueError(
            f"{who}: stride={stride} makes {math.prod(strides)} components, got"
            f" {components.shape[1]} in shape {tuple(components.shape)}."
        )
    return strides


def check_map(who: str, x: Tensor, dim: int | None = None, name: str = "x") -> None:
    """Raise unless ``x`` is a feature map ``(B, C, *spatial)`` with 1 to 3 (or ``dim``) axes."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{who}: {name} must be a torch.Tensor, got {type(x).__name__}.")
    expected = (dim,) if dim is not None else (1, 2, 3)
    if x.ndim - 2 not in expected:
        ranks = " or ".join(str(d + 2) for d in expected)
        raise ValueError(
            f"{who}: {name} must have {ranks} dimensions (B, C, *spatial), got shape"
            f" {tuple(x.shape)}. Add a batch axis with {name}[None], or pass dim= to the layer."
        )


def check_divisible(who: str, x: Tensor, stride: tuple[int, ...]) -> None:
    """Raise unless every spatial size is divisible by its stride; name the size to pad to."""
    sizes = x.shape[2:]
    if 0 in sizes:
        raise ValueError(f"{who}: x has no pixels, got shape {tuple(x.shape)}.")
    if all(size % step == 0 for size, step in zip(sizes, stride, strict=True)):
        return
    up, down = nearest_multiples(sizes, stride)
    shown = stride[0] if len(set(stride)) == 1 else stride
    crop = f" or crop to {down}" if min(down) > 0 else ""
    bad = [axis for axis, (n, step) in enumerate(zip(sizes, stride, strict=True), 2) if n % step]
    where = "" if len(bad) == len(sizes) else f" Not divisible: axis {', '.join(map(str, bad))}."
    raise ValueError(
        f"{who}: spatial sizes must be divisible by stride={shown}, got x of shape"
        f" {tuple(x.shape)}. Pad to {up}{crop}.{where}"
    )


def nearest_multiples(
    sizes: Sequence[int], steps: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the next sizes, up and down, that are multiples of ``steps``."""
    pairs = list(zip(sizes, steps, strict=True))
    up = tuple(max(-(-size // step), 1) * step for size, step in pairs)
    return up, tuple(size // step * step for size, step in pairs)


def check_phase(who: str, phase: Tensor, x: Tensor, num_phases: int) -> None:
    """Raise unless ``phase`` is a hard ``(B,)`` int64 or a soft ``(B, P)`` floating choice."""
    rule = f"{who}: phase must be int64 of shape (B,) or floating of shape (B, {num_phases})"
    if not isinstance(phase, Tensor):
        raise TypeError(f"{rule}, got {type(phase).__name__}.")
    if phase.dtype != torch.int64 and not phase.dtype.is_floating_point:
        raise TypeError(f"{rule}, got dtype {phase.dtype}. Convert it with phase.long().")
    shape = (x.shape[0], num_phases) if phase.dtype.is_floating_point else (x.shape[0],)
    if tuple(phase.shape) != shape:
        raise ValueError(f"{rule}, got {phase.dtype} of shape {tuple(phase.shape)}: need {shape}.")
    if phase.device != x.device:
        raise ValueError(
            f"{who}: phase is on {phase.device}, x on {x.device}. Move it with phase.to(x.device)."
        )
    if phase.dtype == torch.int64 and phase.numel() and readable(phase):
        low, high = (int(v) for v in phase.aminmax())
        if low < 0 or high >= num_phases:
            bad = low if low < 0 else high
            raise ValueError(f"{who}: phase must be in 0..{num_phases - 1}, got {bad}.")


def _as_int(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_module(who: str, what: str, module: object) -> None:
    """Raise unless ``module`` is a module or ``None``."""
    if module is not None and not isinstance(module, nn.Module):
        raise TypeError(
            f"{who}: {what} must be a module or None, got {module!r}."
            " Only LPD, APS, LPU and Sampling take names."
        )


def check_output_size(
    who: str, output_size: Sequence[int], full: tuple[int, ...], stride: tuple[int, ...]
) -> tuple[int, ...]:
    """Raise unless ``full`` may be cropped to ``output_size``: by less than a stride per axis."""
    if not isinstance(output_size, Sequence):
        raise TypeError(
            f"{who}: output_size must be one integer per axis, got {output_size!r}."
            f" Pass {(output_size,) * len(full)}."
        )
    size = tuple(output_size)
    fits = len(size) == len(full) and all(
        n - step < wanted <= n for wanted, n, step in zip(size, full, stride, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{who}: output_size {size} does not fit: up-sampling by {stride} gives {full},"
            " and less than one stride may be cropped per axis."
        )
    return size
