"""Figures of curves, drawn with matplotlib: one panel a statistic."""

import io
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import replacing
from ..core.installation import install_command
from ..core.plain_files import printable
from ..core.validation import unknown_name
from ..errors import ConfigError, EverstepError
from ._curves import LEAST_SEEDS, Group, default_keys, group_runs, mean_curve, x_scale
from ._records import Array, RunRecord, XAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Units of statistics, by pattern of their names without `eval/`.
_UNITS = {
    "env/steps": "env steps",
    "env/resets": "environments",
    "algorithm/collects": "rollouts",
    "algorithm/steps": "updates",
    "episodes/count": "episodes",
    "episodes/return_*": "reward",
    "episodes/length_mean": "env steps",
    "returns/*": "reward",
    "rewards/*": "reward",
    "losses/policy": "advantage",
    "losses/vf": "scaled reward",
    "losses/entropy": "nats",
    "monitors/kl_div": "nats",
    "monitors/clip_fraction": "fraction of rows",
    "monitors/explained_variance": "fraction of variance",
    "monitors/skipped_updates": "optimizer steps",
    "profiling/*_ms": "ms",
    "memory/free": "bytes",
    "memory/total": "bytes",
    "memory/percent": "%",
}


#: Panels of a figure at most, and of one with none of the default statistics.
_MAX_PANELS, _FEW = 100, 9

#: Characters of a line of text in a figure: a longer one is no text that fits.
_MAX_TEXT = 120


def unit_of(key: str) -> str:
    """Unit of a statistic; empty if it has none, or is not one of ours."""
    name = key.removeprefix("eval/")
    return next((unit for form, unit in _UNITS.items() if fnmatchcase(name, form)), "")


def choose_keys(runs: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Statistics to draw: those named, also by patterns such as `losses/*`, or the default ones.

    Raises:
        ConfigError: If no run has a statistic of that name, or there are too many or none.

    """
    known = list(dict.fromkeys(key for run in runs for key in run.keys))
    if not known:
        places = ", ".join(str(run.run_dir / "metrics.jsonl") for run in runs)
        raise ConfigError(f"{places}: no statistic in it: there is nothing to draw.")
    found = [] if names else default_keys(runs) or known[:_FEW]
    for name in names:
        matching = [key for key in known if fnmatchcase(key, name)]
        if not matching:
            raise ConfigError(
                f"--key {name}: {unknown_name('statistic', name, known)}; the runs have "
                f"{', '.join(known)}."
            )
        found += matching
    keys = list(dict.fromkeys(found))
    if len(keys) > _MAX_PANELS:
        raise ConfigError(
            f"--key: {len(keys):,} statistics; a figure has at most {_MAX_PANELS} panels. Name "
            "fewer, such as 'losses/*'."
        )
    return keys


def draw_curves(
    runs: Sequence[RunRecord], keys: Sequence[str], *, x: XAxis = "env_steps"
) -> "Figure":
    """Small multiples: a panel a statistic, a colour a configuration, a thin line a seed.

    Where a configuration has several seeds, a thick line is their mean; from three seeds on, in a
    band that is the 95 % interval of the mean.

    Raises:
        EverstepError: If matplotlib is not installed.

    """
    figure_cls, formatter = require_matplotlib()
    columns = math.ceil(math.sqrt(len(keys))) if len(keys) > 2 else len(keys)
    rows = math.ceil(len(keys) / columns)
    figure: Figure = figure_cls(figsize=(4.2 * columns, 2.7 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten().tolist()
    groups = group_runs(runs)
    scale, title = x_scale(runs, x)
    for panel, key in zip(panels, keys, strict=False):
        draw_panel(panel, [[run.curve(key, x) for run in group.runs] for group in groups], scale)
        panel.set_title(key, fontsize="medium")
        panel.set_xlabel(title)
        panel.set_ylabel(unit_of(key))
        panel.tick_params(labelbottom=True)
        if x == "env_steps":
            panel.xaxis.set_major_formatter(formatter(sep=""))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    for panel in panels[len(keys) :]:
        panel.set_visible(False)
    _add_legend(figure, groups)
    return figure


def draw_panel(
    panel: "Axes", groups: Sequence[Sequence[tuple[Array, Array]]], scale: float
) -> None:
    """Lines of all runs and means, then the bands, which do not change the axis's limits."""
    means = [mean_curve(curves) for curves in groups]
    for number, (curves, mean) in enumerate(zip(groups, means, strict=True)):
        color = f"C{number % 10}"
        alpha, width = (1.0, 1.5) if mean is None else (0.35, 0.8)
        for place, values in curves:
            marker = "o" if len(place) < 3 else ""  # one point has no line
            panel.plot(
                place / scale, values, color=color, marker=marker, alpha=alpha, linewidth=width
            )
        if mean is not None:
            panel.plot(mean.x / scale, mean.mean, color=color)
    limits = panel.get_ylim()
    for number, mean in enumerate(means):
        if mean is not None and mean.half is not None:
            low, high = mean.mean - mean.half, mean.mean + mean.half
            color = f"C{number % 10}"
            panel.fill_between(mean.x / scale, low, high, color=color, alpha=0.2, linewidth=0)
    panel.set_ylim(limits)


def _add_legend(figure: "Figure", groups: Sequence[Group]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=f"C{number % 10}") for number in range(len(groups))]
    labels = [f"{group.label}{_described(len(group.runs))}" for group in groups]
    figure.legend(handles, labels, loc="outside lower center", frameon=False)


def _described(seeds: int) -> str:
    if seeds == 1:
        return ""
    interval = "" if seeds < LEAST_SEEDS else ", and its 95 % interval"
    return f" (mean of {seeds} seeds{interval})"


def require_matplotlib() -> tuple[Any, Any]:
    """Matplotlib's `Figure` and `EngFormatter`.

    Raises:
        EverstepError: If it is not installed.

    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError:
        raise EverstepError(
            f"Curves are drawn with matplotlib, which is not installed: {install_command('plot')}"
        ) from None
    return Figure, EngFormatter


def svg_text(figure: "Figure") -> str:
    """A figure as an `<svg>` element; the same figure gives the same text."""
    text = io.StringIO()
    _save(figure, text, "svg")
    return "<svg" + text.getvalue().partition("<svg")[2]


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as `.png` or `.svg`."""
    with replacing(path) as place:
        _save(figure, place, path.suffix.removeprefix("."))


def _save(figure: "Figure", target: Any, kind: str) -> None:
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):  # a dollar in a statistic's name begins no formula
        text.set_parse_math(False)
        shown = printable(text.get_text())
        text.set_text(shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…")
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "everstep"}):
        figure.savefig(target, format=kind, dpi=120, metadata=metadata)


def check_suffix(path: Path, allowed: Sequence[str]) -> None:
    """Raise a `ConfigError` if a file's name does not end in one of `allowed`."""
    if path.suffix.lower() not in allowed:
        raise ConfigError(
            f"--out {path}: the name must end in {', '.join(allowed)}; got {path.suffix!r}. "
            f"Try {path.with_suffix(allowed[0])}."
        )
