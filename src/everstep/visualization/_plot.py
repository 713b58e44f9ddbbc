"""Curves of runs, as a picture or a page."""

from collections.abc import Sequence
from pathlib import Path

from ..core.files import write_file
from ._figures import (
    check_suffix,
    choose_keys,
    draw_curves,
    require_matplotlib,
    save_figure,
    svg_text,
)
from ._pages import curves_page
from ._records import RunRecord, XAxis, find_runs, read_run

#: Suffixes of files that can be written.
SUFFIXES = (".png", ".svg", ".html")


def plot_runs(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    *,
    keys: Sequence[str] = (),
    x: XAxis = "env_steps",
) -> list[RunRecord]:
    """Draw curves of runs to a file, and return what was read of the runs.

    Args:
        run_dirs: Directories of runs, or of several runs.
        out: File to write: `.png`, `.svg`, or `.html`, a page that needs no other file.
        keys: Statistics to draw, or patterns of their names; by default return, episode length and
            how training goes.
        x: `"env_steps"`, or `"time"` since the beginning of each run.

    Raises:
        ConfigError: If a directory is not a run's, or no run has a statistic.
        EverstepError: If a run has no records, or matplotlib is not installed.

    """
    path = Path(out)
    check_suffix(path, SUFFIXES)
    require_matplotlib()
    runs = [read_run(run_dir) for run_dir in find_runs(run_dirs)]
    figure = draw_curves(runs, choose_keys(runs, keys), x=x)
    if path.suffix.lower() == ".html":
        write_file(path, curves_page(runs, svg_text(figure)))
    else:
        save_figure(figure, path)
    return runs
