"""The progress that a trainer shows while `run` lasts."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..conditions import HitsUpperBound
from ..loggers import Logger, LoggerGroup

if TYPE_CHECKING:  # imports rich
    from .progress import ConsoleProgress


class ProgressView:
    """Shows progress during a run; what fails in it does not reach the training.

    Args:
        is_wanted: Whether to show anything.

    """

    #: What was shown last; None before the first run, or if nothing is shown.
    progress: "None | ConsoleProgress" = None

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._group = LoggerGroup([])

    @contextmanager
    def shown(
        self,
        params: Mapping[str, Any],
        arguments: Mapping[str, Any],
        loggers: Sequence[Logger],
        env_steps: int = 0,
    ) -> Iterator[None]:
        """Context of a run, in which statistics are shown unless a logger shows them already.

        Args:
            params: Parameters of the algorithm.
            arguments: Arguments of `run`.
            loggers: Loggers of the run.
            env_steps: Env steps of the run so far.

        """
        from .progress import ConsoleProgress

        if self._is_wanted and not any(isinstance(x, ConsoleProgress) for x in loggers):
            self.progress = ConsoleProgress(_budget(params, arguments), pid=os.getpid())
            self.progress.first_env_steps = env_steps
            self._group = LoggerGroup([self.progress])
            self._group.log_params(params)
        try:
            yield
        finally:
            self._group.close()
            self._group = LoggerGroup([])

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Show statistics after `step` env steps, in a run."""
        self._group.log_metrics(metrics, step=step)


def _budget(params: Mapping[str, Any], arguments: Mapping[str, Any]) -> None | int:
    """Env steps at which training stops at the latest, if that is known."""
    steps = [
        condition.upper_bound * params["num_envs"] * params["horizon"]
        for condition in arguments.get("stop_conditions") or ()
        if isinstance(condition, HitsUpperBound) and condition.key == "algorithm/steps"
    ]
    budgets = [x for x in (arguments.get("total_env_steps"), *steps) if x not in (None, math.inf)]
    return int(min(budgets)) if budgets else None
