"""Agents of an environment: those that the policy controls, and what they have in common."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from everstep.env.agents import group_name
from everstep.errors import AdapterError


def controlled(env: Any, wanted: None | str | Sequence[str]) -> list[str]:
    """Names of the agents that are rows.

    Args:
        env: A parallel environment of PettingZoo.
        wanted: Names, or the name that comes before the numbers of a group; None for all.

    Raises:
        AdapterError: If there are no such agents.

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
    return chosen


def check_alike(envs: Sequence[Any], agents: Sequence[str]) -> None:
    """Check that environments have the same agents, with the same spaces.

    Raises:
        AdapterError: If one differs from the first; names what differs.

    """
    for i, env in enumerate(envs[1:], 1):
        for (name, first), (_, own) in zip(
            _parts(envs[0], agents), _parts(env, agents), strict=True
        ):
            if first != own:
                raise AdapterError(
                    f"Environments 0 and {i} differ: `{name}` is {first} and {own}. Rows are of "
                    "one kind: make all environments with the same arguments."
                )


def _parts(env: Any, agents: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Parts of the rows of an environment by name, in the order in which they are looked at."""
    yield "possible_agents", list(getattr(env, "possible_agents", ()))
    for agent in agents:
        for kind in ("observation_space", "action_space"):
            yield f"{kind}({agent!r})", getattr(env, kind)(agent)


def joint_space(env: Any, kind: str, agents: Sequence[str]) -> Any:
    """The space of a row: that of all agents, or one as wide as the widest of theirs.

    Vectors of numbers are as long as the longest, with 0 where an agent has fewer, and choices have
    as many options as those of the agent with the most.

    Args:
        env: A parallel environment of PettingZoo.
        kind: `"observation_space"` or `"action_space"`.
        agents: Names of the agents.

    Raises:
        AdapterError: If spaces of the agents' kinds cannot be made as wide.

    """
    each = [getattr(env, kind)(agent) for agent in agents]
    if all(space == each[0] for space in each):
        return each[0]
    if all(isinstance(x, Discrete) and int(x.start) == 0 for x in each):
        return Discrete(max(int(x.n) for x in each))
    vectors = all(isinstance(x, Box) and len(x.shape) == 1 for x in each)
    if vectors and len({x.dtype for x in each}) == 1:
        bounds = np.zeros((2, len(each), max(x.shape[0] for x in each)), each[0].dtype)
        for i, space in enumerate(each):
            bounds[:, i, : space.shape[0]] = space.low, space.high
        return Box(bounds[0].min(0), bounds[1].max(0), dtype=each[0].dtype.type)
    other = next(i for i, space in enumerate(each) if space != each[0])
    raise AdapterError(
        f"The agents of {env} have spaces that no row can hold: `{kind}({agents[0]!r})` is "
        f"{each[0]} and `{kind}({agents[other]!r})` is {each[other]}. Vectors of one dtype, or "
        f"choices from 0, may differ in size. Choose a group of {_groups(agents)} with "
        f"`agents={group_name(agents[0])!r}`: the others act at random. Or make the spaces equal "
        "in a wrapper."
    )


def _groups(agents: Sequence[str]) -> str:
    sizes: dict[str, int] = {}
    for agent in agents:
        sizes[group_name(agent)] = sizes.get(group_name(agent), 0) + 1
    return ", ".join(f"{name} ({size})" for name, size in sizes.items())
