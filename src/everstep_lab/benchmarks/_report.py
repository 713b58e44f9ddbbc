"""Results of a benchmark as Markdown and as JSON, and the list of benchmarks."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from ._cases import Cell, case_names, load_case
from ._machine import machine
from ._measuring import Bench, CellResult, SideResult
from ._ratios import Ratio
from ._roofline import compared, markdown

_SPEED = (
    "row",
    "side",
    "precision",
    "env steps/s",
    "collect/s",
    "update/s",
    "collect, ms",
    "update, ms",
    "µs a vector step",
    "memory, MB",
    "CUDA, MB",
    "warm-up, s",
    "ratio (95 %)",
    "learned",
)

_COUNTS = ("row", "side", "precision", "launches", "kernels", "waits", "copies", "kernels, ms")

_SOLVE = (
    "row",
    "side",
    "precision",
    "solved",
    "seconds",
    "with start-up",
    "env steps",
    "ratio (95 %)",
)


def listing() -> str:
    """Every benchmark with its title, rows, precisions, device and peers."""
    blocks = []
    for name in case_names():
        case = load_case(name)
        peers = {peer: None for row in case.rows for peer in (row.get("peers") or case.peers)}
        facts = {
            "rows": ", ".join(row["name"] for row in case.rows),
            "precisions": ", ".join(case.precisions),
            "device": case.device,
            "peers": ", ".join(peers) or "none",
        }
        lines = [f"  {key:<11}{fact}" for key, fact in facts.items()]
        blocks.append("\n".join([f"{name}: {case.title}", *lines]))
    return "\n\n".join(blocks)


def report(
    results: Sequence[CellResult], cells: Sequence[Cell], bench: Bench, settings: dict[str, Any]
) -> str:
    """Title, table, machine, versions and learning check, in Markdown.

    Args:
        results: Results of `cells`.
        cells: What was measured.
        bench: How it was measured.
        settings: `benchmark`, `title` and `set` of the command line.

    """
    host = machine(bench.device)
    where = f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']:g} GiB"
    if bench.device == "cuda":
        where += f"; {host['gpu']}, clocks {host['gpu_clocks']}"
    seeds = max((cell.solve.seeds for cell in cells if cell.solve), default=0)
    repeats = f"{seeds} seeds" if seeds else f"{bench.pairs} pairs"
    facts = [
        f"* {where}; {host['system']}",
        f"* {bench.device}, {bench.threads} threads, {repeats}",
        versions(results),
    ]
    if settings["set"]:
        facts.append(f"* set: {' '.join(settings['set'])}")
    if seeds:
        table = solve_table(results)
    else:
        facts += _learning_notes(cells, bench)
        table = speed_table(results, _horizons(cells, bench))
        if bench.device == "cuda":
            table += f"\n\nOf one iteration, by CUDA's profiler:\n\n{count_table(results)}"
            if model := model_table(results, settings, host["gpu"]):
                table += f"\n\nBeside a model of this card (--model has the rates):\n\n{model}"
    return f"{settings['benchmark']}: {settings['title']}\n\n{table}\n\n" + "\n".join(facts)


def _learning_notes(cells: Sequence[Cell], bench: Bench) -> list[str]:
    learns = {cell.name: cell.learn for cell in cells if cell.learn is not None and bench.learning}
    return [
        f"* learned, {name}: {learn.metric} after {learn.env_steps:,} env steps, "
        f"mean of {learn.seeds} seeds (least to greatest)"
        for name, learn in learns.items()
    ]


def _horizons(cells: Sequence[Cell], bench: Bench) -> dict[str, int]:
    """Vector steps a rollout, by row and side."""
    return {
        f"{cell.name}/{side}": cell.order(side, bench.device, bench.threads)["horizon"]
        for cell in cells
        for side in bench.names(cell)
    }


def speed_table(results: Sequence[CellResult], horizons: dict[str, int]) -> str:
    """Table of speed with a row for each side of each cell.

    Args:
        results: Results of cells.
        horizons: Vector steps a rollout, by row and side: `"{row}/{side}"`.

    """
    rows = []
    for result in results:
        for name, side in result.sides.items():
            collect_ms = side.milliseconds("collect_s")
            horizon = horizons[f"{result.name}/{name}"]
            step_us = None if collect_ms is None else 1e3 * collect_ms / horizon
            rows.append(
                [
                    result.name,
                    name,
                    side.precision,
                    *(_count(side.rate(p)) for p in ("total_s", "collect_s", "update_s")),
                    _number(collect_ms),
                    _number(side.milliseconds("update_s")),
                    _number(step_us),
                    *(_megabytes(side.memory(kind)) for kind in ("rss", "cuda")),
                    _number(side.warm_s),
                    _ratio(result.ratios.get(name)),
                    _learned(side),
                ]
            )
    return _table(_SPEED, rows)


def count_table(results: Sequence[CellResult]) -> str:
    """Table of what each side of each cell does on a GPU in one iteration."""
    rows = []
    for result in results:
        for name, side in result.sides.items():
            counts = {key: _count(value) for key, value in side.counts.items()}
            busy = _number(side.counts.get("busy_ms"))
            columns = [counts.get(key, "–") for key in ("launches", "kernels", "waits", "copies")]
            rows.append([result.name, name, side.precision, *columns, busy])
    return _table(_COUNTS, rows)


def model_table(results: Sequence[CellResult], settings: dict[str, Any], gpu: str) -> str:
    """Table of measured rates beside those that a model of the card expects, if there is one.

    Args:
        results: Results of cells.
        settings: See `report`; the model is of the benchmark's own work.
        gpu: Name of the card, as CUDA has it.

    """
    if any(not x.startswith("measure.") for x in settings["set"]):
        return ""
    first = load_case(settings["benchmark"]).rows[0]["name"]
    rates = [
        (name, side.precision, rate)
        for result in results
        if result.name == first
        for name, side in result.sides.items()
        if (rate := side.rate()) is not None
    ]
    return compared(settings["benchmark"], gpu, rates)


def solve_table(results: Sequence[CellResult]) -> str:
    """Table of time to a threshold with a row for each side of each cell, medians over seeds."""
    rows = []
    for result in results:
        for name, side in result.sides.items():
            found = side.trainings
            solved = sum(training["solved"] for training in found)
            rows.append(
                [
                    result.name,
                    name,
                    side.precision,
                    f"{solved} of {len(found)}",
                    *(_spread(found, key) for key in ("total_s", "start_to_end_s", "env_steps")),
                    _ratio(result.ratios.get(name)),
                ]
            )
    return _table(_SOLVE, rows)


def document(
    results: Sequence[CellResult], settings: dict[str, Any], machine: dict[str, Any]
) -> dict[str, Any]:
    """All measurements, down to the blocks, as JSON values."""
    return {"machine": machine, "settings": settings, "cells": [_cell(r) for r in results]}


def _cell(result: CellResult) -> dict[str, Any]:
    found = asdict(result) | {"ratios": {n: r._asdict() for n, r in result.ratios.items()}}
    for name, side in result.sides.items():
        found["sides"][name]["medians"] = {
            "env_steps_per_s": side.rate(),
            "collect_per_s": side.rate("collect_s"),
            "update_per_s": side.rate("update_s"),
            "collect_ms": side.milliseconds("collect_s"),
            "update_ms": side.milliseconds("update_s"),
            "memory_bytes": side.memory("rss"),
            "cuda_bytes": side.memory("cuda"),
        }
    return found


def versions(results: Sequence[CellResult]) -> str:
    """A line for each side with its interpreter's packages."""
    lines = {}
    for result in results:
        for name, side in result.sides.items():
            lines[name] = ", ".join(f"{what} {v}" for what, v in side.versions.items())
    return "\n".join(f"* {name}: {line}" for name, line in lines.items())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table without empty columns."""
    kept = [i for i in range(len(header)) if any(row[i] != "–" for row in rows)]
    return markdown([header[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _count(value: None | float) -> str:
    return "–" if value is None else f"{float(f'{value:.4g}'):,.0f}"


def _number(value: None | float) -> str:
    return "–" if value is None else f"{value:,.4g}"


def _megabytes(value: None | int) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def _ratio(ratio: None | Ratio) -> str:
    if ratio is None:
        return "–"
    interval = "" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{ratio.median:.2f}{interval}"


def _learned(side: SideResult) -> str:
    found = [t["return"] for t in side.trainings if t["return"] is not None]
    if not found:
        return "–"
    if len(found) == 1:
        return f"{found[0]:.4g}"
    return f"{mean(found):.4g} ({min(found):.4g} to {max(found):.4g})"


def _spread(trainings: Sequence[dict[str, Any]], key: str) -> str:
    found = sorted(training[key] for training in trainings)
    middle = found[len(found) // 2] if len(found) % 2 else sum(found[len(found) // 2 - 1 :][:2]) / 2
    return f"{_number(middle)} ({_number(found[0])} to {_number(found[-1])})"
