"""Calls to environments that are stepped by a pool of threads: EnvPool's and ALE's."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from everstep.env import has_halves
from everstep.errors import AdapterError, EnvError

from .calls import Calls

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

#: Seeds of pools are 32 bits wide, and rows count up from them.
_MAX_SEED = 2**31

#: Makes the same pool with another seed.
Remake = Callable[[int], "VectorEnv[Any, Any, Any]"]


class PoolCalls(Calls):
    """Calls to a pool: rows come back in the order of their ids, whatever order they ended in."""

    #: For a pool whose seed is fixed where it is made: makes the one that a seed asks for.
    remake: None | Remake = None

    def __init__(self, env: "VectorEnv[Any, Any, Any]") -> None:
        super().__init__(env)
        self._order = np.arange(env.num_envs)
        self._was_reset = self._has_begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """See `Calls.reset`. Observations in the order of the ids."""
        if self._has_begun and not self._ended:  # an env step whose rows an error kept from coming
            self._received()
        self._was_reset = True
        if seed is not None:
            seed %= _MAX_SEED - len(self._order)
        if seed is not None and self.remake is not None:
            self._check_open()
            self._env, seed = self.remake(seed), None
        observation, infos = super().reset(seed=seed, options=options)
        order = self._order_of(infos)
        return (observation if order is None else _take(observation, order)), infos

    def step(self, actions: Any) -> Any:
        """See `Calls.step`. Every row in the order of the ids.

        Raises:
            EnvError: Also where `reset` was never called: a pool would take the step for one.

        """
        self._check_reset()
        return self._in_order(super().step(actions))

    @property
    def asynchronous(self) -> bool:
        """See `Calls.asynchronous`. Wrappers know of no such thing, and wait."""
        return self._env is self._env.unwrapped and has_halves(self._env, "send")

    def send(self, actions: Any) -> None:
        """See `Calls.send`. The threads begin at once."""
        if self.asynchronous:
            self._check_open()
            self._check_reset()
            self._call("send", actions)
            self._has_begun = True
        else:
            super().send(actions)

    def receive(self) -> Any:
        """See `Calls.receive`."""
        if not self._has_begun:
            return super().receive()
        self._check_open()
        return self._in_order(self._received())

    def _received(self) -> Any:
        returned = self._call("recv")
        self._has_begun = False
        return returned

    def _call(self, name: str, *args: Any) -> Any:
        try:
            return getattr(self._env, name)(*args)
        except BaseException as error:
            self._fail("step", error)
            raise

    def _check_reset(self) -> None:
        if not self._was_reset:
            raise EnvError(f"{self._env} was not reset. Call `reset` before `step`.")

    def _in_order(self, returned: Any) -> Any:
        """What an env step returned, in the order of the ids."""
        order = self._order_of(returned[-1])
        if order is None:
            return returned
        return tuple(_take(value, order) for value in returned)

    def _order_of(self, infos: dict[str, Any]) -> None | npt.NDArray[Any]:
        """Where each row stands in what was returned; `None` where it stands in its place."""
        ids = infos.get("env_id", self._order)
        if np.array_equal(ids, self._order):
            return None
        order = np.argsort(ids)
        if not np.array_equal(np.asarray(ids)[order], self._order):
            raise EnvError(
                f"{self._env} returned the environments {np.asarray(ids).tolist()}, and every env "
                f"step needs all {len(self._order)}. Make it with `batch_size` equal to `num_envs`."
            )
        return order


def _take(value: Any, order: npt.NDArray[Any]) -> Any:
    """Arrays with one entry for each row, in `order`, wherever they are in `value`."""
    if isinstance(value, dict):
        return {key: _take(child, order) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_take(child, order) for child in value)
    if isinstance(value, np.ndarray) and value.shape[:1] == order.shape:
        return value[order]
    return value


def is_envpool(env: object) -> bool:
    """True for one of EnvPool's in Gymnasium's semantics, perhaps in wrappers. Imports nothing."""
    return _is_vector_of(env, "envpool.python.envpool", "EnvPoolMixin")


def is_ale(env: object) -> bool:
    """True for ALE's vector environment, perhaps in wrappers. Imports nothing."""
    return _is_vector_of(env, "ale_py.vector_env", "AtariVectorEnv")


def _is_vector_of(env: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    vector = sys.modules.get("gymnasium.vector")
    if kind is None or vector is None or not isinstance(env, vector.VectorEnv):
        return False
    return isinstance(env.unwrapped, kind)


def check_steps_together(env: "VectorEnv[Any, Any, Any]", batch_size: int) -> None:
    """Refuse a pool that returns some of its rows.

    Raises:
        AdapterError: Where it does.

    """
    if batch_size not in (0, env.num_envs):
        raise AdapterError(
            f"{env} returns {batch_size} of its {env.num_envs} rows in an env step, those that are "
            "ready first, and every env step needs all. Make it without `batch_size`."
        )
