"""The limit of an environment's episodes, as the environment or one of its wrappers has it.

Processes of an `AsyncVectorEnv` import this module, so it imports little.
"""

import sys
from contextlib import suppress
from numbers import Integral
from typing import Any

from .layers import layers

#: The class of environments that end their episodes after `max_steps`, without a `spec` of it.
_MINIGRID = "minigrid.minigrid_env.MiniGridEnv"

#: Attribute in which `note_limit` leaves what it found.
NOTED = "everstep_limit_of_episodes"


def limit_of(env: Any) -> None | int:
    """Env steps of an episode at most; None if no limit is known.

    It is known by the `spec`, by Gymnasium's `TimeLimit`, or by `max_steps` of MiniGrid's
    environments; of several limits it is the least.

    Args:
        env: An environment or a vector environment, perhaps in wrappers.

    """
    limits = [getattr(getattr(env, "spec", None), "max_episode_steps", None)]
    time_limit = getattr(sys.modules.get("gymnasium.wrappers"), "TimeLimit", ())
    for layer in layers(env):
        if isinstance(layer, time_limit):
            limits.append(layer._max_episode_steps)
        elif any(f"{x.__module__}.{x.__name__}" == _MINIGRID for x in type(layer).__mro__):
            limits.append(getattr(layer, "max_steps", None))
    numbers = [int(x) for x in limits if isinstance(x, Integral)]
    return min((x for x in numbers if x > 0), default=None)


def note_limit(env: Any) -> None:
    """Leave an environment's limit in its attribute `NOTED`, unless it takes no attributes."""
    with suppress(Exception):  # of the environment's own code; no limit is known then
        setattr(env, NOTED, limit_of(env))
