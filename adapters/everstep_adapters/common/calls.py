"""Calls to a vector environment: whatever it raises becomes an `EnvError` that names it."""

from typing import TYPE_CHECKING, Any

from everstep.errors import EnvError, EverstepError

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

#: Raised by Python when the other end of a pipe is gone.
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class Calls:
    """Calls to an environment that steps in this process.

    Args:
        env: The environment.

    """

    def __init__(self, env: "VectorEnv[Any, Any, Any]") -> None:
        self._env = env
        self._ended = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """What the environment's `reset` returns: observations and infos.

        Raises:
            EnvError: Where it raises, or was closed.

        """
        self._check_open()
        try:
            observation, infos = self._env.reset(seed=seed, options=options)
        except BaseException as error:
            self._fail("reset", error)
            raise
        return observation, infos

    def step(self, actions: Any) -> Any:
        """What the environment's `step` returns: observations, rewards, two flags, infos.

        Raises:
            EnvError: Where it raises, or was closed.

        """
        if self._ended:
            self._check_open()
        try:
            observation, rewards, terminated, truncated, infos = self._env.step(actions)
        except BaseException as error:
            self._fail("step", error)
            raise
        return observation, rewards, terminated, truncated, infos

    @property
    def asynchronous(self) -> bool:
        """Whether the rows are stepped between `send` and `receive`, rather than in `receive`."""
        return False

    def send(self, actions: Any) -> None:
        """Begin an env step, which `receive` completes; here, where nothing runs beside, later."""
        self._sent = actions

    def receive(self) -> Any:
        """What `step` returns, of the env step that `send` began."""
        return self.step(self._sent)

    def close(self) -> None:
        """Close the environment, once."""
        if not self._ended:
            self._ended = "was closed"
            self._env.close()

    def _check_open(self) -> None:
        if self._ended:
            raise EnvError(f"{self._env} {self._ended}. Make a new one.")

    def _fail(self, name: str, error: BaseException) -> None:
        """Raise an `EnvError` for an error that is the environment's own."""
        if isinstance(error, Exception) and not isinstance(error, EverstepError):
            raise EnvError(f"{self._env} failed in `{name}`: {error_text(error)}") from error


def why_not_made(error: Exception) -> str:
    """What to say of an environment that could not be made."""
    if isinstance(error, GONE):
        return (
            "a worker ended while it started; what it printed says why. Workers that are spawned "
            "import the script again: let it start its work under `if __name__ == '__main__':`"
        )
    return error_text(error)


def error_text(error: Exception) -> str:
    """Class and message of an error."""
    return f"{type(error).__name__}: {error}"
