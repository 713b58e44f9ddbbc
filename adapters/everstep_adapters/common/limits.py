"""The limit of an environment's episodes, as the environment or one of its wrappers has it.

Processes of an `AsyncVectorEnv` import this module, so it imports little.
"""

import math
from contextlib import suppress
from numbers import Real
from typing import Any

from .layers import asked, attributes, layers

#: Attribute in which `note_limit` leaves what it found, and a bridge's client what it was told.
NOTED = "everstep_limit_of_episodes"

#: Attributes that hold a limit, by package and name of classes that end their episodes there.
_ATTRIBUTES = {
    ("gymnasium", "TimeLimit"): "_max_episode_steps",
    ("minigrid", "MiniGridEnv"): "max_steps",
    ("dm_env", "Environment"): "_step_limit",
    ("pettingzoo", "AECEnv"): "max_cycles",
    ("pettingzoo", "ParallelEnv"): "max_cycles",
    ("vmas", "Environment"): "max_steps",
}


def limit_of(env: Any) -> None | int:
    """Env steps of an episode at most; None if no limit is known.

    It is known by the `spec`, by what an environment or its wrapper ends episodes by, or by the
    attribute `NOTED`; of several limits it is the least.

    Args:
        env: An environment or a vector environment, perhaps in wrappers.

    """
    limits = [asked(asked(env, "spec"), "max_episode_steps"), asked(env, NOTED)]
    for layer in layers(env):
        kinds = {(x.__module__.partition(".")[0], x.__name__) for x in type(layer).__mro__}
        limits += [attributes(layer).get(_ATTRIBUTES[kind]) for kind in kinds & _ATTRIBUTES.keys()]
    known = [float(x) for x in limits if isinstance(x, Real)]
    return min((math.ceil(x) for x in known if 1 <= x < math.inf), default=None)


def note_limit(env: Any) -> None:
    """Leave an environment's limit in its attribute `NOTED`, unless it takes no attributes."""
    with suppress(Exception):  # of the environment's own code; no limit is known then
        setattr(env, NOTED, limit_of(env))
