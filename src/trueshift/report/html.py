"""The report of an audit: one HTML file that needs no network and no other file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trueshift import __version__
from trueshift._files import check_parent
from trueshift.audit.results import AuditResult, Measurement
from trueshift.audit.shifting import ALL_MOVES
from trueshift.report.examples import example_data, mask_rows, worst_cards
from trueshift.report.images import data_uri, heat_picture, signed_picture
from trueshift.report.words import (
    break_text,
    move_table,
    number,
    percent,
    selection_rows,
    selection_verdict,
    shift_text,
    short_names,
    summary_lines,
    summary_rows,
    verdict,
)

__all__ = ["summary_lines", "verdict", "write_html"]

_TEMPLATE = "audit.html.j2"
_HEAT_CELLS = 64
_WORST_SHIFTS = 6


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
    check_parent(path)
    if other is not None:
        _check_same(result, other)
    path.write_text(render(result, other), encoding="utf-8")
    return path


def render(result: AuditResult, other: AuditResult | None = None) -> str:
    """Return the report as text; arguments as for :func:`write_html`."""
    results = [result] if other is None else [result, other]
    lowest = _lowest(results)
    return template(_TEMPLATE).render(
        results=results,
        verdicts=[_unbroken(verdict(one)) for one in results],
        breaks=[break_text(one) for one in results],
        comparison=_comparison(results),
        short=short_names(results),
        anchored=any(
            m.agreement is not None for one in results for k in one.measurements for m in k.moves
        ),
        curve=_curve(results),
        moves=move_table(results),
        heats=[
            [_heat(m, lowest) for m in one.measurements if not ALL_MOVES.issuperset(m.shifts)]
            for one in results
        ],
        lowest=lowest,
        largest_error=max((la.error for one in results for la in one.layers), default=0.0),
        choices=[_choices(one) for one in results],
        selections=[
            (one.name, _unbroken(selection_verdict(one.selection)), selection_rows(one.selection))
            for one in results
            if one.selection is not None
        ],
        worst=worst_cards(result),
        moving=mask_rows(results),
        data=_data(results),
        version=__version__,
    )


def template(name: str) -> Any:
    """Return a page's template, which lies next to this file."""
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
    return environment.get_template(name)


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
    columns = [dict(summary_rows(one, moves=False)) for one in results]
    names = list(dict.fromkeys(name for column in columns for name in column))
    return [
        (name, [_unbroken(column.get(name, "–")) for column in columns])  # noqa: RUF001
        for name in names
    ]


def _unbroken(text: str) -> str:
    """Keep a number and its percent sign on one line."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _lowest(results: list[AuditResult]) -> float:
    """Return the bottom of the colour scale: the lowest share, rounded down to a tenth."""
    low = min(share for one in results for m in one.measurements for share in m.shares)
    return min(math.floor(low * 10) / 10, 0.9)


def _curve(results: list[AuditResult]) -> dict[str, Any] | None:
    """Return consistency over the distance of moves as lines of a drawing of 100 x 100."""
    pairs = zip(short_names(results), results, strict=True)
    curves = [(name, m.moves) for name, one in pairs for m in one.measurements if m.moves]
    if not curves:
        return None
    distances = sorted({move.distance for _, moves in curves for move in moves})
    low = min(move.consistency.low for _, moves in curves for move in moves)
    lowest = min(math.floor(low * 20) / 20, 0.95)

    def height(share: float) -> float:
        return round(100 * (1 - share) / (1 - lowest), 2)

    at = {d: round(100 * (k + 0.5) / len(distances), 2) for k, d in enumerate(distances)}
    lines = [
        {
            "name": name,
            "points": [(at[m.distance], height(m.consistency.mean)) for m in moves],
            "bars": [  # next to each other
                (at[m.distance] + k, height(m.consistency.high), height(m.consistency.low))
                for m in moves
            ],
        }
        for k, (name, moves) in enumerate(curves)
    ]
    return {"lowest": lowest, "ticks": at, "lines": lines}


def _heat(measured: Measurement, lowest: float) -> dict[str, Any]:
    """Return the heat map as a picture and as numbers; many or few shifts share cells."""
    rows, columns, grid = measured.heat_map()
    cells = max(8, min(_HEAT_CELLS, math.isqrt(len(measured.shifts) + 1)))
    step = [-(-len(axis) // cells) for axis in (rows, columns)]
    if max(step) > 1:  # no shift at all must not improve the cell that it falls into
        grid[-rows[0], -columns[0]] = math.nan
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
        "worst": _lowest_shares(measured),
    }


def _lowest_shares(measured: Measurement) -> list[tuple[str, str]]:
    """Return the worst shifts and their shares, in words."""
    pairs = sorted(zip(measured.shares, measured.shifts, strict=True))
    return [
        (shift_text(shift), percent(share)) for share, shift in pairs[:_WORST_SHIFTS] if share < 1
    ]


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
            else [data_uri(signed_picture(one)) for one in choice.filters],
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
        "examples": [example_data(example, results, len(columns)) for example in first.examples],
    }
