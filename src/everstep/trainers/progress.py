"""Progress of a run on the console: a live view on a terminal, one line per interval elsewhere."""

import html
import importlib.util
import io
import math
import os
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..loggers import RunStatus
from .live import LiveView
from .usage import Usage

#: Statistics that stand for the return of episodes, best first, with the episodes they are of.
_RETURNS = {"episodes/return_mean_100": "last 100", "episodes/return_mean": "last rollout"}
#: Shown instead of a return until the first episode has ended.
_NO_EPISODE = "no episode has ended yet"
#: Seconds between two redraws of the live view, and over which speed is averaged.
_REDRAW = 0.25
_SPEED_WINDOW = 30.0
#: Times of the parts of a train step, milliseconds; the first is a part of the second.
_PARTS = tuple(f"profiling/{part}_ms" for part in ("env", "collect", "step", "log"))
#: Statistics of an update, with their names and formats in the live view.
_UPDATE = {
    "monitors/kl_div": ("KL", ".4f"),
    "monitors/clip_fraction": ("clipped", ".0%"),
    "monitors/explained_variance": ("explained variance", ".2f"),
    "losses/entropy": ("entropy", ".3g"),
    "coefficients/lr": ("lr", ".2g"),
}
_BARS = "▁▂▃▄▅▆▇█"


class _Moment(NamedTuple):
    seconds: float
    env_steps: int
    parts: npt.NDArray[np.float64]  # milliseconds of each so far


#: Env steps of the last evaluation, among the statistics that are shown.
_EVALUATED = "evaluated/steps"


class ConsoleProgress:
    """A logger that shows a run's progress.

    On a terminal and in a notebook it is a live view: a progress bar, the return and its course,
    statistics of the last update (KL divergence, share of clipped rows, explained variance,
    entropy, learning rate), env steps per second now and on average, the shares of environment,
    policy, update, logging and everything else (evaluations, checkpoints) in the time, processor
    and memory of the process, elapsed time and time left. Elsewhere (a file, a pipe, CI,
    `TERM=dumb`) it is one plain line every `interval` seconds and one at the end. A statistic that
    was never logged is not shown; one that is absent for a while keeps its last value.

    "return" is the mean return of the last 100 episodes, or of those of the last rollout, as its
    label says; the episode length is always of the last rollout. Until an episode has ended,
    "reward" is shown instead, the mean reward of an env step; and where episodes do not end, the
    "rollout return", the sum of rewards over a rollout.

    Args:
        total_env_steps: Budget of the run; None if something else ends it.
        console: Output; standard error by default, which leaves standard output to results.
        interval: Seconds between two plain lines.
        clock: Seconds from any origin.
        pid: Process that trains, to be shown with its use of the machine; None shows none.

    """

    #: Budget of the run, env steps; may be set later.
    total_env_steps: None | int

    #: Env steps of the run when this trainer began: more than 0 in one that goes on.
    first_env_steps: int = 0

    #: Last value of every statistic.
    metrics: dict[str, float]

    #: Whether episodes end in the environment; None until parameters are logged.
    episodic: None | bool

    def __init__(
        self,
        total_env_steps: None | int = None,
        *,
        console: None | Console = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        pid: None | int = None,
    ) -> None:
        self._usage = None if pid is None else Usage(pid)
        self._first: None | _Moment = None
        self._parts = np.zeros(len(_PARTS))
        self.total_env_steps = total_env_steps
        self._console = Console(stderr=True) if console is None else console
        self._interval = interval
        self._clock = clock
        self.metrics = {}
        self._env_steps: None | int = None
        self.episodic = None
        self._course, self._course_label = Course(), ""
        self._moments: deque[_Moment] = deque()
        self._shown_at = clock()
        self._shown = True
        self._watched = _is_watched(self._console)
        self._live: None | LiveView = None
        has_cells = importlib.util.find_spec("IPython") is not None
        self._in_notebook = self._console.is_jupyter and has_cells
        #: The output cell of a notebook.
        self._cell: Any = None

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Read from the parameters whether episodes end in the environment; show nothing."""
        self.episodic = params.get("episodic")

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record statistics after `step` env steps, and show them if the interval is over."""
        self.metrics.update(metrics)
        self._env_steps = int(step)
        self._shown = False
        if any(name.startswith("eval/") for name in metrics):
            self.metrics[_EVALUATED] = int(step)
        else:
            self._parts = self._parts + [metrics.get(name, 0.0) for name in _PARTS]
            self._moments.append(_Moment(self._clock(), int(step), self._parts))
            self._first = self._first or self._moments[0]
            while len(self._moments) > 2 and (
                self._moments[-1].seconds - self._moments[0].seconds > _SPEED_WINDOW
            ):
                self._moments.popleft()
            label, value = _score(metrics, self.episodic)
            label = label.partition(",")[0]
            if label != self._course_label and value is not None:  # the first episode has ended
                self._course, self._course_label = Course(), label
            if value is not None:
                self._course.add(value)
        redraws = self._watched or self._in_notebook
        if self._clock() - self._shown_at >= (_REDRAW if redraws else self._interval):
            self._show()

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Show the last statistics and restore the terminal."""
        if not self._shown:
            self._show()
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def env_steps(self) -> int:
        """Env steps of the run so far."""
        return self.first_env_steps if self._env_steps is None else self._env_steps

    def _speed(self, first: None | _Moment = None) -> None | float:
        """Env steps per second, recent or since a moment; None without two moments."""
        if len(self._moments) < 2:
            return None
        first, last = first or self._moments[0], self._moments[-1]
        seconds = last.seconds - first.seconds
        return (last.env_steps - first.env_steps) / seconds if seconds > 0 else None

    def _elapsed(self) -> str:
        """Time since the first train step that was shown."""
        if self._first is None or len(self._moments) < 2:
            return ""
        return duration(self._moments[-1].seconds - self._first.seconds)

    def _show(self) -> None:
        self._shown_at = self._clock()
        self._shown = True
        if self._in_notebook:
            self._show_in_notebook()
            return
        if not self._watched:  # not printed by rich, which would fold the line
            print(self._line(), file=self._console.file, flush=True)
            return
        if self._live is None:
            self._live = LiveView(self._console)
        self._live.draw(self._view())

    def _show_in_notebook(self) -> None:
        from IPython.display import HTML, display

        page = io.StringIO()
        # Wider than any row: the page scrolls, where a console would cut.
        # And without the codes of terminals, which kernels ask for (FORCE_COLOR).
        Console(file=page, width=200, force_jupyter=False, force_terminal=False).print(self._view())
        shown = HTML(f"<pre>{html.escape(page.getvalue())}</pre>")
        if self._cell is None:
            self._cell = display(shown, display_id=True)
        else:
            self._cell.update(shown)

    def _line(self) -> str:
        texts = self._texts()
        speed, left = texts.pop("speed"), texts.pop("left")
        words = [
            f"{name.replace(', ', '_').replace(' ', '_')}={text}"
            for name, text in texts.items()
            if text
        ]
        if self._awaits_episode():
            words.insert(1, f"({_NO_EPISODE})")
        words += [f"{speed} env steps/s"] if speed else []
        return " ".join([*words, f"eta {left}"] if left else words)

    def _texts(self) -> dict[str, str]:
        """Formatted statistics by name; empty if they are unknown."""
        metrics, speed = self.metrics, self._speed()
        left = None
        if self.total_env_steps is not None and speed:
            left = max(self.total_env_steps - self.env_steps, 0) / speed
        return {
            "env_steps": f"{self.env_steps:,}",
            **_shown_score(metrics, self.episodic),
            "len, last rollout": _format(metrics.get("episodes/length_mean"), ".0f"),
            "kl": _format(metrics.get("monitors/kl_div"), ".4f"),
            **_shown_evaluation(metrics, self.episodic, "eval"),
            "speed": _format(speed, ",.0f"),
            "left": "" if left is None else duration(left),
        }

    def _awaits_episode(self) -> bool:
        label, value = _score(self.metrics, self.episodic)
        return bool(self.episodic) and label == "reward" and value is not None

    def _view(self) -> RenderableType:
        texts, total = self._texts(), self.total_env_steps
        label, score = next(iter(_shown_score(self.metrics, self.episodic).items()), ("", ""))
        bar = None if total is None else ProgressBar(total, self.env_steps, width=40)
        rows: dict[str, None | RenderableType] = {
            "progress": bar,
            "env steps": texts["env_steps"] + ("" if total is None else f" of {total:,}"),
            "return": _NO_EPISODE if self._awaits_episode() else "",
            **({label: f"{score} {self._course}".strip()} if label else {}),
            "episode length, last rollout": texts["len, last rollout"],
            **_shown_evaluation(self.metrics, self.episodic, "evaluation"),
            "update": _joined(self.metrics, _UPDATE),
            "speed": texts["speed"] and f"{texts['speed']} env steps/s{self._mean_speed()}",
            "time": self._shares(),
            "machine": "" if self._usage is None else str(self._usage),
            "elapsed": self._elapsed(),
            "time left": texts["left"],
        }
        table = Table.grid(padding=(0, 2))
        # What does not fit is cut from the values, never from their names.
        table.add_column(no_wrap=True, min_width=max(len(name) for name in rows if rows[name]))
        table.add_column(no_wrap=True)
        for label, value in rows.items():
            if value:
                table.add_row(Text(label, style="dim"), value)
        return table

    def _mean_speed(self) -> str:
        mean = self._speed(self._first)
        return "" if mean is None else f", {mean:,.0f} on average"

    def _shares(self) -> str:
        """Shares of the recent time in the parts of a train step, and between train steps."""
        if len(self._moments) < 2:
            return ""
        first, last = self._moments[0], self._moments[-1]
        env, collect, update, log = (last.parts - first.parts).tolist()
        busy = collect + update + log
        if not busy > 0:
            return ""
        total = max(1000 * (last.seconds - first.seconds), busy)
        parts = {"environment": env, "policy": collect - env} if env else {"collecting": collect}
        parts |= {"update": update, "logging": log, "other": total - busy}
        return ", ".join(f"{100 * x / total:.0f} % {name}" for name, x in parts.items())


class Course:
    """Sparkline of a statistic over the whole run, at most `width` bars.

    Each bar is the mean of equally many values; when there are too many bars, neighbours merge.
    Values that are not finite are left out.
    """

    def __init__(self, width: int = 32) -> None:
        self._width = width
        self._bars: list[float] = []
        self._stride = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Add the next value."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._stride:
            return
        self._bars.append(sum(self._pending) / self._stride)
        self._pending = []
        if len(self._bars) > self._width:
            pairs = zip(self._bars[::2], self._bars[1::2], strict=False)
            self._pending = self._bars[-1:] * self._stride if len(self._bars) % 2 else []
            self._bars = [(first + second) / 2 for first, second in pairs]
            self._stride *= 2

    def __str__(self) -> str:
        if not self._bars:
            return ""
        low, high = min(self._bars), max(self._bars)
        scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(_BARS[round((bar - low) * scale)] for bar in self._bars)


def duration(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: `0:12`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def summary(
    metrics: Mapping[str, float],
    run_dir: None | str | Path,
    ui_command: None | str,
    seconds: float,
    *,
    episodic: None | bool = None,
    first_env_steps: int = 0,
) -> str:
    """A few lines on how a run ended, where it is recorded and how to look at it.

    Args:
        metrics: The last statistics, `env/steps` among them; any may be absent.
        run_dir: The run's directory, if it has one.
        ui_command: The command that shows the run's curves, if there is one.
        seconds: Duration of this training.
        episodic: Whether episodes end in the environment; None if that is unknown.
        first_env_steps: Env steps of the run before this training, if it went on.

    """
    total = int(metrics.get("env/steps", first_env_steps))
    env_steps = total - first_env_steps
    speed = f", {env_steps / seconds:,.0f} env steps/s" if seconds > 0 else ""
    lines = [f"Trained {env_steps:,} env steps in {duration(seconds)}{speed}."]
    if first_env_steps:
        lines[0] = f"{lines[0].removesuffix('.')}; {total:,} in all."
    label, value = _score(metrics, episodic)
    awaits = episodic and label == "reward" and value is not None
    rows = {
        "return": _NO_EPISODE if awaits else "",
        **_shown_score(metrics, episodic),
        "episode length, last rollout": _format(metrics.get("episodes/length_mean"), ".1f"),
        **_shown_evaluation(metrics, episodic, "evaluation"),
        "run": run_dir,
        "evaluate": run_dir and f"everstep eval {shlex.quote(str(run_dir))}",
        "plot": run_dir and f"everstep plot {shlex.quote(str(run_dir))}",
        "curves": ui_command,
    }
    width = max([15, *(len(name) for name, value in rows.items() if value)])
    lines += [f"  {name:<{width}} {value}" for name, value in rows.items() if value]
    return "\n".join(lines)


def _score(metrics: Mapping[str, float], episodic: None | bool) -> tuple[str, None | float]:
    """The statistic that says how well the policy does: its name for readers, and its value."""
    for key, episodes in _RETURNS.items():
        if key in metrics:
            return f"return, {episodes}", metrics[key]
    if episodic:
        return "reward", metrics.get("rewards/mean")
    return "rollout return", metrics.get("returns/mean")


def _shown_score(metrics: Mapping[str, float], episodic: None | bool) -> dict[str, str]:
    """The score by its name; empty if it is unknown."""
    label, value = _score(metrics, episodic)
    form = ".4g" if label == "reward" else ".1f"  # one env step's may be small
    return {} if value is None else {label: format(value, form)}


def _shown_evaluation(
    metrics: Mapping[str, float], episodic: None | bool, name: str
) -> dict[str, str]:
    """The score of the last evaluation, by `name`; empty if there was none.

    The name has the env steps of one that was of an earlier policy.
    """
    at = metrics.get(_EVALUATED, math.inf)
    since = f" at {at:,}" if at < metrics.get("env/steps", -math.inf) else ""
    own = {key.removeprefix("eval/"): x for key, x in metrics.items() if key.startswith("eval/")}
    return {
        (name if label.startswith("return") else f"{name} {label}") + since: text
        for label, text in _shown_score(own, episodic).items()
    }


def _joined(metrics: Mapping[str, float], shown: Mapping[str, tuple[str, str]]) -> str:
    """Statistics with their names, those that are known."""
    return "  ".join(
        f"{label} {format(metrics[name], form)}"
        for name, (label, form) in shown.items()
        if name in metrics
    )


def _format(value: None | float, form: str) -> str:
    return "" if value is None else format(value, form)


def _is_watched(console: Console) -> bool:
    """Whether the console is a terminal that can redraw, outside of CI."""
    redraws = console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter
    redraws = redraws and not console.legacy_windows  # which has no control sequences
    return redraws and os.environ.get("CI", "").lower() not in ("1", "true", "yes")
