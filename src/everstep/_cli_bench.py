"""`everstep bench`: named benchmarks, against other libraries."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .benchmarks import (
    PEERS,
    Bench,
    BenchmarkError,
    Case,
    Cell,
    CellResult,
    case_names,
    cells,
    document,
    family,
    has_fast_bf16,
    load_case,
    machine,
    measure,
    solve_table,
    speed_table,
    versions,
)
from .errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        ConfigError: Where there is no such benchmark or peer, or a setting breaks its rule.
        BenchmarkError: Where it cannot run here, or a side of it failed.

    """
    if arguments.list or arguments.name is None:
        print(_listing())
        return 0
    case = _case(arguments)
    bench = _bench(arguments, case)
    chosen = _cells(arguments, case, bench)
    if arguments.json is not None:
        _check_writable(Path(arguments.json))
    results = [measure(cell, bench) for cell in chosen]
    report = document(results, _settings(arguments, case, bench), machine(bench.device))
    print(_text(arguments, case, bench, chosen, results))
    if arguments.json is not None:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _listing() -> str:
    """Every benchmark, what it measures, its rows and its peers."""
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


def _case(arguments: argparse.Namespace) -> Case:
    case = load_case(arguments.name, arguments.set, device=arguments.device)
    if case.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError(
            f"{arguments.name} measures a GPU, and PyTorch sees none. Where it is only to be "
            "tried, --device cpu runs it in a small size."
        )
    return case


def _bench(arguments: argparse.Namespace, case: Case) -> Bench:
    known = {peer for row in case.rows for peer in (row.get("peers") or case.peers)}
    unknown = [peer for peer in arguments.compare if peer not in known]
    if unknown:
        raise ConfigError(
            f"{arguments.name} is not compared with {', '.join(unknown)}; its peers are "
            f"{', '.join(sorted(known)) or 'none'}."
        )
    return Bench(
        device=case.device,
        threads=arguments.threads or case.threads,
        pairs=arguments.pairs,
        peers=tuple(arguments.compare),
        pythons=_pythons(arguments.peer_python),
        learning=not arguments.no_learning,
        say=_say,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pythons(assignments: Sequence[str]) -> dict[str, str]:
    found = {}
    for assignment in assignments:
        peer, equals, python = assignment.partition("=")
        if not equals or family(peer) not in PEERS:
            raise ConfigError(
                "--peer-python expects PEER=/path/to/python, with a peer of "
                f"{', '.join(PEERS)}; got {assignment!r}."
            )
        found[peer] = python
    return found


def _cells(arguments: argparse.Namespace, case: Case, bench: Bench) -> list[Cell]:
    names = [row["name"] for row in case.rows]
    if arguments.rows:
        unknown = [name for name in arguments.rows if name not in names]
        if unknown:
            raise ConfigError(
                f"{arguments.name} has no row {', '.join(unknown)}; it has {', '.join(names)}."
            )
        case = replace(case, rows=[row for row in case.rows if row["name"] in arguments.rows])
    precisions = arguments.precision
    if not precisions:
        precisions = [p for p in case.precisions if p != "bf16" or has_fast_bf16(bench.device)]
        if len(precisions) < len(case.precisions):
            _say("bf16 is left out: this processor has no instructions for it (--precision bf16)")
    return cells(case, precisions)


def _check_writable(path: Path) -> None:
    """Refuse now what would lose the results later."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError(f"--json {path}: no file can be written there; name one in a directory.")


def _settings(arguments: argparse.Namespace, case: Case, bench: Bench) -> dict[str, Any]:
    return {
        "benchmark": arguments.name,
        "title": case.title,
        "device": bench.device,
        "threads": bench.threads,
        "pairs": bench.pairs,
        "set": list(arguments.set),
    }


def _text(
    arguments: argparse.Namespace,
    case: Case,
    bench: Bench,
    chosen: Sequence[Cell],
    results: Sequence[CellResult],
) -> str:
    found = machine(bench.device)
    where = f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']:g} GiB"
    if bench.device == "cuda":
        where += f"; {found['gpu']}, clocks {found['gpu_clocks']}"
    solving = any(cell.solve is not None for cell in chosen)
    many = "seeds" if solving else "pairs"
    count = max(cell.solve.seeds for cell in chosen if cell.solve) if solving else bench.pairs
    facts = [
        f"* {where}; {found['system']}",
        f"* {bench.device}, {bench.threads} threads, {count} {many}",
        versions(results),
    ]
    if arguments.set:
        facts.append(f"* set: {' '.join(arguments.set)}")
    if not solving:
        facts += _learning_note(chosen, bench)
    table = solve_table(results) if solving else speed_table(results, _horizons(chosen, bench))
    return f"{arguments.name}: {case.title}\n\n{table}\n\n" + "\n".join(facts)


def _learning_note(chosen: Sequence[Cell], bench: Bench) -> list[str]:
    learns = {cell.name: cell.learn for cell in chosen if cell.learn is not None and bench.learning}
    return [
        f"* learned, {name}: {learn.metric} after {learn.transitions:,} transitions, "
        f"mean of {learn.seeds} seeds (least to greatest)"
        for name, learn in learns.items()
    ]


def _horizons(chosen: Sequence[Cell], bench: Bench) -> dict[str, int]:
    return {
        f"{cell.name}/{side}": cell.order(side, bench.device, bench.threads)["horizon"]
        for cell in chosen
        for side in bench.names(cell)
    }
