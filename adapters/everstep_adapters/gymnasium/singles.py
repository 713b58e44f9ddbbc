"""Checks of a vector environment's single ones, before Gymnasium batches what they return.

Gymnasium copies their observations into memory of the space's structure, shape and dtype. Integers
that the dtype cannot hold wrap around there, and keys that the space lacks are dropped, without an
error.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Env
from gymnasium.vector import AsyncVectorEnv

from everstep.errors import AdapterError, EnvError

from ..common.first_calls import VECTOR_REWARDS, check_first_calls
from ..common.independence import MemoryCheck, check_independent
from ..common.kept_ends import InWorker
from ..common.layers import layers
from ..common.limits import NOTED, limit_of, note_limit
from ..common.returned import LOOKS, WAY_OUT, check_range, check_returned, mismatches
from .modes import AnyVectorEnv
from .rows import pick
from .specs import Part, single_space, where

#: Packages whose wrappers leave a vector of rewards one, but for this wrapper.
_KEEP_REWARDS, _SCALARIZES = ("gymnasium", "mo_gymnasium"), "LinearReward"


def check_rewards(env: AnyVectorEnv) -> None:
    """Check that rewards are single numbers, if the environment has a `reward_space`.

    Raises:
        AdapterError: If they are vectors.

    """
    singles: Sequence[Any] = getattr(env.unwrapped, "envs", ())
    for chain in (layers(env), layers(singles[0]) if singles else []):
        for layer in chain:
            shape = getattr(vars(layer).get("reward_space"), "shape", None)
            if shape is not None:
                if tuple(shape) not in ((), (1,)):
                    raise AdapterError(
                        f"The rewards of {env} are vectors, {layer.reward_space}. {VECTOR_REWARDS}"
                    )
                return
            kind = type(layer)
            is_known = kind.__module__.partition(".")[0] in _KEEP_REWARDS
            # What is wrapped may be of another library, without `unwrapped`.
            is_wrapper = layer is not getattr(layer, "unwrapped", layer)
            if is_wrapper and (not is_known or kind.__name__ == _SCALARIZES):
                return


def known_limit(env: AnyVectorEnv) -> None | int:
    """Env steps of an episode at most; None if one of the environments has no known limit.

    Environments in processes are asked there; see `limit_of`.
    """
    base: Any = env.unwrapped
    limits: list[Any]
    if isinstance(base, AsyncVectorEnv) and not base.closed:
        base.call("has_wrapper_attr", InWorker(note_limit))
        is_noted = all(base.call("has_wrapper_attr", NOTED))  # not by a worker of the user's own
        limits = list(base.call(NOTED)) if is_noted else [None]
    else:
        limits = [limit_of(each) for each in getattr(base, "envs", ())]
    if all(limit is None for limit in limits):  # a vector environment may say it for all
        return limit_of(env)
    return None if None in limits else max(limits)


def check_calls(env: AnyVectorEnv) -> None:
    """Check the first calls of single environments, and all that those in processes return."""
    base: Any = env.unwrapped
    if isinstance(base, AsyncVectorEnv) and not base.closed:
        for check in (check_returned, check_first_calls):
            base.call("has_wrapper_attr", InWorker(check))
    for single in getattr(base, "envs", ()):
        if isinstance(single, Env):
            check_first_calls(single)


class Singles:
    """Checks of the environments of a `SyncVectorEnv`; others hold none that can be seen.

    Of others the structure of the first batch is compared with the space's.

    Args:
        env: The vector environment.
        parts: Leaves of the observation.

    Raises:
        AdapterError: If the environments are not independent.

    """

    def __init__(self, env: AnyVectorEnv, parts: Sequence[Part]) -> None:
        self._base: Any = env.unwrapped
        envs = getattr(self._base, "envs", ())
        check_independent(envs, str(env))
        self._memory = MemoryCheck(envs, str(env)) if envs else None
        #: Whether `check` has something to look at.
        self.is_needed = bool(envs)
        self._space, self._left = single_space(self._base, "observation_space"), LOOKS
        self._batch_space = single_space(env, "observation_space")
        self._integers = [x for x in parts if np.dtype(x.space.dtype).kind in "iu"]

    def check_first(self, batch: Any) -> None:
        """Look at what the first reset returned, and at what the environments did; see `check`.

        Args:
            batch: The observations of all.

        """
        for found in mismatches(self._batch_space, batch, "obs", is_batch=True):
            raise EnvError(f"{self._base}: {found}. {WAY_OUT}")
        self.check(is_first=True)

    def check(self, *, is_first: bool = False) -> None:
        """Look at what the environments returned: at the first reset, and at env steps.

        Their memory is looked at twice, their structure a few times, and their numbers as long as
        their dtype is not the space's.

        Args:
            is_first: Whether this is the first reset.

        Raises:
            EnvError: If rows write into one memory, or what they return is not of their space.

        """
        returned = getattr(self._base, "_env_obs", ())
        if self._left:
            self._left -= 1
            for i, observation in enumerate(returned):
                for found in mismatches(self._space, observation, "obs"):
                    raise EnvError(f"{self._base}: environment {i}: {found}. {WAY_OUT}")
        if self._memory is not None:
            self._memory.check(returned)
            self._memory = self._memory if is_first else None
        narrowed = [part for part in self._integers if _narrows(part, returned)]
        is_wanted = self._memory is not None or bool(narrowed)
        self.is_needed = bool(returned) and (is_wanted or self._left > 0)


def _narrows(part: Part, returned: Sequence[Any]) -> bool:
    """Whether a leaf comes in a wider dtype than its space has; raises where a number is lost."""
    name, dtype, is_wider = where("obs", part.path), np.dtype(part.space.dtype), False
    for observation in returned:
        values = np.asarray(pick(observation, part.path, name))
        if values.dtype.kind in "iu" and not np.can_cast(values.dtype, dtype):
            check_range(values, dtype, name)
            is_wider = True
    return is_wider
