"""Whether learned selectors choose, in words and in percent."""

from __future__ import annotations

import math

from trueshift.audit.selection import LayerSelection, Outcome, Selection
from trueshift.report.numbers import number, percent

_SURE = 2  # standard errors


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
