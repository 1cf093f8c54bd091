"""Make an existing network exactly invariant or equivariant to circular shifts."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trueshift._validate import check_choice
from trueshift.convert.grids.analysis import Analysis
from trueshift.convert.grids.seams import as_it_is, seam_refusals
from trueshift.convert.build.converted import PREFIX, Converted, own_constants
from trueshift.convert.errors import ConversionError, Refusal
from trueshift.convert.plan import (
    SELECT,
    Plan,
    Site,
    analyse,
    as_spec,
    describe,
    register_rule,
)
from trueshift.convert.build.rewrite import Rewriter
from trueshift.convert.verify import check, difference
from trueshift.layers.activations import make_steady
from trueshift.layers.spec import Sampling

__all__ = [
    "ConversionError",
    "Converted",
    "Plan",
    "Refusal",
    "Site",
    "convert",
    "plan",
    "register_rule",
]


def convert(
    model: nn.Module,
    spec: Sampling | str,
    example_input: Any,
    *,
    select: str | None = None,
    flatten: str = "refuse",
    padding: str = "circular",
    verify: bool = True,
) -> Converted:
    """Return a copy of a network that is exactly invariant or equivariant to circular shifts.

    Every stride chooses its phase from the contents of the map, branches that meet share it,
    up-sampling puts values back where they came from, and padding becomes circular. All weights
    keep their names and values; what is new lives under ``sampling``.

    Args:
        model: Any network that can be traced. It is not changed.
        spec: A :class:`Sampling`, or its method: ``"stride"``, ``"aps"`` or ``"lps"``.
        example_input: A batch as ``forward`` takes it: a tensor ``(B, C, *spatial)``, a tuple of
            arguments or a dict of them. Sizes must be multiples of the network's total stride.
        select: Choose phases on the ``"output"`` of strided operations and the pointwise ones after
            them, as the paper does, or on their ``"input"``, which needs no dense operation; there
            learned selectors look at the narrowest map that only pointwise operations and 1x1
            convolutions lie between. ``None`` takes the spec's own.
        flatten: What to do where positions become features: ``"refuse"``, or ``"canonical"`` to
            count positions from an origin that the contents choose. With ``padding="seam"`` they
            are counted from the seam.
        padding: ``"circular"``. Or ``"seam"``: the network keeps its own padding, and every input
            is first moved to begin where its ends meet and do not fit together. That is exact with
            every method, ``"stride"`` too, and where positions have weights of their own. Or
            ``"keep"`` the network's own without that: then ``"stride"`` computes what the model
            does, through the same code, and other methods are not exact at the border.
        verify: Compare outputs of shifted inputs in float64 (with ``padding="keep"`` the outputs of
            plain strides with the model's), and raise if they differ.

    Returns:
        An ordinary module with ``plan`` and ``required_multiple``.

    Raises:
        ConversionError: With every place that has no equivariant version, and why.
        ValueError: If the example's size is not a multiple of the total stride.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        >>> x = torch.randn(1, 3, 8, 8)
        >>> new = convert(net, "aps", x).eval()
        >>> torch.equal(new(x.roll(1, -1)), new(x))
        True
    """
    spec = as_spec(spec)
    analysis, new = _build(model, spec, example_input, select, flatten, padding)
    if verify and padding != "keep":
        chooses = spec.method != "stride" and spec.test_rule == "argmax"
        exact = chooses or padding == "seam"
        if exact or not analysis.origins:  # plain strides allow shifts by the total stride
            check(new, analysis, step=1 if exact else math.lcm(*new.plan.multiples))
    elif verify and spec.is_plain:
        _check_same(model, new, analysis)
    return new


def plan(
    model: nn.Module,
    example_input: Any,
    spec: Sampling | str = "aps",
    *,
    select: str | None = None,
    flatten: str = "refuse",
    padding: str = "circular",
) -> Plan:
    """Say what :func:`convert` would do, without doing it.

    Args:
        model: The network. It is not changed.
        example_input: As for :func:`convert`.
        spec: As for :func:`convert`; it matters for FLOPs, and with ``padding="seam"`` for what is
            refused.
        select: As for :func:`convert`.
        flatten: As for :func:`convert`.
        padding: As for :func:`convert`.

    Returns:
        The plan; its ``refusals`` say what cannot be converted.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        >>> print(plan(net, torch.randn(1, 3, 8, 8)))
        Sequential: 2 sites, inputs in multiples of 2
          0     Conv2d  2x2    leads     6.91k -> 27.6k
          and 1 with circular padding or exact means only
        FLOPs on the example: 6.91k -> 27.6k (4.00x)
    """
    spec = as_spec(spec)
    try:
        _, new = _build(model, spec, example_input, select, flatten, padding)
    except ConversionError as error:
        return Plan(error.network, (), error.refusals, (1,), {}, False)
    return new.plan


@torch.inference_mode(False)  # the new network must be able to train
def _build(
    model: nn.Module, spec: Sampling, example: Any, select: str | None, flatten: str, padding: str
) -> tuple[Analysis, Converted]:
    select = spec.select if select is None else select
    check_choice("convert", "select", select, SELECT)
    _check_spec(spec, padding)
    analysis = analyse(model, example, flatten, padding)
    if analysis.refusals and analysis.seam and spec.is_plain:
        analysis = as_it_is(analysis)
    if analysis.seam and not analysis.refusals:
        analysis.refusals.extend(seam_refusals(analysis))
    if analysis.refusals:
        raise ConversionError(type(model).__name__, analysis.refusals)
    rewriter = Rewriter(analysis, spec, select)
    found = describe(analysis, rewriter.leads_on_output)
    graph, parts = rewriter.run()
    root = copy.deepcopy(model)
    make_steady(root)
    for name, value in analysis.traced.root.__dict__.items():
        if isinstance(value, torch.Tensor):  # constants that tracing found in the code
            root.__dict__.setdefault(name, value)
    _match(parts, root)
    root.add_module(PREFIX, parts)
    own_constants(root, graph)
    arguments = analysis.traced.arguments
    inputs = {name: name in analysis.inputs for name in arguments}
    flops = _flops(copy.deepcopy(model), arguments)
    trial = Converted(root, graph, inputs, found)
    after = _flops(trial, arguments)
    trial.plan = Plan(**{**found.__dict__, "flops": flops, "flops_after": after})
    return analysis, trial


def _match(parts: nn.Module, root: nn.Module) -> None:
    """Give the new parts the type, place and mode of the network."""
    first = next((p for p in root.parameters() if p.is_floating_point()), None)
    if first is not None:
        parts.to(device=first.device, dtype=first.dtype)
    parts.train(root.training)


def _check_spec(spec: Sampling, padding: str) -> None:
    if padding == "circular" and spec.padding_mode != "circular":
        raise ValueError(
            f"convert: only circular padding is exact, got padding_mode={spec.padding_mode!r}."
            " Pass a Sampling with padding_mode='circular', or convert(..., padding='seam')."
        )


def _check_same(model: nn.Module, new: nn.Module, analysis: Analysis) -> None:
    """Raise unless phase 0 with the original padding computes what the original does."""
    error = difference(model, new, analysis)
    if error > 1e-10:
        reason = f"phase 0 does not reproduce the original: it differs by {error:.1e}."
        refusal = Refusal("output", "verify", reason, "Please report the model.")
        raise ConversionError(type(model).__name__, [refusal])


def _flops(model: nn.Module, arguments: dict[str, Any]) -> int:
    """Count on two copies of the example: exact convolutions of a single small image run twice."""
    was_training = model.training
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor) and x.ndim}
    twice = arguments | {name: torch.cat([x, x]) for name, x in tensors.items()}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(**twice)
    model.train(was_training)
    return int(counter.get_total_flops()) // 2
