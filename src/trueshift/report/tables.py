"""The paper's tables with our numbers next to the paper's, from ``results.json`` files."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueshift._validate import check_choice
from trueshift.bench.parameters import count_table_4
from trueshift.layers.spec import Sampling
from trueshift.report.ours import TABLES
from trueshift.report.paper import FILTERS, Row, Table

FILE_NAME = "results.json"
FORMATS = ("markdown", "latex", "json")
NO_RESULT = "no result"
_SETTING = ("data", "setting", "network", "padding_mode")  # what all rows of a table share
_PER_IMAGE = {"image_ms": "mean_ms", "image_mib": "peak_mib"}  # of a forward pass of a batch
_TABLE_4_BATCH = [32, 3, 224, 224]


@dataclass(frozen=True)
class Cell:
    """Our number and the paper's.

    Attributes:
        paper: What the paper prints, with its standard deviation if it has one; ``None`` in tables
            of our own.
        values: What we measured, one per run, in the paper's unit.
    """

    paper: tuple[float, float | None] | None
    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """The mean over runs, ``None`` without any."""
        return statistics.mean(self.values) if self.values else None  # keeps counts whole

    @property
    def std(self) -> float | None:
        """The standard deviation over runs, ``None`` for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Line:
    """A row of the paper with our numbers: cells by metric name, and the runs they come from."""

    row: Row
    cells: Mapping[str, Cell]
    sources: tuple[str, ...]


def find_results(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read every ``results.json`` below a folder.

    Args:
        folder: For instance ``runs``.

    Returns:
        Path, relative to the folder, to what the file holds.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(
            f"table: no folder {root}. Pass one that holds run folders, for instance runs."
        )
    known = {}
    for path in sorted(root.rglob(FILE_NAME)):
        try:
            results = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"table: {path} is damaged: {error}. Remove it or test again."
            ) from None
        if isinstance(results, dict) and "row" in results and "metrics" in results:
            known[str(path.relative_to(root))] = results
    return known


def build_table(name: str, results: Mapping[str, Any]) -> list[Line]:
    """Put results into the rows of one of the paper's tables, and others into rows below them.

    Parameters are counted from the networks themselves; they need no results.

    Args:
        name: A key of :data:`trueshift.report.ours.TABLES`, for instance ``"cifar10"``.
        results: What :func:`find_results` gave.
    """
    check_choice("table", "name", name, tuple(TABLES))
    table = TABLES[name]
    if name == "params":
        return [_counted(row) for row in table.rows]
    rows = (*table.rows, *_other_rows(table, results.values()))
    return [_measured(name, table, row, results) for row in rows]


def _measured(name: str, table: Table, row: Row, results: Mapping[str, Any]) -> Line:
    mine = {path: result for path, result in results.items() if belongs(row, result)}
    cells, sources = {}, set[str]()
    for metric in table.metrics:
        values = {path: _value(name, metric, result) for path, result in mine.items()}
        known = {path: value for path, value in values.items() if value is not None}
        cells[metric] = Cell(_pair(row.numbers.get(metric)), tuple(known.values()))
        sources |= known.keys()
    return Line(row, cells, tuple(sorted(sources)))


def belongs(row: Row, results: Mapping[str, Any]) -> bool:
    """Whether a result is of the network, sampling and data of a row."""
    have, key = _tested(results), row.key
    if have.get("train_rule") == "random" and "train_rule" not in key:
        return False  # never one more seed of a row that chooses while training
    return all(have.get(name) == value for name, value in key.items())


def _tested(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row's key may name of a result."""
    tested = results["row"]
    have = {**tested["spec"], "network": tested["network"]}
    if have["method"] == "aps" and have.get("train_rule") != "random":
        have["train_rule"] = "gumbel"  # the others are rules of learned selectors
    have |= {"data": tested.get("data"), "setting": tested.get("setting")}
    up = ((tested.get("convert") or {}) | (tested.get("network_options") or {})).get("up")
    return {**have, "up": up or _usual_up(have["method"])}


def _usual_up(method: str) -> str:
    return "linear" if method == "stride" else "polyphase"


def _other_rows(table: Table, results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows for results in the setting of the table that none of its rows names.

    A method or filter that the paper does not have is called what its entry in ``METHODS`` or
    ``FILTERS`` is called.
    """
    rows = list[Row]()
    for have in (_tested(one) for one in results if not any(belongs(r, one) for r in table.rows)):
        alike = [
            row for row in table.rows if all(row.key.get(k, have[k]) == have[k] for k in _SETTING)
        ]
        key = {name: have.get(name) for row in alike for name in row.key}
        if have.get("train_rule") == "random":
            key["train_rule"] = "random"
        if alike and key not in [row.key for row in rows]:
            rows.append(Row(_method_name(alike, key), _filter_name(key), alike[0].network, key))
    return rows


def _method_name(alike: Sequence[Row], key: Mapping[str, Any]) -> str:
    """Return the name of a method in the table, else its own, and what is unusual about it."""
    known = (
        row.method
        for row in alike
        if row.key["method"] == key["method"] != "stride" and row.key.get("train_rule") != "random"
    )
    usual = {**dataclasses.asdict(Sampling()), "up": _usual_up(key["method"])}
    fields = [name for name in ("train_rule", "select_from", "up") if name in key]
    unusual = [f"{name} {key[name]}" for name in fields if key[name] != usual[name]]
    return ", ".join([next(known, key["method"]), *unusual])


def _filter_name(key: Mapping[str, Any]) -> str:
    names = {own: paper for paper, own in FILTERS.items()}
    return names.get(key["antialias"], key["antialias"])


def _value(name: str, metric: str, results: Mapping[str, Any]) -> float | None:
    measured = results.get("time", {}).get("inference")
    if metric in _PER_IMAGE:
        of_batch = (measured or {}).get(_PER_IMAGE[metric])
        return None if of_batch is None else float(of_batch) / measured["batch_shape"][0]
    if name == "time":
        fits = measured is not None and measured["batch_shape"] == _TABLE_4_BATCH
        return float(measured["mean_ms"]) if fits else None
    value = results["metrics"].get(metric)
    factor = 1 if metric in TABLES[name].not_fractions else 100
    return None if value is None else factor * float(value)


def _counted(row: Row) -> Line:
    counts = count_table_4(row.key["method"], row.key["antialias"])
    cells = {name: Cell(_pair(row.numbers[name]), (count,)) for name, count in counts.items()}
    return Line(row, cells, ("counted",))


def _pair(value: float | tuple[float, float] | None) -> tuple[float, float | None] | None:
    return (value, None) if isinstance(value, float | int) else value


def render(name: str, lines: Sequence[Line], form: str = "markdown") -> str:
    """Write a table as text.

    Args:
        name: The table's name, as for :func:`build_table`.
        lines: Its rows.
        form: ``"markdown"``, ``"latex"`` or ``"json"``.
    """
    check_choice("table", "format", form, FORMATS)
    if form == "json":
        return _json(name, lines)
    table = TABLES[name]
    heads = ["Method", "Anti-Alias", "Model"]
    for metric, heading in table.metrics.items():
        heads += [heading, f"{heading} (paper)"] if table.has_paper(metric) else [heading]
    heads.append("Runs")
    body = [_texts(line, table, form) for line in lines]
    if form == "latex":
        return f"% {_title(table)}\n{_latex(heads, body)}\n"
    return f"{_title(table)}\n\n{markdown_table(heads, body)}\n"


def markdown_table(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table in markdown, without a line break at its end.

    Examples:
        >>> print(markdown_table(["a", "b"], [["1", "2"]]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *body))


def _texts(line: Line, table: Table, form: str) -> list[str]:
    texts = [line.row.method, line.row.antialias, line.row.network]
    for metric in table.metrics:
        cell = line.cells[metric]
        ours = NO_RESULT if cell.mean is None else _number(cell.mean, cell.std, form)
        texts.append(ours)
        if table.has_paper(metric):
            texts.append("-" if cell.paper is None else _number(*cell.paper, form))
    return [*texts, str(max(len(cell.values) for cell in line.cells.values()))]


def _number(mean: float, std: float | None, form: str) -> str:
    if isinstance(mean, int):
        return f"{mean:,}"
    sign = " ± " if form == "markdown" else r" $\pm$ "
    return f"{mean:.2f}" if std is None else f"{mean:.2f}{sign}{std:.2f}"


def _latex(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [r"\begin{tabular}{" + "l" * 3 + "r" * (len(heads) - 3) + "}", r"\hline"]
    lines += [" & ".join(heads) + r" \\", r"\hline"]
    lines += [" & ".join(row) + r" \\" for row in body]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"])


def _title(table: Table) -> str:
    where = "" if table.number is None else f"Table {table.number} of the paper: "
    return f"{where}{table.caption}."


def _json(name: str, lines: Sequence[Line]) -> str:
    table = TABLES[name]
    rows = [
        {
            "method": line.row.method,
            "antialias": line.row.antialias,
            "network": line.row.network,
            "recipe": line.row.recipe,
            "sources": list(line.sources),
            "metrics": {
                metric: {
                    "ours": cell.mean,
                    "ours_std": cell.std,
                    "num_runs": len(cell.values),
                    "paper": cell.paper and cell.paper[0],
                    "paper_std": cell.paper and cell.paper[1],
                }
                for metric, cell in line.cells.items()
            },
        }
        for line in lines
    ]
    whole = {"table": name, "number": table.number, "caption": table.caption, "rows": rows}
    return json.dumps(whole, indent=2) + "\n"
