"""A callback that records videos of the policy while it is trained."""

import logging
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..callbacks import Callback
from ..config import load
from ..core.checkpoints import save_file
from ..errors import ConfigError
from ..policies import load_policy, policy_state
from ..trainers import TrainConfig
from ..trainers._evaluations import seed_eval_env
from ._display import use_headless_renderers
from ._playing import make_rendering_env
from .videos import record_video

if TYPE_CHECKING:
    from ..env import Env

__all__ = ["RecordVideos"]

_log = logging.getLogger(__name__)

#: Keys of a run that making its environment depends on.
_KEYS = ("env_cls", "env_kwargs", "env_config", "horizon")


class RecordVideos(Callback):
    """Records episodes of the policy every so many train steps.

    The files are `videos/step-000012345.mp4` in the run's directory, by env steps; trackers that
    take videos get them too. Training waits for the episodes; its results are the same as without
    them. If a video cannot be recorded, one warning is logged, and no more are recorded.

    Args:
        every: Train steps between videos; None records only where `record` is called.
        episodes: Episodes of a video, with the most likely actions.
        max_env_steps: Env steps after which an episode is cut.
        suffix: `".mp4"` or `".gif"`.

    """

    def __init__(
        self,
        every: None | int = 500,
        *,
        episodes: int = 1,
        max_env_steps: int = 1000,
        suffix: str = ".mp4",
    ) -> None:
        self.every, self.suffix = every, suffix
        self.options = {"episodes": episodes, "max_env_steps": max_env_steps}
        self._env: None | Env = None
        self._failed = False

    def on_start(self, trainer: Any) -> None:
        """Begin with a training, which has a directory to write videos to."""
        if trainer.run_dir is None:
            raise ConfigError(
                "`RecordVideos` writes videos to the run's directory, and this trainer has none: "
                "got `run_dir=None`. Drop one of the two."
            )
        super().on_start(trainer)

    def on_train_step(self, stats: dict[str, Any]) -> None:
        """Record a video if one is due."""
        if self.every and stats["algorithm/steps"] % self.every == 0:
            self.record()

    def on_end(self, status: str) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def record(self) -> None | Path:
        """Record a video of the policy of now; its file, or None if that failed."""
        is_first = not self.trainer.algorithm.reducer.rank  # of several processes
        if self._failed or not is_first:
            return None
        step = self.trainer.state["env/steps"]
        path = Path(self.trainer.run_dir) / "videos" / f"step-{step:09d}{self.suffix}"
        try:
            with _own_random_numbers():
                self._record(path)
        except Exception as error:  # of an environment, a renderer or an encoder
            self._failed = True
            _log.warning("No more videos of this training, which goes on: %s", error)
            return None
        self.trainer.logger.log_video("video", path, step=step)
        return path

    def _record(self, path: Path) -> None:
        use_headless_renderers()
        if self._env is None:
            self._env = make_rendering_env(_config_of(self.trainer.run_dir), "rgb_array")
            seed_eval_env(self._env, self.trainer.algorithm)
        policy = self.trainer.algorithm.policy
        with tempfile.TemporaryDirectory() as directory:  # another copy: with its own modes
            file = Path(directory) / "policy"
            save_file(file, policy_state(policy))
            copied = load_policy(
                file,
                model_cls=type(policy.model),
                distribution_cls=policy.distribution_cls,
                device="cpu",
            )
        path.parent.mkdir(exist_ok=True)
        record_video(copied, self._env, path, title=path.stem, **self.options)


def _config_of(run_dir: Path) -> TrainConfig:
    document = load(run_dir / "config.yaml", within=run_dir)
    values = {key: value for key, value in document.values.items() if key in _KEYS}
    return TrainConfig.from_document(replace(document, values=values))


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Context that leaves the generators of a CPU as they were."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
