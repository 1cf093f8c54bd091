"""Tables of ``trueshift bench models``: times, memory and FLOPs as numbers and as ratios."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trueshift._validate import check_choice
from trueshift.bench import NETWORKS, ROWS, Bench
from trueshift.report.paper import TABLE_4, Row
from trueshift.report.tables import markdown_table

FORMATS = ("markdown", "json")
REFERENCES = ("torchvision", "stride", "lpf-tri3", "antialiased-cnns")
NOTHING = "-"
_MODES = {
    "eval": "At test time, networks as they are",
    "optimized": "At test time, all optimized (norms folded, channels-last)",
    "train": "A training step (forward, backward, SGD)",
}
_TABLE_4_NETWORK, _TABLE_4_DEFAULT = "resnet101", "lpf-tri3"
Ratio = Callable[[str, str | None, str], float | None]


def render_benches(benches: Sequence[Bench], machine: dict[str, Any], form: str) -> str:
    """Write all that was measured as text.

    Args:
        benches: One for each network and setting.
        machine: What :func:`trueshift.bench.meters.machine` returned.
        form: ``"markdown"`` or ``"json"``.
    """
    check_choice("bench", "format", form, FORMATS)
    if form == "json":
        return benches_json(benches, machine)
    computer = ", ".join(f"{key} {value}" for key, value in machine.items())
    parts = [f"Measured on: {computer}.", *(_markdown(bench) for bench in benches)]
    parts += [_table_4(bench) for bench in benches if bench.setting.network == _TABLE_4_NETWORK]
    return "\n\n".join(part for part in parts if part) + "\n"


def benches_json(benches: Sequence[Bench], machine: dict[str, Any]) -> str:
    """Write all numbers, every single run included, as JSON."""
    whole = {"machine": machine, "benches": [_bench_dict(bench) for bench in benches]}
    return json.dumps(whole, indent=1) + "\n"


def _bench_dict(bench: Bench) -> dict[str, Any]:
    setting = bench.setting
    return {
        "network": setting.network,
        "shape": list(setting.shape),
        "layout": setting.layout,
        "dtype": setting.dtype,
        "hidden": setting.width,
        "complete": bench.complete,
        "rows": {key: _row_dict(bench, key) for key in bench.rows},
        "missing": bench.missing,
    }


def _row_dict(bench: Bench, key: str) -> dict[str, Any]:
    row = bench.rows[key]
    numbers: dict[str, Any] = {
        "title": ROWS[key].title,
        "parameters": row.parameters,
        "flops_per_image": row.flops,
    }
    for mode in _MODES:
        numbers[mode] = {
            "median_ms": row.median_ms(mode),
            "times_ms": row.times.get(mode, []),
            "peak_mib": row.peak_mib.get(mode),
            "time_ratios": _ratios(bench.time_ratio, key, mode),
            "memory_ratios": _ratios(bench.memory_ratio, key, mode),
        }
    return numbers


def _ratios(ratio: Ratio, key: str, mode: str) -> dict[str, float]:
    """Ratios to every reference, and to the row's floor, as far as both are measured."""
    named = {to: ratio(key, to, mode) for to in REFERENCES}
    named["floor"] = ratio(key, ROWS[key].floor, mode)
    return {to: value for to, value in named.items() if value is not None}


def _markdown(bench: Bench) -> str:
    setting = bench.setting
    shape = " x ".join(map(str, setting.shape))
    title = f"## {NETWORKS[setting.network].title}: {shape}, {setting.layout}, {setting.dtype}"
    if setting.hidden is not None:
        title += f", hidden={setting.hidden}"
    parts = [title]
    if not bench.complete:
        parts.append("Cut short: some numbers are missing, or medians of fewer runs.")
    parts += [_mode_table(bench, mode) for mode in _MODES]
    if bench.missing:
        absent = "; ".join(f"{ROWS[key].title} ({why})" for key, why in bench.missing.items())
        parts.append(f"Not measured: {absent}.")
    return "\n\n".join(part for part in parts if part)


def _mode_table(bench: Bench, mode: str) -> str:
    measured = [row for row in bench.rows.values() if row.times.get(mode) or mode in row.peak_mib]
    if not measured:
        return ""
    to = [key for key in REFERENCES if key in bench.rows]
    heads = ["row", "ms", *(f"x {key}" for key in to), "x floor", "MiB", "MiB x lpf-tri3"]
    heads += ["GFLOPs per image", "parameters"] if mode == "eval" else []
    runs = sorted({len(row.times.get(mode, [])) for row in measured})
    counts = " to ".join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))
    caption = (
        f"{_MODES[mode]}: medians of {counts} interleaved runs, ratios within each round;"
        " peak memory of tensors."
    )
    return f"{caption}\n\n{markdown_table(heads, _mode_rows(bench, mode, to))}"


def _mode_rows(bench: Bench, mode: str, to: Sequence[str]) -> Iterator[list[str]]:
    for key, row in bench.rows.items():
        times = _ratios(bench.time_ratio, key, mode)
        memory = _ratios(bench.memory_ratio, key, mode)
        cells = [ROWS[key].title, _number(row.median_ms(mode), ".1f")]
        cells += [_number(times.get(one), ".2f") for one in (*to, "floor")]
        cells += [_number(row.peak_mib.get(mode), ".0f"), _number(memory.get("lpf-tri3"), ".2f")]
        if mode == "eval":
            cells += [_number(row.flops / 1e9, ".2f"), f"{row.parameters:,}"]
        yield cells


def _table_4(bench: Bench) -> str:
    """Lay times out as table 4 of the paper does; its own numbers are marked as the paper's."""
    body = [line for row in TABLE_4 if (line := _table_4_line(bench, row)) is not None]
    if not body:
        return ""
    shape, setting = " x ".join(map(str, bench.setting.shape)), bench.setting
    heads = ["Method", "Anti-Alias", "Mean (ms)", "x Default Tri-3"]
    heads += ["Mean (ms), paper", "x Default Tri-3, paper"]
    caption = (
        f"Table 4 of the paper, inference time of ResNet-101. Ours: {shape}, {setting.layout},"
        f" {setting.dtype}, this machine. The paper's: 32 x 3 x 224 x 224 on a GPU; compare ratios."
        " Parameters: `trueshift bench params`."
    )
    return f"## The layout of table 4\n\n{caption}\n\n{markdown_table(heads, body)}"


def _table_4_line(bench: Bench, row: Row) -> list[str] | None:
    keys = {
        ("lps", "tri3"): "lps-tri3",
        ("lps", "adapt3"): "lps-ddac",
        ("stride", "adapt3"): "ddac",
        ("aps", "tri3"): "aps-tri3",
        ("stride", "tri3"): "lpf-tri3",
    }
    key = keys[row.key["method"], row.key["antialias"]]
    if key not in bench.rows:
        return None
    mean, default = _paper_ms(row), _paper_ms(TABLE_4[-1])
    ratio = bench.time_ratio(key, _TABLE_4_DEFAULT, "eval")
    ours = [_number(bench.rows[key].median_ms("eval"), ".1f"), _number(ratio, ".2f")]
    return [row.method, row.antialias, *ours, f"{mean:.2f}", f"{mean / default:.2f}"]


def _paper_ms(row: Row) -> float:
    value = row.numbers["batch_ms"]
    return value[0] if isinstance(value, tuple) else value


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
