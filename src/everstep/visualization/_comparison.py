"""Differences between runs, in configuration and result, as tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.intervals import mean_interval
from ._curves import group_runs
from ._records import NAMES, RunRecord, differing_keys


def result_of(run: RunRecord) -> dict[str, float]:
    """Results of a run by name; those that it does not have are absent."""
    found: dict[str, float] = {"env steps": run.env_steps, "seconds": run.seconds}
    if run.seconds > 0:
        found["env steps/s"] = run.env_steps / run.seconds
    if (key := run.return_key) is not None and len(values := run.curve(key)[1]):
        found |= {key: float(values[-1]), f"best {key}": float(values.max())}
    for name in ("eval/episodes/return_mean", "eval/returns/mean"):
        if len(values := run.curve(name)[1]):
            found |= {name: float(values[-1]), f"best {name}": float(values.max())}
    return found


def compare_runs(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Configuration keys that differ, results, and groups of seeds; as plain values.

    `configuration` and `result` have a mapping a run. `groups` has those configurations that have
    several seeds: mean of the last return over seeds, and its 95 % interval.
    """
    keys = differing_keys([run.config for run in runs])
    return {
        "runs": [str(run.run_dir) for run in runs],
        "configuration": [{key: run.config.get(key) for key in keys} for run in runs],
        "result": [result_of(run) for run in runs],
        "groups": _group_results(runs),
    }


def _group_results(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    found = []
    for group in group_runs(runs):
        results = [result_of(run) for run in group.runs]
        key = group.runs[0].return_key
        last = np.array([each[key] for each in results if key in each])
        if len(last) > 1 and key is not None:
            mean, *interval = mean_interval(last)
            found.append(
                {"label": group.label, "seeds": len(last), "key": key, "mean": mean}
                | {"interval": interval}
            )
    return found


def comparison_rows(compared: Mapping[str, Any]) -> list[list[str]]:
    """Rows of the table: a name, then the value of each run; the first row is the head."""
    names = [str(path).rpartition("/")[2] or str(path) for path in compared["runs"]]
    rows = [["", *names]]
    keys = [key for values in compared["configuration"] for key in values]
    keys = sorted(dict.fromkeys(keys), key=lambda key: key in NAMES)  # the seed comes last
    for key in keys:
        values = [values.get(key) for values in compared["configuration"]]
        rows.append([key, *(shown(value) for value in values)])
    for key in dict.fromkeys(key for result in compared["result"] for key in result):
        rows.append([key, *(shown(result.get(key, "")) for result in compared["result"])])
    return rows


def shown(value: Any) -> str:
    """A value as text: four digits of a number, thousands separated."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    if isinstance(value, float):
        large = math.isfinite(value) and abs(value) >= 1000
        return f"{value:,.0f}" if large else f"{value:.4g}"
    return str(value)
