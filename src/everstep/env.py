"""The environment protocol: batched, on one device, without a required end.

Row `t` holds what happened because of action `t`. Episodes are an optional extension that an
environment declares in `Env.episode_keys`; see the concepts page of the documentation.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, TensorSpec, Unbounded
from typing_extensions import Self

from .data import DataKeys, Device

_ObservationSpec = TypeVar("_ObservationSpec", bound=TensorSpec)
_ActionSpec = TypeVar("_ActionSpec", bound=TensorSpec)


class Env(ABC):
    """Protocol of highly parallel environments that are reset together at a horizon.

    A subclass sets `observation_spec` and `action_spec` in its constructor and implements `reset`
    and `step`. Specs describe one environment, without the batch dimension; every tensor that
    goes in or comes out has the batch dimension first, `[num_envs, …]`, and lives on `device`.

    Optional members, used where an environment has them: `close()`, `seed(seed: int)`,
    `render()`, `state_dict()` and `load_state_dict(state)`, `max_horizon`, `max_num_envs`;
    `capturable`, which is True where `step` never waits for the device, changes its state in
    place, and no number of Python changes from one env step to the next; and `asynchronous`, which
    is True where the environments are stepped between `step_async(action)`, which returns at once,
    and `step_wait()`, which returns what `step` would: the learner computes meanwhile.

    Args:
        num_envs: Number of parallel, independent environments.
        horizon: Env steps that the environment expects between resets; `None` is no promise.
        device: Device of everything the environment takes and returns.

    Raises:
        ValueError: Where `num_envs` or `horizon` is above the class's maximum.

    """

    #: Spec of one environment's action, without the batch dimension.
    action_spec: TensorSpec

    #: Device of everything the environment takes and returns.
    device: Device

    #: Episode keys that `step` returns in every row. Empty: no episode ever ends.
    #: `terminated`, `truncated` and `first` go together; `final_obs` and `valid` are optional.
    episode_keys: frozenset[str] = frozenset()

    #: Env steps that the environment expects between resets.
    horizon: None | int

    #: Largest horizon the environment supports, where it has one.
    max_horizon: ClassVar[int]

    #: Largest number of parallel environments the environment supports, where it has one.
    max_num_envs: ClassVar[int]

    #: Number of parallel, independent environments.
    num_envs: int

    #: Spec of one environment's observation, without the batch dimension.
    observation_spec: TensorSpec

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
    ) -> None:
        name = type(self).__name__
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
        """Initial observations `[num_envs, …]` after resetting every environment.

        Args:
            config: Options of this reset, such as the parameters of a domain randomisation.

        """

    @abstractmethod
    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """What the action caused: `obs` (what is acted on next), `rewards` and the episode keys.

        Shapes: `obs` as `observation_spec` behind `[num_envs]`; `rewards` `[num_envs, 1]`,
        floating point; flags `[num_envs, 1]`, bool; `final_obs` like `obs`. What is returned
        stays unchanged until the next `step` or `reset`, and may change then.

        Args:
            action: Actions `[num_envs, …]` as `action_spec` describes them.

        """

    def close(self) -> None:  # noqa: B027  nothing to do is a fine default
        """Release what the environment holds. Nothing by default."""

    def __enter__(self) -> Self:
        """The environment, which is closed where the `with` block ends, however it ends."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the environment. What was raised in the block stays raised."""
        self.close()


def is_asynchronous(env: Any) -> bool:
    """Whether an environment is stepped by `step_async` and `step_wait` rather than by `step`."""
    return bool(getattr(env, "asynchronous", False)) and has_halves(env, "step_async")


def has_halves(env: object, first: str) -> bool:
    """Whether calling the halves of an env step does what calling `step` does.

    Not where `step` alone was overridden or replaced, such as in a wrapper that hands on what it
    does not have itself: that one's `step` would be left out.

    Args:
        env: The environment, or what it wraps.
        first: Name of the half that comes first.

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
    """Whatever makes an environment: a class, or a function of the same signature.

    A factory may carry `default_num_envs` and `default_horizon`, which `"auto"` resolves to, and
    `max_num_envs` and `max_horizon`, which clip what was asked for.
    """

    def __call__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
    ) -> Env:
        """A new environment."""
        ...


class GenericEnv(Env, Generic[_ObservationSpec, _ActionSpec]):
    """`Env` whose specs have known types."""

    #: Spec of one environment's observation, without the batch dimension.
    observation_spec: _ObservationSpec

    #: Spec of one environment's action, without the batch dimension.
    action_spec: _ActionSpec


class DummyEnv(GenericEnv[Unbounded, _ActionSpec]):
    """A point on a line that is rewarded for being near the origin: the simplest environment.

    The reward is the negative distance from the origin. Subclasses say what an action does.
    """

    capturable = True

    #: Initial positions are uniform in `[-bounds, bounds]`.
    bounds: float

    #: Positions `[num_envs, 1]`.
    state: torch.Tensor

    def __init__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
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
        """How far actions `[num_envs, 1]` move the points."""

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Uniform positions; `config["bounds"]` changes their range from this reset on."""
        self.bounds = (config or {}).get("bounds", self.bounds)
        return self.state.uniform_(-self.bounds, self.bounds)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """Move each point by its action `[num_envs, 1]`, in place."""
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
