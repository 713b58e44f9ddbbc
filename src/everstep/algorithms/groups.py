"""Several policies that learn in one environment, each from the rows of its agents."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from tensordict import TensorDict

from ..core.hyperparameters import Hyperparameters
from ..core.ranks import current_reducer, reduce_stats
from ..core.restoring import Snapshot, loading
from ..data import CollectStats, DataKeys, MemoryStats, StepStats
from ..distillation import Distillation, make_objective_of
from ..env import Env
from ..env.agents import AgentSpec, agents_of, groups_of, narrowed, spec_of, widened
from ..env.calls import Settings, Switched, read_metrics
from ..env.registry import EnvSource
from ..env.specs import Leaves, Structure
from ..errors import CheckpointError, ConfigError, DivergedError
from ..policies import GroupedPolicy
from . import snapshot as snapshots
from .algorithm import OnPolicyAlgorithm
from .estimates import stopwatch
from .resolve import build_env, closed_on_error

#: Seeds of policies are this far apart, so that those of neighbouring trainings differ.
_SEEDS = 1_000_003


def is_shared(config: Hyperparameters) -> bool:
    """Whether all rows of an environment share a policy."""
    return config.policies == "shared"


class GroupEnv(Env):
    """The rows of some agents of an environment, as an environment for their algorithm.

    The first group that calls `reset` resets the environment that all groups share.
    `GroupedAlgorithm` steps it once all groups have acted; `step` only reads the group's rows.

    Args:
        everybody: The environment, which all groups share.
        columns: Indices of the group's agents in the list of one environment's agents.
        own: The group's specs, if they are not the environment's.

    """

    def __init__(
        self, everybody: "Everybody", columns: list[int], own: None | AgentSpec = None
    ) -> None:
        env, agents = everybody.env, everybody.agents
        count = env.num_envs // len(agents)
        super().__init__(count * len(columns), env.horizon, device=env.device)
        self.everybody, self.rows_per_env = everybody, len(columns)
        self.agents = [agents[i] for i in columns]
        self.observation_spec, self.action_spec = env.observation_spec, env.action_spec
        self.episode_keys = env.episode_keys
        if hasattr(env, "env_format"):
            self.env_format = env.env_format
        #: How to read the group's observations from wider rows; None if they are the rows.
        self._own: None | Structure = None
        if own is not None:
            self.observation_spec, self.action_spec, self.env_format = own
            self._own = Structure.of(own.observation_spec)
        every = torch.arange(env.num_envs, device=env.device).view(count, len(agents))
        #: The group's rows; a slice, which copies nothing, where they are evenly spaced.
        self.rows: Any = every[:, columns].flatten()
        if len(columns) == 1:
            self.rows = slice(columns[0], None, len(agents))
        elif len(columns) == len(agents) and columns == [*range(len(agents))]:
            self.rows = slice(None)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """The group's observations after a reset of the environment, `[num_envs, …]`."""
        return self._seen(self.everybody.reset(config)[self.rows])

    def step(self, action: Any) -> TensorDict:
        """The group's rows of the last vector step of the environment."""
        found = {key: x[self.rows] for key, x in self.everybody.outcome.items()}
        for key in (DataKeys.OBS, DataKeys.FINAL_OBS) if self._own is not None else ():
            if key in found:
                found[key] = self._seen(found[key])
        return cast(TensorDict, found)

    def _seen(self, rows: Any) -> Any:
        """Observations of the group, of its rows."""
        if self._own is None:
            return rows
        return self._own.unflatten(
            narrowed(self._own.flatten(rows), self._own.shapes), [self.num_envs]
        )


class Everybody:
    """One environment that several groups act in.

    Args:
        env: The environment.

    """

    def __init__(self, env: Env) -> None:
        self.env, self.agents = env, agents_of(env)
        #: Whether rows are wider than what some agents observe or do.
        self.pads = getattr(env, "agent_specs", None) is not None
        self._action = Structure.of(env.action_spec)
        #: What the last vector step returned.
        self.outcome: Any = None
        self._opened: Any = None
        self.ns = 0

    def begin(self) -> None:
        """Begin a rollout: the next `reset` resets the environment."""
        self._opened, self.ns = None, 0

    def reset(self, config: None | dict[str, Any]) -> Any:
        """First observations; only the first call of a rollout resets the environment."""
        if self._opened is None:
            self._opened = self.env.reset(config=config)
        return self._opened

    def step(self, parts: list[tuple[Any, Leaves]], switched: Switched) -> None:
        """Execute actions.

        Args:
            parts: Rows and actions `[N_g, …]` of each group.
            switched: Context of the environment's caller.

        """
        n = self.env.num_envs
        joined = tuple(
            x.new_zeros(n, *shape) if self.pads else x.new_empty(n, *shape)
            for x, shape in zip(parts[0][1], self._action.shapes, strict=True)
        )
        for rows, leaves in parts:
            for x, leaf in zip(joined, leaves, strict=True):
                x[rows] = widened(leaf, x.shape[-1]) if self.pads else leaf
        action = self._action.unflatten(joined, [n])
        start = time.perf_counter_ns()
        with switched:
            self.outcome = self.env.step(action)
        self.ns += time.perf_counter_ns() - start


class RandomStream:
    """Context in which PyTorch's generators draw one policy's own random numbers.

    The first block starts from the seed, each later one where the block before it ended.

    Args:
        seed: Seed of the first block; None draws one from PyTorch's generator.
        device: Device of the policy.

    """

    def __init__(self, seed: None | int, device: torch.device) -> None:
        self.device = device
        outside = Snapshot.of_random_states(device)
        torch.manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)
        self._own = self._now()
        outside.restore()

    def _now(self) -> tuple[torch.Tensor, None | torch.Tensor]:
        on_gpu = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return torch.get_rng_state(), on_gpu

    def _set(self, states: tuple[torch.Tensor, None | torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1], self.device)

    def __enter__(self) -> None:
        self._outside = self._now()
        self._set(self._own)

    def __exit__(self, *error: object) -> None:
        self._own = self._now()
        self._set(self._outside)


class GroupedAlgorithm:
    """On-policy training of several policies in one environment whose rows are agents.

    Each policy has an algorithm of its own, one of `members`: model, optimizer, normalisers and
    random numbers. It acts in the rows of its agents and learns from them alone, as if it were
    trained by itself in an environment that the other agents belong to. Schedules count the
    env steps of all agents. `config.build` makes it where `policies` is not `"shared"`.

    Statistics are those of all rows, or means over policies, and each policy's under its name, such
    as `agent_0/episodes/return_mean`.

    Args:
        kind: Class of the members.
        env_cls: Environment class, factory, or an environment already made.
        config: Hyperparameters; each policy is trained with them. `num_envs` counts rows of all
            agents, `sgd_minibatch_size` those of one policy.

    Raises:
        ConfigError: If a hyperparameter breaks a rule, or groups cannot be trained with it.
        EnvError: If the environment's specs cannot be used.

    """

    def __init__(
        self,
        kind: type[OnPolicyAlgorithm[Any, Any, Any]],
        env_cls: EnvSource,
        /,
        config: Hyperparameters,
    ) -> None:
        config = config.validate()
        if problems := _unsupported(config):
            raise ConfigError(problems)
        if config.seed is not None:
            torch.manual_seed(config.seed)
        env, resolved = build_env(env_cls, replace(config, cuda_graphs=False))
        with closed_on_error(env, env_cls):
            groups = groups_of(env, config.policies)
            if config.seed is not None and hasattr(env, "seed"):
                env.seed(config.seed)
            self.env, self.everybody = env, Everybody(env)
            device = torch.device(env.device)
            #: Algorithm and random numbers of each policy, by its name.
            self.members: dict[str, OnPolicyAlgorithm[Any, Any, Any]] = {}
            self._streams: dict[str, RandomStream] = {}
            for i, (name, agents) in enumerate(groups.items()):
                columns = [self.everybody.agents.index(agent) for agent in agents]
                seed = None if config.seed is None else (config.seed + i * _SEEDS) % 2**63
                own = replace(
                    deepcopy(config),
                    policies="shared",
                    cuda_graphs=False,
                    num_envs="auto",
                    horizon=resolved.horizon,
                    device=resolved.device,
                    seed=seed,
                )
                self._streams[name] = RandomStream(seed, device)
                with self._streams[name], _naming(name):
                    rows = GroupEnv(self.everybody, columns, spec_of(env, agents, name))
                    self.members[name] = kind(rows, own)
        self._given = replace(config, num_envs=resolved.num_envs)
        policies = {name: x.policy for name, x in self.members.items()}
        form = None
        if self.everybody.pads:
            form = AgentSpec(env.observation_spec, env.action_spec, env.env_format)
        self.policy = GroupedPolicy(policies, groups, self.everybody.agents, form)
        self.reducer = self._first.reducer
        self._describe()

    @property
    def _each(self) -> list[Any]:
        return [*self.members.values()]

    @property
    def _first(self) -> Any:
        return next(iter(self.members.values()))

    def __repr__(self) -> str:
        horizon = self._first.rollout.horizon
        return f"{type(self).__name__}({self.env!r}, {self.policy!r}, horizon={horizon})"

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name):
            """Raise an error; it says how to get an attribute that each policy's algorithm has."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if "members" in vars(self) and hasattr(self._first, name):
                first = next(iter(self.members))
                message += f": it is one policy's: `algorithm.members[{first!r}].{name}`"
            raise AttributeError(message, name=name, obj=self)

    # ---- the record ---------------------------------------------------------------------------

    def _describe(self) -> None:
        """Set `config` and `hparams`, from the first policy's and the sizes for all policies."""
        first = self._first.config
        #: Hyperparameters, resolved but for the rows of a minibatch: policies may have different
        #: numbers of agents.
        self.config = replace(
            first,
            policies=self._given.policies,
            num_envs=self._given.num_envs,
            sgd_minibatch_size=self._given.sgd_minibatch_size,
            seed=self._given.seed,
        ).built_in()
        own = self._first.hparams
        #: Read-only view of the hyperparameters.
        self.hparams = type(own)(self.config, num_minibatches=own.num_minibatches)

    @property
    def params(self) -> dict[str, Any]:
        """Everything that a record of this training should name, by name."""
        names = ("policies", "num_envs", "sgd_minibatch_size", "seed")
        own = {name: getattr(self.config, name) for name in names}
        return {**self._first.params, **own, "env_cls": type(self.env).__name__}

    @property
    def general_way(self) -> None | str:
        """Reason why training does not take the native way; None if it does."""
        return cast("None | str", self._first.general_way)

    @property
    def horizons_per_env_reset(self) -> int:
        """Rollouts between resets of the environment; negative: no such number."""
        return int(self._first.horizons_per_env_reset)

    @property
    def state(self) -> Any:
        """Counters of the first policy; of all, env steps are those of all agents."""
        return self._first.state

    @property
    def continues(self) -> bool:
        """Whether the environment is where the last rollout ended."""
        return all(x.continues for x in self._each)

    @property
    def optimizer(self) -> Any:
        """Optimizer of the first policy; all have the same settings."""
        return self._first.optimizer

    @property
    def clip_scheduler(self) -> Any:
        """Schedule of `clip_param`, which all policies have."""
        return self._first.clip_scheduler

    @property
    def num_epochs(self) -> int:
        """How often an update of the first policy goes through its rollout."""
        return int(self._first.num_epochs)

    @property
    def minibatch_size(self) -> int:
        """Sequences a minibatch of the first policy."""
        return int(self._first.minibatch_size)

    @property
    def schedule_end(self) -> None | int:
        """Env steps after which nothing is learned, because a schedule has ended in 0."""
        return cast("None | int", self._first.schedule_end)

    @property
    def annealed_to(self) -> None | int:
        """Env steps of the budget, if anything depends on it."""
        return cast("None | int", self._first.annealed_to)

    def anneal(self, total: int) -> None:
        """Set the budget: of `num_sgd_iters`, and of schedules that have names or are functions."""
        for member in self._each:
            member.anneal(total)

    def update_algorithm_parameter(self, parameter_name: str, new_parameter_value: Any) -> None:
        """Change a hyperparameter of all policies; see `Algorithm.update_algorithm_parameter`."""
        before = [(x, x.parts) for x in self._each]
        try:
            for member in self._each:
                member.update_algorithm_parameter(parameter_name, new_parameter_value)
        except BaseException:
            for member, parts in before:
                member.parts = parts
                member.follow_schedules()
            raise
        if parameter_name in ("sgd_minibatch_size", "num_mini_batch"):
            size = self._first.config.sgd_minibatch_size
            self._given = replace(self._given, sgd_minibatch_size=size)
        self._describe()

    def memory_stats(self) -> MemoryStats:
        """Memory of the device, in bytes and percent."""
        return cast(MemoryStats, self._first.memory_stats())

    # ---- collect and step ---------------------------------------------------------------------

    def collect(
        self, *, env_config: None | dict[str, Any] = None, deterministic: bool = False
    ) -> CollectStats:
        """Fill the buffers of all policies with a rollout; see `Algorithm.collect`."""
        elapsed_ms = stopwatch()
        members, streams = self._each, [*self._streams.values()]
        self.everybody.begin()
        settings = Settings.now()
        with ExitStack() as stack:
            for member in members:
                stack.enter_context(member.collecting(deterministic=deterministic))
            due = all(member.is_reset_due for member in members)
            begun = [member.begin(env_config, due=due) for member in members]
            _, was_reset = begun[0]
            if was_reset:
                read_metrics(self.env)  # those of a rollout that failed are discarded
            for member in members:
                stack.enter_context(member.in_rollout())
                stack.enter_context(member.naming_choices())
            switched = Switched(settings, Settings.now())
            acting = [
                member.acting(states, deterministic=deterministic)
                for member, (states, _) in zip(members, begun, strict=True)
            ]
            for t in range(members[0].rollout.horizon):
                parts = []
                for member, stream, act in zip(members, streams, acting, strict=True):
                    with stream:
                        parts.append((member.env.rows, act.act(t)))
                self.everybody.step(parts, switched)
                for member, stream, act, (_, actions) in zip(
                    members, streams, acting, parts, strict=True
                ):
                    member.calls.step(member.rollout, t, actions)
                    if act.has_episodes:
                        with stream:
                            act.observe(t)
            collected = []
            for stream, act in zip(streams, acting, strict=True):
                with stream:
                    collected.append(act.finish())
            pairs = [*zip(members, collected, strict=True)]
            found = [member.examine(x, was_reset=was_reset) for member, x in pairs]
        stats = [
            member.accept(x, own, was_reset=was_reset)
            for (member, x), own in zip(pairs, found, strict=True)
        ]
        joined = self._joined(stats) | read_metrics(self.env)
        for member in members:
            member._rows_to_learn = int(joined["env/steps"])
        took = {"profiling/env_ms": self.everybody.ns / 1e6, "profiling/collect_ms": elapsed_ms()}
        return cast(CollectStats, {**joined, **took})

    def step(self) -> StepStats:
        """Update all policies with the rollout; see `Algorithm.step`.

        Raises:
            NotBufferedError: If `collect` was not called before.
            DivergedError: If no minibatch of a policy had finite gradients; it is unchanged.

        """
        elapsed_ms = stopwatch()
        stats: list[Mapping[str, Any]] = []
        for name, member in self.members.items():
            with self._streams[name], _naming(name):
                stats.append(member.step())
        return cast(StepStats, {**self._joined(stats), "profiling/step_ms": elapsed_ms()})

    def _joined(self, stats: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Statistics of all policies, and those of each under its name."""
        own = [{k: x for k, x in each.items() if not k.startswith("profiling/")} for each in stats]
        joined = reduce_stats(own)
        for key in joined:
            values = [each[key] for each in own if key in each]
            if _is_mean(key):
                joined[key] = sum(values) / len(values)
            elif isinstance(values[0], int):
                joined[key] = int(joined[key])
        named = zip(self.members, own, strict=True)
        return joined | {f"{name}/{key}": x for name, each in named for key, x in each.items()}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Collect in the block without changing the training; see `Algorithm.evaluating`."""
        with ExitStack() as stack:
            for member in self._each:
                stack.enter_context(member.evaluating())
            yield

    def validate(self) -> None:
        """Try the policies on observations of zeros; see `Algorithm.validate`."""
        for name, member in self.members.items():
            with _naming(name):
                member.validate()

    # ---- state --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that training continues from; see `Algorithm.state_dict`."""
        members = {}
        for name, member in self.members.items():
            with self._streams[name]:
                members[name] = member.state_dict()
        env: Any = self.env
        device = self.policy.device
        return {
            "members": members,
            "groups": self.policy.groups,
            "continues": self.continues,
            "env": env.state_dict() if hasattr(env, "state_dict") else None,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; environments whose state is not in it are reset.

        Raises:
            CheckpointError: If the state does not fit; nothing is changed then.

        """
        with loading(self.state_dict, self._load, partial(self._check, state)):
            self._load(state)

    def _check(self, state: Mapping[str, Any]) -> None:
        groups = state.get("groups")
        if groups != self.policy.groups:
            raise CheckpointError(
                f"The checkpoint's policies are {groups or 'one for all'}; this algorithm's are "
                f"{self.policy.groups}. Set `policies` as it was."
            )
        if state["env"] is not None and not hasattr(self.env, "load_state_dict"):
            raise CheckpointError(
                f"The checkpoint holds the environment's state, and {type(self.env).__name__} has "
                "no `load_state_dict`: train with the environment that wrote it."
            )
        for name, member in self.members.items():
            snapshots.check_state(member.parts, member.state, state["members"][name])

    def _load(self, state: Mapping[str, Any]) -> None:
        """Write a state that fits; the environment, which may refuse, is first."""
        if state["env"] is not None:
            snapshots.load_env(self.env, state["env"])
        continues = state["continues"] and state["env"] is not None
        for name, member in self.members.items():
            with self._streams[name]:
                member._load(state["members"][name], continues=continues)
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None and self.policy.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.policy.device)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the policy in errors that are about one."""
    try:
        yield
    except DivergedError as error:
        raise DivergedError(f"Policy {name}: {error}") from error
    except ConfigError as error:
        problems = [f"{x} (policy {name})" for x in error.problems]
        raise ConfigError(problems) from error


def _is_mean(key: str) -> bool:
    """Whether a statistic of all policies is the mean of theirs."""
    family, _, name = key.partition("/")
    return name.endswith("_100") or family in ("losses", "monitors", "coefficients")


def _unsupported(config: Hyperparameters) -> list[str]:
    """Hyperparameters that several policies cannot be trained with, one message each."""
    one = 'leave it out, or train one policy for all (`policies="shared"`).'
    objective = make_objective_of(config.objective)
    found = {
        f"`model` is one module, and `policies` makes several: pass `model_cls`, or {one}": (
            config.model is not None
        ),
        f"`bonuses` act in the whole environment and are not for several `policies`: {one}": (
            bool(config.bonuses)
        ),
        f"`symmetry` is not for several `policies`: {one}": config.symmetry is not None,
        f"A distillation is not for several `policies`: {one}": isinstance(objective, Distillation),
        f"`cuda_graphs` record one policy, not several `policies`: {one}": (
            config.cuda_graphs is True
        ),
        f"Several `policies` are trained in one process, and this is one of "
        f"{current_reducer().size}: {one}": current_reducer().size > 1,
    }
    return [message for message, is_so in found.items() if is_so]
