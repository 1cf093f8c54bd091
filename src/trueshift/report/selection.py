"""Whether learned selectors choose, in words and in percent."""

from __future__ import annotations

import math

from trueshift.audit.selection import LayerSelection, Outcome, Selection
from trueshift.report.numbers import number, percent

_SURE = 2  # standard errors


def selection_verdict(selection: Selection) -> str:
    """Return two or three sentences: do the selectors choose, and what is it worth."""
    return f"{_choosing(selection)} {_worth(selection)}"


def selection_rows(selection: Selection) -> list[tuple[str, str]]:
    """Return the main numbers as (name, value)."""
    rows = [("Answers with APS's choices", _outcome(selection.norm))]
    if selection.random:
        accuracies = [one.accuracy for one in selection.random if one.accuracy is not None]
        unchanged = sum(one.unchanged for one in selection.random) / len(selection.random)
        mean = Outcome(sum(accuracies) / len(accuracies) if accuracies else None, unchanged)
        spread = f", {_range(accuracies)} over {len(accuracies)} draws" if accuracies else ""
        rows.append(("Answers with random choices", _outcome(mean) + spread))
    if selection.averaged is not None:
        rows.append(("Answers averaged over these", _outcome(selection.averaged)))
    layers = [(f"Choices of {layer.name}", _layer(layer)) for layer in selection.layers]
    return [*rows, *layers]


def selection_lines(selection: Selection) -> list[str]:
    """Return the verdict and the main numbers as lines."""
    rows = selection_rows(selection)
    width = max(len(name) for name, _ in rows)
    return [selection_verdict(selection), *(f"  {name:{width}}  {value}" for name, value in rows)]


def _choosing(selection: Selection) -> str:
    lost = [layer for layer in selection.layers if layer.at_chance]
    if not lost:
        low = min(layer.agreement for layer in selection.layers)
        return (
            "The learned selectors stand above the noise of training: at least"
            f" {percent(low)} of Gumbel draws agree with their choice."
        )
    chance = " or ".join(sorted({percent(1 / layer.num_phases) for layer in lost}))
    if len(lost) == len(selection.layers):
        who = "This selector chooses" if len(lost) == 1 else f"All {len(lost)} selectors choose"
    else:
        names = ", ".join(layer.name for layer in lost)
        verb = "chooses" if len(lost) == 1 else "choose"
        who = f"{len(lost)} of {len(selection.layers)} selectors ({names}) {verb}"
    return (
        f"{who} at chance: {_range([layer.agreement for layer in lost])} of the Gumbel draws of"
        f" training agree with the largest logit, where pure noise gives {chance}."
    )


def _worth(selection: Selection) -> str:
    gain, error = selection.gain, selection.gain_error
    if gain is None or error is None:
        kept = min((one.unchanged for one in (selection.norm, *selection.random)), default=1.0)
        return f"Other choices change the answer for up to {percent(1 - kept)}."
    points = f"{abs(100 * gain):.2g} +- {100 * error:.1g} points of accuracy"
    if gain > _SURE * error:
        return f"The choice is worth {points} over random ones."
    if gain < -_SURE * error:
        return f"Random choices do better, by {points}."
    return "Random choices do as well: which component is kept does not matter to the accuracy."


def _layer(layer: LayerSelection) -> str:
    text = (
        f"entropy {layer.entropy:.2f} of {math.log2(layer.num_phases):.2g} bits, logits"
        f" {number(layer.gap)} apart, {percent(layer.agreement)} of Gumbel draws agree,"
        f" {percent(layer.same_as_norm)} as APS"
    )
    if layer.averaged is None:
        return text
    return f"{text}; averaged over its phases: {_outcome(layer.averaged)}"


def _outcome(outcome: Outcome) -> str:
    same = f"{percent(outcome.unchanged)} unchanged"
    return same if outcome.accuracy is None else f"{percent(outcome.accuracy)} right, {same}"


def _range(shares: list[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
