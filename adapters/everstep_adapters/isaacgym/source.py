"""Tasks of IsaacGym, legged_gym, rsl_rl and Isaac Lab, read through one interface.

Three interfaces are distinguished by their members, never by names of classes:

* **VecTask** (IsaacGymEnvs, OmniIsaacGymEnvs): `progress_buf` and `reset_buf`; `step` returns
  `(obs_dict, rewards, resets, extras)`.
* **legged_gym** and **rsl_rl**'s `VecEnv`: `episode_length_buf` and `get_observations`; `step`
  returns `(obs, privileged_obs, rewards, resets, extras)` or `(obs, rewards, resets, extras)`.
* **Isaac Lab** and **mjlab**: `episode_length_buf`, and `single_action_space` or the flags
  `reset_terminated` and `reset_time_outs`; `step` returns `(obs, rewards, terminated, time_outs,
  extras)`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from everstep.env import Env
from everstep.errors import AdapterError, EnvError

from ..common.calls import Calls
from ..common.handoff import indexed
from ..common.libraries import is_loaded_instance

#: An observation as a task returns it: a tensor, or nested mappings of tensors.
Tree = Any

#: Attribute in which a task counts env steps, by interface.
_CLOCKS = {"VecTask": "progress_buf", "VecEnv": "episode_length_buf", "Lab": "episode_length_buf"}

# In rsl_rl's environments `action_space` is sometimes that of the whole batch.
_ACTION_SPACES: dict[str, tuple[str, ...]] = {
    "VecTask": ("act_space", "action_space"),
    "VecEnv": (),
    "Lab": ("single_action_space",),
}


_OTHER_ADAPTERS = (("gymnasium.vector", "VectorEnv"), ("torchrl.envs.common", "EnvBase"))


class Outcome(NamedTuple):
    """Results of a vector step on the adapter's device; columns are `[N, 1]`."""

    #: Observation `[N, …]`; the task's own memory if it is on the device already.
    obs: Tree

    #: Rewards; may be a view of the task's memory.
    rewards: torch.Tensor

    #: Rows whose episode ended, bool; new memory.
    done: torch.Tensor

    #: `terminated` and `truncated`, bool, if `step` returns both; else None.
    flags: None | tuple[torch.Tensor, torch.Tensor]

    #: Everything else.
    extras: Mapping[str, Any]


def interface_of(env: Any) -> None | str:
    """The interface of an object, `"VecTask"`, `"VecEnv"` or `"Lab"`; None if it has none.

    Imports nothing. Environments that have an adapter of their own have none of these interfaces,
    though their wrappers may forward the members of a task inside.
    """
    if isinstance(env, Env) or any(is_loaded_instance(env, *kind) for kind in _OTHER_ADAPTERS):
        return None
    if not isinstance(getattr(env, "num_envs", None), int) or not _calls(env, "step"):
        return None
    if _has(env, "progress_buf", "reset_buf"):
        return "VecTask"
    if not _has(_clocked(env), "episode_length_buf"):
        return None
    # Isaac Lab's managed environments have no flags before their first vector step, and mjlab's
    # have `get_observations`; rsl_rl's wrappers have no space of one action.
    if hasattr(env, "single_action_space") or _has(env, "reset_terminated", "reset_time_outs"):
        return "VecEnv" if _is_wrapper(env) else "Lab"
    return "VecEnv" if _calls(env, "get_observations") else None


def _clocked(env: Any) -> Any:
    """The owner of the clock: the environment, or the one inside that Isaac Lab has converted.

    Isaac Lab's `multi_agent_to_single_agent` makes an environment without a clock of its own.
    """
    inner = getattr(env, "env", None)
    is_converted = getattr(env, "unwrapped", None) is env and hasattr(inner, "possible_agents")
    return inner if is_converted and not hasattr(env, "episode_length_buf") else env


def _is_wrapper(env: Any) -> bool:
    """Whether this is rsl_rl's wrapper of such an environment, which may forward its members."""
    inner = getattr(env, "unwrapped", env)
    return inner is not env and _calls(env, "get_observations")


def _has(env: Any, *names: str) -> bool:
    """Whether all attributes of these names are tensors `[num_envs]`."""
    values = (getattr(env, name, None) for name in names)
    return all(isinstance(x, torch.Tensor) and x.shape == (env.num_envs,) for x in values)


def _calls(env: Any, name: str) -> bool:
    return callable(getattr(env, name, None))


class TaskCalls(Calls):
    """Calls to a task; its class names it."""

    @property
    def name(self) -> str:
        """See `Calls.name`."""
        return type(self._env).__name__


class Task:
    """A task of any of the interfaces. What its methods raise becomes an `EnvError`.

    Args:
        env: The task.
        device: Device of the results; None for the task's own.

    Raises:
        AdapterError: If the object has none of the interfaces.

    """

    #: The task itself.
    env: Any

    #: `"VecTask"`, `"VecEnv"` or `"Lab"`.
    interface: str

    #: The task's class.
    name: str

    #: Device on which the task takes actions and returns results.
    own_device: torch.device

    #: Device of the results.
    device: torch.device

    def __init__(self, env: Any, device: None | str | torch.device) -> None:
        interface = interface_of(env)
        if interface is None:
            raise AdapterError(
                f"`task` must have the interface of IsaacGymEnvs' VecTask, of legged_gym, of "
                f"rsl_rl's VecEnv or of Isaac Lab; got {type(env).__name__}. A VecTask has an "
                "integer `num_envs`, a method `step`, and tensors `progress_buf` and `reset_buf` "
                "of one number an environment."
            )
        self.env, self.interface = env, interface
        self._calls = TaskCalls(env)
        self.name = self._calls.name
        self.num_envs = int(env.num_envs)
        self._columns = (torch.Size([self.num_envs]), torch.Size([self.num_envs, 1]))
        self.clock_name = _CLOCKS[interface]
        own: Any = getattr(env, "rl_device", None) or getattr(env, "device", self.clock.device)
        self.own_device = indexed(own)
        self.device = self.own_device if device is None else indexed(device)

    @property
    def clock(self) -> torch.Tensor:
        """Env steps since the reset of each environment, `[N]`; the task's own memory."""
        return cast(torch.Tensor, getattr(_clocked(self.env), self.clock_name))

    def set_clock(self, value: float) -> None:
        """Set the number of env steps since the reset of every environment."""
        if self.interface == "VecTask":
            self.clock.fill_(value)
        else:  # a property in some, which these interfaces allow to assign
            setattr(self.env, self.clock_name, torch.full_like(self.clock, value))

    @property
    def max_episode_length(self) -> Any:
        """Most env steps of an episode, as the task has it: a number, a tensor `[N]`, or None.

        OmniIsaacGymEnvs' tasks have it with an underscore.
        """
        own = getattr(self.env, "_max_episode_length", None)
        return getattr(self.env, "max_episode_length", own)

    @property
    def has_finite_horizon(self) -> bool:
        """Whether the time limit belongs to the task, as Isaac Lab's `cfg.is_finite_horizon`."""
        return bool(self._configured("is_finite_horizon"))

    @property
    def gives_final_obs(self) -> bool:
        """Whether `extras` have final observations where an episode ended, and only there."""
        return bool(self._configured("compute_final_obs"))

    @property
    def waits_for_reset(self) -> bool:
        """Whether ended environments wait for `reset(env_ids=…)`, as mjlab's `cfg.auto_reset`."""
        return self.interface == "Lab" and self._configured("auto_reset") is False

    def _configured(self, name: str) -> Any:
        owners = (self.env, getattr(self.env, "unwrapped", None))
        configs = (getattr(owner, "cfg", None) for owner in owners)
        return next((getattr(x, name) for x in configs if hasattr(x, name)), None)

    def method(self, *names: str) -> Any:
        """The first method of these names that the task has; None if it has none."""
        found = next((name for name in names if _calls(self.env, name)), None)
        return None if found is None else partial(self._calls.call, found)

    def zero_actions(self) -> torch.Tensor:
        """Actions of 0 on the task's device, `[N, A]`.

        Raises:
            AdapterError: If the task does not say how many numbers an action has.

        """
        zeros = self.method("zero_actions")
        if zeros is not None:
            return cast(torch.Tensor, zeros())
        counts = (getattr(self.env, name, None) for name in ("num_actions", "num_acts"))
        count = next((count for count in counts if isinstance(count, int)), None)
        if count is None:
            if self.action_space is None:
                raise AdapterError(
                    f"{self.name} does not say what an action is: set `num_actions`."
                )
            count = int(self.action_space.shape[0])
        return torch.zeros(self.num_envs, count, device=self.own_device)

    @property
    def action_space(self) -> Any:
        """The space of one environment's actions, of any library; None if there is none."""
        names = _ACTION_SPACES[self.interface]
        return next((getattr(self.env, n) for n in names if hasattr(self.env, n)), None)

    def step(self, actions: torch.Tensor) -> Outcome:
        """The outcome of a vector step.

        Args:
            actions: Actions `[N, A]`. The task may store and change them.

        Raises:
            EnvError: If the task returns something of another form.

        """
        returned: Any = self._calls.call("step", actions)
        size = len(returned) if isinstance(returned, tuple | list) else 0
        if size == 4:
            obs, rewards, done, extras = returned
        elif size == 5 and returned[2].is_floating_point():  # legged_gym
            actors, states, rewards, done, extras = returned
            obs = with_states(actors, states)
        elif size == 5:
            return self._lab_outcome(*returned)
        else:
            raise EnvError(
                f"`step` of {self.name} must return (obs, rewards, resets, extras), or the five "
                f"parts of legged_gym or Isaac Lab; got a {type(returned).__name__} of {size}."
            )
        ended = self.column(done, "resets") != 0
        return Outcome(obs, self.column(rewards, "rewards"), ended, None, extras)

    def _lab_outcome(
        self, obs: Tree, rewards: Any, terminated: Any, truncated: Any, extras: Mapping[str, Any]
    ) -> Outcome:
        """The outcome of a vector step in Isaac Lab, which has two flags."""
        if not isinstance(truncated, torch.Tensor):  # one for all rows, from a wrapper
            truncated = torch.full_like(terminated, bool(truncated))
        # Compared, which copies: the task writes its flags in place.
        failed = self.column(terminated, "terminated") != 0
        expired = self.column(truncated, "time_outs") != 0
        column = self.column(rewards, "rewards")
        return Outcome(obs, column, failed | expired, (failed, expired), extras)

    def column(self, x: Any, name: str) -> torch.Tensor:
        """One number an environment as `[N, 1]` on the adapter's device; a view if possible.

        Raises:
            EnvError: If there are more or fewer.

        """
        if not isinstance(x, torch.Tensor) or x.shape not in self._columns:
            received = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise EnvError(
                f"{self.name} returned `{name}` as {received}; expected a tensor of "
                f"{self.num_envs} numbers, one an environment."
            )
        here = on_device(x, self.device)
        return here.unsqueeze(-1) if here.ndim == 1 else here

    def buffers(self) -> Tree:
        """Observations from the task's buffers, as `VecTask.step` makes them."""
        limit = float(getattr(self.env, "clip_obs", float("inf")))
        obs = {"obs": self.env.obs_buf.clamp(-limit, limit)}
        if getattr(self.env, "num_states", 0):
            states = self.method("get_state")
            obs["states"] = self.env.states_buf.clamp(-limit, limit) if states is None else states()
        return obs


def with_states(obs: Tree, states: None | torch.Tensor) -> Tree:
    """Observations, with those for a critic if there are any."""
    return {"obs": obs} if states is None else {"obs": obs, "states": states}


def on_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`x` on `device` without gradient; `x` itself if possible, as each call of PyTorch costs."""
    if x.requires_grad:
        x = x.detach()
    return x if x.device == device else x.to(device)
