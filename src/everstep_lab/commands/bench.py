"""`everstep bench`: named benchmarks, against other libraries."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.cli._arguments import add_number
from everstep.core.files import write_file
from everstep.errors import ConfigError

if TYPE_CHECKING:
    from ..benchmarks import Bench, Case, Cell, CellResult

HELP = "measure speed and learning, also against other libraries"
DESCRIPTION = (
    "Run a named benchmark, or the one in a YAML file. Every side is a process of its own; their "
    "blocks alternate."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="benchmark, or a YAML file of one")
    parser.add_argument("--list", action="store_true", help="print the benchmarks and their peers")
    parser.add_argument(
        "--model",
        action="store_true",
        help="print what a model expects of GPUs (default NAME: all that it has)",
    )
    parser.add_argument("--compare", nargs="+", default=[], metavar="PEER", help="peers to measure")
    parser.add_argument(
        "--peer-python",
        nargs="+",
        action="extend",
        default=[],
        metavar="PEER=PYTHON",
        help="interpreter that has a peer, such as rl8=/path/to/python (default: this one)",
    )
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="ROW", help="rows to measure (default: all)"
    )
    add_number(parser, "--pairs", "blocks a side (default: 5)", default=5)
    add_number(parser, "--threads", "threads of PyTorch (default: the benchmark's)")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=("fp32", "bf16", "tf32"),
        default=[],
        help="number formats (default: the benchmark's)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="device of tensors (default: the benchmark's)"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="keys of the benchmark to override, such as work.num_envs=64 everstep.enable_amp=true",
    )
    parser.add_argument("--no-learning", action="store_true", help="leave out the learning check")
    parser.add_argument(
        "--json", metavar="FILE", help="also write all measurements to FILE, after each row"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        ConfigError: If there is no such benchmark or peer, or a setting breaks its rule.
        BenchmarkError: If it cannot run here, or a side of it failed.

    """
    from ..benchmarks import document, load_case, machine, measure
    from ..benchmarks._report import listing, report

    if arguments.model:
        print(_model(arguments.name))
        return 0
    if arguments.list or arguments.name is None:
        print(listing())
        return 0
    case = load_case(arguments.name, arguments.set, device=arguments.device)
    bench = _bench(arguments, case)
    chosen = _cells(arguments, case, bench)
    path = None if arguments.json is None else Path(arguments.json)
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"--json {path}: no file can be written there; name one in a directory.")
    settings = {
        "benchmark": arguments.name,
        "title": case.title,
        "device": bench.device,
        "threads": bench.threads,
        "pairs": bench.pairs,
        "set": list(arguments.set),
    }
    results: list[CellResult] = []
    try:
        for cell in chosen:
            results.append(measure(cell, bench))
            if path is not None:  # a command that is killed leaves what it has
                text = json.dumps(document(results, settings, machine(bench.device)), indent=2)
                write_file(path, text + "\n")
    finally:
        if results:
            print(report(results, chosen[: len(results)], bench, settings))
    return 0


def _model(name: None | str) -> str:
    from ..benchmarks import _roofline

    if name is not None and name not in _roofline.LOADS:
        raise ConfigError(
            f"--model has the benchmarks {', '.join(_roofline.LOADS)}; got {name}. Name one of "
            "them, or none."
        )
    return _roofline.table(_roofline.LOADS if name is None else [name])


def _bench(arguments: argparse.Namespace, case: "Case") -> "Bench":
    import torch

    from ..benchmarks import Bench, BenchmarkError

    if case.device == "cuda" and not torch.cuda.is_available():
        raise BenchmarkError(
            f"{arguments.name} measures a GPU, and PyTorch sees none. To try it without one, "
            "--device cpu runs it in a small size."
        )
    known = {peer for row in case.rows for peer in (row.get("peers") or case.peers)}
    if unknown := [peer for peer in arguments.compare if peer not in known]:
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
    """Interpreters by peer, from `PEER=PYTHON` assignments."""
    from ..benchmarks import PEERS, family

    pythons = {}
    for assignment in assignments:
        peer, equals, python = assignment.partition("=")
        if not equals or family(peer) not in PEERS:
            raise ConfigError(
                "--peer-python expects PEER=/path/to/python, with a peer of "
                f"{', '.join(PEERS)}; got {assignment!r}."
            )
        pythons[peer] = python
    return pythons


def _cells(arguments: argparse.Namespace, case: "Case", bench: "Bench") -> "list[Cell]":
    from ..benchmarks import cells, has_fast_bf16

    names = [row["name"] for row in case.rows]
    if unknown := [name for name in arguments.rows if name not in names]:
        raise ConfigError(
            f"{arguments.name} has no row {', '.join(unknown)}; it has {', '.join(names)}."
        )
    if arguments.rows:
        case = replace(case, rows=[row for row in case.rows if row["name"] in arguments.rows])
    precisions = arguments.precision
    if not precisions:
        precisions = [p for p in case.precisions if p != "bf16" or has_fast_bf16(bench.device)]
        if len(precisions) < len(case.precisions):
            _say("bf16 is left out: this processor has no instructions for it (--precision bf16)")
    return cells(case, precisions)
