"""The environment that wraps tasks with IsaacGym's interfaces."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from everstep.data import DataKeys, Device
from everstep.env.formats import EnvFormat, observation_formats
from everstep.errors import AdapterError

from ..common.libraries import creating, require, wrap_or_close
from ..common.metrics import EpisodeMetrics
from ..common.options import AdapterEnv, Length, pop_options
from ..common.specs import describe_spec
from .actions import Actions
from .endings import Endings, External, NextStep, SameStep, Waiting, describe_style
from .probe import detect
from .source import Task, interface_of
from .specs import Observations
from .state import has_state, load_state
from .time_outs import make_time_outs

_NEEDED = (
    "IsaacGymEnvs cannot be imported. Install Isaac Gym and IsaacGymEnvs "
    "from NVIDIA, and import `isaacgym` before anything that imports PyTorch, Everstep included. "
    "Tasks made in another way are wrapped by `everstep.wrap(task)`."
)

#: Entries of `extras` that hold metrics of the episodes that ended.
_LOGS = ("log", "episode")

_INTERFACES = {
    "VecTask": "IsaacGymEnvs' VecTask",
    "VecEnv": "legged_gym or rsl_rl's VecEnv",
    "Lab": "Isaac Lab",
}


class IsaacGymEnv(AdapterEnv):
    """A task with the interface of IsaacGymEnvs' `VecTask`, legged_gym, rsl_rl or Isaac Lab.

    The constructor takes a few vector steps of the task, with actions of 0: they show its reset
    style, the limit of its clock, and its observations. Observations of several tensors are a
    `Composite`: `states`, meant for a critic, is beside `obs`.

    Observations are returned as the task returns them, without a copy if they are on the device
    already; rewards and flags are new tensors. In styles A, B and C the adapter never waits for the
    device.

    Args:
        task: The task. `close` closes it, if it has a `close`.
        horizon: Expected vector steps between resets.
        reset_style: When the task resets itself: a letter or name of the module's list. `None`
            determines it; legged_gym, rsl_rl and Isaac Lab always reset in the same step.
        device: Device of actions and results; `None` for the task's own
            (`rl_device`, else `device`). On another one everything is copied, each way.
        max_episode_length: Replaces the task's attribute of this name: episodes of a `VecTask` end
            one env step before it. `None` reads the attribute. `math.inf`: no time-outs.
        time_outs: Source of time-outs: `"clock"`, `"terminate"` (a buffer of terminations, as AMP
            tasks have it), `"reported"` (`extras["time_outs"]`, only where an episode ended),
            `"flags"` (Isaac Lab's), or `"never"` (for finite horizons). `None` takes the most
            reliable that the task has.
        final_obs_key: Key of final observations in `extras`, in style C. `None` looks for them.
        observation_keys: Entries of the observation to return, such as `("obs",)` to leave out
            what is meant for a critic. `None` for all.
        metrics: Names in `extras["log"]` and `extras["episode"]` whose means are logged as
            `env/<name>`; `None` for all, an empty list for none.

    Raises:
        AdapterError: If the object is not such a task, or does not say what is needed.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("isaacgymenvs",)

    #: Number of environments that `num_envs="auto"` makes.
    default_num_envs: ClassVar[int] = 4096

    #: Vector steps that `horizon="auto"` means.
    default_horizon: ClassVar[int] = 32

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]] = ("isaacgymenvs", _NEEDED)

    #: Reset style of the task: `"A"`, `"B"`, `"C"` or `"D"`.
    reset_style: str

    #: The wrapped task.
    task: Any

    def __init__(
        self,
        task: Any,
        /,
        horizon: None | int = None,
        *,
        reset_style: None | str = None,
        device: None | Device = None,
        max_episode_length: None | Length = None,
        time_outs: None | str = None,
        final_obs_key: None | str = None,
        observation_keys: None | Sequence[str] = None,
        metrics: None | Sequence[str] = None,
    ) -> None:
        self._reader = reader = Task(task, device)
        super().__init__(reader.num_envs, horizon, device=str(reader.device))
        self.task = task
        self._actions = Actions(reader)
        profile = detect(reader, reset_style, max_episode_length)
        self.reset_style, self._known_from = profile.style, profile.known_from
        self._observations = Observations(profile.outcome.obs, observation_keys, reader)
        self._time_outs = make_time_outs(
            reader, profile.outcome, profile.limit, time_outs, profile.style == "C"
        )
        longest = math.inf if profile.limit is None else float(torch.as_tensor(profile.limit).max())
        if 1 <= longest < math.inf:  # others than VecTasks count past it
            self.max_episode_steps = math.ceil(longest) + (reader.interface != "VecTask")
        self._endings = self._make_endings(final_obs_key, profile.final_key)
        self.action_spec = self._actions.spec
        self.observation_spec = self._observations.spec
        forms = observation_formats(self.observation_spec)
        self.env_format = EnvFormat(forms, (self._actions.form,))
        self.episode_keys = self._endings.episode_keys
        self._seed: None | int = None
        self._metrics = EpisodeMetrics(metrics)
        self._is_closed = False

    def _make_endings(self, given_key: None | str, detected_key: None | str) -> Endings:
        parts = self._reader, self._time_outs, self._observations
        if self.reset_style == "C":
            return SameStep(*parts, given_key or detected_key)
        if given_key is not None:
            raise AdapterError(
                f"`final_obs_key` is for tasks that reset in the same step; {self._reader.name} "
                f"resets at {describe_style(self.reset_style)}. Leave it out."
            )
        if self.reset_style != "D":
            return NextStep(*parts)
        return Waiting(*parts) if self._reader.waits_for_reset else External(*parts)

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` has the members of such a task. Imports nothing."""
        return interface_of(env) is not None

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """Advice for a wrapper around such a task; empty for others."""
        if hasattr(env, "possible_agents") and hasattr(env, "episode_length_buf"):
            return (
                "It is one of Isaac Lab's environments of several agents: pass "
                "`isaaclab.envs.multi_agent_to_single_agent(env)`."
            )
        inner = getattr(env, "unwrapped", None)
        if inner is env or interface_of(env) is not None or interface_of(inner) is None:
            return ""
        return f"It wraps a {type(inner).__name__}, which can be: pass `env.unwrapped`."

    @classmethod
    def make(
        cls,
        name: str,
        num_envs: int,
        /,
        *,
        horizon: None | int = None,
        device: Device = "cpu",
        **kwargs: Any,
    ) -> "IsaacGymEnv":
        """A new task, made by `isaacgymenvs.make` and wrapped.

        Args:
            name: Name of the task, such as `"Cartpole"`.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: `rl_device`; and `sim_device`, unless that is given.
            kwargs: Options of `IsaacGymEnv` and of `isaacgymenvs.make`; the defaults are
                `headless=True` and `force_render=False`.

        Raises:
            AdapterError: If IsaacGymEnvs cannot be imported, or the task cannot be wrapped.

        """
        make = require("isaacgymenvs", "make", _NEEDED)
        options = pop_options(cls, kwargs)
        made_with = {"seed": 0, "sim_device": str(device), "headless": True, "force_render": False}
        made_with |= {"rl_device": str(device), **kwargs}
        with creating("IsaacGymEnvs", name):
            task = make(task=name, num_envs=num_envs, **made_with)
        return wrap_or_close(cls, task, horizon, device=device, **options)

    def seed(self, seed: int) -> None:
        """Seed the next reset.

        Such tasks draw from the process's generators. If a task has no `seed` of its own, PyTorch's
        generators are seeded during the next reset and restored after it; later samples come from
        the process's own seed.

        Args:
            seed: Any integer that `torch.manual_seed` takes.

        """
        self._seed = seed

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment.

        In style B they are one env step old, with actions of 0: such a task never returns the
        state of a reset.

        Args:
            config: None, or empty: these tasks take no options in a reset.

        Raises:
            AdapterError: If there are options.
            EnvError: If the task returns other observations than at first.

        """
        if config:
            raise AdapterError(
                f"{self._reader.name} takes no options in a reset; got {', '.join(config)}. Set "
                "them on the task itself."
            )
        with self._seeded():
            return self._observations.read(self._endings.reset())

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """A context in which random numbers come from the pending seed, if there is one."""
        seed, self._seed = self._seed, None
        own = self._reader.method("seed")
        if seed is None or own is not None:
            if seed is not None:
                own(seed)
            yield
            return
        devices = {self._reader.clock.device, self._reader.own_device}
        cuda = [device for device in devices if device.type == "cuda"]
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(seed)
            yield

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """The row of a vector step: `obs`, `rewards` and the episode keys; see the module.

        Args:
            action: Actions `[num_envs, *action_spec.shape]`, real numbers. Never written to; the
                task is given a copy inside the bounds of its action space.

        Raises:
            AdapterError: If the action has another shape or kind of dtype.
            EnvError: If the task returns other observations than at first.

        """
        row = self._endings.step(self._actions.send(action))
        # Tasks write these when they reset environments, and leave them there afterwards.
        for group in _LOGS:
            infos = self._endings.extras.get(group)
            if isinstance(infos, Mapping):
                self._metrics.add(infos, row.get(DataKeys.FIRST).sum())
        return row

    def metrics(self) -> dict[str, Any]:
        """Means since the last call of the numbers in `extras["log"]` and `extras["episode"]`.

        A task reports them when it resets environments; they are weighted by how many those were.
        """
        return self._metrics.pop()

    def state_dict(self) -> None | dict[str, Any]:
        """The task's `state_dict`; None if it has none, or no `load_state_dict`."""
        if not has_state(self.task):
            return None
        return {"task": self.task.state_dict(), "pending": self._endings.pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: If it is of another number of environments.

        """
        load_state(self.task, self._reader.name, self._endings, state)

    def render(self) -> Any:
        """The result of the task's `render`."""
        return self.task.render()

    def close(self) -> None:
        """Close the task, if it has a `close`."""
        close = self._reader.method("close")
        if close is not None and not self._is_closed:
            close()
        self._is_closed = True

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        reader = self._reader
        copies = "returned as they are, 0 copies; rewards and flags are new"
        if reader.own_device != reader.device:
            copies = f"copied from {reader.own_device} to {reader.device}, actions back"
        own_seed = reader.method("seed") is not None
        return {
            "family": f"a task with the interface of {_INTERFACES[reader.interface]}",
            "environment": reader.name,
            "num_envs": str(self.num_envs),
            "observation": describe_spec(self.observation_spec),
            "action": describe_spec(self.action_spec),
            "resets": f"{describe_style(self.reset_style)}, known from {self._known_from}",
            "final observations": self._endings.final_obs,
            "limit": f"time-outs: {self._time_outs.description}",
            "hand-off": f"observations {copies}",
            "seeding": "the task's own `seed`" if own_seed else "the next reset only",
        }

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._reader.name}, num_envs={self.num_envs}, "
            f"horizon={self.horizon}, device={str(self.device)!r}, "
            f"reset_style={self.reset_style!r})"
        )
