"""Configuration and statistics in a run's directory, and notes on what was left out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..config import load
from ..core.plain_files import printable, read_plain
from ..errors import ConfigError, EverstepError
from ..loggers import read_metrics
from ..loggers.history import HISTORY, read_history

Array = npt.NDArray[np.float64]

#: Axis of a curve.
XAxis = Literal["env_steps", "time"]

#: Keys of a configuration that name a run and are not part of what was trained.
NAMES = ("seed", "run_dir", "experiment_name")

#: Statistics that say how well a policy does, best first.
RETURN_KEYS = ("episodes/return_mean_100", "episodes/return_mean", "returns/mean")


@dataclass(frozen=True, repr=False)
class RunRecord:
    """Configuration and statistics of a run, as its directory has them."""

    #: The run's directory.
    run_dir: Path

    #: Values of `config.yaml`; nested mappings are keys with dots.
    config: dict[str, Any]

    #: Comments at the head of `config.yaml`: versions, device, and what a file cannot repeat.
    comments: tuple[str, ...]

    #: Records of `metrics.jsonl`, oldest first, each with numbers only.
    records: tuple[dict[str, float], ...]

    #: What was left out, and why; empty for a complete file.
    notes: tuple[str, ...]

    #: Stretches of the training, as `everstep.trainers` wrote them; empty if nobody did.
    history: tuple[dict[str, Any], ...] = ()

    def __repr__(self) -> str:
        counts = f"{self.env_steps:,} env steps, {len(self.records):,} records"
        notes = f", {len(self.notes)} notes" if self.notes else ""
        return f"{type(self).__name__}({str(self.run_dir)!r}, {counts}{notes})"

    @property
    def keys(self) -> list[str]:
        """Statistics of the run, in the order in which they were first recorded."""
        return [*dict.fromkeys(key for x in self.records for key in x if key not in _AXES)]

    @property
    def objective(self) -> None | str:
        """Title of the objective, such as `"PPO"`; None for one that has no name in files."""
        name = self.config.get("objective")
        return name.upper() if isinstance(name, str) and name.isidentifier() else None

    @property
    def env_steps(self) -> int:
        """Env steps of the last record."""
        return int(self.records[-1]["step"])

    @property
    def seconds(self) -> float:
        """Duration from the beginning of the first rollout to the last record."""
        return self.records[-1]["time"] - _started(self.records[0])

    @property
    def return_key(self) -> None | str:
        """The statistic that says how well the policy does; None if there is none."""
        return next((key for key in RETURN_KEYS if key in set(self.keys)), None)

    def curve(self, key: str, x: XAxis = "env_steps") -> tuple[Array, Array]:
        """Env steps or seconds, and finite values of a statistic, float64 `[n]` each."""
        start = _started(self.records[0])
        points = [
            (record["step"] if x == "env_steps" else record["time"] - start, record[key])
            for record in self.records
            if math.isfinite(record.get(key, math.nan))
        ]
        first, second = np.array(points, np.float64).reshape(-1, 2).T
        return first, second

    def evaluations(self) -> list[dict[str, float]]:
        """Records of evaluations: `step`, `time`, and statistics without their `eval/`."""
        return [
            {name.removeprefix("eval/"): value for name, value in record.items()}
            for record in self.records
            if any(name.startswith("eval/") for name in record)
        ]


_AXES = ("step", "time")


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Directories of runs: those named, and the runs directly in a directory of runs.

    Raises:
        ConfigError: Lists the paths that are neither.

    """
    found: list[Path] = []
    problems = []
    for path in map(Path, paths):
        inside = sorted(each.parent for each in path.glob("*/config.yaml"))
        if (path / "config.yaml").is_file():
            found.append(path)
        elif inside:
            found += inside
        elif path.is_dir() or not path.exists():
            kind = "no config.yaml in it" if path.is_dir() else "no such directory"
            problems.append(
                f"{path}: not the directory of a run: {kind}. Name the one that `everstep train` "
                "prints, or a directory of runs."
            )
        else:
            problems.append(f"{path}: a file; name the directory of a run, or one of runs.")
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(found))


def read_run(run_dir: str | Path) -> RunRecord:
    """The record of a run, also of one that is still training.

    Lines of `metrics.jsonl` that are not records of a run are left out and noted, and so is a
    `history.jsonl` with others than stretches.

    Raises:
        ConfigError: If this is not the directory of a run, or `config.yaml` cannot be read.
        EverstepError: If `metrics.jsonl` has no record.

    """
    [run_dir] = find_runs([run_dir])
    config = flatten(load(run_dir / "config.yaml", within=run_dir).values)
    text = config_text(run_dir)
    comments = tuple(line[2:] for line in text.splitlines() if line.startswith("# "))
    records, notes = _read_records(run_dir / "metrics.jsonl")
    history: list[dict[str, Any]] = []
    try:
        history = read_history(run_dir / HISTORY)
    except ConfigError as error:
        notes += error.problems
    return RunRecord(run_dir, config, comments, tuple(records), tuple(notes), tuple(history))


def config_text(run_dir: Path) -> str:
    """The text of a run's `config.yaml`, without characters that a terminal would obey."""
    content = read_plain(run_dir / "config.yaml", within=run_dir)
    return printable(content.decode("utf-8-sig"))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by key, nested mappings as keys with dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[printable(f"{prefix}{key}")] = (
                printable(value) if isinstance(value, str) else value
            )
    return flat


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all configurations, in the order of the first."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({repr(config.get(key)) for config in configs}) > 1]


def _read_records(path: Path) -> tuple[list[dict[str, float]], list[str]]:
    """Records with numbers only, in the order of env steps, and notes."""
    if not path.exists():
        raise EverstepError(f"{path}: no such file. The run has not recorded a train step.")
    skipped: list[str] = []
    try:
        lines = read_metrics(path, skipped=skipped, within=path.parent)
    except OSError as error:
        raise EverstepError(f"{path}: {error.strerror}.") from None
    records = []
    for number, line in enumerate(lines, start=1):
        numbers = {_short(k): _float(x) for k, x in line.items() if type(x) in (int, float)}
        if all(math.isfinite(numbers.get(axis, math.nan)) for axis in _AXES):
            records.append(numbers)
        else:
            skipped.append(f"{path}: record {number} has no `step` and `time`")
    if not records:
        raise EverstepError(_nothing_in(path, skipped))
    kept = _last_attempts(records)
    notes = _non_finite_notes(path, kept)
    if skipped:
        lines_are = "1 line is" if len(skipped) == 1 else f"{len(skipped)} lines are"
        notes.insert(0, f"{skipped[0]}: not a record of a run; {lines_are} left out")
    return kept, notes


#: Numbers beyond it are as infinite: differences, sums and axes of them have none.
_MAX_NUMBER = 1e300

#: Characters of a statistic's name that are shown.
_MAX_NAME = 200


def _float(number: float) -> float:
    try:
        value = float(number)
    except OverflowError:  # an integer beyond all floats
        value = math.inf if number > 0 else -math.inf
    return value if abs(value) <= _MAX_NUMBER or math.isnan(value) else value * math.inf


def _short(name: str) -> str:
    shown = printable(name[:_MAX_NAME]).replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(name) <= _MAX_NAME else f"{shown}…"


def _nothing_in(path: Path, skipped: Sequence[str]) -> str:
    if not skipped:
        return f"{path}: no record in it. The run has not completed a train step: try again later."
    return (
        f"{path}: none of its {len(skipped)} lines is a record of a run, such as "
        '{"step": 2048, "time": 1700000000.0, "losses/vf": 0.5}. Name the directory of a run that '
        "`everstep train` or a `Trainer` wrote."
    )


def _last_attempts(records: list[dict[str, float]]) -> list[dict[str, float]]:
    """Without the records that a run repeated after it was resumed from an earlier checkpoint."""
    kept: list[dict[str, float]] = []
    for record in records:
        if kept and record["step"] < kept[-1]["step"]:
            while kept and kept[-1]["step"] >= record["step"]:
                kept.pop()
        kept.append(record)
    return kept


def _non_finite_notes(path: Path, records: list[dict[str, float]]) -> list[str]:
    """A line for each statistic with values that cannot be drawn."""
    found = sorted(
        key for record in records for key, value in record.items() if not math.isfinite(value)
    )
    return [
        f"{path}: {key}: {len(list(same))} values are not finite or beyond 1e300, and are left out"
        for key, same in groupby(found)
    ]


def _started(record: Mapping[str, float]) -> float:
    """Time at which the rollout of a record began, seconds since the epoch."""
    duration = sum(record.get(f"profiling/{part}_ms", 0.0) for part in ("collect", "step"))
    return record["time"] - (duration / 1000 if math.isfinite(duration) else 0.0)
