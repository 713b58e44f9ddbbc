"""Measurement: blocks of the sides alternate, so that other load affects all of them equally."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ._cases import Cell
from ._peers import OURS
from ._ratios import Ratio, ratio_of
from ._sides import Side, interpreter


@dataclass(frozen=True)
class Bench:
    """Settings of a measurement."""

    #: `cpu` or `cuda`.
    device: str

    #: PyTorch's threads on every side.
    threads: int

    #: Blocks of each side.
    pairs: int = 5

    #: Peers to compare with, in cells that have them.
    peers: tuple[str, ...] = ()

    #: Interpreters, by peer or library.
    pythons: Mapping[str, str] = field(default_factory=dict)

    #: Whether learning is checked beside speed.
    learning: bool = True

    #: Receives messages on the progress.
    say: Callable[[str], None] = lambda text: None

    def start(self, name: str, cell: Cell) -> Side:
        """A side of a cell, started."""
        work = cell.order(name, self.device, self.threads)
        python = interpreter(name, dict(self.pythons))
        return Side(name, work, python, cell.measure.timeout_s)

    def names(self, cell: Cell) -> list[str]:
        """Our side, and the peers that were asked for."""
        return [OURS, *(peer for peer in self.peers if peer in cell.peers)]


@dataclass
class SideResult:
    """Results of one side."""

    precision: str
    python: str
    versions: dict[str, str]
    warm_s: float = 0.0
    blocks: list[dict[str, Any]] = field(default_factory=list)
    trainings: list[dict[str, Any]] = field(default_factory=list)
    #: Kernels, launches, waits and copies of an iteration, and its milliseconds of kernels; on a
    #: GPU.
    counts: dict[str, float] = field(default_factory=dict)

    def rate(self, phase: str = "total_s") -> None | float:
        """Env steps per second of the median block; None for a phase that does nothing."""
        found = [_rate(block, phase) for block in self.blocks if block[phase] > 0]
        return median(found) if found else None

    def milliseconds(self, phase: str) -> None | float:
        """Milliseconds per iteration in a phase, of the median block."""
        found: list[float] = [1e3 * block[phase] / block["iterations"] for block in self.blocks]
        return median(found) if found else None

    def memory(self, kind: str) -> None | int:
        """Largest memory, in bytes."""
        found: list[int] = [
            block["memory"][kind] for block in self.blocks if kind in block["memory"]
        ]
        return max(found, default=None)


@dataclass
class CellResult:
    """Results of a cell."""

    name: str
    precision: str
    sides: dict[str, SideResult]

    #: Everstep ÷ peer in env steps per second, or peer time ÷ Everstep time, by pairs.
    ratios: dict[str, Ratio]


def measure(cell: Cell, bench: Bench) -> CellResult:
    """Measure a cell: its speed, or its time to a threshold.

    Raises:
        PeerError: If a side cannot be started, fails, or does not answer in time.

    """
    return _solve(cell, bench) if cell.solve is not None else _speed(cell, bench)


def _speed(cell: Cell, bench: Bench) -> CellResult:
    with ExitStack() as stack:
        sides, results = [], {}
        for name in bench.names(cell):
            bench.say(f"{cell.name}, {cell.precision}: {name} starts")
            side = stack.enter_context(bench.start(name, cell))
            sides.append(side)
            results[name] = _result(side)
            results[name].warm_s = side.ask("warm", cell.measure.warm_up)["warm_s"]
        _alternate(sides, results, cell, bench)
        if bench.device == "cuda":
            for side in sides:
                results[side.name].counts = side.ask("count", 2)
        if bench.learning and cell.learn is not None:
            _learn(sides, results, cell, bench)
    ours = results[OURS].blocks
    ratios = {
        name: ratio_of(
            [
                _rate(mine, "total_s") / _rate(other, "total_s")
                for mine, other in zip(ours, result.blocks, strict=True)
            ]
        )
        for name, result in results.items()
        if name != OURS
    }
    return CellResult(cell.name, cell.precision, results, ratios)


def _result(side: Side) -> SideResult:
    return SideResult(side.work["precision"], side.python, side.versions)


def _rate(block: Mapping[str, Any], phase: str) -> float:
    return float(block["env_steps"] / block[phase])


def _alternate(
    sides: Sequence[Side], results: Mapping[str, SideResult], cell: Cell, bench: Bench
) -> None:
    """Run blocks in the order A B, B A, A B, …, of about equal duration."""
    iterations = {}
    for side in sides:
        once = side.ask("run", 1)["total_s"]
        iterations[side.name] = max(1, math.ceil(cell.measure.block_s / once))
    for pair in range(bench.pairs):
        bench.say(f"{cell.name}, {cell.precision}: pair {pair + 1} of {bench.pairs}")
        for side in sides if pair % 2 == 0 else sides[::-1]:
            count = iterations[side.name]
            block = side.ask("run", count) | {"iterations": count}
            results[side.name].blocks.append(block)


def _learn(
    sides: Sequence[Side], results: Mapping[str, SideResult], cell: Cell, bench: Bench
) -> None:
    """Train each side from scratch with each seed."""
    learn = cell.learn
    assert learn is not None
    for seed in range(learn.seeds):
        bench.say(f"{cell.name}, {cell.precision}: learning check, seed {seed}")
        request = {"seed": seed, "metric": learn.metric, "env_steps": learn.env_steps}
        for side in sides:
            results[side.name].trainings.append(side.ask("learn", request) | {"seed": seed})


def _solve(cell: Cell, bench: Bench) -> CellResult:
    """Measure wall time to the threshold; every training is a separate process."""
    solve = cell.solve
    assert solve is not None
    results: dict[str, SideResult] = {}
    names = bench.names(cell)
    for seed in range(solve.seeds):
        bench.say(f"{cell.name}, {cell.precision}: seed {seed}")
        for name in names if seed % 2 == 0 else names[::-1]:
            request = {
                "seed": seed,
                "metric": solve.metric,
                "env_steps": solve.max_env_steps,
                "threshold": solve.threshold,
            }
            with bench.start(name, cell) as side:
                found = side.ask("solve", request)
                found |= {"seed": seed, "start_to_end_s": time.perf_counter() - side.started}
                results.setdefault(name, _result(side)).trainings.append(found)
    ours = results[OURS].trainings
    ratios = {
        name: ratio_of(
            [
                other["total_s"] / mine["total_s"]
                for mine, other in zip(ours, results[name].trainings, strict=True)
            ]
        )
        for name in names[1:]
    }
    ordered = {name: results[name] for name in names}
    return CellResult(cell.name, cell.precision, ordered, ratios)
