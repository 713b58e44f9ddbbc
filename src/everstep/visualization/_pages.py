"""HTML pages that need no other file: curves, and the report of a run."""

import base64
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import ConfigError
from ..files import write_file
from ..plain_files import path_within, read_plain
from ._comparison import compare_runs, comparison_rows, result_of, shown
from ._figures import choose_keys, draw_curves, svg_text
from ._records import RunRecord, config_text, read_run
from ._repeating import commands_of, stretch_rows

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --muted: #7779; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .5rem 0; } .muted { opacity: .7; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: #8881; padding: .75rem; border-radius: 6px; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; }
.scroll { overflow-x: auto; }
figure { margin: 0; background: white; border-radius: 6px; padding: .5rem; }
figure svg { width: 100%; height: auto; display: block; font-family: system-ui, sans-serif; }
video, img { max-width: 100%; border-radius: 6px; }
pre.columns { columns: 2 22rem; column-gap: 2rem; }
.note { border-left: 3px solid #d90; padding-left: .75rem; }
"""

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
    rows = comparison_rows(compare_runs(runs))
    body = [f"<h1>{escape(title)}</h1>", *_notes(runs), _figure(svg), "<h2>Runs</h2>"]
    return _page(title, [*body, _table(rows)])


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
    name = run.run_dir.resolve().name
    env = str(run.config.get("env_cls") or "an environment that the program made")
    objective = {"ppo": "PPO", "a2c": "A2C"}.get(str(run.config.get("objective")), "an objective")
    figure = svg_text(draw_curves([run], choose_keys([run], ())))
    text = config_text(run.run_dir)
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="muted">{escape(env)}, trained with {escape(objective)}</p>',
        *_notes([run]),
        "<h2>Result</h2>",
        _table([["", "value"], *([key, shown(x)] for key, x in result_of(run).items())]),
        "<h2>Curves</h2>",
        _figure(figure),
        "<h2>Evaluations</h2>",
        _evaluations(run),
        "<h2>Video</h2>",
        _video(run, video),
        "<h2>Repeat it</h2>",
        *_repeating(run),
        *(f"<p><code>{escape(line)}</code></p>" for line in run.comments),
        "<h2>Configuration, config.yaml</h2>",
        f"<pre class='columns'>{escape(text)}</pre>",
    ]
    return _page(name, body)


def _repeating(run: RunRecord) -> list[str]:
    """How to repeat the run, or why no command does."""
    commands, reasons = commands_of(run, str(run.run_dir / "config.yaml"))
    lost = [x for x in run.comments if "in the program only" in x or "without a seed" in x]
    lines = [f"<pre>{escape(chr(10).join(commands))}</pre>"]
    if len(run.history) > 1:
        lines.append(_table(stretch_rows(run)))
    if reasons:
        lines.append("<p>This run cannot be repeated by commands:</p><ul>")
        lines += [f"<li>{escape(reason)}</li>" for reason in reasons]
        return [*lines, "</ul>"]
    if lost:
        return [*lines, "<p>The configuration alone cannot repeat this run:</p>"]
    if not run.history:
        lines.append(
            "<p>If it was trained in one call of <code>run</code>, which the record of an older "
            "version does not say:</p>"
        )
    same = "On a CPU, with these versions and this number of threads, every number is the same:"
    return [*lines, f"<p>{same}</p>"]


def _evaluations(run: RunRecord) -> str:
    found = run.evaluations()
    if not found:
        place = shlex.quote(str(run.run_dir))
        return (
            "<p>None during training: set <code>steps_per_eval</code>, or run "
            f"<code>everstep eval {escape(place)}</code>.</p>"
        )
    keys = [key for key in _EVALUATION if any(key in record for record in found)]
    rows = [["env steps", *(_EVALUATION[key] for key in keys)]]
    rows += [[shown(x["step"]), *(shown(x.get(key, "")) for key in keys)] for x in found]
    return _table(rows)


def _video(run: RunRecord, video: None | Path) -> str:
    if video is None:
        place = escape(shlex.quote(str(run.run_dir)))
        return f"<p>None: <code>everstep video {place}</code> records one.</p>"
    kind = _VIDEOS[video.suffix.lower()]
    within = run.run_dir if video.parent == run.run_dir else None
    content = read_plain(video, within=within, limit=MAX_VIDEO)
    data = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if kind.startswith("image"):
        return f'<img src="{data}" alt="The trained policy, playing">'
    return f'<video controls loop muted src="{data}"></video>'


def _notes(runs: Sequence[RunRecord]) -> list[str]:
    return [f'<p class="note">{escape(note)}</p>' for run in runs for note in run.notes]


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""

    def cells(row: Sequence[str], tag: str) -> str:
        first, *others = (escape(cell) for cell in row)
        numbers = "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in others)
        return f"<tr><{tag}>{first}</{tag}>{numbers}</tr>"

    lines = [cells(rows[0], "th"), *(cells(row, "td") for row in rows[1:])]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _page(title: str, body: Sequence[Any]) -> str:
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
    )
    made = f'<p class="muted">Everstep {escape(__version__)}</p>'
    return "\n".join([head, "<body>", *body, made, "</body></html>", ""])
