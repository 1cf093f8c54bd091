"""Make an existing network exactly invariant or equivariant to circular shifts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from trueshift._validate import check_choice
from trueshift.convert.build.converted import PREFIX, Converted
from trueshift.convert.build.order import in_order
from trueshift.convert.build.rewrite import rewrite
from trueshift.convert.errors import ConversionError, Refusal, SizeError
from trueshift.convert.grids.analysis import Analysis
from trueshift.convert.grids.interpret import analyse, register_rule
from trueshift.convert.grids.seams import as_it_is, seam_refusals
from trueshift.convert.grids.sites import plan_of
from trueshift.convert.plan import Padding, Plan, Selection, Site
from trueshift.convert.trace.trace import Traced, copied, in_eval_mode
from trueshift.convert.verify import check, check_phase_0
from trueshift.layers.spec import SELECT_FROM, Sampling

__all__ = [
    "ConversionError",
    "Converted",
    "Plan",
    "Refusal",
    "Selection",
    "Site",
    "convert",
    "plan",
    "register_rule",
    "rewrite",
]

COUNTING = ("refuse", "canonical")
PADDING = ("circular", "seam", "keep")
AXIS_PADDING = ("circular", "keep")


# What cannot be traced, or would be lost: when, and what to do instead.
_UNSUITABLE: tuple[tuple[Callable[[nn.Module], bool], str], ...] = (
    (
        lambda model: isinstance(model, Converted),
        "the model is converted already. Convert the original again.",
    ),
    (
        lambda model: isinstance(getattr(model, "spec", None), Sampling),
        "the model samples by a Sampling already. Use trueshift.models.resample(model, spec).",
    ),
    (
        lambda model: isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"),
        "the model is scripted or compiled. Convert the original, then compile the copy.",
    ),
    (
        lambda model: isinstance(model, nn.DataParallel | DistributedDataParallel),
        "the model is wrapped for several devices. Convert model.module, then wrap the copy.",
    ),
    (
        lambda model: bool(model._forward_hooks or model._forward_pre_hooks),
        "the model has forward hooks, which would be lost. Remove them, or convert"
        " nn.Sequential(model): hooks of submodules become part of the copy.",
    ),
)


def convert(
    model: nn.Module,
    spec: Sampling | str,
    example_input: Any,
    *,
    select_from: str | None = None,
    flatten: str = "refuse",
    positions: str = "refuse",
    padding: Padding = "circular",
    verify: bool = True,
) -> Converted:
    """Return a copy of a network that is exactly invariant or equivariant to circular shifts.

    Every stride chooses its phase from the content of the map, branches that are combined share it,
    up-sampling puts values back where they came from, and padding becomes circular. All weights
    keep their names and values; what is new lives under ``sampling``.

    Args:
        model: Any network that can be traced. It is not changed.
        spec: A :class:`Sampling`, or its method: ``"stride"``, ``"aps"`` or ``"lps"``.
        example_input: A batch as ``forward`` takes it: a tensor ``(B, C, *spatial)``, a tuple of
            arguments or a dict of them. Sizes must be multiples of the network's total stride.
        select_from: Choose phases from the ``"output"`` of strided operations and the pointwise
            ones after them, as the paper does, or from their ``"input"``, so that they stay
            strided. A learned selector may then read an earlier, narrower map, if only pointwise
            operations and 1x1 convolutions lie in between. ``None`` takes the spec's own.
        flatten: What to do where positions become features: ``"refuse"``, or ``"canonical"`` to
            count positions from an origin that the content chooses. With ``padding="seam"`` they
            are counted from the seam.
        positions: The same where an operation distinguishes positions: a position embedding, a
            class token among them, or an operation that has no equivariant form. Positions are
            then counted from an origin that the content of the last map before it chooses.
        padding: Borders of the copy.

            * ``"circular"``: exact.
            * ``"seam"``: the network keeps its own padding, and every input is first rolled to
              begin at its seam, where its opposite edges meet. Exact with every method, even
              ``"stride"``, and for weights that belong to a position.
            * ``"keep"``: the network's own. ``"stride"`` then computes what the model does,
              through the converted code; other methods are not exact at the border.
            * One of ``"circular"`` and ``"keep"`` per axis, such as ``("keep", "circular")`` for
              panoramas: exact for shifts along the circular axes.
        verify: Compare outputs of shifted inputs in float64 (with ``padding="keep"`` the outputs of
            plain strides with the model's), and raise if they differ.

    Returns:
        An ordinary module with ``plan`` and ``required_multiple``.

    Raises:
        ConversionError: With every place that has no equivariant version, and why; or if the
            example's size is not a multiple of the total stride.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        >>> x = torch.randn(1, 3, 8, 8)
        >>> new = convert(net, "aps", x).eval()
        >>> torch.equal(new(x.roll(1, -1)), new(x))
        True
    """
    spec = _as_spec(spec)
    planned = plan(
        model,
        example_input,
        spec,
        select_from=select_from,
        flatten=flatten,
        positions=positions,
        padding=padding,
    )
    new = rewrite(planned)
    if verify and planned.traced is not None:
        _verify(model, new, spec, planned, planned.traced)
    return new


def _verify(model: nn.Module, new: nn.Module, spec: Sampling, plan: Plan, traced: Traced) -> None:
    """Raise unless the new network is as exact as its padding and method allow."""
    if plan.padding == "keep":
        if spec.is_plain:
            check_phase_0(model, new, traced)
        return
    chooses = spec.method != "stride" and spec.test_rule == "argmax"
    exact = chooses or plan.padding == "seam"
    if exact or all(site.role not in ("origin", "counted") for site in plan.sites):
        # Plain strides allow shifts by the total stride.
        check(new, plan, traced, step=1 if exact else math.lcm(*plan.multiples))


def plan(
    model: nn.Module,
    example_input: Any,
    spec: Sampling | str = "aps",
    *,
    select_from: str | None = None,
    flatten: str = "refuse",
    positions: str = "refuse",
    padding: Padding = "circular",
) -> Plan:
    """Say what :func:`convert` would do, without doing it: nothing is built or copied.

    The plan can be read, edited (:meth:`Plan.edit`) and carried out
    (:func:`trueshift.convert.rewrite`). It refers to the model.

    Args:
        model: The network. It is not changed.
        example_input: As for :func:`convert`.
        spec: As for :func:`convert`.
        select_from: As for :func:`convert`.
        flatten: As for :func:`convert`.
        positions: As for :func:`convert`.
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
    spec = _as_spec(spec)
    check_choice("convert", "select_from", select_from or spec.select_from, SELECT_FROM)
    spec = spec.replace(select_from=select_from or spec.select_from)
    padding = _as_padding(padding)
    check_choice("convert", "flatten", flatten, COUNTING)
    check_choice("convert", "positions", positions, COUNTING)
    _check(model, spec, padding)
    try:
        with torch.inference_mode(False), in_eval_mode(model):
            analysis = analyse(model, example_input, flatten, positions, padding)
            planned = _planned(analysis, spec, padding)
            flops = _flops(planned)
            after = flops + sum(site.flops_after - site.flops for site in planned.sites)
            return dataclasses.replace(planned, flops=flops, flops_after=after)
    except SizeError:
        raise
    except ConversionError as error:
        return Plan(error.network, refusals=error.refusals)


def _planned(analysis: Analysis, spec: Sampling, padding: Padding) -> Plan:
    if padding == "seam" and analysis.refusals and spec.is_plain:
        analysis = as_it_is(analysis)
    if padding == "seam" and not analysis.refusals:
        analysis.refusals.extend(seam_refusals(analysis))
    if analysis.refusals:
        raise ConversionError(type(analysis.traced.root).__name__, analysis.refusals)
    planned = plan_of(analysis, spec, padding)
    in_order(planned, analysis.traced.graph)  # raises if a phase would depend on itself
    return planned


def _flops(plan: Plan) -> int:
    """Count the FLOPs of the original on the example."""
    if plan.traced is None:
        return 0
    root, arguments = plan.traced.root, plan.traced.arguments
    # The counter's hooks fail on views of parameters that are made without gradients.
    detached = {name: parameter.detach() for name, parameter in root.named_parameters()}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.func.functional_call(root, detached, (), copied(arguments))
    return int(counter.get_total_flops())


def _as_spec(spec: Sampling | str) -> Sampling:
    if isinstance(spec, str):
        spec = Sampling(spec)
    if not isinstance(spec, Sampling):
        raise TypeError(
            "convert: spec must be a Sampling or a method's name, got an object of type"
            f" {type(spec).__name__}. Call convert(model, spec, example_input)."
        )
    return spec


def _as_padding(padding: Padding) -> Padding:
    """Return a checked padding; a single one if all axes have the same."""
    if isinstance(padding, str) or not isinstance(padding, Sequence):
        check_choice("convert", "padding", padding, PADDING)
        return padding
    for axis in padding:
        check_choice("convert", "padding of an axis", axis, AXIS_PADDING)
    if not 1 <= len(padding) <= 3:
        raise ValueError(f"convert: padding needs one entry per spatial axis, got {padding}.")
    return padding[0] if len(set(padding)) == 1 else tuple(padding)


def _check(model: nn.Module, spec: Sampling, padding: Padding) -> None:
    if padding == "circular" and spec.padding_mode != "circular":
        raise ValueError(
            f"convert: only circular padding is exact, got padding_mode={spec.padding_mode!r}."
            " Pass a Sampling with padding_mode='circular', or convert(..., padding='seam')."
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert: model must be an nn.Module, got {type(model).__name__}.")
    for applies, problem in _UNSUITABLE:
        if applies(model):
            raise ValueError(f"convert: {problem}")
    if hasattr(model, PREFIX):
        raise ValueError(f"convert: the model has an attribute {PREFIX!r} already. Rename it.")
