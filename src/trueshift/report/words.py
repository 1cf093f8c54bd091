"""The results of an audit, in words and in percent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trueshift.audit.moves import Estimate, Move, difference, differences
from trueshift.audit.results import BREAKS, AuditResult, Measurement
from trueshift.audit.selection import LayerSelection, Outcome, Selection

_SURE = 2  # standard errors


def percent(fraction: float) -> str:
    """Write a fraction in percent; only what is exactly 0 or 1 reads 0 % or 100 %.

    Examples:
        >>> percent(0.1234), percent(0.99999), percent(1.0), percent(0.00001)
        ('12.3 %', '> 99.9 %', '100 %', '< 0.1 %')
    """
    if fraction in (0, 1):
        return f"{100 * fraction:.0f} %"
    if fraction > 0.9995:
        return "> 99.9 %"
    if fraction < 0.0005:
        return "< 0.1 %"
    return f"{100 * fraction:.1f} %"


def number(value: float) -> str:
    """Write a number with few digits.

    Examples:
        >>> number(0.0), number(0.123456), number(1234567.0), number(2.5e-7)
        ('0', '0.123', '1.23e+06', '2.5e-07')
    """
    return f"{value:.3g}"


def shift_text(shift: tuple[int, int]) -> str:
    """Say where a shift goes.

    Examples:
        >>> shift_text((3, -1)), shift_text((0, 0))
        ('3 px down, 1 px left', 'no shift')
    """
    dy, dx = shift
    parts = [f"{abs(dy)} px {'down' if dy > 0 else 'up'}"] if dy else []
    parts += [f"{abs(dx)} px {'right' if dx > 0 else 'left'}"] if dx else []
    return ", ".join(parts) or "no shift"


def verdict(result: AuditResult) -> str:
    """Return one sentence that says how the network behaves under shifts."""
    worst = min(result.measurements, key=lambda m: m.consistency)
    pairs = f"{len(worst.shifts) * result.num_images:,}"
    masks = result.task == "segmentation"
    word = "equivariant" if masks else "invariant"
    if result.bitwise_equal:
        return (
            f"{result.name} is exactly shift-{word} here: in {pairs} {_moved(worst)} images not one"
            " bit of its output changed."
        )
    if result.consistency == 1 and result.only_rounds:
        change = max(m.largest_change / m.output_scale for m in result.measurements)
        return (
            f"{result.name} is shift-{word} up to rounding here: in {pairs} {_moved(worst)} images"
            f" outputs moved by at most {number(change)} standard deviations."
        )
    if result.consistency == 1:
        what = "pixel changed its label" if masks else "label changed"
        change = max(m.largest_change for m in result.measurements)
        return (
            f"{result.name} keeps its labels: in {pairs} {_moved(worst)} images no {what},"
            f" though outputs moved by up to {number(change)}."
        )
    share = percent(1 - worst.consistency)
    low, high = (percent(1 - end) for end in reversed(worst.interval))
    what = (
        f"gives {share} of the pixels another label"
        if masks
        else f"changes its mind on {share} of {_moved(worst)} images"
    )
    moved = f" in {_moved(worst)} images" if masks else ""
    kind = f"{worst.kind} shifts; " if len(result.measurements) > 1 else ""
    return (
        f"{result.name} {what}{moved} ({kind}95 % interval {low} to {high}); at the worst shift,"
        f" {shift_text(worst.worst_shift)}, {percent(1 - min(worst.shares))}."
    )


def break_text(result: AuditResult) -> str:
    """Say which module breaks first and which adds most."""
    first, most = result.first_break, result.largest_increase
    if not result.layers:
        return ""
    if first is None:
        return "No module breaks: every map moves along with the image, up to rounding."
    where = "an operation just before " if first.input_error > BREAKS else ""
    text = f"It breaks first at {where}{first.name} ({first.kind})."
    if most is not None and most.name != first.name:
        text += f" Most error is added by {most.name} ({most.kind})."
    return text


def summary_rows(result: AuditResult, moves: bool = True) -> list[tuple[str, str]]:
    """Return the main numbers as (name, value), with or without those of :func:`move_rows`."""
    rows = []
    for m in result.measurements:
        low, high = (percent(end) for end in m.interval)
        kind = f" ({m.kind})" if len(result.measurements) > 1 else ""
        if not all(m.wraps):
            axis = "horizontally" if m.wraps[1] else "vertically"
            rows.append((f"Shifted{kind}", f"{axis} only, where the network wraps"))
        rows.append((f"Consistency{kind}", f"{percent(m.consistency)} ({low} to {high})"))
        rows.append((f"Worst shift{kind}", _worst(m)))
        if m.accuracy is not None:
            a = m.accuracy
            spread = f"{percent(a.worst)} / {percent(a.mean)} / {percent(a.best)}"
            rows.append((f"Accuracy worst / mean / best{kind}", spread))
            rows.append((f"Accuracy unshifted{kind}", percent(a.unshifted)))
        rows.append((f"Largest output change{kind}", _change(m.largest_change, m)))
        rows.append((f"Median output change{kind}", _change(m.median_change, m)))
        rows.append((f"Outputs with the same bits{kind}", percent(m.bitwise_share)))
        rows += move_rows(m) if moves else []
    first, most = result.first_break, result.largest_increase
    if result.layers:
        rows.append(("Breaks first at", "nowhere" if first is None else first.name))
        rows.append(("Adds most", "none" if most is None else most.name))
    if result.margins:
        closest = min(result.margins, key=lambda m: m.relative)
        ties = sum(m.num_ties for m in result.margins)
        rows.append(("Smallest selector margin", f"{number(closest.smallest)} at {closest.name}"))
        rows.append(("Exact ties", str(ties)))
    return rows


def move_rows(m: Measurement) -> list[tuple[str, str]]:
    """Return what frames say that were moved by exactly so many pixels, as (name, value)."""
    rows = [] if m.neighbours is None else [("Same label in all nine frames", _move(m.neighbours))]
    rows += [(f"Moved by {move.distance} px along both axes", _move(move)) for move in m.moves]
    return rows


class MoveRow(NamedTuple):
    """How frames moved by a distance did: a value for each network, and their difference."""

    name: str
    values: tuple[tuple[str, str], ...]
    difference: tuple[str, str]


def move_table(results: Sequence[AuditResult]) -> list[tuple[str, list[MoveRow]]]:
    """Return what :func:`move_rows` and :func:`difference_rows` say, measure by measure.

    Numbers come with their interval; where there is none, it is empty.
    """
    columns = [m.moves_by_name() for one in results for m in one.measurements if m.moves]
    shared = [name for name in (columns or [{}])[0] if all(name in column for column in columns)]
    pixels = any(one.task == "segmentation" for one in results)
    measures = (
        ("Pixels unchanged" if pixels else "Labels unchanged", "consistency", "image_shares"),
        ("Accuracy", "accuracy", "image_accuracies"),
        ("Same windows", "agreement", ""),
        ("Same bits", "bitwise_share", ""),
    )
    table = []
    for title, field, of_images in measures:
        rows = []
        for name in shared:
            moves = [column[name] for column in columns]
            values = [getattr(move, field) for move in moves]
            paired = len(moves) == 2 and of_images
            gain = difference(moves[0], moves[1], of_images) if paired else None
            if any(value is not None for value in values):
                cells = tuple(_cell(value) for value in values)
                rows.append(MoveRow(name, cells, _gain(gain)))
        table += [(title, rows)] if rows else []
    return table


def _cell(value: Estimate | None) -> tuple[str, str]:
    if value is None:
        return "\N{EN DASH}", ""
    low, high = (percent(end).removesuffix(" %") for end in (value.low, value.high))
    return percent(value.mean), f"{low} to {high}"


def _gain(gain: Estimate | None) -> tuple[str, str]:
    if gain is None:
        return "", ""
    mean, low, high = (f"{100 * v:+.1f}" for v in (gain.mean, gain.low, gain.high))
    return mean, f"{low} to {high}"


def short_names(results: Sequence[AuditResult]) -> list[str]:
    """Return the names of networks without what is the same before a comma."""
    heads, tails = zip(*(one.name.rpartition(", ")[::2] for one in results), strict=True)
    alike = len(results) > 1 and len(set(heads)) == 1
    return list(tails) if alike else [one.name for one in results]


def difference_rows(first: AuditResult, second: AuditResult) -> list[tuple[str, str]]:
    """Return by how much the second network is better on the same pictures, as (name, value)."""
    rows, words = [], {"consistency": "unchanged", "accuracy": "accuracy"}
    for a, b in zip(first.measurements, second.measurements, strict=True):
        for name, gains in differences(a.moves_by_name(), b.moves_by_name()).items():
            frames = "All nine frames" if name == "all nine" else f"Moved by {name}"
            rows += [(f"{frames}, {words[what]}", _points(gain)) for what, gain in gains.items()]
    return rows


def _points(difference: Estimate) -> str:
    mean, low, high = (100 * v for v in (difference.mean, difference.low, difference.high))
    return f"{mean:+.1f} points ({low:+.1f} to {high:+.1f})"


def _move(move: Move) -> str:
    shares = {
        "unchanged": move.consistency,
        "same bits": move.bitwise_share,
        "same windows": move.agreement,
        "accuracy": move.accuracy,
    }
    return ", ".join(
        f"{word} {percent(share.mean)} ({percent(share.low)} to {percent(share.high)})"
        for word, share in shares.items()
        if share is not None
    )


def summary_lines(result: AuditResult) -> list[str]:
    """Return the main numbers as aligned lines, then those of learned selectors."""
    rows = summary_rows(result)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:{width}}  {value}" for name, value in rows]
    return lines if result.selection is None else [*lines, "", *selection_lines(result.selection)]


def _moved(measured: Measurement) -> str:
    if all(measured.wraps):
        return "circularly shifted" if measured.kind == "circular" else "shifted"
    return "horizontally shifted" if measured.wraps[1] else "vertically shifted"


def _worst(m: Measurement) -> str:
    if m.consistency == 1:
        return "all the same"
    return f"{percent(min(m.shares))} at {shift_text(m.worst_shift)}"


def _change(change: float, m: Measurement) -> str:
    if change == 0 or m.output_scale == 0:
        return number(change)
    return f"{number(change)} ({change / m.output_scale:.2g} standard deviations)"


def selection_verdict(selection: Selection) -> str:
    """Return two sentences: do the selectors choose, and what is the choice worth?"""
    return f"{_choosing(selection)} {_worth(selection)}"


def selection_rows(selection: Selection) -> list[tuple[str, str]]:
    """Return the main numbers as (name, value)."""
    rows = [("With the choices of APS", _outcome(selection.norm))]
    if selection.accuracy is not None:
        rows.insert(0, ("With its own choices", f"{percent(selection.accuracy)} right"))
    if selection.random:
        rows.append((f"With random choices ({len(selection.random)} draws)", _outcomes(selection)))
    if selection.averaged is not None:
        rows.append(("Averaged over these draws", _outcome(selection.averaged)))
    rows += [(f"Choices of {layer.name}", _layer(layer)) for layer in selection.layers]
    if len(selection.layers) > 1:
        means = (selection.mean(field) for field in ("gap", "agreement", "same_as_norm"))
        entropy = f"entropy {selection.mean('entropy'):.2f} bits"
        rows.append(("Choices, mean over layers", _numbers(entropy, *means)))
    return rows


def selection_lines(selection: Selection) -> list[str]:
    """Return the verdict and the main numbers as aligned lines."""
    rows = selection_rows(selection)
    width = max(len(name) for name, _ in rows)
    return [selection_verdict(selection), *(f"  {name:{width}}  {value}" for name, value in rows)]


def _choosing(selection: Selection) -> str:
    weak = [layer for layer in selection.layers if layer.at_chance]
    if not weak:
        low = percent(min(layer.agreement for layer in selection.layers))
        return f"The selectors choose: at least {low} of draws with Gumbel noise agree with them."
    if len(weak) < len(selection.layers):
        names = ", ".join(layer.name for layer in weak)
        who = f"{len(weak)} of {len(selection.layers)} selectors ({names})"
    else:
        who = "This selector" if len(weak) == 1 else f"All {len(weak)} selectors"
    one = len(weak) == 1
    verb = "chooses at chance" if one else "choose at chance"
    if _worthwhile(selection):
        verb = f"{'has' if one else 'have'} logits within the noise of training"
    chance = _range([1 / layer.num_phases for layer in weak])
    shares = _range([layer.agreement for layer in weak])
    return (
        f"{who} {verb}: {shares} of draws with Gumbel noise agree with the largest logit; noise"
        f" alone gives {chance}."
    )


def _worthwhile(selection: Selection) -> bool:
    gain, error = selection.gain, selection.gain_error
    return gain is not None and error is not None and gain > _SURE * error


def _worth(selection: Selection) -> str:
    gain, error = selection.gain, selection.gain_error
    if gain is None or error is None:
        kept = min(one.unchanged for one in (selection.norm, *selection.random))
        share = "none" if kept == 1 else f"up to {percent(1 - kept)}"
        return f"Other choices change {share} of the answers."
    points = f"{100 * abs(gain):.2f} points of accuracy (standard error {100 * error:.2f})"
    if _worthwhile(selection):
        return f"The choice is worth {points} compared with random ones."
    if gain < -_SURE * error:
        return f"Random choices do better, by {points}."
    return "Random choices do as well: the accuracy does not depend on which component is kept."


def _layer(layer: LayerSelection) -> str:
    entropy = f"entropy {layer.entropy:.2f} of {math.log2(layer.num_phases):.3g} bits"
    text = _numbers(entropy, layer.gap, layer.agreement, layer.same_as_norm)
    if layer.averaged is None:
        return text
    return f"{text}; averaged over its phases: {_outcome(layer.averaged)}"


def _numbers(entropy: str, gap: float, agreement: float, same_as_norm: float) -> str:
    return (
        f"{entropy}; largest logits {number(gap)} apart; {percent(agreement)} of noisy draws agree;"
        f" as APS in {percent(same_as_norm)}"
    )


def _outcome(outcome: Outcome) -> str:
    same = f"{percent(outcome.unchanged)} of answers unchanged"
    return same if outcome.accuracy is None else f"{percent(outcome.accuracy)} right, {same}"


def _outcomes(selection: Selection) -> str:
    draws = selection.random
    accuracies = [one.accuracy for one in draws if one.accuracy is not None]
    right = f"{_range(accuracies)} right, " if accuracies else ""
    same = percent(sum(one.unchanged for one in draws) / len(draws))
    return f"{right}{same} of answers unchanged"


def _range(shares: list[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
