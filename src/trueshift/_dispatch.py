"""Formulas, and the kernels that compute them faster.

A *formula* is a plain function of :mod:`trueshift.functional`, :mod:`trueshift.exact` or
:mod:`trueshift.ties`: it says what is computed, on any device. A *kernel* computes the same faster
where its condition holds. Kernels live in :mod:`trueshift._cpu`; graphs and ``torch.func`` never
see them.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(NamedTuple):
    """A faster way to compute a formula, and when it may be taken."""

    run: Callable[..., Any]
    when: Callable[..., bool] | None


KERNELS: dict[str, list[Kernel]] = {}  # by the name of the formula, the first that applies wins
_PLAIN = [os.environ.get("TRUESHIFT_PLAIN", "0") not in ("", "0")]


def formula(plain: Callable[P, R]) -> Callable[P, R]:
    """Let kernels be registered for a function; it runs itself where none applies.

    Kernels are for CPUs: they see neither graphs nor other devices nor empty tensors.
    """
    kernels = KERNELS[plain.__name__] = []

    @functools.wraps(plain)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if traced() or _PLAIN[0]:
            return plain(*args, **kwargs)
        x: Any = args[0] if args else next(iter(kwargs.values()))
        if x.device.type == "cpu" and x.numel() > 0:
            for kernel in kernels:
                if kernel.when is None or kernel.when(*args, **kwargs):
                    result: R = kernel.run(*args, **kwargs)
                    return result
        return plain(*args, **kwargs)

    return run


def definition(formula: Callable[P, R]) -> Callable[P, R]:
    """Return a formula itself, for a kernel that runs it on parts; those inside still dispatch."""
    plain: Callable[P, R] = formula.__wrapped__  # type: ignore[attr-defined]
    return plain


def fast(
    formula: Callable[..., R], *, when: Callable[..., bool] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a kernel for a formula.

    Args:
        formula: A function marked with :func:`formula`.
        when: Takes the arguments of the formula; says whether the kernel takes them, and pays;
            ``None`` means always.
    """

    def register(run: Callable[P, R]) -> Callable[P, R]:
        KERNELS[formula.__name__].append(Kernel(run, when))
        return run

    return register


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Run only the formulas of :mod:`trueshift.functional`, as graphs and accelerators do.

    The environment variable ``TRUESHIFT_PLAIN=1`` does the same for a whole process.

    Examples:
        >>> import torch, trueshift as ts
        >>> layer, x = ts.LPD(4).eval(), torch.randn(2, 4, 8, 8)
        >>> with ts.plain():
        ...     y = layer(x)
        >>> torch.equal(y, layer(x))
        True
    """
    before, _PLAIN[0] = _PLAIN[0], True
    try:
        yield
    finally:
        _PLAIN[0] = before


def traced() -> bool:
    """Whether tensors stand for others: in graphs, fake tensors, ``torch.func`` and forward AD."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return True
    fake = torch._C._TorchDispatchModeKey.FAKE
    return torch._C._get_dispatch_mode(fake) is not None


def readable(x: torch.Tensor) -> bool:
    """Whether reading values is free: it would stall an accelerator, and graphs have none."""
    return x.device.type == "cpu" and not traced()
