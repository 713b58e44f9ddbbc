"""Calls to vector environments that a pool of threads steps: EnvPool's and ALE's."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils._pytree import tree_map

from everstep.errors import AdapterError, EnvError

from .calls import VectorCalls
from .libraries import is_loaded_instance

#: Seeds of pools are 32 bits wide, and rows count up from them.
_MAX_SEED = 2**31


class PoolCalls(VectorCalls):
    """Calls to a pool. Rows are returned in the order of their ids, whichever was ready first."""

    halves = ("send", "recv")
    handle_of = "a pool of threads, in the library's own memory"

    #: Makes the pool again with another seed, for pools whose seed is an option of the constructor.
    remake: None | Callable[[int], Any] = None

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._ids = np.arange(env.num_envs)
        self._was_reset = False

    def reset(self, *, seed: None | int = None, options: None | dict[str, Any] = None) -> Any:
        """See `VectorCalls.reset`."""
        if self._has_begun and not self._closed:  # an error interrupted a step: take its rows
            super().receive()
        self._was_reset = True
        if seed is not None:
            seed %= _MAX_SEED - len(self._ids)
            if self.remake is not None:
                self._check_open()
                self._env, seed = self.remake(seed), None
        return self._sorted(super().reset(seed=seed, options=options))

    @property
    def resets_rows(self) -> bool:
        """See `VectorCalls.resets_rows`: of EnvPool's pools; ALE's can be made to do it itself."""
        return self._env is self._env.unwrapped and is_envpool(self._env)

    def reset_rows(self, rows: np.ndarray[Any, np.dtype[np.bool_]]) -> Any:
        """See `VectorCalls.reset_rows`. A pool returns the rows of the ids that it is given."""
        observation, infos = self._parts("reset", 2, self.call("reset", self._ids[rows]))
        ids = infos["env_id"]

        def spread(values: Any) -> Any:
            full = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            full[ids] = values
            return full

        return tree_map(spread, observation)

    def step(self, actions: Any) -> Any:
        """See `VectorCalls.step`.

        Raises:
            EnvError: Also if `reset` was never called: a pool would take the step for one.

        """
        self._check_reset()
        return self._sorted(super().step(actions))

    def send(self, actions: Any) -> None:
        """See `VectorCalls.send`. The threads begin at once."""
        if self.asynchronous:
            self._check_reset()
        super().send(actions)

    def receive(self) -> Any:
        """See `VectorCalls.receive`."""
        return self._sorted(super().receive())

    def _check_reset(self) -> None:
        if not self._was_reset:
            raise EnvError(f"{self.name} was not reset. Call `reset` before `step`.")

    def _sorted(self, returned: Any) -> Any:
        """The result of `reset` or `step`, whose last part are the infos, in the order of ids."""
        ids = returned[-1].get("env_id", self._ids)
        if np.array_equal(ids, self._ids):
            return returned
        order = np.argsort(ids)
        if not np.array_equal(np.asarray(ids)[order], self._ids):
            raise EnvError(
                f"{self.name} returned the environments {np.asarray(ids).tolist()}, and every env "
                f"step needs all {len(self._ids)}. Make it with `batch_size` equal to `num_envs`."
            )

        def take(value: Any) -> Any:
            has_rows = isinstance(value, np.ndarray) and value.shape[:1] == order.shape
            return value[order] if has_rows else value

        return tree_map(take, returned)


def is_envpool(env: Any) -> bool:
    """Whether `env` is EnvPool's with Gymnasium's interface, perhaps in wrappers."""
    return _is_pool(env, "envpool.python.envpool", "EnvPoolMixin")


def is_ale(env: Any) -> bool:
    """Whether `env` is ALE's vector environment, perhaps in wrappers."""
    return _is_pool(env, "ale_py.vector_env", "AtariVectorEnv")


def _is_pool(env: Any, module: str, name: str) -> bool:
    is_vector = is_loaded_instance(env, "gymnasium.vector", "VectorEnv")
    return is_vector and is_loaded_instance(env.unwrapped, module, name)


def check_batch_size(env: Any, batch_size: int) -> None:
    """Check that a pool returns all of its rows in every vector step.

    Raises:
        AdapterError: If it returns some of them.

    """
    if batch_size not in (0, env.num_envs):
        raise AdapterError(
            f"{env} returns {batch_size} of its {env.num_envs} rows in a vector step, those that "
            "are ready first, and every vector step needs all. Make it without `batch_size`."
        )
