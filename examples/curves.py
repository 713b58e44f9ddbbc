"""Draw how something was learned.

    python examples/curves.py runs/algotrading/views runs/algotrading/lstm --out curve.svg

Each directory holds runs, one a seed, and becomes one curve: the mean over its runs, in a band from
the least to the greatest. A point is the mean return of all environments' episodes between two
resets; with `--key episodes/return_mean_100`, the value of that statistic after a rollout, and runs
that stopped keep their last one. The same runs give the same bytes.

Needs matplotlib: `pip install matplotlib`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from everstep.loggers import read_metrics

#: Env steps so far, and the mean return of the episodes that end there.
Point = tuple[float, float]


def episodes(metrics: Path) -> list[Point]:
    """The complete episodes of a run: the rollouts between two resets, added up.

    Args:
        metrics: The run's `metrics.jsonl`.

    """
    found = list(_rollouts_by_episode(metrics))
    length = len(found[0])
    return [
        (rollouts[-1][0], sum(returns for _, returns in rollouts))
        for rollouts in found
        if len(rollouts) == length  # training may stop in the middle of the last one
    ]


def _rollouts_by_episode(metrics: Path) -> Iterator[list[Point]]:
    episode: list[Point] = []
    for row in read_metrics(metrics):
        if "returns/mean" not in row:
            continue
        if episode and row["env/resets"]:
            yield episode
            episode = []
        episode.append((row["env/steps"], row["returns/mean"]))
    if not episode:
        raise SystemExit(f"{metrics}: no train step is recorded in it.")
    yield episode


def statistic(metrics: Path, key: str) -> list[Point]:
    """A statistic of a run, at the env steps at which it was there."""
    return [(row["env/steps"], row[key]) for row in read_metrics(metrics) if key in row]


def runs_in(directory: Path, key: None | str = None) -> list[list[Point]]:
    """Episodes of every run in a directory, or a statistic of each, all of one length."""
    files = sorted(directory.glob("*/metrics.jsonl"))
    if not files:
        raise SystemExit(f"{directory}: holds no runs: no metrics.jsonl one level below.")
    if key is None:
        return [episodes(metrics) for metrics in files]
    found = [statistic(metrics, key) for metrics in files]
    longest = max(found, key=len)
    return [run + [(steps, run[-1][1]) for steps, _ in longest[len(run) :]] for run in found if run]


def draw(curves: Mapping[str, Sequence[Sequence[Point]]], out: Path) -> None:
    """Write a picture, in the format that the file's suffix names.

    Args:
        curves: Name of each curve, and the episodes of its runs.
        out: File to write.

    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot(xlabel="env steps", ylabel="mean return of an episode")
    for name, runs in curves.items():
        steps, low, mean, high = zip(*_over_runs(runs), strict=True)
        axes.fill_between(steps, low, high, alpha=0.2, linewidth=0)
        axes.plot(steps, mean, label=name)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(frameon=False, loc="lower right")
    unchanging = {"svg.fonttype": "none", "svg.hashsalt": "everstep"}
    is_vector = out.suffix == ".svg"
    with matplotlib.rc_context(unchanging):
        figure.savefig(out, dpi=120, metadata={"Date": None} if is_vector else None)


def _over_runs(
    runs: Sequence[Sequence[Point]],
) -> Iterator[tuple[float, float, float, float]]:
    """Env steps, and least, mean and greatest return of the runs that came so far."""
    for points in zip_longest(*runs):
        there = [point for point in points if point is not None]
        returns = [value for _, value in there]
        yield there[0][0], min(returns), fmean(returns), max(returns)


def main() -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directories", type=Path, nargs="+", help="each holds runs")
    parser.add_argument("--out", type=Path, required=True, help="picture to write")
    parser.add_argument("--key", help="statistic to draw")
    options = parser.parse_args()
    draw({path.name: runs_in(path, options.key) for path in options.directories}, options.out)


if __name__ == "__main__":
    main()
