"""The TensorBoard logger: event files in the run's directory."""

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from typing_extensions import Self

from .base import RunStatus
from .delivery import Delivery, Media, Point
from .queued import QUEUE_SIZE, QueuedLogger, TrackedRun, warn_of_import

#: Statistics that compare runs on the page of hyperparameters.
_RESULTS = ("episodes/return_mean_100", "eval/episodes/return_mean")


class TensorBoardLogger(QueuedLogger):
    """Writes event files that `tensorboard --logdir` shows, from a thread.

    They have scalars, hyperparameters for the page that compares runs, texts, histograms, and
    videos as animated pictures. When a run is continued from a checkpoint, TensorBoard hides its
    earlier points after that checkpoint.

    Args:
        directory: Directory of the event files.
        step: Env steps from which a run is continued; None for a new one.
        queue_size: Largest number of waiting points; beyond it the oldest are dropped.
        record: Path of the complete record, to be named in warnings.

    """

    def __init__(
        self,
        directory: str | Path,
        *,
        step: None | int = None,
        queue_size: int = QUEUE_SIZE,
        record: str | Path = "",
    ) -> None:
        delivery = None
        try:
            import torch.utils.tensorboard as tensorboard
        except Exception as error:  # a broken dependency raises anything
            warn_of_import("TensorBoard", error, record, extra="tensorboard")
        else:
            delivery = _Events(tensorboard, Path(directory), step, queue_size, str(record))
        super().__init__(delivery)

    @classmethod
    def of_run(cls, run: TrackedRun, **options: Any) -> Self:
        """The logger of a run, with its files in the run's directory."""
        return cls(run.run_dir, step=run.step, record=run.record, **options)


class _Events(Delivery):
    """Delivery to event files."""

    tracker = "TensorBoard"
    libraries = ("tensorboard",)

    def __init__(
        self, tensorboard: Any, directory: Path, step: None | int, queue_size: int, record: str
    ) -> None:
        super().__init__(str(directory), queue_size=queue_size, record=record)
        self._tensorboard = tensorboard
        self._directory = directory
        self._step = step
        self._writer: Any = None
        self._has_head = False
        self.start()

    def _connect(self) -> None:
        purge_step = None if self._step is None else self._step + 1
        self._writer = self._tensorboard.SummaryWriter(str(self._directory), purge_step=purge_step)

    def _send_head(self) -> None:
        """Write hyperparameters before the first points: TensorBoard reads the first only."""
        if self._has_head or not (self._points or self._closing.is_set()):
            return
        from torch.utils.tensorboard.summary import hparams

        with self._lock:
            params, tags = dict(self._params), dict(self._tags)
        described = {name: _plain(value) for name, value in params.items()}
        *begin, self._hparams_end = hparams(described, dict.fromkeys(_RESULTS, 0.0))
        for summary in begin:
            self._writer.file_writer.add_summary(summary)
        for name, text in tags.items():
            self._writer.add_text(name, text)
        self._has_head = True

    def _send_points(self, points: list[Point]) -> None:
        for point in points:
            self._writer.add_scalar(
                point.name, point.value, point.step, point.milliseconds / 1000, new_style=True
            )
        self._progress += 1

    def _send_text(self, name: str, text: str) -> None:
        indented = "\n".join(f"    {line}" for line in text.splitlines())  # as code, in Markdown
        self._writer.add_text(name, indented)

    def _send_media(self, media: Media) -> None:
        seconds = media.milliseconds / 1000
        if not isinstance(media.content, Path):
            self._writer.add_histogram(media.name, media.content, media.step, walltime=seconds)
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        picture = Summary.Image(encoded_image_string=_as_gif(media.content), colorspace=3)
        summary = Summary(value=[Summary.Value(tag=media.name, image=picture)])
        self._writer.file_writer.add_summary(summary, media.step, seconds)

    def _flush(self) -> None:
        self._writer.flush()
        self._progress += 1

    def _end(self, status: RunStatus) -> None:
        self._writer.file_writer.add_summary(self._hparams_end, walltime=time.time())
        self._writer.close()


def _plain(value: Any) -> Any:
    """A value that TensorBoard's page of hyperparameters takes."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def _as_gif(path: Path) -> bytes:
    """A video as an animated picture, which is the only form that TensorBoard plays."""
    if path.suffix == ".gif":
        return path.read_bytes()
    import imageio_ffmpeg

    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "video.gif")
        quiet = ["-loglevel", "error", "-nostdin"]
        command = [imageio_ffmpeg.get_ffmpeg_exe(), *quiet, "-i", path, "-vf", "fps=15", out]
        subprocess.run(command, check=True, capture_output=True)
        return out.read_bytes()
