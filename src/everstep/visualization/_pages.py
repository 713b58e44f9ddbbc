"""HTML pages that need no other file: curves, and the report of a run."""

import base64
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from .._version import __version__
from ..core.files import write_file
from ..core.plain_files import path_within, printable, read_plain
from ..errors import ConfigError
from ._comparison import compare_runs, comparison_rows, result_of, shown
from ._figures import choose_keys, draw_curves, svg_text
from ._records import RunRecord, config_text, read_run
from ._repeating import commands_of, stretch_rows

#: Types of videos, by suffix.
_VIDEOS = {".mp4": "video/mp4", ".gif": "image/gif"}

#: Bytes of a video in a page.
MAX_VIDEO = 100_000_000

#: Columns of the table of evaluations, by statistic.
_EVALUATION = {
    "episodes/count": "episodes",
    "episodes/return_mean": "return",
    "episodes/return_std": "std",
    "episodes/return_min": "min",
    "episodes/return_max": "max",
    "episodes/length_mean": "length",
    "returns/mean": "rollout return",
}


def curves_page(runs: Sequence[RunRecord], svg: str) -> str:
    """A page with the curves of several runs, and the table that compares them."""
    title = runs[0].run_dir.name if len(runs) == 1 else f"{len(runs)} runs"
    return _page(title, runs, svg, rows=comparison_rows(compare_runs(runs)))


def write_report(
    run_dir: str | Path, out: None | str | Path = None, *, video: None | str | Path = None
) -> Path:
    """Write one HTML page about a run, which needs no other file, and return its path.

    It has the results, curves, evaluations, a video, the configuration, versions, and the command
    that repeats the run.

    Args:
        run_dir: The run's directory.
        out: File to write; None: `report.html` in the run's directory.
        video: `.mp4` or `.gif` to embed; None: `play.mp4` or `play.gif` of the run's directory, if
            there is one.

    Raises:
        ConfigError: If this is not the directory of a run, or the video cannot be embedded.
        EverstepError: If the run has no records, or matplotlib is not installed.

    """
    run = read_run(run_dir)
    path = path_within(run.run_dir / "report.html", run.run_dir) if out is None else Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {path}: the name must end in .html; got {path.suffix!r}.")
    write_file(path, _report(run, _find_video(run.run_dir, video)))
    return path


def _find_video(run_dir: Path, video: None | str | Path) -> None | Path:
    if video is None:
        made = [path for suffix in _VIDEOS if (path := run_dir / f"play{suffix}").exists()]
        return made[0] if made else None
    path = Path(video)
    if path.suffix.lower() not in _VIDEOS or not path.is_file():
        kinds = " or ".join(_VIDEOS)
        raise ConfigError(f"--video {path}: expected an existing file that ends in {kinds}.")
    return path


def _report(run: RunRecord, video: None | Path) -> str:
    commands, reasons = commands_of(run, str(run.run_dir / "config.yaml"))
    report = {
        "env": str(run.config.get("env_cls") or "an environment that the program made"),
        "objective": run.objective or "an objective of its own",
        "result": [["", "value"], *([key, shown(x)] for key, x in result_of(run).items())],
        "evaluations": _evaluations(run),
        "place": shlex.quote(str(run.run_dir)),
        "video": None if video is None else _embedded(run, video),
        "commands": "\n".join(commands),
        "stretches": stretch_rows(run) if len(run.history) > 1 else [],
        "reasons": reasons,
        "is_incomplete": any(
            "in the program only" in x or "without a seed" in x for x in run.comments
        ),
        "has_history": bool(run.history),
        "comments": run.comments,
        "config": config_text(run.run_dir),
    }
    svg = svg_text(draw_curves([run], choose_keys([run], ())))
    return _page(run.run_dir.resolve().name, [run], svg, report=report)


def _evaluations(run: RunRecord) -> list[list[str]]:
    """Rows of the table of evaluations; none without one."""
    found = run.evaluations()
    keys = [key for key in _EVALUATION if any(key in record for record in found)]
    rows = [[shown(x["step"]), *(shown(x.get(key, "")) for key in keys)] for x in found]
    return [["env steps", *(_EVALUATION[key] for key in keys)], *rows] if found else []


def _embedded(run: RunRecord, video: Path) -> str:
    """A video as an address that holds its content."""
    within = run.run_dir if video.parent == run.run_dir else None
    content = read_plain(video, within=within, limit=MAX_VIDEO)
    return f"data:{_VIDEOS[video.suffix.lower()]};base64,{base64.b64encode(content).decode()}"


def _finalized(value: Any) -> Any:
    """A text of a run without control characters; our drawing as it is."""
    return printable(value) if type(value) is str else value


def _page(title: str, runs: Sequence[RunRecord], svg: str, **content: Any) -> str:
    """The page; whatever the runs say is escaped, and only our drawing is not."""
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    notes = [note for run in runs for note in run.notes]
    page = Environment(autoescape=True, undefined=StrictUndefined, finalize=_finalized)
    template = page.from_string(text)
    values = {"report": None, "rows": None, "version": __version__} | content
    return template.render(title=title, notes=notes, figure=svg, **values) + "\n"
