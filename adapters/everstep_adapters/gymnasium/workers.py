"""Calls to a vector environment: what it raises, who answers, and what becomes of its processes.

Whatever an environment raises becomes an `EnvError` that names it. The processes of an
`AsyncVectorEnv` are ended as soon as one of them has failed: what they would answer from then on
belongs to no env step.
"""

import socket
import struct
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from everstep.env import has_halves
from everstep.errors import AdapterError, EnvError

from ..common.calls import GONE, Calls, error_text
from ..common.pools import PoolCalls, is_ale, is_envpool

if TYPE_CHECKING:
    from gymnasium.vector import AsyncVectorEnv, VectorEnv

#: Seconds that an error which a worker announced may be on its way, and that one may take to end.
_PATIENCE = 5.0


class BufferCalls(Calls):
    """Calls to a `SyncVectorEnv`, which returns its buffer of observations in `step`, not a copy.

    Whoever calls takes what is returned before the next call. Others who step the environment get
    the copies that it was made to return.
    """

    def step(self, actions: Any) -> Any:
        """See `Calls.step`."""
        env: Any = self._env
        copies, env.copy = env.copy, False
        try:
            return super().step(actions)
        finally:
            env.copy = copies


class WorkerCalls(Calls):
    """Calls to an environment whose rows are processes; the first failure ends them all.

    Args:
        env: The environment, perhaps in wrappers.
        patience: Seconds that a worker may take to answer; `None` for any time.

    """

    def __init__(self, env: "VectorEnv[Any, Any, Any]", patience: None | float) -> None:
        super().__init__(env)
        self._workers: AsyncVectorEnv = env.unwrapped  # type: ignore[assignment]
        self._patience = patience
        self._has_begun = False
        self._errors = _Errors(self._workers.error_queue)
        self._workers.error_queue = self._errors  # type: ignore[assignment]
        limit_waiting(self._workers, patience)

    @property
    def asynchronous(self) -> bool:
        """See `Calls.asynchronous`. Wrappers know of no such thing, and wait."""
        return self._env is self._workers and has_halves(self._env, "step_async")

    def send(self, actions: Any) -> None:
        """See `Calls.send`. The workers begin at once."""
        self._has_begun = self.asynchronous
        if not self._has_begun:
            return super().send(actions)
        self._check_open()
        try:
            self._workers.step_async(actions)
        except BaseException as error:
            self._fail("step", error)
            raise

    def receive(self) -> Any:
        """See `Calls.receive`."""
        if not self._has_begun:
            return super().receive()
        self._check_open()
        try:
            return self._workers.step_wait()
        except BaseException as error:
            self._fail("step", error)
            raise

    def close(self) -> None:
        """Close the environment, once; its processes end whatever state they are in."""
        from gymnasium.vector.async_vector_env import AsyncState

        if not self._ended and self._workers._state is not AsyncState.DEFAULT:
            end_processes(self._workers)  # waiting for their answers could take for ever
        try:
            super().close()
        except (OSError, EOFError):  # some had ended already, or do not answer
            end_processes(self._workers)

    def _fail(self, name: str, error: BaseException) -> None:
        codes = end_processes(self._workers, some_ended=isinstance(error, GONE))
        self.close()
        self._ended = f"was closed after `{name}` failed or was interrupted"
        if isinstance(error, Exception):
            reason = self._reason(error, codes)
            raise EnvError(f"{self._env} failed in `{name}`: {reason}") from error

    def _reason(self, error: Exception, codes: dict[int, int]) -> str:
        if isinstance(error, BlockingIOError) and not self._errors.last:
            return (
                f"a worker did not answer within {self._patience} s, so all were ended. Pass a "
                f"larger `step_timeout` if it may take longer, or find where it hangs {_HERE}."
            )
        if isinstance(error, GONE) and not self._errors.last:
            ended = ", ".join(f"{i} (exit code {code})" for i, code in codes.items())
            return (
                f"the process of environment {ended or 'unknown'} ended. Exit code -9 means that "
                "it was killed, often for want of memory: use fewer environments. Other codes are "
                f"its own: find the cause {_HERE}."
            )
        return (
            f"{self._errors.last or error_text(error)}. All workers were ended; debug it {_HERE}."
        )


_HERE = "by running it in this process, with `vectorization_mode='sync'` or `SyncVectorEnv`"


class _Errors:
    """The queue on which workers tell their errors, but not waited for without end.

    An error that cannot be pickled never arrives.
    """

    #: The last error that arrived: which environment raised what.
    last: str

    def __init__(self, errors: Any) -> None:
        self.last = ""
        self._errors = errors

    def get(self) -> Any:
        """The next error: environment, type, value and traceback.

        Raises:
            EOFError: Where none arrives, or one that does not exist here.

        """
        try:
            told = self._errors.get(timeout=_PATIENCE)
        except Exception as error:
            self.last = "an environment raised an error that could not be sent to this process"
            raise EOFError(self.last) from error
        index, kind, value, _ = told
        self.last = f"environment {index} raised {kind.__name__}: {value}"
        return told


def make_calls(env: "VectorEnv[Any, Any, Any]", step_timeout: None | float) -> Calls:
    """How `env` is called.

    Args:
        env: The environment.
        step_timeout: Seconds that a worker of an `AsyncVectorEnv` may take to answer.

    Raises:
        AdapterError: Where the time is not positive.

    """
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    if step_timeout is not None and not step_timeout > 0:
        raise AdapterError(f"`step_timeout` must be above 0 seconds, or None; got {step_timeout}.")
    if isinstance(env.unwrapped, AsyncVectorEnv):
        return WorkerCalls(env, step_timeout)
    if type(env) is SyncVectorEnv:
        return BufferCalls(env)
    return PoolCalls(env) if is_envpool(env) or is_ale(env) else Calls(env)


def limit_waiting(env: "AsyncVectorEnv", seconds: None | float) -> None:
    """Let reading a worker's answer fail with `BlockingIOError` after `seconds`.

    The operating system keeps the time, so it costs nothing in an env step. The pipes of Windows
    know no such limit: there it has no effect.
    """
    if not hasattr(socket, "AF_UNIX"):
        return
    whole, rest = divmod(seconds or 0.0, 1.0)  # 0 is no limit
    limit = struct.pack("ll", int(whole), int(rest * 1e6) or int(rest > 0))
    for pipe in env.parent_pipes:
        with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def end_processes(env: "AsyncVectorEnv", some_ended: bool = False) -> dict[int, int]:
    """End every worker, at once. Exit codes of those that had ended by themselves, by row.

    Args:
        env: The environment, whose `close` has nothing to do afterwards.
        some_ended: A pipe is gone, so its process is ending: wait for its exit code.

    """
    from gymnasium.vector.async_vector_env import AsyncState

    gone = wait([process.sentinel for process in env.processes], _PATIENCE if some_ended else 0)
    for process in env.processes:
        if process.sentinel in gone:
            process.join(_PATIENCE)
    ended = {
        i: process.exitcode
        for i, process in enumerate(env.processes)
        if process.exitcode is not None
    }
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
    return ended
