"""Agents of an environment: those that the policy controls, and what they have in common."""

from collections.abc import Sequence
from typing import Any

from everstep.env.agents import group_name
from everstep.errors import AdapterError


def controlled(env: Any, wanted: None | str | Sequence[str]) -> list[str]:
    """Names of the agents that are rows.

    Args:
        env: A parallel environment of PettingZoo.
        wanted: Names, or the name that comes before the numbers of a group; None for all.

    Raises:
        AdapterError: If there are no such agents, or those that there are have different spaces.

    """
    possible = list(getattr(env, "possible_agents", ()))
    if not possible:
        raise AdapterError(
            f"{env} has no `possible_agents`, so the number of its rows is not known. Set them in "
            "the environment."
        )
    chosen = possible
    if isinstance(wanted, str):
        chosen = [x for x in possible if wanted in (x, group_name(x))]
    elif wanted is not None:
        chosen = [x for x in possible if x in wanted]
    missing = set() if wanted is None or isinstance(wanted, str) else set(wanted) - set(possible)
    if missing or not chosen:
        raise AdapterError(
            f"`agents` are names or a group of {env}, which has {_groups(possible)}; got "
            f"{wanted!r}."
        )
    for space in ("observation_space", "action_space"):
        first = getattr(env, space)(chosen[0])
        other = next((x for x in chosen if getattr(env, space)(x) != first), None)
        if other is not None:
            raise AdapterError(
                f"The agents of {env} share a policy, so their spaces must be equal; "
                f"`{space}({chosen[0]!r})` is {first} and `{space}({other!r})` is "
                f"{getattr(env, space)(other)}. Choose a group of {_groups(possible)} with "
                f"`agents={group_name(chosen[0])!r}`: the others act at random. Or make the spaces "
                "equal, as SuperSuit's `pad_observations_v0` and `pad_action_space_v0` do."
            )
    return chosen


def _groups(agents: Sequence[str]) -> str:
    sizes: dict[str, int] = {}
    for agent in agents:
        sizes[group_name(agent)] = sizes.get(group_name(agent), 0) + 1
    return ", ".join(f"{name} ({size})" for name, size in sizes.items())
