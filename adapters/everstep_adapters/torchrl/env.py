"""The environment that wraps TorchRL's."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, ClassVar, cast

import torch
from tensordict import TensorDict, TensorDictBase

from everstep.core.validation import Integer, PositiveFloat, PositiveInt
from everstep.data import DataKeys, Device
from everstep.env.agents import AllAgents
from everstep.env.formats import EnvFormat
from everstep.env.specs import Leaves, Structure
from everstep.errors import AdapterError, EnvError

from ..common.actions import ActionBounds, ActionCheck
from ..common.changes import Changes, fitting
from ..common.hints import hint
from ..common.libraries import (
    is_loaded_instance,
    is_loaded_kind,
    require,
    wrap_or_close,
)
from ..common.metrics import AT_ENDS, TensorMean
from ..common.options import AdapterEnv, pop_options
from ..common.specs import describe_spec
from . import keys
from .calls import TorchRLCalls
from .endings import DoneIs
from .groups import Options, make_rows
from .handoff import Handoff
from .source import make_env
from .specs import NestedKey, join_keys, leaves_of, make_leaf
from .state import changes_to_env, decode_data, encode_data, read_state


class TorchRLEnv(AdapterEnv):
    """A `torchrl.envs.EnvBase` as an Everstep environment; the module says how it resets.

    Rows are the environment's batch, flattened, times its agents if it has several. The environment
    is used as it is, with its transforms, and its specs decide what is read. Observations are its
    own tensors if device, dtype and strides allow it; `float64` becomes PyTorch's default dtype. A
    scalar gets one dimension. Actions are sent in new memory each time.

    An environment that resets the tensors of a vector step in place corrupts its final
    observations, here as in TorchRL's own collectors.

    Args:
        env: Environment. `close` closes it.
        horizon: Expected vector steps between resets.
        device: Device of actions and results; `None` is the environment's own.
        num_envs: Rows of a stateless environment that is not locked to a batch of its own.
        max_episode_steps: Env steps after which an episode is truncated, by a `StepCounter`. Limits
            of the environment's own stay in force.
        random_phase: After each reset of all rows, put each environment at a random point of its
            `max_episode_steps`, so that episodes do not end together.
        action_bounds: `"clip"` sends the nearest action inside the bounds; `"rescale"` maps [-1, 1]
            to them; `"auto"` rescales if a dimension has two, so that the first random actions are
            spread over what is allowed, whatever its unit.
        categorical_actions: Whether one-hot actions are choices for the policy.
        observation_keys: Keys that the policy observes, in this order. `None` is every observation
            but those that transforms write for themselves: `is_init`, `step_count`, sums of
            rewards, `_…`.
        action_key: The action that the policy chooses, if the environment has several. The others
            are drawn at random, unless a transform sets them. `None` with several groups of agents
            is all of them.
        reward_key: The reward, if the environment has several.
        done_key: A flag of the group that ends rows, if the environment has several groups.
        terminated_key: The flag of an end by the task, if it has another name.
        done_is: `"terminated"` or `"truncated"`: the kind of every end of an episode, whatever the
            flags say.
        time_limit: Env steps after which an end is a truncation, and before which it is a
            termination, whatever the flags say.
        step_timeout: Seconds that a process of a `ParallelEnv` may take to answer; `None` for
            TorchRL's limit.
        metrics: Keys of the observation spec, of one number each, whose means over valid rows are
            logged as `env/<key>`; those named `is_success`, `success` or `episode_reward` only
            where an episode ends.
        all_agents: Whether the observation has a leaf `all_agents` too, with the observations of
            the environment's agents one after the other: for values that see what all agents see.

    Raises:
        AdapterError: If the adapter cannot represent the environment; names a way out.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("torchrl",)

    #: Number of environments that `num_envs="auto"` makes; each costs CPU time in every step.
    default_num_envs: ClassVar[int] = 8

    #: Vector steps that `horizon="auto"` means, and those where no limit of episodes is known.
    default_horizon: ClassVar[int | tuple[int, int]] = (256, 128)

    #: Env steps of an episode at most; None if no limit is known.
    max_episode_steps: None | int

    #: The wrapped environment, in a `StepCounter` if there are `max_episode_steps`.
    env: Any

    def __init__(
        self,
        env: Any,
        /,
        horizon: None | int = None,
        *,
        device: None | Device = None,
        num_envs: None | Integer = None,
        max_episode_steps: None | PositiveInt = None,
        random_phase: bool = False,
        action_bounds: ActionBounds = "auto",
        categorical_actions: bool = True,
        observation_keys: None | str | Sequence[NestedKey] = None,
        action_key: None | NestedKey = None,
        reward_key: None | NestedKey = None,
        done_key: None | NestedKey = None,
        terminated_key: None | NestedKey = None,
        done_is: None | DoneIs = None,
        time_limit: None | PositiveInt = None,
        step_timeout: None | PositiveFloat = None,
        metrics: Sequence[NestedKey] = (),
        all_agents: bool = False,
    ) -> None:
        needed = "TorchRL's environments are needed: pip install torchrl"
        if not isinstance(env, require("torchrl.envs", "EnvBase", needed)):
            raise AdapterError(f"`env` must be a `torchrl.envs.EnvBase`; got {type(env).__name__}.")
        with keys.reading_specs(env):
            keys.check_wrapper(env)
            self.env = env = keys.limited(env, max_episode_steps, random_phase)
            keys.check_rows(env)
            on_device = torch.device(device if device is not None else env.device or "cpu")
            options = Options(
                device=on_device,
                action_bounds=action_bounds,
                categorical_actions=categorical_actions,
                observation_keys=observation_keys,
                reward_key=reward_key,
                done_key=done_key,
                terminated_key=terminated_key,
                done_is=done_is,
                time_limit=time_limit,
            )
            self._group = make_rows(env, action_key, num_envs, options)
            self._layout = layout = self._group.layout
            super().__init__(layout.num_rows, horizon, device=on_device)
            self.max_episode_steps = max_episode_steps or time_limit or keys.known_limit(env)
            self._counted, self._random_phase = max_episode_steps, random_phase
            self._others = keys.other_actions(env, layout, self._group.action_keys)
            self.action_spec = self._group.action_spec
            self._check_action = ActionCheck(self.num_envs, self.action_spec)
            self.observation_spec = self._group.observation_spec
            self._structure = Structure.of(self.observation_spec)
            #: Specs of each agent, if they differ; see `everstep.env.Env`.
            self.agent_specs = self._group.agent_specs
            #: Names of the agents of each group; see there, too.
            self.agent_groups = self._group.agent_groups
            if (form := self._group.form) is not None:
                self.env_format = form
            chosen = keys.find_observed(env, layout, metrics, "metrics") if metrics else {}
            self._metrics = {
                key: (make_leaf(key, spec, layout, on_device), TensorMean(self.num_envs, on_device))
                for key, spec in chosen.items()
            }
            if wide := [
                key for key, (leaf, _) in self._metrics.items() if leaf.feature.numel() != 1
            ]:
                raise AdapterError(
                    f"`metrics` are keys of one number each; `{join_keys(wide)}` has more. Reduce "
                    "it in a transform."
                )
            self._endings = self._group.endings
            if done_is is None and time_limit is None and terminated_key is None:
                keys.warn_of_one_flag(env)
            own = keys.own_episode_keys(env)
            self._has_final = DataKeys.FINAL_OBS in own if own else not keys.resets_itself(env)
            self.episode_keys = self._endings.episode_keys
            if self._has_final:
                self.episode_keys |= {DataKeys.FINAL_OBS}
            #: Whether `reset_rows` works: others than single environments may reset all rows.
            self.resets_rows = self._has_final and keys.has_single_rows(env)
            self._calls = TorchRLCalls(env, step_timeout)
            self._handoff = Handoff(env.device or torch.device("cpu"), on_device)
            self._phases = torch.Generator()
            self._everybody = self._make_everybody() if all_agents else None
            #: The last step's observations and states, to which the next action is added.
            self._data: None | TensorDictBase = None

    def _make_everybody(self) -> AllAgents:
        """Add what all agents observe to the observation."""
        if not self._layout.agents:
            raise AdapterError(
                f"`all_agents` is for environments of several agents, and a row of "
                f"{self._calls.name} is an environment. Leave it out."
            )
        form = getattr(self, "env_format", EnvFormat.of(self.observation_spec, self.action_spec))
        everybody = AllAgents(self.observation_spec, form, self.rows_per_env)
        self.observation_spec, self.env_format = everybody.spec, everybody.env_format
        if self.agent_specs is not None:
            own = self.agent_specs.items()
            self.agent_specs = {agent: everybody.around(specs) for agent, specs in own}
        return everybody

    @property
    def rows_per_env(self) -> int:
        """Number of rows of each environment: of agents."""
        return self._layout.agents.numel()

    @property
    def agents(self) -> list[str]:
        """Names of the agents that are the rows of each environment; empty if it has none."""
        return self._group.agents

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` is a TorchRL environment. Imports nothing."""
        return is_loaded_instance(env, "torchrl.envs", "EnvBase")

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """Advice for an environment that one of TorchRL's wrappers takes; empty for others."""
        return hint(env)

    @classmethod
    def module_of(cls, name: str, /) -> str:
        """The module of a class; empty for the id of a Gymnasium environment."""
        return name.replace(":", ".") if {":", "."} & {*name} else ""

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """Whether this is a class of TorchRL environments, or one without a batch."""
        if not is_loaded_kind(source, "torchrl.envs", "EnvBase"):
            return False
        return isinstance(source, type) or not cast(Any, source).batch_size

    @classmethod
    def make(
        cls,
        name: Any,
        num_envs: int,
        /,
        *,
        horizon: None | int = None,
        device: Device = "cpu",
        **kwargs: Any,
    ) -> "TorchRLEnv":
        """A new environment, made by name and wrapped.

        Args:
            name: An `EnvBase` class, or `"module:Class"` or `"package.module.Class"` for one, which
                is made with `batch_size=[num_envs]` if its constructor takes that; a function that
                makes an environment without a batch; else the id of a Gymnasium environment, for
                `torchrl.envs.GymEnv`.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            kwargs: Options of `TorchRLEnv`; `parallel=True` for a `ParallelEnv` rather than a
                `SerialEnv` of environments without a batch, and `vector_kwargs` for its
                constructor; what is none of these goes to each environment's constructor.

        Raises:
            AdapterError: If it cannot be made, or the adapter cannot represent it.

        """
        options = pop_options(cls, kwargs)
        env = make_env(name, num_envs, device, **kwargs)
        return wrap_or_close(cls, env, horizon, device=device, **options)

    def seed(self, seed: int) -> None:
        """Seed the environment, by its `set_seed`, for the next reset and what follows."""
        self._calls.call("set_seed", seed)
        self._phases.manual_seed(seed)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment.

        Args:
            config: Keyword arguments of the environment's `reset`. The resets of ended episodes
                have none.

        Raises:
            EnvError: If the environment fails.

        """
        self._data = None
        options = dict(config or {})
        if self._layout.batch != self.env.batch_size:
            options.setdefault("tensordict", TensorDict({}, self._layout.batch))
        data = self._calls.call("reset", **options)
        # The environment may use what it returned: keys are only added to a copy.
        self._data = data.copy()
        self._endings.start()
        if self._random_phase:
            self._draw_phases(self._data)
        return self._observed(self._data)

    def reset_rows(self, rows: torch.Tensor) -> torch.Tensor | TensorDict:
        """Observations after resetting rows now, as TorchRL resets those that are done.

        Args:
            rows: Rows bool `[num_envs, 1]`; of several agents, all rows of an environment or none.
                Only their observations are meaningful.

        Raises:
            EnvError: If it was not reset, `rows` has a part of an environment, or it fails.

        """
        data = self._require_data().copy()
        of_envs = rows.to(self.env.device or "cpu").view(-1, self.rows_per_env)
        if not torch.equal(of_envs.all(1), envs := of_envs.any(1)):
            raise EnvError(
                f"The rows of an environment are reset together, and {self._calls.name} has "
                f"{self.rows_per_env} in each: `rows` has some of them only. Give all of them."
            )
        for key, spec in leaves_of(self.env.full_done_spec).items():
            chosen = envs.view(*self._layout.batch, *[1] * (spec.ndim - self._layout.batch_dims))
            data.set(key, chosen.expand(spec.shape).clone())
        self._data = None
        self._data = self._calls.call("maybe_reset", data)
        self._endings.reset(envs)
        return self._observed(self._data)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """The row of a vector step: `obs`, `rewards` and the episode keys; see the module.

        Args:
            action: Actions `[num_envs, *action_spec.shape]`, integers or floating point as the
                spec has it. Never written to.

        Raises:
            AdapterError: If the action has another shape or kind of dtype.
            EnvError: If the environment fails, or returns something that its specs do not describe.

        """
        data = self._require_data()
        self._group.send(data, self._check_action(action))
        for key, draw in self._others.items():
            data.set(key, draw())
        self._data = None  # after a vector step that fails, a reset is needed
        # One sync a vector step on an accelerator: TorchRL checks whether anything is done.
        stepped, self._data = self._calls.step_and_maybe_reset(data)
        return self._row(stepped.get("next"), self._data)

    def metrics(self) -> dict[str, Any]:
        """Means of the keys in the option `metrics` since the last call, 0-d each."""
        return {"/".join(key): mean.pop() for key, (_, mean) in self._metrics.items()}

    def state_dict(self) -> None | dict[str, Any]:
        """The state of the environment, from which it continues; None if it cannot be read.

        It can be read if all layers are in `everstep_adapters.torchrl.state.ATTRIBUTES`, or have
        `state_dict` and `load_state_dict` of their own.
        """
        held = None if self._data is None else read_state(self.env)
        data = None if self._data is None else encode_data(self._data)
        if held is None or data is None:
            return None
        phases = self._phases.get_state()
        return {"env": held, "data": data, "ends": self._endings.state_dict(), "phases": phases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: If it does not fit the environment; nothing is changed then.

        """
        changes = Changes()
        with fitting(self._calls.name):
            data = decode_data(self.env, self._layout, state["data"])
            self._group.read(data)
            changes_to_env(changes, self.env, state["env"])
            changes.assign(self._endings.checked(state["ends"]))
            torch.Generator().set_state(state["phases"])
        changes.make()
        self._phases.set_state(state["phases"])
        self._data = data

    def close(self) -> None:
        """Close the wrapped environment."""
        self._data = None
        self._calls.close()

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        limit = "only the environment's own"
        if self._counted is not None:
            limit = f"{self._counted} env steps, by a `StepCounter` of the adapter"
        action = f"{join_keys(self._group.action_keys)}: {describe_spec(self.action_spec)}"
        if self._group.is_one_hot:
            action += ", sent one-hot"
        if self._others:
            action += f" (at random: {join_keys(list(self._others))})"
        return {
            "family": f"TorchRL {version('torchrl')}",
            "environment": self._calls.name,
            "num_envs": self._describe_rows(),
            "observation": self._describe_observation(),
            "action": action,
            "resets": f"in the env step that ends an episode, {self._endings.description}",
            "final observations": self._describe_final(),
            "limit": limit,
            "hand-off": self._handoff.description,
            "seeding": "the environment's `set_seed`",
        }

    def _describe_rows(self) -> str:
        layout = self._layout
        if not layout.agents:
            return f"{layout.num_rows} (batch size {list(layout.batch)})"
        environments = " x ".join(map(str, layout.batch)) or "1"
        agents = " and ".join(
            f"{part.layout.agents.numel()} `{join_keys([part.layout.group])}`"
            for part in self._group.parts
        )
        return f"{layout.num_rows} ({environments} environments of {agents})"

    def _describe_observation(self) -> str:
        observed = self._group.observed
        every = leaves_of(self.env.observation_spec)
        left_out = [key for key in every if key not in observed and key[-1] != keys.STEP_COUNT]
        text = describe_spec(self.observation_spec)
        if len(observed) == 1:
            text = f"{join_keys(list(observed))}: {text}"
        return f"{text} (left out: {join_keys(left_out)})" if left_out else text

    def _describe_final(self) -> str:
        if self._has_final:
            return "what the environment returned under `next`; where that is NaN they are lost"
        if keys.own_episode_keys(self.env):
            return "the observation of the row that is done"
        return "lost, the environment resets itself: `on_missing_final` decides"

    def _require_data(self) -> TensorDictBase:
        if self._data is None:
            raise EnvError(f"{self._calls.name} must be reset before it is stepped: call `reset`.")
        return self._data

    def _observed(self, data: TensorDictBase) -> torch.Tensor | TensorDict:
        """Observations `[num_envs, …]` after a reset."""
        leaves = tuple(leaf.to(self.device) for leaf in self._group.read(data))
        obs = self._structure.unflatten(leaves, [self.num_envs])
        return obs if self._everybody is None else self._everybody.extended(obs, obs)

    def _row(self, outcome: TensorDictBase, following: TensorDictBase) -> TensorDict:
        """The row of a vector step.

        Args:
            outcome: What the action caused, before any reset.
            following: What is acted on next.

        """
        flags = self._endings.read(outcome, following)
        rewards = self._group.rewards(outcome)
        if DataKeys.VALID in flags:
            rewards.masked_fill_(~flags[DataKeys.VALID], 0.0)
        single = {DataKeys.REWARDS: rewards, **flags}
        for key, (leaf, mean) in self._metrics.items():
            done = flags[DataKeys.TERMINATED] | flags[DataKeys.TRUNCATED]
            flat = [flags.get(DataKeys.VALID), done if key[-1] in AT_ENDS else None]
            rows = (x if x is None else x.reshape(-1) for x in flat)
            mean.add(leaf.read(outcome, self._layout).to(self.device), *rows)
        obs = self._group.read(following)
        final: Leaves = self._group.read(outcome) if self._has_final else ()
        sent = self._handoff.send((*obs, *final, *single.values()))
        count = len(obs)
        row: dict[str, Any] = dict(zip(single, sent[-len(single) :], strict=True))
        row[DataKeys.OBS] = self._structure.unflatten(tuple(sent[:count]), [self.num_envs])
        if final:
            ended = tuple(sent[count : 2 * count])
            row[DataKeys.FINAL_OBS] = self._structure.unflatten(ended, [self.num_envs])
        rows = TensorDict(row, batch_size=[self.num_envs])
        if self._everybody is not None:
            self._everybody.extend(rows)
        return rows

    def _draw_phases(self, data: TensorDictBase) -> None:
        """Put each environment's count of env steps at a random point below the limit."""
        for key in leaves_of(self.env.observation_spec):
            if key[-1] == keys.STEP_COUNT:
                count = data.get(key)
                drawn = torch.randint(self._counted or 1, count.shape, generator=self._phases)
                data.set(key, drawn.to(count))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._calls.name}, num_envs={self.num_envs}, "
            f"horizon={self.horizon}, device={str(self.device)!r})"
        )
