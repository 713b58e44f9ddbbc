"""Rows of a TorchRL environment: of one action, or of several groups of agents together."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, TensorSpec, Unbounded

from everstep.core.validation import PositiveInt
from everstep.data import DataKeys
from everstep.env.agents import AgentSpec, narrowed, widened
from everstep.env.formats import EnvFormat, ObservationFormat
from everstep.env.specs import Leaves, Structure, described, is_choice, leaf_specs
from everstep.errors import AdapterError

from ..common.actions import ActionBounds
from ..common.specs import compose_spec, real_spec
from . import keys
from .actions import OneHotActions, RealActions, make_actions
from .endings import DoneIs, Endings
from .specs import Key, Layout, NestedKey, join_keys, leaves_of, observation_leaves


class Options(NamedTuple):
    """Options of the adapter that decide what a row is; see `TorchRLEnv`."""

    device: torch.device
    action_bounds: ActionBounds
    categorical_actions: bool
    observation_keys: None | Sequence[NestedKey]
    reward_key: None | NestedKey
    done_key: None | NestedKey
    terminated_key: None | NestedKey
    done_is: None | DoneIs
    time_limit: None | PositiveInt


class Group:
    """Rows that are agents of one group, or environments; see `Options` for `options`.

    Args:
        env: The environment.
        key: Key of their action.
        layout: Batch and agents as rows.
        options: The adapter's options.

    Raises:
        AdapterError: If rows cannot be read, or acted for.

    """

    #: Specs of each agent, if they differ.
    agent_specs: None | dict[str, AgentSpec] = None

    #: Names of the agents of each group, if there are several.
    agent_groups: None | dict[str, list[str]] = None

    def __init__(self, env: Any, key: Key, layout: Layout, options: Options) -> None:
        self.env, self.key, self.layout = env, key, layout
        device = options.device
        bounds, categorical = options.action_bounds, options.categorical_actions
        self._actions = make_actions(key, env, layout, device, bounds, categorical)
        self.action_spec = self._actions.spec
        self._reward = keys.find_reward(env, layout, options.reward_key, device)
        self._observed = keys.find_observed(env, layout, options.observation_keys)
        self._leaves = observation_leaves(self._observed, layout, device)
        specs = {path: leaf.spec for path, leaf in self._leaves.items()}
        self.observation_spec = compose_spec(specs, device)
        self.endings = Endings(
            env,
            layout,
            options.done_key,
            options.terminated_key,
            options.done_is,
            options.time_limit,
        )

    @property
    def action_keys(self) -> list[Key]:
        """Keys of their actions."""
        return [self.key]

    @property
    def observed(self) -> set[Key]:
        """Keys of what they observe."""
        return {leaf.key for leaf in self._leaves.values()}

    @property
    def is_one_hot(self) -> bool:
        """Whether choices are sent one-hot."""
        return isinstance(self._actions, OneHotActions)

    @property
    def is_rescaled(self) -> bool:
        """Whether the policy's real numbers are mapped from [-1, 1] to bounds."""
        return isinstance(self._actions, RealActions) and self._actions.is_rescaled

    @property
    def parts(self) -> "list[Group]":
        """The groups, in the order of their rows in an environment."""
        return [self]

    @property
    def form(self) -> None | EnvFormat:
        """Formats of observations and actions; None if those of actions differ between rows."""
        if self._actions.form is None:
            return None
        forms = tuple(
            ObservationFormat(
                path, tuple(leaf.feature), is_choice=is_choice(self._observed[leaf.key])
            )
            for path in Structure.of(self.observation_spec).paths
            for leaf in [self._leaves[path]]
        )
        return EnvFormat(forms, (self._actions.form,))

    @property
    def agents(self) -> list[str]:
        """Names of the agents of an environment; empty if it has none."""
        groups: Any = {}
        with suppress(Exception):  # of environments without, whose workers may be asked
            groups = self.env.group_map
        group, agents = self.layout.group, self.layout.agents
        return [str(x) for x in groups.get(group[-1], ())] if group and agents else []

    def send(self, data: TensorDictBase, action: torch.Tensor) -> None:
        """Set the actions `[N, *action_spec.shape]` of the rows."""
        data.set(self.key, self._actions.to_env(action))

    def read(self, data: TensorDictBase) -> Leaves:
        """Leaves of the observations, `[N, …]` each."""
        return tuple(leaf.read(data, self.layout) for leaf in self._leaves.values())

    def rewards(self, outcome: TensorDictBase) -> torch.Tensor:
        """Rewards of a vector step, `[N, 1]`, in new memory: the environment may change its own."""
        dtype = self._reward.spec.dtype
        real = dtype if dtype.is_floating_point else torch.get_default_dtype()
        return self._reward.read(outcome, self.layout).to(real, copy=True)


class Groups:
    """Rows that are the agents of several groups: of an environment those of the first come first.

    Where groups observe vectors of different lengths, or choose among different numbers of options,
    rows are as wide as the widest, as `everstep.env.agents` says.

    Args:
        groups: Two or more, of one batch.

    Raises:
        AdapterError: If what they observe or do fits into no row.

    """

    #: Whether choices are sent one-hot, in one of the groups.
    is_one_hot: bool

    def __init__(self, groups: Sequence[Group]) -> None:
        self.parts = list(groups)
        first = groups[0].layout
        self._sizes = [group.layout.agents.numel() for group in groups]
        count = torch.Size([sum(self._sizes)])
        #: Everything at other keys than the groups' is shared by all agents.
        self.layout = Layout(first.batch, first.batch_dims, ("all groups",), count)
        self.is_one_hot = any(group.is_one_hot for group in groups)
        self.action_spec = self._joint("action", [group.action_spec for group in groups])
        own = [Structure.of(group.observation_spec) for group in groups]
        if any(x.paths != own[0].paths for x in own):
            raise self._differ("observation", [group.observation_spec for group in groups])
        each = [leaf_specs(group.observation_spec) for group in groups]
        specs = {
            path: self._joint("observation", [leaves[path] for leaves in each])
            for path in own[0].paths
        }
        device = groups[0].observation_spec.device
        assert device is not None
        self.observation_spec = compose_spec(specs, device)
        self._widths = [specs[path].shape for path in own[0].paths]
        self.endings = _JoinedEndings(self._joined, [x.endings for x in groups])

    @property
    def action_keys(self) -> list[Key]:
        """Keys of their actions."""
        return [group.key for group in self.parts]

    @property
    def observed(self) -> set[Key]:
        """Keys of what they observe."""
        return set().union(*(group.observed for group in self.parts))

    @property
    def form(self) -> None | EnvFormat:
        """Formats of observations and actions: those of the groups if they are the same."""
        joint = EnvFormat.of(self.observation_spec, self.action_spec)
        first = self.parts[0].form
        if first is None or not _act_alike(self.parts):
            return joint
        is_one = all(group.observation_spec == self.observation_spec for group in self.parts)
        return EnvFormat(first.observation if is_one else joint.observation, first.action)

    @cached_property
    def agents(self) -> list[str]:
        """Names of the agents of an environment, with their group's where two have one name."""
        found: list[tuple[str, str]] = []
        for group, size in zip(self.parts, self._sizes, strict=True):
            name = group.layout.group[-1]
            own = group.agents
            own = own if len(own) == size else [f"{name}_{i}" for i in range(size)]
            found += [(name, agent) for agent in own]
        counts = Counter(agent for _, agent in found)
        return [x if counts[x] == 1 else f"{group}_{x}" for group, x in found]

    @property
    def agent_groups(self) -> dict[str, list[str]]:
        """Names of the agents of each group."""
        names = iter(self.agents)
        return {
            "_".join(group.layout.group): list(islice(names, size))
            for group, size in zip(self.parts, self._sizes, strict=True)
        }

    @property
    def agent_specs(self) -> None | dict[str, AgentSpec]:
        """Specs of each agent, if they differ."""
        specs = []
        for group, size in zip(self.parts, self._sizes, strict=True):
            pair = group.observation_spec, group.action_spec
            specs += [AgentSpec(*pair, group.form or EnvFormat.of(*pair))] * size
        if all(x[:2] == specs[0][:2] for x in specs):
            return None
        return dict(zip(self.agents, specs, strict=True))

    def send(self, data: TensorDictBase, action: torch.Tensor) -> None:
        """Set the actions `[N, *action_spec.shape]` of the rows."""
        for group, rows in zip(self.parts, self._split(action), strict=True):
            group.send(data, narrowed((rows,), [group.action_spec.shape])[0])

    def read(self, data: TensorDictBase) -> Leaves:
        """Leaves of the observations, `[N, …]` each."""
        each = zip(*(group.read(data) for group in self.parts), strict=True)
        return tuple(
            self._joined([widened(x, shape[-1]) for x in leaves])
            for leaves, shape in zip(each, self._widths, strict=True)
        )

    def rewards(self, outcome: TensorDictBase) -> torch.Tensor:
        """Rewards of a vector step, `[N, 1]`, in new memory."""
        return self._joined([group.rewards(outcome) for group in self.parts])

    def _joined(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows `[N, …]` of all, of those of each group."""
        each = (
            x.reshape(-1, size, *x.shape[1:]) for x, size in zip(rows, self._sizes, strict=True)
        )
        return torch.cat(list(each), 1).flatten(0, 1)

    def _split(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """Rows of each group, of those of all."""
        each = rows.reshape(-1, sum(self._sizes), *rows.shape[1:]).split(self._sizes, 1)
        return (x.flatten(0, 1) for x in each)

    def _joint(self, kind: str, specs: Sequence[TensorSpec]) -> TensorSpec:
        """The spec of a row, of those of the groups."""
        first = specs[0]
        if all(spec == first for spec in specs):
            return first

        def are(*kinds: type) -> bool:
            return all(isinstance(spec, kinds) for spec in specs)

        common = {"dtype": first.dtype, "device": first.device}
        if all(spec.dtype == first.dtype and spec.ndim == 1 for spec in specs):
            shape = torch.Size([max(spec.shape[0] for spec in specs)])
            if are(Binary):
                return Binary(shape=shape, **common)
            if are(Categorical) and all(spec.shape == shape for spec in specs):
                return Categorical(max(spec.space.n for spec in specs), shape=shape, **common)
            if first.dtype.is_floating_point and are(Bounded):
                low, high = torch.zeros(2, len(specs), *shape, **common).unbind()
                for i, spec in enumerate(specs):
                    low[i, : spec.shape[0]] = spec.space.low
                    high[i, : spec.shape[0]] = spec.space.high
                return real_spec(low.amin(0), high.amax(0), first.device)
            if first.dtype.is_floating_point and are(Bounded, Unbounded):
                return Unbounded(shape, **common)
        raise self._differ(kind, specs)

    def _differ(self, kind: str, specs: Sequence[TensorSpec]) -> AdapterError:
        names = [join_keys([group.layout.group]) for group in self.parts]
        other = next(i for i, spec in enumerate(specs) if spec != specs[0])
        return AdapterError(
            f"Groups of agents have {kind}s that no row can hold: that of {names[0]} is "
            f"{described(specs[0])}, and that of {names[other]} {described(specs[other])}. Vectors "
            "of one dtype, or choices, may differ in size. Make them equal in a transform, or "
            f"choose a group: `action_key={self.action_keys[0]}`; the others act at random."
        )


class _JoinedEndings:
    """The ends of episodes of several groups, as `Endings` has those of one."""

    def __init__(
        self,
        joined: Callable[[Sequence[torch.Tensor]], torch.Tensor],
        parts: Sequence[Endings],
    ) -> None:
        self._joined, self._parts = joined, parts
        self.episode_keys = frozenset().union(*(part.episode_keys for part in parts))

    @property
    def description(self) -> str:
        """The flags that end episodes, for `describe`."""
        return "; ".join(dict.fromkeys(part.description for part in self._parts))

    def start(self) -> None:
        """Start the episodes of all rows, after a reset."""
        for part in self._parts:
            part.start()

    def reset(self, envs: torch.Tensor) -> None:
        """Start the episodes of environments; see `Endings.reset`."""
        for part in self._parts:
            part.reset(envs)

    def read(self, outcome: TensorDictBase, following: TensorDictBase) -> dict[str, torch.Tensor]:
        """The episode keys `[N, 1]` of a vector step; see `Endings.read`."""
        each = [part.read(outcome, following) for part in self._parts]
        for flags in each:
            if DataKeys.VALID in self.episode_keys and DataKeys.VALID not in flags:
                flags[DataKeys.VALID] = torch.ones_like(flags[DataKeys.FIRST])
        return {key: self._joined([flags[key] for flags in each]) for key in each[0]}

    def state_dict(self) -> dict[str, Any]:
        """The states of the groups, by their number."""
        return {str(i): part.state_dict() for i, part in enumerate(self._parts)}

    def checked(self, state: dict[str, Any]) -> Callable[[], None]:
        """Assignment of a state of `state_dict`, which was checked; see `Endings.checked`."""
        assigns = [part.checked(state[str(i)]) for i, part in enumerate(self._parts)]

        def assign() -> None:
            for each in assigns:
                each()

        return assign


def make_rows(
    env: Any, action_key: None | NestedKey, num_envs: None | int, options: Options
) -> Group | Groups:
    """The rows of an environment: of the action with `action_key`, else of all groups of agents.

    Raises:
        AdapterError: If rows cannot be read or acted for, or it is not known which action is meant.

    """
    actions = [] if action_key is not None else list(leaves_of(env.full_action_spec))
    found = [keys.find_rows(env, key, num_envs) for key in actions]
    of = [layout.group for _, layout in found]
    several = len(found) > 1 and all(layout.agents for _, layout in found)
    if not several or len(set(of)) < len(of):
        key, layout = keys.find_rows(env, action_key, num_envs)
        return Group(env, key, layout, options)
    names = join_keys(of)
    for name in ("observation_keys", "reward_key"):
        if getattr(options, name) is not None:
            raise AdapterError(
                f"`{name}` is for rows of one kind, and this environment has the groups {names}. "
                f"Name one by `action_key`, such as `action_key={actions[0]}`, or choose in a "
                "transform."
            )
    groups = [Group(env, key, layout, options) for key, layout in found]
    if any(group.is_rescaled for group in groups) and not _act_alike(groups):
        if options.action_bounds == "rescale":
            raise AdapterError(
                "`action_bounds='rescale'` needs groups whose actions have equal bounds; those of "
                f"{names} differ. Use 'clip', or name one by `action_key`."
            )
        options = options._replace(action_bounds="clip")
        groups = [Group(env, key, layout, options) for key, layout in found]
    return Groups(groups)


def _act_alike(groups: Sequence[Group]) -> bool:
    """Whether the actions of all groups have one format."""
    formats = [group.form and group.form.describe()["action"] for group in groups]
    return all(form == formats[0] for form in formats)
