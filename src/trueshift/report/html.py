"""The report of an audit: one HTML file that needs no network and no other file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trueshift.audit.results import AuditResult, Example, Measurement
from trueshift.report.images import colour_mask, data_uri, heat_picture, tile
from trueshift.report.words import (
    break_text,
    number,
    percent,
    shift_text,
    summary_lines,
    summary_rows,
    verdict,
)
from trueshift.shifts import circular_shift, common_region, standard_shift

__all__ = ["summary_lines", "verdict", "write_html"]

_TEMPLATE = "audit.html.j2"
_HEAT_CELLS = 64


def write_html(
    result: AuditResult, path: str | os.PathLike[str], other: AuditResult | None = None
) -> Path:
    """Write the report of one network, or of two side by side.

    Args:
        result: The audit.
        path: File to write.
        other: The audit of a second network on the same images.

    Returns:
        The path.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"write_html: no folder {path.parent} to write {path.name} to.")
    if other is not None:
        _check_same(result, other)
    path.write_text(render(result, other), encoding="utf-8")
    return path


def render(result: AuditResult, other: AuditResult | None = None) -> str:
    """Return the report as text; arguments as for :func:`write_html`."""
    try:
        import jinja2
    except ImportError as error:
        message = 'the HTML report needs jinja2: pip install "trueshift[report]".'
        raise ImportError(message) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": number, "shift": shift_text}
    results = [result] if other is None else [result, other]
    lowest = _lowest(results)
    return environment.get_template(_TEMPLATE).render(
        results=results,
        verdicts=[verdict(one) for one in results],
        breaks=[break_text(one) for one in results],
        comparison=_comparison(results),
        heats=[[_heat(m, lowest) for m in one.measurements] for one in results],
        lowest=lowest,
        largest_error=max((la.error for one in results for la in one.layers), default=0.0),
        choices=[_choices(one) for one in results],
        worst=_worst_cards(result),
        data=_data(results),
        version=_version(),
    )


def _version() -> str:
    from trueshift import __version__

    return __version__


def _check_same(a: AuditResult, b: AuditResult) -> None:
    for what in ("task", "num_images", "image_shape"):
        mine, theirs = getattr(a, what), getattr(b, what)
        if mine != theirs:
            raise ValueError(
                f"write_html: both networks must be audited on the same images for the same task,"
                f" got {what} {mine} and {theirs}."
            )
    if [m.kind for m in a.measurements] != [m.kind for m in b.measurements]:
        raise ValueError("write_html: both networks must be audited with the same kind of shifts.")


def _comparison(results: list[AuditResult]) -> list[tuple[str, list[str]]]:
    """Return rows of the table: a name and a value for each network."""
    columns = [dict(summary_rows(one)) for one in results]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [(name, [column.get(name, "–") for column in columns]) for name in names]  # noqa: RUF001


def _lowest(results: list[AuditResult]) -> float:
    """Return the bottom of the colour scale: the lowest share, rounded down to a tenth."""
    low = min(share for one in results for m in one.measurements for share in m.shares)
    return min(math.floor(low * 10) / 10, 0.9)


def _heat(measured: Measurement, lowest: float) -> dict[str, Any]:
    """Return the heat map as a picture and as numbers; many or few shifts share cells."""
    rows, columns, grid = measured.heat_map()
    cells = max(8, min(_HEAT_CELLS, math.isqrt(len(measured.shifts) + 1)))
    step = [-(-len(axis) // cells) for axis in (rows, columns)]
    rows, grid = _pooled(rows, grid, step[0])
    columns, turned = _pooled(columns, grid.T, step[1])
    grid = turned.T
    values = [
        [None if math.isnan(v) else round(v, 4) for v in row] for row in grid.double().tolist()
    ]
    picture = data_uri(heat_picture(grid, lowest))
    return {
        "kind": measured.kind,
        "rows": rows,
        "columns": columns,
        "step": step,
        "values": values,
        "uri": picture,
    }


def _pooled(axis: list[int], grid: Tensor, step: int) -> tuple[list[int], Tensor]:
    """Average every ``step`` neighbouring rows, leaving out what was not measured."""
    parts = [part.nanmean(0) for part in grid.split(step)]
    return axis[::step], torch.stack(parts)


def _choices(result: AuditResult) -> list[dict[str, Any]]:
    return [
        {
            "name": choice.name,
            "columns": math.isqrt(len(choice.components)),
            "chosen": choice.chosen,
            "largest": choice.largest,
            "components": [data_uri(one[None]) for one in choice.components],
            "filters": []
            if choice.filters is None
            else [data_uri(one[None]) for one in choice.filters],
        }
        for choice in result.choices
    ]


def _data(results: list[AuditResult]) -> dict[str, Any]:
    """Return what the interactive view reads."""
    first = results[0]
    measured = first.measurements[0]
    rows = sorted({dy for dy, _ in first.view})
    columns = sorted({dx for _, dx in first.view})
    return {
        "task": first.task,
        "kind": measured.kind,
        "size": list(first.image_shape[1:]),
        "window": list(measured.window),
        "rows": rows,
        "columns": columns,
        "names": [one.name for one in results],
        "classes": None if first.class_names is None else list(first.class_names),
        "examples": [_example(example, results, len(columns)) for example in first.examples],
    }


def _example(example: Example, results: list[AuditResult], columns: int) -> dict[str, Any]:
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
        return {"labels": example.labels.tolist(), "confidences": confidences}
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


def _worst_cards(result: AuditResult) -> list[dict[str, Any]]:
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
