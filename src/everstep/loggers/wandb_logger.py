"""The logger of Weights & Biases: a run on its server, or files that can be sent to it later."""

import contextlib
import logging
import netrc
import os
import secrets
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from typing_extensions import Self

from ..core.files import write_file
from .base import RunStatus
from .delivery import Delivery, Media, Point, redacted
from .queued import QUEUE_SIZE, QueuedLogger, TrackedRun, warn_of_import

_log = logging.getLogger(__name__)

#: Seconds that the library may try to reach its server, before it is asked again.
_INIT_TIMEOUT = 15.0

#: Exit codes of a run, by its end.
_EXIT_CODES: dict[RunStatus, int] = {"FINISHED": 0, "FAILED": 1, "KILLED": 255}

Mode = Literal["online", "offline", "disabled"]


class WandbLogger(QueuedLogger):
    """Sends parameters, statistics, histograms and videos to Weights & Biases, from a thread.

    Args:
        directory: Directory of the library's files, in `wandb/` there.
        project: Project of the run.
        name: Name of the run.
        run_id: Id of a run of an earlier logger, to continue in place of a new one.
        mode: `"online"`, `"offline"` or `"disabled"`. None: what WANDB_MODE says, else online if
            there is an API key, else offline: files that `wandb sync` sends later.
        queue_size: Largest number of waiting points; beyond it the oldest are dropped.
        record: Path of the complete record, to be named in warnings.
        options: Further arguments of `wandb.init`, such as `entity`, `group` and `tags`.

    """

    def __init__(
        self,
        directory: str | Path = ".",
        *,
        project: str = "everstep",
        name: None | str = None,
        run_id: None | str = None,
        mode: None | Mode = None,
        queue_size: int = QUEUE_SIZE,
        record: str | Path = "",
        **options: Any,
    ) -> None:
        self._id = run_id or secrets.token_hex(4)
        delivery = None
        try:
            import wandb
        except Exception as error:  # a broken dependency raises anything
            warn_of_import("Weights & Biases", error, record, extra="wandb")
        else:
            arguments = {
                "project": project,
                "name": name,
                "id": self._id,
                "resume": "allow",
                "dir": str(directory),
                "mode": mode or _default_mode(Path(directory)),
                **options,
            }
            delivery = _WandbRun(wandb, arguments, queue_size, str(record))
        super().__init__(delivery)

    @classmethod
    def of_run(cls, run: TrackedRun, **options: Any) -> Self:
        """The logger of a run, in a project named after the experiment or the environment."""
        named = {
            "project": _project(run.experiment_name or run.subject),
            "name": run.name,
            "run_id": run.continued,
            "record": run.record,
        }
        return cls(run.run_dir, **named | options)

    @property
    def run_id(self) -> str:
        """Id of the run, chosen here."""
        return self._id


class _WandbRun(Delivery):
    """Delivery to one run of Weights & Biases."""

    tracker = "Weights & Biases"
    libraries = ("wandb",)

    def __init__(self, wandb: Any, arguments: dict[str, Any], queue_size: int, record: str) -> None:
        place = _server() if arguments["mode"] == "online" else arguments["dir"]
        super().__init__(place, queue_size=queue_size, record=record)
        self._wandb = wandb
        self._arguments = arguments
        self._run: Any = None
        self._last_step = -1  # the library ignores points before the last one
        self.start()

    def _connect(self) -> None:
        settings = self._wandb.Settings(silent=True, console="off", init_timeout=_INIT_TIMEOUT)
        self._run = self._wandb.init(settings=settings, reinit="create_new", **self._arguments)
        self._last_step = self._run.starting_step

    def _send_head(self) -> None:
        with self._lock:
            config, self._params = {**self._params, **self._tags}, {}
            self._tags = {}
        if config:
            self._run.config.update(_plain(config), allow_val_change=True)

    def _send_points(self, points: list[Point]) -> None:
        for step, same in groupby(points, key=attrgetter("step")):
            if step >= self._last_step:
                self._run.log({point.name: point.value for point in same}, step=step)
                self._last_step = step
        self._progress += 1

    def _send_text(self, name: str, text: str) -> None:
        path = Path(self._run.dir) / name
        write_file(path, text)
        self._run.save(str(path), base_path=self._run.dir, policy="now")

    def _send_media(self, media: Media) -> None:
        if isinstance(media.content, Path):
            content = self._wandb.Video(str(media.content), format=media.content.suffix[1:])
        else:
            content = self._wandb.Histogram(media.content)
        self._last_step = max(self._last_step, media.step)
        self._run.log({media.name: content}, step=self._last_step)

    def _refusal(self, error: BaseException) -> str:
        """The library hides statuses, and repeats what may pass by itself."""
        errors = self._wandb.errors
        is_permanent = isinstance(error, errors.AuthenticationError | errors.UsageError)
        return "check the API key: wandb login" if is_permanent else super()._refusal(error)

    def _flush(self) -> None:
        """The library sends by itself."""

    def _end(self, status: RunStatus) -> None:
        self._run.finish(exit_code=_EXIT_CODES[status])


def _server() -> str:
    return os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")


def _default_mode(directory: Path) -> str:
    """Online if the environment says so or there is a key; never a question on the terminal."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        host = urlsplit(_server()).hostname or ""
        if os.environ.get("WANDB_API_KEY") or netrc.netrc().authenticators(host):
            return "online"
    _log.info(
        "There is no API key of Weights & Biases, so the run stays on this machine. To send it: "
        "wandb login, then wandb sync %s",
        directory / "wandb",
    )
    return "offline"


def _project(name: str) -> str:
    """The name with the characters that a project may have."""
    return "".join("-" if each in "/\\#?%:" else each for each in redacted(name))[:128]


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
