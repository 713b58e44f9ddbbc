"""Calls to Gymnasium's own vector environments, and the processes of an `AsyncVectorEnv`.

All processes are ended as soon as one of them has failed: later answers of the others would belong
to no vector step.
"""

import socket
import struct
from multiprocessing.connection import wait
from typing import Any, cast

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from everstep.errors import EnvError

from ..common.calls import GONE, VectorCalls, error_text
from ..common.pools import PoolCalls, is_ale, is_envpool
from .mismatches import explain, returned_nothing
from .modes import AnyVectorEnv, has_own_reset, resets_single_rows
from .rows import BoolArray

#: Seconds to wait for an error that a worker has announced, and for a process to end.
_PATIENCE = 5.0

_HERE = "by running it in this process, with `vectorization_mode='sync'` or `SyncVectorEnv`"


class MaskCalls(VectorCalls):
    """Calls to one of Gymnasium's vector environments, perhaps in wrappers."""

    @property
    def resets_rows(self) -> bool:
        """See `VectorCalls.resets_rows`. A wrapper with a `reset` of its own may not know masks."""
        return resets_single_rows(self._env) and not has_own_reset(self._env)

    def reset_rows(self, rows: BoolArray) -> Any:
        """See `VectorCalls.reset_rows`."""
        base: Any = self._env.unwrapped
        found = getattr(base, "_env_obs", ())  # of a `SyncVectorEnv`, which returns all of them
        if any(obs is None for obs in found):  # it continues a checkpoint, and was not stepped yet
            space = base.single_observation_space
            zeros = create_empty_array(space, 1, fn=np.zeros)
            blank = next(iterate(batch_space(space, 1), zeros))
            base._env_obs = [blank if obs is None else obs for obs in found]
        return super().reset_rows(rows)

    def _fail(self, method: str, error: BaseException, hint: str = "") -> None:
        if message := returned_nothing(method, str(error)):
            raise EnvError(f"{message} Add the missing `return`.") from error
        if isinstance(error, Exception):
            hint += explain(self._env.unwrapped, error)
        super()._fail(method, error, hint)


class CartPoleCalls(VectorCalls):
    """Calls to CartPole's own vector environment, which ignores masks of `reset`."""

    resets_rows = True

    def reset_rows(self, rows: BoolArray) -> Any:
        """See `VectorCalls.reset_rows`: a vector step resets the rows; the others are put back."""
        env = self._env
        others, waiting = ~rows, env.prev_done & ~rows
        state, steps = env.state[:, others].copy(), env.steps[others].copy()
        env.prev_done = rows.copy()
        observation = self.step(np.zeros(len(rows), np.int64))[0]
        env.state[:, others], env.steps[others], env.prev_done = state, steps, waiting
        return observation


class BufferCalls(MaskCalls):
    """Calls to a `SyncVectorEnv`, whose `step` returns its buffer of observations, not a copy.

    The caller reads what is returned before the next call. Others who step the environment get the
    copies that it was made to return.
    """

    def step(self, actions: Any) -> Any:
        """See `VectorCalls.step`."""
        env = self._env
        copies, env.copy = env.copy, False
        try:
            return super().step(actions)
        finally:
            env.copy = copies


class WorkerCalls(MaskCalls):
    """Calls to an environment whose rows are processes; the first failure ends them all.

    Args:
        env: The environment, perhaps in wrappers.
        timeout: Seconds that a worker may take to answer; `None` for no limit.

    """

    halves = ("step_async", "step_wait")
    handle_of = "processes, one for each row"

    def __init__(self, env: AnyVectorEnv, timeout: None | float) -> None:
        super().__init__(env)
        workers: Any = env.unwrapped
        self._workers = workers
        self._timeout = timeout
        self._errors = workers.error_queue = _Errors(workers.error_queue)
        limit_waiting(workers, timeout)

    def close(self) -> None:
        """Close the environment, once; its processes end whatever state they are in."""
        if not self._closed and self._workers._state is not AsyncState.DEFAULT:
            end_processes(self._workers)  # their answers may never come
        try:
            super().close()
        except (OSError, EOFError):  # some had ended already, or do not answer
            end_processes(self._workers)

    def _fail(self, method: str, error: BaseException, hint: str = "") -> None:
        name = "step" if method.startswith("step_") else method
        codes = end_processes(self._workers, some_ended=isinstance(error, GONE))
        self.close()
        self._closed = f"was closed after `{name}` failed or was interrupted"
        if isinstance(error, Exception):
            reason = self._reason(name, error, codes)
            raise EnvError(f"{self.name} failed in `{name}`: {reason}") from error

    def _reason(self, method: str, error: Exception, codes: dict[int, int]) -> str:
        if isinstance(error, BlockingIOError) and not self._errors.last:
            return (
                f"a worker did not answer within {self._timeout:g} s, so all were ended. Pass a "
                f"larger `step_timeout` if it may take longer, or find where it hangs {_HERE}."
            )
        if isinstance(error, GONE) and not self._errors.last:
            ended = ", ".join(f"{i} (exit code {code})" for i, code in codes.items())
            return (
                f"the process of environment {ended or 'unknown'} ended. Exit code -9 means that "
                "it was killed, often for want of memory: use fewer environments. Other codes are "
                f"its own: find the cause {_HERE}."
            )
        if message := returned_nothing(method, self._errors.last or str(error)):
            return f"{message} Add the missing `return`, and make a new one."
        cause = self._errors.last or error_text(error)
        cause += explain(self._workers, Exception(cause))
        return f"{cause.removesuffix('.')}. All workers were ended; debug it {_HERE}."


class _Errors:
    """The queue of the workers' errors, with a limit on waiting.

    An error that cannot be pickled never arrives.
    """

    #: The last error that arrived, with the number of its environment.
    last: str

    def __init__(self, queue: Any) -> None:
        self.last = ""
        self._queue = queue

    def get(self) -> Any:
        """The next error: environment, type, value and traceback.

        Raises:
            EOFError: If none arrives, or one whose class does not exist here.

        """
        try:
            received = self._queue.get(timeout=_PATIENCE)
        except Exception as error:
            self.last = "an environment raised an error that could not be sent to this process"
            raise EOFError(self.last) from error
        index, kind, value, _ = received
        self.last = f"environment {index} raised {kind.__name__}: {value}"
        return received


def make_calls(env: AnyVectorEnv, step_timeout: None | float) -> VectorCalls:
    """The calls to `env`.

    Args:
        env: The environment.
        step_timeout: Seconds that a worker of an `AsyncVectorEnv` may take to answer.

    """
    if (own := getattr(env.unwrapped, "calls_cls", None)) is not None:
        return cast(VectorCalls, own(env))
    if isinstance(env.unwrapped, AsyncVectorEnv):
        return WorkerCalls(env, step_timeout)
    if type(env) is SyncVectorEnv:
        return BufferCalls(env)
    if type(env) is CartPoleVectorEnv:
        return CartPoleCalls(env)
    return PoolCalls(env) if is_envpool(env) or is_ale(env) else MaskCalls(env)


def limit_waiting(env: AsyncVectorEnv, seconds: None | float) -> None:
    """Make reading a worker's answer raise `BlockingIOError` after `seconds`.

    The operating system measures the time, so it costs nothing in a vector step. Pipes of Windows
    have no such limit: there this has no effect.
    """
    if not hasattr(socket, "AF_UNIX"):
        return
    whole, rest = divmod(seconds or 0.0, 1.0)  # 0 is no limit
    limit = struct.pack("ll", int(whole), int(rest * 1e6) or int(rest > 0))
    for pipe in env.parent_pipes:
        with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def end_processes(env: AsyncVectorEnv, some_ended: bool = False) -> dict[int, int]:
    """End every worker at once. Exit codes, by row, of those that had ended by themselves.

    Args:
        env: The environment, whose `close` has nothing to do afterwards.
        some_ended: Whether a pipe is gone, so that a process is ending: wait for its exit code.

    """
    gone = wait([process.sentinel for process in env.processes], _PATIENCE if some_ended else 0)
    for process in env.processes:
        if process.sentinel in gone:
            process.join(_PATIENCE)
    codes = [process.exitcode for process in env.processes]
    for process in env.processes:
        process.terminate()
    for process in env.processes:
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
    for pipe in env.parent_pipes:
        if pipe is not None:
            pipe.close()
    env._state = AsyncState.DEFAULT
    env.closed = True
    return {i: code for i, code in enumerate(codes) if code is not None}
