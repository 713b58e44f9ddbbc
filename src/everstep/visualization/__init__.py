"""Curves, comparisons and reports of runs, from their directories; `videos` plays their policies.

matplotlib, Pillow and the video encoder are imported by the functions that need them. PyTorch is
imported by `videos` only.
"""

from ._comparison import compare_runs, comparison_rows
from ._display import has_display, use_headless_renderers
from ._figures import draw_panel, require_matplotlib, save_figure
from ._pages import write_report
from ._plot import plot_runs
from ._records import RunRecord, find_runs, read_run

__all__ = [
    "RunRecord",
    "compare_runs",
    "comparison_rows",
    "draw_panel",
    "find_runs",
    "has_display",
    "plot_runs",
    "read_run",
    "require_matplotlib",
    "save_figure",
    "use_headless_renderers",
    "write_report",
]
