"""Curves of groups of runs: the mean over the seeds of one configuration, with an interval."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.intervals import mean_and_half
from ._records import NAMES, Array, RunRecord, XAxis, differing_keys

#: Points of a mean curve.
_POINTS = 200

#: Seeds from which an interval is drawn: of two, it is 12.7 times as wide as they are apart.
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, which differ in their seeds."""

    #: What distinguishes the group from the others.
    label: str

    #: The runs.
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class MeanCurve:
    """Mean over runs, where all runs have values; `[n]` each."""

    #: Env steps or seconds.
    x: Array

    #: Mean over runs.
    mean: Array

    #: Half of the 95 % interval of the mean; None for fewer than `LEAST_SEEDS`.
    half: None | Array


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs by configuration without its seed, in the order of the first run of each."""
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_identity(run), default=repr, sort_keys=True), []).append(run)
    configs = [_identity(members[0]) for members in groups.values()]
    keys = differing_keys(configs)
    return [
        Group(_label(config, keys, members), tuple(members))
        for config, members in zip(configs, groups.values(), strict=True)
    ]


def _identity(run: RunRecord) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if key not in NAMES}


def _label(config: dict[str, Any], keys: Sequence[str], runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1 and not keys:
        return runs[0].run_dir.name
    if not keys:
        return str(config.get("env_cls") or runs[0].run_dir.name)
    values = [f"{key}={config.get(key)}" for key in keys[:3]]
    settings = ", ".join([*values, *(["…"] if len(keys) > 3 else [])])
    return f"{runs[0].run_dir.name}: {settings}" if len(runs) == 1 else settings


def mean_curve(curves: Sequence[tuple[Array, Array]]) -> None | MeanCurve:
    """The mean of several curves, linearly interpolated; None if no x has values of all.

    The mean covers the x that all curves have: a mean over some of the runs would jump.

    Args:
        curves: x and y of each, `[n]`.

    """
    filled = [(x, y) for x, y in curves if len(x)]
    if len(filled) < 2:
        return None
    first, last = max(x[0] for x, _ in filled), min(x[-1] for x, _ in filled)
    if first >= last:
        return None
    grid = np.linspace(first, last, _POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in filled])
    mean, half = mean_and_half(values)
    return MeanCurve(grid, mean, half if len(values) >= LEAST_SEEDS else None)


def default_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Statistics that are drawn if none are named: those that some run has."""
    known = {key for run in runs for key in run.keys}
    returns = [run.return_key for run in runs if run.return_key is not None]
    wanted = (*returns[:1], "eval/episodes/return_mean", *_DEFAULT_KEYS)
    return [key for key in dict.fromkeys(wanted) if key in known]


_DEFAULT_KEYS = (
    "episodes/length_mean",
    "monitors/kl_div",
    "monitors/clip_fraction",
    "monitors/explained_variance",
    "losses/entropy",
    "coefficients/lr",
)


def x_scale(runs: Sequence[RunRecord], x: XAxis) -> tuple[float, str]:
    """Divisor of x values, and the axis's title with its unit."""
    if x == "env_steps":
        return 1.0, "env steps"
    longest = max(run.seconds for run in runs)
    seconds, unit = next((s, u) for s, u in _TIMES if longest >= 3 * s or s == 1)
    return float(seconds), f"time ({unit})"


_TIMES = ((3600, "h"), (60, "min"), (1, "s"))
