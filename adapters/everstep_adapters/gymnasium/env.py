"""The environment that wraps Gymnasium's vector environments."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from tensordict import TensorDict

from everstep.core.validation import PositiveFloat, PositiveInt
from everstep.data import DataKeys, Device
from everstep.env.agents import AgentSpec
from everstep.env.formats import EnvFormat
from everstep.errors import AdapterError

from ..common.actions import ActionBounds, ActionCheck
from ..common.handoff import as_tensor, declared_device, finish_reading, is_of_tensors
from ..common.libraries import is_loaded_instance, is_loaded_kind, require, wrap_or_close
from ..common.metrics import InfoMetrics, TensorMean
from ..common.options import AdapterEnv
from ..common.specs import compose_spec, describe_spec

# Most modules of the folder import Gymnasium, so this one imports them when an environment is
# wrapped.
if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv

    from .actions import Actions
    from .probe import Evidence
    from .rows import BorrowedRows
    from .tensor_rows import TensorActions, TensorRows

_NEEDED = "Gymnasium 1.1 or newer is needed: pip install 'gymnasium>=1.1'"


class GymnasiumEnv(AdapterEnv):
    """A `gymnasium.vector.VectorEnv` as an Everstep environment; the module says how it resets.

    Observations keep their dtype, except that `float64` becomes PyTorch's default dtype, and
    `uint16` and `uint32` become `int32` and `int64`. Integers that count from a `start` count from
    0 here. `Dict` and `Tuple` spaces become `Composite` specs (a tuple's keys are "0", "1", …).
    `step` returns the same TensorDict each time, locked, and in `Algorithm.collect` those of the
    rollout, into which it writes: clone what it returns before keeping or changing it.

    In SAME_STEP, `final_obs` equals `obs` in rows in which no episode ended. If an episode was
    truncated and the environment lost its final observation, floating-point leaves hold NaN.
    Environments in a `SyncVectorEnv` or an `AsyncVectorEnv` may write into observations that they
    have returned: the one that ends an episode is copied before the reset. Other classes must put
    copies into their infos. A final observation that the reset may have overwritten counts as lost,
    and is an error once that is certain.

    Args:
        env: Vector environment. `close` closes it.
        horizon: Expected vector steps between resets.
        device: Device of actions and results; `None` is the one that the
            environment says its tensors are on, the CPU if it has no attribute `device`.
        autoreset_mode: When the environment resets itself: a member of
            `gymnasium.vector.AutoresetMode` or its name. `None` reads it from the environment.
        max_episode_steps: Env steps after which the adapter truncates an episode. Needs a
            `SyncVectorEnv`, or an `AsyncVectorEnv` with shared memory: others cannot reset single
            rows. A limit of the environment's own stays in force.
        action_bounds: `"clip"` sends the nearest action inside the bounds; `"rescale"` maps [-1, 1]
            to them; `"auto"` rescales if a dimension has two, so that the first random actions are
            spread over what is allowed, whatever its unit. Real-valued actions are in PyTorch's
            default dtype if the space's dtype is `float64`.
        random_phase: After each reset of all rows, put each at a random point of its
            `max_episode_steps`, so that their episodes do not end together.
        step_timeout: Seconds that a worker of an `AsyncVectorEnv` may take to answer before all
            are ended and an `EnvError` is raised; `None` for no limit. No effect on Windows.
        observation_keys: Keys of a `Dict` or `Tuple` observation that the policy observes, in this
            order, each a key or a sequence of nested ones. `None` for all.
        metrics: Names of the infos whose means are logged as `env/<name>`; `None` for all numbers,
            an empty list for none.

    Raises:
        AdapterError: If the adapter cannot represent the environment; names a way out.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("gymnasium", "gymnasium_robotics", "minigrid", "ale_py")

    #: Number of environments that `num_envs="auto"` makes; each costs CPU time in every step.
    default_num_envs: ClassVar[int] = 8

    #: Vector steps that `horizon="auto"` means, and those where no limit of episodes is known.
    default_horizon: ClassVar[int | tuple[int, int]] = (256, 128)

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "Gymnasium"

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]] = ("gymnasium", _NEEDED)

    #: Effect of `seed` in `describe`.
    seeding: ClassVar[str] = "the next reset; row i gets seed + i"

    #: Episode keys that a subclass writes in `_end`, beside those of the mode.
    own_episode_keys: ClassVar[frozenset[str]] = frozenset()

    #: When the wrapped environment resets itself.
    autoreset_mode: "AutoresetMode"

    #: The wrapped environment.
    env: "VectorEnv[Any, Any, Any]"

    def __init__(
        self,
        env: "VectorEnv[Any, Any, Any]",
        /,
        horizon: None | int = None,
        *,
        device: None | Device = None,
        autoreset_mode: "None | str | AutoresetMode" = None,
        max_episode_steps: None | PositiveInt = None,
        action_bounds: ActionBounds = "auto",
        random_phase: bool = False,
        step_timeout: None | PositiveFloat = 600.0,
        observation_keys: None | Sequence[Any] = None,
        metrics: None | Sequence[str] = None,
    ) -> None:
        require("gymnasium.vector", "AutoresetMode", _NEEDED)
        from . import actions, endings, modes, rows, singles, specs, workers

        if not GymnasiumEnv.matches(env):
            received = f"`env` must be a `gymnasium.vector.VectorEnv`; got {type(env).__name__}."
            raise AdapterError(f"{received} {GymnasiumEnv.suggest(env)}".strip())
        on_device = declared_device(env) if device is None else torch.device(device)
        super().__init__(env.num_envs, horizon, device=str(on_device) if device is None else device)
        self.env = env
        singles.check_rewards(env)
        mode, self._mode_source = modes.resolve_mode(env, autoreset_mode)
        self.autoreset_mode = mode
        self._seed: int | None = None
        self._calls = workers.make_calls(env, step_timeout)
        self._clock = endings.EpisodeClock(self.num_envs, max_episode_steps, random_phase)
        self._endings = endings.make_endings(env, self._calls, self.autoreset_mode, self._clock)
        singles.check_calls(env)
        self.max_episode_steps = max_episode_steps or singles.known_limit(env)
        self.episode_keys = self._endings.episode_keys | self.own_episode_keys

        self._action_bounds = action_bounds
        space = specs.single_space(env, "action_space")
        self._actions = actions.make_actions(space, self.num_envs, on_device, action_bounds)
        self.action_spec = self._actions.spec
        self._check_action = ActionCheck(self.num_envs, self.action_spec)
        space = specs.single_space(env, "observation_space")
        self._parts = specs.observation_parts(space, on_device, observation_keys)
        self._singles = singles.Singles(env, self._parts)
        self.observation_spec = compose_spec({x.key: x.spec for x in self._parts}, on_device)
        self.env_format = EnvFormat(tuple(x.form for x in self._parts), (self._actions.form,))
        self._has_valid = DataKeys.VALID in self.episode_keys
        self._metric_names = metrics
        self._metrics = InfoMetrics(self.num_envs, metrics, device=on_device)
        self._memory = rows.RowMemory(self._parts, self.episode_keys, self.num_envs, on_device)
        self.render_mode = getattr(env, "render_mode", None)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self._tensors: None | TensorRows = None
        self._sender: Actions | TensorActions = self._actions
        self._foreign: None | torch.device = None  # of arrays of another library than PyTorch
        self._was_reset = self._is_stepping = False

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` is a Gymnasium vector environment. Imports nothing."""
        return is_loaded_instance(env, "gymnasium.vector", "VectorEnv")

    @classmethod
    def suggest(cls, env: Any, /) -> str:
        """Advice for an object that is nearly a vector environment; empty for others."""
        if not is_loaded_instance(env, "gymnasium", "Env"):
            spaces = all(hasattr(env, x) for x in ("observation_space", "action_space"))
            one = spaces and hasattr(env, "reset") and hasattr(env, "step")
            if not one or hasattr(env, "num_envs"):
                return ""
            from .mismatches import FROM_GYM

            kind = type(env).__name__
            return (
                f"It looks like an environment of gym: if it follows Gymnasium's interface, let "
                f"{kind} inherit from `gymnasium.Env`; else {FROM_GYM}."
            )
        name = repr(env.spec.id) if env.spec is not None else "name"
        return (
            "It is a single Gymnasium environment and a batch is needed: "
            f"`gymnasium.make_vec({name}, num_envs=8)`. Or give `everstep.make` or a trainer its "
            "id, its class, or a function that makes one, and they make the batch."
        )

    @classmethod
    def find(cls, name: str, /) -> list[str]:
        """`[name]` if it is a registered id, else the ids that it may mean."""
        require("gymnasium", "registry", _NEEDED)
        from .source import find_ids

        return find_ids(name)

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """Whether this is a class of single environments, or one of them. Imports nothing."""
        return is_loaded_kind(source, "gymnasium", "Env")

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
    ) -> "GymnasiumEnv":
        """A new environment, made by `gymnasium.make_vec` and wrapped.

        With any of `autoreset_mode`, `max_episode_steps`, `render_mode`, `wrappers` and
        `vector_kwargs`, the default of `vectorization_mode` is `"sync"`: Gymnasium's default can be
        a class of the environment's own that does not take them all. `max_episode_steps` replaces
        the limit that the environment is registered with, and the adapter counts; with
        `"vector_entry_point"` the environment does.

        Of a class or a function that makes a single environment, a `SyncVectorEnv` of copies is
        made, or with `vectorization_mode="async"` an `AsyncVectorEnv`.

        Args:
            name: Registered id, such as `"CartPole-v1"`; one that a module registers, such as
                `"module:Name-v0"`; a subclass of `gymnasium.Env`, or a function that makes one.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            kwargs: Options of `GymnasiumEnv` and of `gymnasium.make_vec`; what is neither goes to
                each environment's constructor.

        Raises:
            AdapterError: If Gymnasium cannot make it, or the adapter cannot represent it.

        """
        require("gymnasium", "make_vec", _NEEDED)
        from .source import make_vector

        env, options = make_vector(cls, name, num_envs, kwargs)
        return wrap_or_close(cls, env, horizon, device=device, **options)

    def seed(self, seed: int) -> None:
        """Seed the next reset. Later resets draw new states, from the same generators.

        Args:
            seed: At least 0. Gymnasium seeds row `i` of a batch with `seed + i`.

        """
        self._seed = seed
        self._clock.seed(seed)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment.

        Args:
            config: Gymnasium's `options` of this reset. The resets of ended episodes have none.

        """
        if self._is_stepping:
            raise _unfinished("reset")
        options = dict(config) if config else None  # Gymnasium pops from it
        if self._foreign is not None:
            finish_reading(self._foreign)
        observation, _ = self._calls.reset(seed=self._seed, options=options)
        self._seed = None
        self._endings.start()
        if not self._was_reset:
            self._was_reset = True
            self._use_tensors(observation)
            self._singles.check_first(observation)
        if self._tensors is not None:
            return self._tensors.reset(observation)
        self._memory.writable().read_obs(observation)
        return cast(torch.Tensor | TensorDict, self._memory.publish()[DataKeys.OBS])

    def _use_tensors(self, observation: Any) -> None:
        """Send actions and read rows without the host, if the environment uses tensors."""
        from .rows import pick
        from .specs import where

        path, mode = self._parts[0].path, self.autoreset_mode
        leaf = pick(observation, path, where(DataKeys.OBS, path))
        if not is_of_tensors(leaf):
            return
        from .tensor_rows import TensorActions, TensorRows, needs_host

        self._sender = TensorActions(self._actions, leaf)
        if not isinstance(leaf, torch.Tensor):
            self._foreign = as_tensor(leaf).device
        if not needs_host(self._parts, mode) and not self._clock.is_limited:
            device, names = torch.device(self.device), self._metric_names
            self._tensors = TensorRows(self.env, self._parts, device, mode)
            self._metrics = InfoMetrics(self.num_envs, names, device=device, mean=TensorMean)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """The row of a vector step: `obs`, `rewards` and the episode keys; see the module.

        Args:
            action: Actions `[num_envs, *action_spec.shape]`, integers or floating point as the
                spec has it. Never written to.

        Raises:
            AdapterError: If the action has another shape or kind of dtype.
            EnvError: If what the environment returned does not fit its spaces.

        """
        return self._rows(self._calls.step(self._to_env(action, "step")))

    def borrow_rows(self, rows: Sequence[TensorDict]) -> "None | BorrowedRows":
        """Memory of the caller's that `step` may write into; None if it cannot.

        With `use(t)` of the result `step` writes `rows[t]` and returns it; with `give_back()` it
        writes into memory of its own again.

        Args:
            rows: TensorDicts like those that `step` returns.

        """
        return None if self._tensors is not None else self._memory.borrow(rows)

    @property
    def resets_rows(self) -> bool:
        """Whether `reset_rows` works: where single rows can be reset from outside."""
        return self._tensors is None and self._calls.resets_rows

    def reset_rows(self, rows: torch.Tensor) -> torch.Tensor | TensorDict:
        """Observations after resetting rows now; the next env step resets them no more.

        Args:
            rows: Rows bool `[num_envs, 1]`. Only their observations are meaningful.

        """
        row = self._memory.writable()
        self._endings.reset_rows(row, rows.reshape(-1).numpy(force=True))
        return cast(torch.Tensor | TensorDict, self._memory.publish()[DataKeys.OBS])

    @property
    def asynchronous(self) -> bool:
        """Whether the environments are stepped in the background after `step_async`.

        Those of an `AsyncVectorEnv` are, and those of a pool of threads, but not in wrappers of
        Gymnasium's, which have no such methods.
        """
        return self._calls.asynchronous

    def step_async(self, action: torch.Tensor | TensorDict) -> None:
        """Begin a vector step, which `step_wait` completes; see `step` for arguments and errors.

        If `asynchronous` is False, the environments are stepped in `step_wait`.
        """
        self._calls.send(self._to_env(action, "step_async"))
        self._is_stepping = True

    def step_wait(self) -> TensorDict:
        """The row of the vector step that `step_async` began; see `step`."""
        if not self._is_stepping:
            raise AdapterError("`step_wait` completes a vector step: call `step_async` before it.")
        self._is_stepping = False
        return self._rows(self._calls.receive())

    def _to_env(self, action: object, method: str) -> Any:
        if self._is_stepping:
            raise _unfinished(method)
        return self._sender.to_env(self._check_action(action))

    def _rows(self, returned: tuple[Any, Any, Any, Any, dict[str, Any]]) -> TensorDict:
        observation, rewards, terminated, truncated, infos = returned
        if self._singles.is_needed:
            self._singles.check()
        if self._tensors is not None:
            rows = self._tensors.step(returned)
            if infos:
                valid = rows.get(DataKeys.VALID) if self._has_valid else None
                ends = rows.get(DataKeys.TERMINATED), rows.get(DataKeys.TRUNCATED)
                self._metrics.add(infos, None if valid is None else valid.view(-1), *ends)
            return rows
        row = self._memory.writable()
        row.read(observation, rewards, terminated, truncated)
        self._end(row, observation, infos)
        if infos:
            valid = row.valid if self._has_valid else None
            self._metrics.add(infos, valid, row.terminated, row.truncated)
        return self._memory.publish()

    def _specs_of(self, observation_space: Any, action_space: Any) -> AgentSpec:
        """Specs of rows with spaces of their own."""
        from .actions import make_actions
        from .specs import observation_parts

        device = torch.device(self.device)
        parts = observation_parts(observation_space, device)
        actions = make_actions(action_space, 1, device, self._action_bounds)
        form = EnvFormat(tuple(x.form for x in parts), (actions.form,))
        return AgentSpec(compose_spec({x.key: x.spec for x in parts}, device), actions.spec, form)

    def _end(self, row: Any, observation: Any, infos: dict[str, Any]) -> None:
        """Write the ends of episodes into a row."""
        self._endings.end(row, observation, infos)

    def metrics(self) -> dict[str, Any]:
        """Means since the last call of the numbers in the environment's infos, by name.

        Over valid rows in which the environment reported them, of its env steps, not of its resets;
        `is_success` and `success` only where an episode ended.
        """
        return self._metrics.pop()

    def state_dict(self) -> None | dict[str, Any]:
        """The state of the environments, from which they continue; None if it cannot be read.

        It can be read of a `SyncVectorEnv` and of CartPole's own vector environment, of those
        environments and wrappers that are in `everstep_adapters.gymnasium.state.ATTRIBUTES`: the
        classic control and MuJoCo environments of Gymnasium, and those with a `state_dict`.
        """
        if self._tensors is not None or self._is_stepping:
            return None
        from .state import state_of

        state = state_of(self.env, self._clock, self._endings.pending)
        own = {"seed": self._seed, "was_reset": self._was_reset}
        return None if state is None else {**state, **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: If it does not fit the environments; nothing is changed then.

        """
        from .state import load_state

        parts = self.env, self._clock, self._endings.pending
        self._seed, self._was_reset = load_state(*parts, state)

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        from .rows import describe_copies

        device = None if self._tensors is not None else torch.device(self.device)
        return {
            "family": self.family,
            "environment": str(self.env),
            "num_envs": str(self.num_envs),
            "observation": describe_spec(self.observation_spec),
            "action": describe_spec(self.action_spec),
            "resets": f"{self.autoreset_mode.name}, from {self._mode_source}",
            "final observations": self._endings.final_observations,
            "limit": self._clock.description,
            "hand-off": describe_copies(device),
            "seeding": self.seeding,
        }

    def probe(self) -> "Evidence":
        """The autoreset mode, determined by stepping the environment. Reset it afterwards.

        It is stepped from a fixed seed with random actions, to the end of an episode, unless its
        class has only one mode.
        """
        from .probe import probe_autoreset

        return probe_autoreset(self.env, self._calls)

    def render(self) -> Any:
        """The result of the wrapped environment's `render`."""
        return self.env.render()

    def close(self) -> None:
        """Close the wrapped environment, once. Workers that failed are ended."""
        self._calls.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.env}, horizon={self.horizon}, "
            f"device={str(self.device)!r}, autoreset_mode={self.autoreset_mode.name!r})"
        )


def _unfinished(method: str) -> AdapterError:
    return AdapterError(f"A vector step has begun: call `step_wait` before `{method}`.")
