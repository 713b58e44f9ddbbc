"""Calls to a TorchRL environment: what it raises, and what becomes of its processes."""

import contextlib
from typing import Any

from everstep.errors import AdapterError, EnvError, EverstepError

#: Seconds that an ended process may take to be gone.
_PATIENCE = 5.0


def layers_of(env: Any) -> list[Any]:
    """The environment and those that it transforms, outermost first."""
    from torchrl.envs import TransformedEnv

    layers = [env]
    while isinstance(layers[-1], TransformedEnv):
        layers.append(layers[-1].base_env)
    return layers


def called(env: Any) -> str:
    """What errors and descriptions call an environment, such as `TransformedEnv(SerialEnv)`."""
    names = [type(layer).__name__ for layer in layers_of(env)]
    return "(".join(names) + ")" * (len(names) - 1)


class Calls:
    """Calls to an environment; whatever it raises becomes an `EnvError` that names it.

    The processes of a `ParallelEnv` are ended as soon as one of them has failed: what the others
    would answer belongs to no env step.

    Args:
        env: The environment.
        step_timeout: Seconds that a process may take to answer; `None` leaves it to TorchRL.

    Raises:
        AdapterError: Where the time is not positive, or there is no process to wait for.

    """

    def __init__(self, env: Any, step_timeout: None | float) -> None:
        from torchrl.envs import ParallelEnv

        self._env = env
        self._step_timeout = step_timeout
        self._ended = ""
        inner = layers_of(env)[-1]
        self._parallel = inner if isinstance(inner, ParallelEnv) else None
        if step_timeout is None:
            return
        if not step_timeout > 0 or self._parallel is None:
            raise AdapterError(
                "`step_timeout` is a number of seconds above 0 that the processes of a "
                f"`ParallelEnv` may take to answer; got {step_timeout} for {called(env)}."
            )
        if self._parallel.is_closed:
            self._parallel.start()  # which sets the time to TorchRL's own
        self._parallel.BATCHED_PIPE_TIMEOUT = step_timeout

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """What the environment's method of that name returns.

        Raises:
            EnvError: Where it raises, or the environment was closed.

        """
        if self._ended:
            raise EnvError(f"{called(self._env)} {self._ended}. Make a new one.")
        try:
            return getattr(self._env, name)(*args, **kwargs)
        except BaseException as error:
            self._fail(name, error)
            raise

    def close(self) -> None:
        """Close the environment, once."""
        if not self._ended:
            self._ended = "was closed"
            if not self._env.is_closed:
                self._env.close()

    def _fail(self, name: str, error: BaseException) -> None:
        """Raise an `EnvError` for an error that is the environment's own."""
        hint = ""
        if self._parallel is not None:
            end_processes(self._parallel)
            self._ended = f"was closed after `{name}` failed or was interrupted"
            hint = f" All its processes were ended. {_HERE}"
            if self._step_timeout is not None and "time limit" in str(error):
                hint += f" `step_timeout` is {self._step_timeout} s; pass more if it may take that."
        if isinstance(error, Exception) and not isinstance(error, EverstepError):
            told = f"{type(error).__name__}: {error}"
            raise EnvError(f"{called(self._env)} failed in `{name}`: {told}{hint}") from error


_HERE = (
    "What one of them raised it has printed; debug it by running the environments in this "
    "process, with a `SerialEnv`."
)


def end_processes(env: Any) -> None:
    """End every process of a `ParallelEnv`, at once, and close it."""
    for process in getattr(env, "_workers", ()):
        with contextlib.suppress(ValueError):  # TorchRL has closed those of a fault it has found
            process.kill()
            process.join(_PATIENCE)
    # It would wait that long for the answer of each.
    env._timeout = 0.0
    with contextlib.suppress(Exception):
        env.close()
    env.is_closed = True
