"""Images of an audit's report: what the view reads, the worst ones, masks that move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trueshift.audit.results import AuditResult, Example
from trueshift.report.images import CHANGED, colour_mask, data_uri, tile
from trueshift.report.words import percent, shift_text
from trueshift.shifts import circular_shift, common_region, standard_shift

_STEPS = 5  # shifts of the masks that move


def example_data(example: Example, results: list[AuditResult], columns: int) -> dict[str, Any]:
    """Return what the interactive view needs of one image.

    Args:
        example: The image.
        results: The audits of one or two networks.
        columns: How many shifts are in a row of the view.
    """
    nets = []
    for one in results:
        twin = next((e for e in one.examples if e.index == example.index), None)
        same_view = one.view == results[0].view
        nets.append(None if twin is None or not same_view else _net(twin, one, columns))
    return {
        "index": example.index,
        "target": example.target,
        "picture": data_uri(example.picture),
        "nets": nets,
    }


def _net(example: Example, result: AuditResult, columns: int) -> dict[str, Any]:
    confidences = [round(float(value), 3) for value in example.confidences]
    if result.task == "classification":
        windows = None if example.windows is None else example.windows.tolist()
        labels = example.labels.tolist()
        return {"labels": labels, "confidences": confidences, "windows": windows}
    shares = [_mask_share(example, result, k)[0] for k in range(len(result.view))]
    sprite = tile(colour_mask(example.labels), columns)
    return {
        "shares": [round(share, 4) for share in shares],
        "confidences": confidences,
        "sprite": data_uri(sprite),
    }


def _mask_share(example: Example, result: AuditResult, k: int) -> tuple[float, Tensor, Tensor]:
    """Return the share of equal pixels at one shift, and both masks in the same frame."""
    still, moved = example.labels[result.view.index((0, 0))], example.labels[k]
    dy, dx = result.view[k]
    if result.measurements[0].kind == "circular":
        moved = circular_shift(moved, -dy, -dx)
    else:
        still, moved = common_region(still, moved, (0, 0), (dy, dx))
    return float((still == moved).double().mean()), still, moved


def worst_cards(result: AuditResult) -> list[dict[str, Any]]:
    """Return for every example the smallest shift that changes it (for masks, the worst one)."""
    cards = []
    zero = result.view.index((0, 0)) if result.view else 0
    by_length = sorted(range(len(result.view)), key=lambda k: _length(result.view[k]))
    for example in result.examples:
        card: dict[str, Any] = {
            "index": example.index,
            "consistency": example.consistency,
            "target": _label(result, example.target),
            "pictures": [("no shift", data_uri(_seen(example, result, (0, 0))))],
            "changed": None,
        }
        if result.task == "classification":
            other = [k for k in by_length if example.labels[k] != example.labels[zero]]
            card["label"] = _label(result, int(example.labels[zero]))
            if other:
                k = other[0]
                card["changed"] = _label(result, int(example.labels[k]))
                card["shift"] = shift_text(result.view[k])
                card["pictures"].append(
                    (card["shift"], data_uri(_seen(example, result, result.view[k])))
                )
        else:
            _add_masks(card, example, result)
        cards.append(card)
    return cards


def _add_masks(card: dict[str, Any], example: Example, result: AuditResult) -> None:
    shares = [_mask_share(example, result, k)[0] for k in range(len(result.view))]
    k = shares.index(min(shares))
    share, still, moved = _mask_share(example, result, k)
    card["label"], card["share"], card["shift"] = None, share, shift_text(result.view[k])
    card["changed"] = None if share == 1 else percent(1 - share)
    differs = torch.stack([(still != moved) * 220, *[(still != moved) * 40] * 2])
    card["pictures"] += [
        ("mask, no shift", data_uri(colour_mask(still))),
        (f"mask, {card['shift']}, moved back", data_uri(colour_mask(moved))),
        ("where they differ", data_uri(differs.to(torch.uint8))),
    ]


def mask_rows(results: list[AuditResult]) -> dict[str, Any] | None:
    """Return the worst image at a few shifts and the masks of every network, moved back.

    Pixels whose label is not that of the unshifted image are red.

    Returns:
        Heads, images and a row for each network; None if there are no masks.
    """
    first = results[0]
    if first.task != "segmentation" or not first.examples:
        return None
    example, shifts = first.examples[0], _steps(first)
    rows = []
    for result in results:
        twin = next((e for e in result.examples if e.index == example.index), None)
        if twin is not None and result.view == first.view:
            masks = [_changed(twin, result, result.view.index(shift)) for shift in shifts]
            rows.append((result.name, masks))
    return {
        "index": example.index,
        "heads": [shift_text(shift) for shift in shifts],
        "images": [data_uri(_seen(example, first, shift)) for shift in shifts],
        "rows": rows,
    }


def _steps(result: AuditResult) -> list[tuple[int, int]]:
    """Return a few shifts along the diagonal, or the shortest ones if it is not in the view."""
    diagonal = [shift for shift in result.view if shift[0] == shift[1] >= 0]
    return (diagonal if len(diagonal) > 1 else sorted(result.view, key=_length))[:_STEPS]


def _changed(example: Example, result: AuditResult, k: int) -> tuple[str, str]:
    """Return a mask, moved back, with changed pixels in red, and how many these are."""
    share, still, moved = _mask_share(example, result, k)
    picture = colour_mask(moved) // 2 + 110  # pale, so that red stands out
    red = torch.tensor(CHANGED, dtype=torch.uint8)[:, None, None]
    return data_uri(torch.where(still != moved, red, picture)), f"{percent(1 - share)} changed"


def _seen(example: Example, result: AuditResult, shift: tuple[int, int]) -> Tensor:
    measured = result.measurements[0]
    if measured.kind == "circular":
        return circular_shift(example.picture, *shift)
    return standard_shift(example.picture, measured.window, *shift)


def _length(shift: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    return abs(shift[0]) + abs(shift[1]), shift


def _label(result: AuditResult, label: int | None) -> str | None:
    if label is None:
        return None
    names = result.class_names
    return names[label] if names is not None and label < len(names) else f"class {label}"
