"""The environment protocol: batched, on one device, with optional episodes.

Row `t` holds the results of action `t`. Environments with episodes declare `Env.episode_keys`; see
the concepts page of the documentation.
"""

from abc import ABC, abstractmethod
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, TensorSpec, Unbounded
from typing_extensions import Self

from ..data import DataKeys, Device
from .formats import EnvFormat

_ObservationSpec = TypeVar("_ObservationSpec", bound=TensorSpec)
_ActionSpec = TypeVar("_ActionSpec", bound=TensorSpec)


class Env(ABC):
    """Base class of parallel environments that are reset together.

    A subclass sets `observation_spec` and `action_spec` in its constructor and implements `reset`
    and `step`. Specs describe one environment, without the batch dimension; all tensors have the
    batch dimension first, `[num_envs, …]`, and are on `device`.

    Training and evaluation call it with their caller's settings of PyTorch, so it may use autograd.
    They detach what it returns, and what it holds after an env step: no graph is kept from one env
    step to the next.

    Optional members, beside `close()`, `seed(seed: int)`, `render()`, `state_dict()` and
    `load_state_dict(state)`, `max_horizon` and `max_num_envs`:

    * `metrics()` returns numbers or 0-d tensors by name, such as means, of the time since its last
      call. It is called after each rollout and each evaluation; they are logged as `env/<name>`.
    * `capturable` is True if `step` never synchronises, changes its state in place, and depends on
      no Python number that changes between vector steps.
    * `asynchronous` is True if `step_async(action)` returns at once and `step_wait()` returns the
      result of `step`. Your own loops may compute in between; `Algorithm.collect` calls `step`.
    * `borrow_rows(rows)` takes TensorDicts like those that `step` returns, one a vector step, and
      returns None, or an object with `use(t)`, after which `step` writes into `rows[t]` and returns
      it, and `give_back()`, after which it does not.
    * `resets_rows` is True if `reset_rows(rows)` resets rows, bool `[num_envs, 1]`, now; the next
      vector step resets them no more. It returns observations `[num_envs, …]`, which are meaningful
      in `rows` only. `staggered_resets` needs it, and exports to libraries without `valid` do.
    * `rows_per_env` is the number of rows that belong together, such as those of agents. A factory
      rounds `num_envs` up to a multiple of it. `agents` are the names of these rows, in order.
    * `agent_specs` are `everstep.env.agents.AgentSpec`s by the names of `agents`, if the agents'
      observations or actions differ. Rows are then as wide as the widest of them: an agent's
      numbers come first, and zeros after them. `agent_groups` are lists of `agents` by the names of
      groups, for `policies: group`; without them, agents whose names differ in a number are one.

    Args:
        num_envs: Number of parallel, independent environments.
        horizon: Expected vector steps between resets; None if unknown.
        device: Device of all tensors that the environment takes and returns.

    Raises:
        ValueError: If `num_envs` or `horizon` is above the class's maximum.

    """

    #: Spec of one environment's action, without the batch dimension.
    action_spec: TensorSpec

    #: Device of all tensors that the environment takes and returns.
    device: Device

    #: Observations and actions as the library of a wrapped environment has them; not set where the
    #: specs say all.
    env_format: EnvFormat

    #: Episode keys that `step` returns in every row; empty if episodes do not end. `terminated`,
    #: `truncated` and `first` are required together; `final_obs` and `valid` are optional.
    episode_keys: frozenset[str] = frozenset()

    #: Expected vector steps between resets.
    horizon: None | int

    #: Env steps after which every episode has ended; None if there is no limit, or it is unknown.
    max_episode_steps: None | int = None

    #: Largest supported horizon, if there is one.
    max_horizon: ClassVar[int]

    #: Largest supported number of parallel environments, if there is one.
    max_num_envs: ClassVar[int]

    #: Number of parallel, independent environments.
    num_envs: int

    #: Spec of one environment's observation, without the batch dimension.
    observation_spec: TensorSpec

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        name = type(self).__name__
        num_envs, horizon = check_sizes(name, num_envs, horizon)
        max_horizon = getattr(self, "max_horizon", None)
        if horizon is not None and max_horizon is not None and horizon > max_horizon:
            raise ValueError(f"{name}: `horizon` must be at most {max_horizon}; got {horizon}.")
        max_num_envs = getattr(self, "max_num_envs", None)
        if max_num_envs is not None and num_envs > max_num_envs:
            raise ValueError(f"{name}: `num_envs` must be at most {max_num_envs}; got {num_envs}.")
        self.num_envs = num_envs
        self.horizon = horizon
        self.device = device

    @abstractmethod
    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Reset all environments and return their first observations `[num_envs, …]`.

        Args:
            config: Options of this reset, such as parameters of domain randomisation.

        """

    @abstractmethod
    def step(self, action: Any) -> TensorDict:
        """Execute the actions; return the next `obs`, `rewards` and the episode keys.

        Shapes: `obs` `[num_envs, …]` by `observation_spec`; `rewards` `[num_envs, 1]`, floating
        point; flags `[num_envs, 1]`, bool; `final_obs` like `obs`. The result is valid until the
        next `step` or `reset`, which may overwrite it.

        Args:
            action: Actions `[num_envs, …]` by `action_spec`: a tensor or a TensorDict. Subclasses
                annotate the one that they take.

        """

    if TYPE_CHECKING:  # the type of an optional member

        def seed(self, seed: int, /) -> Any:
            """Seed the next reset."""

    def __repr__(self) -> str:
        sizes = [f"{x}={getattr(self, x, None)}" for x in ("num_envs", "horizon")]
        device = str(getattr(self, "device", None))
        return f"{type(self).__name__}({', '.join(sizes)}, device={device!r})"

    def close(self) -> None:  # noqa: B027  optional
        """Release the environment's resources. Does nothing by default."""

    def __enter__(self) -> Self:
        """The environment; the end of the `with` block closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the environment; exceptions propagate."""
        self.close()


def check_sizes(name: str, num_envs: Any, horizon: Any) -> tuple[int, None | int]:
    """`num_envs` and `horizon` as Python's integers; NumPy's are taken.

    Raises:
        ValueError: If `num_envs`, or `horizon` unless it is None, is no positive integer.

    """
    for size, value in (("num_envs", num_envs), ("horizon", 1 if horizon is None else horizon)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}: `{size}` must be an integer of at least 1; got {value!r}.")
    return int(num_envs), None if horizon is None else int(horizon)


def is_asynchronous(env: Any) -> bool:
    """Whether an environment has `step_async` and `step_wait`, and both match its `step`."""
    return bool(getattr(env, "asynchronous", False)) and has_halves(env, "step_async")


def has_halves(env: object, first: str) -> bool:
    """Whether calling the two halves of a vector step is the same as calling `step`.

    False if `step` alone is overridden or replaced, as in a wrapper that forwards all attributes
    that it lacks: calling the halves would skip the wrapper's `step`.

    Args:
        env: The environment, or an environment that it wraps.
        first: Name of the first half.

    """
    if "step" in getattr(env, "__dict__", {}):
        return False
    for cls in type(env).__mro__:
        if first in vars(cls):
            return True
        if "step" in vars(cls):
            return False
    return False


@runtime_checkable
class EnvFactory(Protocol):
    """A class of environments, or a function with the same signature.

    Optional attributes: `default_num_envs` and `default_horizon`, which `"auto"` resolves to, and
    `max_num_envs` and `max_horizon`, the limits of `num_envs` and `horizon`. A `default_horizon` of
    two is for environments with `max_episode_steps`, and for those without.
    """

    def __call__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> Env:
        """A new environment."""
        ...


class GenericEnv(Env, Generic[_ObservationSpec, _ActionSpec]):
    """`Env` with typed specs."""

    #: Spec of one environment's observation, without the batch dimension.
    observation_spec: _ObservationSpec

    #: Spec of one environment's action, without the batch dimension.
    action_spec: _ActionSpec


class DummyEnv(GenericEnv[Unbounded, _ActionSpec]):
    """A point on a line; the reward is the negative distance from the origin.

    A subclass defines the action.
    """

    capturable = True

    #: Initial positions are uniform in `[-bounds, bounds]`.
    bounds: float

    #: Positions `[num_envs, 1]`.
    state: torch.Tensor

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(1, device=torch.device(device))
        self.action_spec = self._make_action_spec().to(device)
        self.bounds = 100.0
        self.state = torch.zeros(num_envs, 1, device=device)

    @abstractmethod
    def _make_action_spec(self) -> _ActionSpec:
        """Spec of one action, on any device."""

    @abstractmethod
    def _distance(self, action: torch.Tensor) -> torch.Tensor:
        """Distances `[num_envs, 1]` by which the actions move the points."""

    def state_dict(self) -> dict[str, Any]:
        """Positions, and the range of initial ones; random numbers are PyTorch's."""
        return {"state": self.state.clone(), "bounds": self.bounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.state.copy_(state["state"])
        self.bounds = state["bounds"]

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Draw uniform positions; `config["bounds"]` sets their range for this and later resets."""
        self.bounds = (config or {}).get("bounds", self.bounds)
        return self.state.uniform_(-self.bounds, self.bounds)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """Move each point by its action, in place."""
        assert isinstance(action, torch.Tensor)
        self.state += self._distance(action)
        return TensorDict(
            {DataKeys.OBS: self.state, DataKeys.REWARDS: -self.state.abs()},
            batch_size=[self.num_envs],
            device=self.device,
        )


class ContinuousDummyEnv(DummyEnv[Unbounded]):
    """The point moves by the action."""

    def _make_action_spec(self) -> Unbounded:
        return Unbounded(1)

    def _distance(self, action: torch.Tensor) -> torch.Tensor:
        return action


class DiscreteDummyEnv(DummyEnv[Categorical]):
    """The point moves one to the left (action 0) or one to the right (action 1)."""

    def _make_action_spec(self) -> Categorical:
        return Categorical(2, shape=torch.Size([1]))

    def _distance(self, action: torch.Tensor) -> torch.Tensor:
        return 2 * action - 1
