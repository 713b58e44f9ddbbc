"""Several policies in one environment, each for a group of its agents."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NoReturn

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from typing_extensions import Self

from ..core.rollouts import Minibatch
from ..data import Device
from ..distributions import Distribution
from ..env.agents import AgentSpec, agents_of, narrowed, widened
from ..env.formats import EnvFormat, format_of
from ..env.specs import Leaves, Structure
from ..errors import CheckpointError, ExportError
from . import _saving
from ._base import GenericPolicyBase
from ._core import Sample
from ._predict import acted_on


class GroupedPolicy(GenericPolicyBase[Any]):
    """Policies of the agents of one environment, which `policies` of a config asks for.

    Row `i` of a batch is that of agent `i % len(agents)`, as in the environment.

    Args:
        members: The policies, by name.
        groups: Names of the agents of each, by the policy's name.
        agents: Names of all agents, in the order of their rows.
        form: Specs of a row, where those of the agents differ; see `everstep.env.agents`.

    """

    def __init__(
        self,
        members: Mapping[str, GenericPolicyBase[Any]],
        groups: Mapping[str, Sequence[str]],
        agents: Sequence[str],
        form: None | AgentSpec = None,
    ) -> None:
        first = next(iter(members.values()))
        self.members, self.agents = dict(members), list(agents)
        self.groups = {name: list(each) for name, each in groups.items()}
        self._policy_of = {agent: name for name, each in self.groups.items() for agent in each}
        self.model = nn.ModuleDict({name: x.model for name, x in self.members.items()})
        self.model_config: dict[str, Any] = {}
        self.value_normalizer = self.normalizer = None
        self.dtype, self.distribution_cls = first.dtype, first.distribution_cls
        self.env_format, self.observation_limits = first.env_format, first.observation_limits
        self._observation, self._action, self._spec = first._observation, first._action, first._spec
        self._form = form
        if form is not None:
            self._spec, self.env_format = (form.observation_spec, form.action_spec), form.env_format
            self._observation, self._action = map(Structure.of, self._spec)
        self._autocast = nullcontext()  # the members have their own
        self._rows = cache(self._find_rows)
        self._prepare()

    def _prepare(self) -> None:
        first = next(iter(self.members.values()))
        self.history, self.memory, self.seq_len = first.history, first.memory, first.seq_len
        self.is_recurrent = first.is_recurrent

    def __repr__(self) -> str:
        groups = ", ".join(f"{name}: {len(x)} agents" for name, x in self.groups.items())
        return f"{type(self).__name__}({groups}; {next(iter(self.members.values()))!r})"

    def of(self, name: str, /) -> GenericPolicyBase[Any]:
        """The policy of that name, or of the agent of that name.

        Raises:
            KeyError: If there is none.

        """
        found = self._policy_of.get(name, name)
        if found not in self.members:
            raise KeyError(
                f"There is no policy and no agent {name!r}; policies are {', '.join(self.members)}"
                f", and agents {', '.join(self.agents)}."
            )
        return self.members[found]

    def problems_in(self, env: Any) -> list[str]:
        """Why the policy cannot act in an environment of its specs, one message each."""
        there = agents_of(env)
        if there == self.agents and env.num_envs % len(there) == 0:
            own = getattr(env, "agent_specs", None) or {}
            joint = env.action_spec, format_of(env)
            problems = []
            for agent, name in self._policy_of.items():
                spec = own.get(agent)
                at = joint if spec is None else (spec.action_spec, spec.env_format)
                problems.append(self.members[name].unit_problem(name, type(env).__name__, at))
            return [x for x in dict.fromkeys(problems) if x]
        return [
            f"The policies are those of the agents {', '.join(self.agents)}; the rows of "
            f"{type(env).__name__} are those of {', '.join(there)}, {env.num_envs} in all. "
            "Evaluate them in an environment as in training, or one of them by `policy.of(name)`."
        ]

    def to(self, device: Device, /) -> Self:
        """The policies, with their models on `device`."""
        for member in self.members.values():
            member.to(device)
        self._rows.cache_clear()
        return self

    # ---- acting -------------------------------------------------------------------------------

    def _find_rows(self, count: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Rows of each policy, int64 `[N_g]`, and where each row is among those of all policies."""
        every = torch.arange(count).view(-1, len(self.agents))
        columns = {x: [self.agents.index(agent) for agent in self.groups[x]] for x in self.members}
        rows = {name: every[:, column].flatten() for name, column in columns.items()}
        order = torch.cat([*rows.values()]).argsort()
        return {name: x.to(self.device) for name, x in rows.items()}, order.to(self.device)

    def init_states(self, n: int, /) -> TensorDict:
        """Recurrent states at the start of `n` episodes, batch `[n]`."""
        rows, order = self._rows(n)
        states = [self.members[name].init_states(len(x)) for name, x in rows.items()]
        leaves = [self.memory.flatten(each) for each in states]
        joined = tuple(torch.cat(x)[order] for x in zip(*leaves, strict=True))
        if not joined:
            return TensorDict({}, batch_size=[n], device=self.device)
        found = self.memory.unflatten(joined, [n])
        assert isinstance(found, TensorDict)
        return found

    def act(self, obs: Leaves, states: Leaves, *, deterministic: bool = False) -> Sample:
        """Actions of one vector step, each row's by the policy of its agent; see `PolicyCore`."""
        rows, order = self._rows(len(obs[0]))
        samples = [
            member.act(
                narrowed(tuple(x[each] for x in obs), member._observation.shapes),
                tuple(x[each] for x in states),
                deterministic=deterministic,
            )
            for member, each in ((self.members[name], each) for name, each in rows.items())
        ]

        def joined(part: Callable[[Sample], Leaves]) -> Leaves:
            leaves = zip(*(part(sample) for sample in samples), strict=True)
            return tuple(_joined(x, order) for x in leaves)

        latents, actions, after = (
            joined(part) for part in (lambda x: x.latents, lambda x: x.actions, lambda x: x.states)
        )
        logp, values = joined(lambda x: (x.logp, x.values))
        return Sample(latents, actions, logp, values, after)

    def next_states(self, states: Leaves, first: torch.Tensor) -> Leaves:
        """Recurrent states `[N, …]`, reset where an episode starts."""
        rows, order = self._rows(len(first))
        parts = [
            self.members[name].next_states(tuple(x[each] for x in states), first[each])
            for name, each in rows.items()
        ]
        return tuple(torch.cat(x)[order] for x in zip(*parts, strict=True))

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Actions for observations of agents, and the next state; see `Policy.predict`.

        Args:
            obs: A mapping of agents' names to their observations, as PettingZoo's parallel
                environments return it: actions and state are such mappings then. Or a batch
                `[N, …]` with the rows of all agents, as environments of Everstep return it.
            state: What the last call returned; None where all episodes begin. In a mapping, agents
                may be missing: their episodes begin.
            episode_start: See `Policy.predict`; in a mapping, it is for all agents.
            deterministic: Whether to take the distribution's mode rather than a sample.

        Raises:
            ValueError: If observations, state or `episode_start` do not fit the policies.

        """
        if isinstance(obs, Mapping) and obs.keys() <= {*self.agents}:
            actions, states = {}, {}
            for agent, own in obs.items():
                before = None if state is None else state.get(agent)
                actions[agent], states[agent] = self.of(agent).predict(
                    own, before, episode_start, deterministic
                )
            return actions, None if set(states.values()) <= {None} else states
        count = self._count(obs)
        starts = None
        if episode_start is not None:
            given = torch.as_tensor(np.asarray(episode_start)).reshape(-1)
            starts = given.expand(count) if len(given) == 1 else given
        rows, order = self._rows(count)
        parts = [
            self.members[name].predict(
                _taken(obs, each, self.members[name].env_format),
                None if state is None else tuple(x[each.to(x.device)] for x in state),
                None if starts is None else starts[each.cpu()],
                deterministic,
            )
            for name, each in rows.items()
        ]
        after = [x for _, x in parts if x is not None]
        return _joined([x for x, _ in parts], order), _joined(after, order) if after else None

    def _count(self, obs: Any) -> int:
        """Rows of a batch.

        Raises:
            ValueError: If it is none with the rows of all agents.

        """
        first = next(iter(self.members.values()))
        form = self.env_format.observation[acted_on(first).index(True)]
        leaf = obs
        for index in form.path if isinstance(obs, Mapping | TensorDictBase | tuple) else ():
            leaf = leaf[index]
        shape = tuple(np.shape(leaf))
        if shape == form.shape or not shape or shape[0] % len(self.agents):
            raise ValueError(
                f"`obs` must be a mapping of agents' names to observations, or a batch of the rows "
                f"of all agents ({', '.join(self.agents)}); got the shape {list(shape)}. For one "
                f"agent: `policy.of({self.agents[0]!r}).predict(obs)`."
            )
        return int(shape[0])

    # ---- files --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], /) -> None:
        """Write the policies to one file, without pickle; see `Policy.save`."""
        _saving.save(self, path)

    def describe(self) -> dict[str, Any]:
        """The content of the policy's file."""
        return {
            "kind": type(self).__name__,
            "agents": self.agents,
            "groups": self.groups,
            "members": {name: _saving.state_of(x) for name, x in self.members.items()},
            "env": _saving.made_for(self),
            **({} if self._form is None else _saving.form_to_dict(self._form)),
        }

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        /,
        *,
        model: None | nn.Module = None,
        model_cls: None | Any = None,
        distribution_cls: None | type[Distribution] = None,
        device: Device = "cpu",
    ) -> Self:
        """The policies that `save` wrote; see `Policy.load`."""
        if model is not None:
            raise CheckpointError(
                f"{path} has several policies, and `model` is one module: pass `model_cls`."
            )
        with _saving.naming(path):
            state = _saving.read(_saving.file_of(path), cls.__name__)
            members = {
                name: _saving.built(each, path, model_cls, distribution_cls, device)
                for name, each in state["members"].items()
            }
            policy = cls(members, state["groups"], state["agents"], _saving.form_of(state))
        policy.made_for = state.get("env") or {}
        return policy

    # ---- what is one policy's -----------------------------------------------------------------

    def export(self, path: Any, /, *, format: Any = "mlflow") -> NoReturn:
        """Refused: a program is one policy."""
        raise ExportError(
            f"A program is one policy, and here are {len(self.members)}. Export each: "
            f"`policy.of({next(iter(self.members))!r}).export({os.fspath(path)!r})`."
        )

    def as_tensordict_module(self, **options: Any) -> NoReturn:
        """Refused: a module of TensorDicts is one policy."""
        raise ExportError(
            f"A module of TensorDicts is one policy, and here are {len(self.members)}. Use each: "
            f"`policy.of({next(iter(self.members))!r}).as_tensordict_module()`."
        )

    def _respond(self, obs: Leaves, states: Leaves) -> NoReturn:
        raise self._refused()

    def evaluate(self, minibatch: Minibatch) -> NoReturn:
        """Refused: each policy evaluates minibatches of its own."""
        raise self._refused()

    @staticmethod
    def _default_model_cls(observation_spec: Any, action_spec: Any, /) -> NoReturn:
        raise TypeError("Several policies have no model of their own.")

    def _refused(self) -> TypeError:
        return TypeError(
            f"This is one policy's, and here are {len(self.members)}: "
            f"`policy.of({next(iter(self.members))!r})` is one of them."
        )


def _taken(value: Any, rows: torch.Tensor, form: EnvFormat, path: tuple[Any, ...] = ()) -> Any:
    """Rows of a batch of (nested) observations, as wide as an agent's own."""
    if isinstance(value, Mapping | TensorDictBase):
        return {key: _taken(x, rows, form, (*path, key)) for key, x in value.items()}
    if isinstance(value, tuple):
        return tuple(_taken(x, rows, form, (*path, i)) for i, x in enumerate(value))
    if isinstance(value, torch.Tensor):
        found: Any = value[rows.to(value.device)]
    else:
        found = np.asarray(value)[rows.numpy(force=True)]
    shape = next((x.shape for x in form.observation if x.path == path), ())
    is_wider = bool(shape) and found.ndim == 1 + len(shape) and found.shape[-1] > shape[-1]
    return found[..., : shape[-1]] if is_wider else found


def _joined(parts: Sequence[Any], order: torch.Tensor) -> Any:
    """Rows of all policies in the environment's order, of (nested) actions of each."""
    first = parts[0]
    if isinstance(first, TensorDictBase):
        tensors: Any = parts
        return torch.cat(tensors)[order.to(first.device) if first.device is not None else order]
    if isinstance(first, dict):
        return {key: _joined([x[key] for x in parts], order) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined([x[i] for x in parts], order) for i in range(len(first)))
    width = max(x.shape[-1] for x in parts)
    if isinstance(first, torch.Tensor):
        return torch.cat([widened(x, width) for x in parts])[order.to(first.device)]
    if first.ndim > 1 and any(x.shape[-1] != width for x in parts):
        return _joined([torch.from_numpy(x) for x in parts], order).numpy()
    return np.concatenate(parts)[order.numpy(force=True)]


_saving.KINDS["GroupedPolicy"] = GroupedPolicy
