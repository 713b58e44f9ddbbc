"""Calls to a TorchRL environment, and the processes of a `ParallelEnv`."""

import contextlib
from typing import Any

from tensordict import TensorDictBase

from everstep.errors import AdapterError

from ..common.calls import Calls

#: Seconds to wait for the end of a process.
_PATIENCE = 5.0


def layers_of(env: Any) -> list[Any]:
    """The environment and those that it transforms, outermost first."""
    from torchrl.envs import TransformedEnv

    layers = [env]
    while isinstance(layers[-1], TransformedEnv):
        layers.append(layers[-1].base_env)
    return layers


def name_of(env: Any) -> str:
    """Name of an environment in errors and descriptions, such as `TransformedEnv(SerialEnv)`."""
    names = [type(layer).__name__ for layer in layers_of(env)]
    return "(".join(names) + ")" * (len(names) - 1)


class TorchRLCalls(Calls):
    """Calls to a TorchRL environment.

    All processes of a `ParallelEnv` are ended as soon as one of them has failed: later answers of
    the others would belong to no vector step.

    Args:
        env: The environment.
        step_timeout: Seconds that a process may take to answer; `None` for TorchRL's limit.

    Raises:
        AdapterError: If the time is not positive, or there is no process to wait for.

    """

    def __init__(self, env: Any, step_timeout: None | float) -> None:
        from torchrl.envs import ParallelEnv

        super().__init__(env)
        self._step_timeout = step_timeout
        inner = layers_of(env)[-1]
        self._parallel = inner if isinstance(inner, ParallelEnv) else None
        if step_timeout is None:
            return
        if self._parallel is None:
            raise AdapterError(
                "`step_timeout` is the time that the processes of a `ParallelEnv` may take to "
                f"answer; got {step_timeout} for {self.name}."
            )
        if self._parallel.is_closed:
            self._parallel.start()  # which sets TorchRL's limit
        self._parallel.BATCHED_PIPE_TIMEOUT = step_timeout

    @property
    def handle_of(self) -> str:
        """See `Handle.handle_of`."""
        return "" if self._parallel is None else "processes, one for each row"

    @property
    def name(self) -> str:
        """See `Calls.name`."""
        return name_of(self._env)

    def step_and_maybe_reset(self, data: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Results of a vector step, and the rows to act on next, after resets of ended rows.

        What it returned under `next` is copied before a reset, which may write into its memory.
        """
        own = vars(self._env)
        reset, before = self._env.reset, own.get("reset")

        def keep_and_reset(*args: Any, **kwargs: Any) -> Any:
            if "next" in data:
                data.set("next", data.get("next").clone())
            return reset(*args, **kwargs)

        own["reset"] = keep_and_reset
        try:
            returned: tuple[Any, Any] = self.call("step_and_maybe_reset", data)
        finally:
            own.pop("reset")
            if before is not None:
                own["reset"] = before
        return returned

    def close(self) -> None:
        """Close the environment, once."""
        if self._env.is_closed:
            self._closed = self._closed or "was closed"
        super().close()

    def _fail(self, method: str, error: BaseException, hint: str = "") -> None:
        if self._parallel is not None:
            end_processes(self._parallel)
            self._closed = f"was closed after `{method}` failed or was interrupted"
            hint = (
                " All its processes were ended. Their output has the error; debug it by running "
                "the environments in this process, with a `SerialEnv`."
            )
            if self._step_timeout is not None and "time limit" in str(error):
                hint += f" `step_timeout` is {self._step_timeout} s; pass more if it may take that."
        super()._fail(method, error, hint)


def end_processes(env: Any) -> None:
    """End every process of a `ParallelEnv`, at once, and close it."""
    for process in getattr(env, "_workers", ()):
        with contextlib.suppress(ValueError):  # TorchRL has closed a process that failed
            process.kill()
            process.join(_PATIENCE)
    env._timeout = 0.0  # `close` would wait that long for the answer of each
    with contextlib.suppress(Exception):
        env.close()
    env.is_closed = True
