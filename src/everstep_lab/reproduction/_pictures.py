"""Learning curves of families of recipes, and performance profiles, as SVG."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.visualization import draw_panel, require_matplotlib, save_figure

from ._rows import Row

#: Seconds up to which an axis is in seconds; above, it is in minutes.
_SHORT = 120.0


def draw_family(rows: Sequence[Row], over: str, path: Path) -> None:
    """A panel a recipe; a colour a side, a thin line a seed, their mean and its 95 % interval.

    The published result is a dashed line, in a band of ± std.
    """
    figure_cls, formatter = require_matplotlib()
    names = list(dict.fromkeys(row.recipe.name for row in rows))
    sides = list(dict.fromkeys(row.side for row in rows))
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    figure = figure_cls(figsize=(4.2 * columns, 2.7 * lines + 0.4), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for panel, name in zip(panels, names, strict=False):
        mine = {row.side: row for row in rows if row.recipe.name == name}
        curves = [_curves(mine[side], over) if side in mine else [] for side in sides]
        unit, title = _axis(curves, over)
        draw_panel(panel, curves, unit)
        _draw_published(panel, next(iter(mine.values())))
        panel.set_title(name.partition("/")[2], fontsize="medium")
        panel.set_xlabel(title)
        panel.set_ylabel("return")
        if over == "env_steps":
            panel.xaxis.set_major_formatter(formatter(sep=""))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    _add_legend(figure, sides)
    save_figure(figure, path)


def _curves(row: Row, over: str) -> list[Any]:
    """Curves of a row's trainings; older results have none over processor time."""
    curves = [line["curve"] for line in row.lines if over in line["curve"]]
    return [tuple(np.asarray(curve[x], np.float64) for x in (over, "return")) for curve in curves]


def _axis(curves: Sequence[Any], over: str) -> tuple[float, str]:
    """Unit and title of the horizontal axis."""
    if over == "env_steps":
        return 1.0, "env steps"
    ends = [xs[-1] for side in curves for xs, _ in side if len(xs)]
    short = max(ends, default=0.0) < _SHORT
    return (1.0, "processor time (s)") if short else (60.0, "processor time (min)")


def _draw_published(panel: Any, row: Row) -> None:
    published = row.recipe.header.published
    if published is None:
        return
    panel.axhline(published.mean, color="black", linestyle="--", linewidth=0.8)
    if published.std:
        low, high = published.mean - published.std, published.mean + published.std
        panel.axhspan(low, high, color="black", alpha=0.08, linewidth=0)


def _add_legend(figure: Any, sides: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=f"C{i}") for i in range(len(sides))]
    handles.append(Line2D([], [], color="black", linestyle="--", linewidth=0.8))
    labels = [*sides, "published"]
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=len(labels))


def draw_profile(
    levels: Sequence[float], profiles: Mapping[str, Sequence[float]], path: Path
) -> None:
    """Share of trainings above each score; a line a side."""
    figure_cls, _ = require_matplotlib()
    figure = figure_cls(figsize=(5.0, 3.2), layout="constrained")
    panel = figure.subplots()
    for name, shares in profiles.items():
        panel.step(levels, shares, where="post", label=name)
    panel.axvline(1.0, color="black", linestyle="--", linewidth=0.8, label="published")
    panel.set_xlabel("score: 0 is the first return, 1 the published one")
    panel.set_ylabel("share of trainings above")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False)
    save_figure(figure, path)
