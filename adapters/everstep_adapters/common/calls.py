"""Calls to a wrapped environment: its errors become `EnvError`, and a closed one is not called."""

from pathlib import Path
from traceback import extract_tb
from typing import Any, ClassVar

import numpy as np

from everstep.env import has_halves
from everstep.errors import EnvError, EverstepError

#: Raised by Python when the other end of a pipe is gone.
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class Calls:
    """Calls to an environment; each error that it raises becomes an `EnvError` that names it.

    Args:
        env: The environment.

    """

    #: What the environment is a handle of; see `Handle`.
    handle_of: Any = ""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._closed = ""

    @property
    def name(self) -> str:
        """Name of the environment in errors."""
        return str(self._env)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The result of one of the environment's methods.

        Raises:
            EnvError: If the method raises, or the environment was closed.

        """
        if self._closed:
            self._check_open()
        try:
            return getattr(self._env, method)(*args, **kwargs)
        except BaseException as error:
            self._fail(method, error)
            raise

    def close(self) -> None:
        """Close the environment, once."""
        if not self._closed:
            self._closed = "was closed"
            self._env.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(f"{self.name} {self._closed}. Make a new one.")

    def _fail(self, method: str, error: BaseException, hint: str = "") -> None:
        """Raise an `EnvError` for an error of the environment's own; interrupts pass.

        Args:
            method: Name of the method that raised the error.
            error: The error.
            hint: End of the message.

        """
        if isinstance(error, Exception) and not isinstance(error, EverstepError):
            reason = error_text(error)
            reason = reason.removesuffix(".") if hint else reason
            text = f"{self.name} failed in `{method}`: {reason}{hint}"
            raise EnvError(text) from error


class VectorCalls(Calls):
    """Calls to a Gymnasium vector environment."""

    #: Names of the methods that begin a vector step in the background and complete it; empty if
    #: there are none.
    halves: ClassVar[tuple[str, str]] = ("", "")

    #: Whether a vector step runs in the background.
    _has_begun = False

    def reset(self, *, seed: None | int = None, options: None | dict[str, Any] = None) -> Any:
        """The environment's `reset`: observations and infos.

        Raises:
            EnvError: If it raises or returns something else, or the environment was closed.

        """
        return self._parts("reset", 2, self.call("reset", seed=seed, options=options))

    def step(self, actions: Any) -> Any:
        """The environment's `step`: observations, rewards, terminated, truncated and infos.

        Raises:
            EnvError: If it raises or returns something else, or the environment was closed.

        """
        returned = self.call("step", actions)
        if type(returned) is tuple and len(returned) == 5 and type(returned[4]) is dict:
            return returned  # what nearly all return
        return self._parts("step", 5, returned)

    @property
    def resets_rows(self) -> bool:
        """Whether `reset_rows` resets no other row; others ignore the mask and reset all."""
        return False

    def reset_rows(self, rows: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
        """Observations of all rows after resetting some; only theirs are meaningful.

        Args:
            rows: Rows to reset, bool `[num_envs]`, at least one.

        Raises:
            EnvError: As `reset`.

        """
        # New options and a copy of the mask: Gymnasium pops and keeps them.
        return self.reset(options={"reset_mask": rows.copy()})[0]

    def _parts(self, method: str, count: int, returned: Any) -> Any:
        """The result of a method, which has `count` parts."""
        if isinstance(returned, tuple | list) and len(returned) == count:
            infos = returned[-1]
            return (*returned[:-1], _of_rows(infos)) if isinstance(infos, list) else returned
        size = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        raise EnvError(
            f"`{method}` of {self.name} must return {count} values, as Gymnasium's; got a "
            f"{type(returned).__name__}{size}."
        )

    @property
    def asynchronous(self) -> bool:
        """Whether the rows are stepped between `send` and `receive`, rather than in `receive`.

        False in wrappers, which have no such methods of their own.
        """
        return self._env is self._env.unwrapped and has_halves(self._env, self.halves[0])

    def send(self, actions: Any) -> None:
        """Begin a vector step, which `receive` completes."""
        if self.asynchronous:
            self.call(self.halves[0], actions)
            self._has_begun = True
        else:
            self._actions = actions

    def receive(self) -> Any:
        """The result of the vector step that `send` began, as `step` returns it."""
        if not self._has_begun:
            return self.step(self._actions)
        returned = self.call(self.halves[1])
        self._has_begun = False
        return returned


def _of_rows(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Infos of each row, as SuperSuit's classes return them, by name: final observations alone."""
    key = "terminal_observation"
    if not any(key in info for info in infos):
        return {}
    final = np.empty(len(infos), dtype=object)
    final[:] = [info.get(key) for info in infos]
    return {key: final}


def error_text(error: Exception) -> str:
    """Class and message of an error; of one without a message the line that raised it."""
    text = str(error)
    if not text and error.__traceback__ is not None:
        frame = extract_tb(error.__traceback__)[-1]
        text = f"{frame.line} ({Path(frame.filename).name}, line {frame.lineno})"
    return f"{type(error).__name__}: {text}"
