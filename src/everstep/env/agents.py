"""Agents of environments in which each agent is a row: their names, groups, and what all observe.

Row `i` of such an environment is that of agent `i % A` of environment `i // A`, where `A` is its
`rows_per_env`. `agents` may name them. Where their observations or actions differ, `agent_specs`
has those of each, and rows are as wide as the widest: an agent's numbers come first, then zeros.
`agent_groups` may name groups of agents; without them, names that differ in a number are a group.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from tensordict import TensorDict
from torchrl.data import Composite, TensorSpec, Unbounded

from ..data import DataKeys
from ..errors import AdapterError, ConfigError
from .attributes import read
from .formats import EnvFormat, ObservationFormat
from .specs import Leaves, Structure, described, is_choice, leaf_specs

#: Leaf of an observation with the observations of all agents, which default models show to the
#: values alone.
ALL_AGENTS = "all_agents"

#: Leaf with an agent's own observation, where that is one tensor.
OWN = "observation"

#: Names of groups: they are parts of names of statistics and of modules.
_NAME = re.compile(r"[A-Za-z0-9_-]+")

#: Names that would be mistaken for other statistics.
_TAKEN = {"eval"}


class AgentSpec(NamedTuple):
    """Observations and actions of one agent, where those of an environment's agents differ."""

    observation_spec: TensorSpec
    action_spec: TensorSpec
    env_format: EnvFormat


def narrowed(leaves: Leaves, shapes: Sequence[Sequence[int]]) -> Leaves:
    """Leaves `[N, *shape]` of agents' own shapes, of those of rows; nothing is copied.

    Args:
        leaves: Leaves of rows, `[N, …]`, which may be wider in their last dimension.
        shapes: Shape of each leaf of the agents.

    """
    return tuple(
        x if x.shape[1:] == torch.Size(shape) else x[..., : shape[-1]]
        for x, shape in zip(leaves, shapes, strict=True)
    )


def widened(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Rows `[N, …]` with zeros after their last elements, up to `width` of them."""
    missing = width - rows.shape[-1]
    return torch.nn.functional.pad(rows, (0, missing)) if missing and rows.ndim > 1 else rows


def spec_of(env: Any, agents: Sequence[str], name: str) -> None | AgentSpec:
    """Specs of the agents that share a policy; None if they are the environment's.

    Args:
        env: Environment whose rows are agents.
        agents: Names of the agents.
        name: Name of the policy.

    Raises:
        ConfigError: If they differ.

    """
    specs: None | Mapping[str, AgentSpec] = getattr(env, "agent_specs", None)
    if specs is None:
        return None
    first = specs[agents[0]]
    for agent in agents[1:]:
        pairs = zip(first[:2], specs[agent][:2], strict=True)
        if wrong := next(((x, y) for x, y in pairs if x != y), None):
            raise ConfigError(
                f"`policies`: agents that share a policy must have equal spaces; those of "
                f"{agents[0]} and {agent}, of the policy {name}, are {described(wrong[0])} and "
                f"{described(wrong[1])}. Give them policies of their own: `policies='agent'`."
            )
    return first


def agents_of(env: Any) -> list[str]:
    """Names of the agents that are the rows of one environment, in their order."""
    count = int(getattr(env, "rows_per_env", 1))
    names = [str(x) for x in getattr(env, "agents", None) or ()]
    return names if len(names) == count else [f"agent_{i}" for i in range(count)]


def group_name(agent: str) -> str:
    """The group in an agent's name, without its number: `"adversary"` for `"adversary_0"`."""
    return re.sub(r"_\d+$", "", agent)


def groups_of(env: Any, policies: str | Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Names of the agents of each policy, by the policy's name.

    Args:
        env: Environment whose rows are agents.
        policies: The hyperparameter.

    Raises:
        ConfigError: If an environment has one row, or the groups are not a partition of its agents.

    """
    agents = agents_of(env)
    if len(agents) == 1 and not getattr(env, "agents", None):
        raise ConfigError(
            f"`policies` is for environments of several agents; a row of {type(env).__name__} is "
            "an environment of its own. Leave it out, or set the environment's `rows_per_env`."
        )
    if policies == "agent":
        groups = {agent: [agent] for agent in agents}
    elif policies == "group":
        groups = {name: list(each) for name, each in (read(env, "agent_groups") or {}).items()}
        for agent in agents if not groups else ():
            groups.setdefault(group_name(agent), []).append(agent)
    else:
        groups = {name: list(each) for name, each in cast(Any, policies).items()}
    listed = sorted(agent for each in groups.values() for agent in each)
    if listed != sorted(agents) or not all(groups.values()):
        raise ConfigError(
            f"`policies` must have each agent once, and no policy without an agent: those of "
            f"{type(env).__name__} are {', '.join(agents)}; got {groups}."
        )
    if wrong := [x for x in groups if not _NAME.fullmatch(x) or x in _TAKEN]:
        raise ConfigError(
            f"`policies`: names are of letters, digits, `_` and `-`, and not 'eval'; got "
            f"{wrong[0]!r}. Name the groups yourself, as in "
            f"{{{'first'!r}: {agents[:1]}, …}}."
        )
    return groups


class AllAgents:
    """Adds what all agents of an environment observe to the observation of each.

    The leaf `all_agents` concatenates the agents' observations, in order, as floating point. An
    agent's part is what the environment returned for it in this env step. It is zeros before the
    agent joins, and from the env step after its end until the next reset.

    Args:
        spec: Spec of one agent's observation.
        env_format: Format of the agents' environment.
        agents: Number of agents, A.

    Raises:
        AdapterError: If observations have choices, or a leaf of that name.

    """

    def __init__(self, spec: TensorSpec, env_format: EnvFormat, agents: int) -> None:
        self.agents = agents
        leaves = leaf_specs(spec)
        self._joined = [path for path in leaves if path != ("action_mask",)]
        forms = zip(leaves, env_format.observation, strict=True)
        choices = [path for path, form in forms if form.is_choice or is_choice(leaves[path])]
        bad = [".".join(path) or "obs" for path in self._joined if path in choices]
        if bad or (ALL_AGENTS,) in leaves:
            what = f"the choices `{bad[0]}`" if bad else f"a leaf `{ALL_AGENTS}` already"
            raise AdapterError(
                "`all_agents` joins observations of numbers in a leaf of that name; the agents "
                f"observe {what}. Encode or rename it in a wrapper, or leave the option out."
            )
        self._structure = Structure.of(spec)
        self.dtype = torch.get_default_dtype()
        width = sum(leaves[path].shape.numel() for path in self._joined)
        everybody = Unbounded(agents * width, device=spec.device, dtype=self.dtype)
        own = dict(spec.items()) if isinstance(spec, Composite) else {OWN: spec}
        #: Spec of the observation with that leaf.
        self.spec = Composite({**own, ALL_AGENTS: everybody}, device=spec.device)
        form = ObservationFormat((ALL_AGENTS,), (agents * width,))
        first = env_format.observation
        if not isinstance(spec, Composite):
            first = (replace(first[0], path=(OWN,)),)
        #: Format of the environment with that leaf.
        self.env_format = EnvFormat((*first, form), env_format.action)

    def around(self, own: AgentSpec) -> AgentSpec:
        """Specs of one agent with that leaf, where the agents' own differ."""
        seen, leaves = own.env_format.observation, {OWN: own.observation_spec}
        if isinstance(own.observation_spec, Composite):
            leaves = dict(own.observation_spec.items())
        else:
            seen = (replace(seen[0], path=(OWN,)),)
        spec = Composite({**leaves, ALL_AGENTS: self.spec[ALL_AGENTS]}, device=self.spec.device)
        form = EnvFormat((*seen, self.env_format.observation[-1]), own.env_format.action)
        return AgentSpec(spec, own.action_spec, form)

    def extended(
        self, obs: torch.Tensor | TensorDict, parts: torch.Tensor | TensorDict, is_there: Any = None
    ) -> TensorDict:
        """Observations `[N, …]` with what all observe.

        Args:
            obs: Observations to extend.
            parts: Observations to concatenate, `[N, …]`.
            is_there: Agents whose parts are used, bool `[N, 1]`, others are zeros; None for all.

        """
        n = len(self._structure.flatten(obs)[0])
        leaves = zip(self._structure.paths, self._structure.flatten(parts), strict=True)
        joined = [x.reshape(n, -1).to(self.dtype) for path, x in leaves if path in self._joined]
        rows = joined[0] if len(joined) == 1 else torch.cat(joined, -1)
        if is_there is not None:
            rows = torch.where(
                is_there, rows, torch.zeros((), dtype=self.dtype, device=rows.device)
            )
        everybody = rows.reshape(n // self.agents, -1).repeat_interleave(self.agents, 0)
        own = {OWN: obs} if isinstance(obs, torch.Tensor) else dict(obs.items())
        return TensorDict({**own, ALL_AGENTS: everybody}, batch_size=[n])

    def extend(self, row: TensorDict) -> None:
        """Extend the observations of a vector step's row, in place."""
        obs, final = row.get(DataKeys.OBS), row.get(DataKeys.FINAL_OBS, None)
        acted, there = row.get(DataKeys.VALID, None), None
        if acted is not None:
            there = acted | row.get(DataKeys.FIRST)
        row.set(DataKeys.OBS, self.extended(obs, obs, there))
        if final is not None:
            done = row.get(DataKeys.TERMINATED) | row.get(DataKeys.TRUNCATED)
            pairs = zip(self._structure.flatten(final), self._structure.flatten(obs), strict=True)
            last = tuple(
                torch.where(done.view(-1, *[1] * (x.ndim - 1)), x, other) for x, other in pairs
            )
            parts = self._structure.unflatten(last, [len(done)])
            row.set(DataKeys.FINAL_OBS, self.extended(final, parts, acted))
