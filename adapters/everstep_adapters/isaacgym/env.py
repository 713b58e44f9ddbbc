"""The environment that wraps tasks with IsaacGym's interfaces."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from everstep.data import Device
from everstep.env import Env
from everstep.errors import AdapterError

from ..common.specs import describe_spec
from .actions import Actions
from .endings import Endings, External, NextStep, SameStep, told
from .probe import study
from .tasks import Observations, Task, interface_of
from .time_outs import make_time_outs

#: Options of the adapter that `IsaacGymEnv.make` does not pass to IsaacGymEnvs.
_OPTIONS = ("reset_style", "max_episode_length", "time_outs", "final_obs_key", "observation_keys")

_INTERFACES = {
    "VecTask": "IsaacGymEnvs' VecTask",
    "VecEnv": "legged_gym or rsl_rl's VecEnv",
    "Lab": "Isaac Lab",
}


class IsaacGymEnv(Env):
    """A task with the interface of IsaacGymEnvs' `VecTask`, legged_gym, rsl_rl or Isaac Lab.

    Making one takes a few env steps of the task, with actions of 0: they show when it resets, what
    its clock counts to, and what its observations are. Observations of several tensors are a
    `Composite`: `states`, meant for a critic, comes beside `obs`.

    Observations are handed over as the task returns them, without a copy where they are on the
    device already; rewards and flags are new tensors. In styles A, B and C the adapter never waits
    for the device.

    Args:
        task: The task. `close` closes it, where it can be closed.
        horizon: Env steps between resets that it is meant for.
        reset_style: When the task resets itself: a letter or a word of the module's list. `None`
            finds out; legged_gym, rsl_rl and Isaac Lab always reset in the same step.
        device: Device of everything that goes in and comes out; `None` for the task's own
            (`rl_device`, else `device`). On another one everything is copied, each way.
        max_episode_length: What the task's attribute of this name would say: episodes of a
            `VecTask` end one env step before it. `None` asks the task. `math.inf`: no time-outs.
        time_outs: What tells a time-out from a failure: `"clock"`, `"terminate"` (a buffer of
            terminations, as AMP tasks have it), `"reported"` (`extras["time_outs"]`, only where an
            episode ended) or `"flags"` (Isaac Lab's). `None` takes the surest that there is.
        final_obs_key: Where final observations are in `extras`, in style C. `None` looks for them.
        observation_keys: Entries of the observation to hand over, such as `("obs",)` to leave out
            what is meant for a critic. `None` for all.

    Raises:
        AdapterError: Where the object is not such a task, or does not say what is needed.

    """

    #: Number of environments that `num_envs="auto"` makes.
    default_num_envs: ClassVar[int] = 4096

    #: Env steps that `horizon="auto"` means.
    default_horizon: ClassVar[int] = 32

    #: When the task resets itself: `"A"`, `"B"`, `"C"` or `"D"`.
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
        max_episode_length: None | float = None,
        time_outs: None | str = None,
        final_obs_key: None | str = None,
        observation_keys: None | Sequence[str] = None,
    ) -> None:
        self._reader = reader = Task(task, device)
        super().__init__(reader.num_envs, horizon, device=str(reader.device))
        self.task = task
        self._actions = Actions(reader)
        self._found = study(reader, reset_style, max_episode_length)
        outcome = self._found.outcome
        self._observations = Observations(outcome.obs, observation_keys, reader)
        self._time_outs = make_time_outs(reader, outcome, self._found.limit, time_outs)
        self._endings = self._make_endings(final_obs_key)
        self.reset_style = self._found.style
        self.action_spec = self._actions.spec
        self.observation_spec = self._observations.spec
        self.episode_keys = self._endings.episode_keys
        self._seed: None | int = None
        self._is_closed = False

    def _make_endings(self, final_obs_key: None | str) -> Endings:
        parts = self._reader, self._time_outs, self._observations
        if self._found.style == "C":
            return SameStep(*parts, final_obs_key or self._found.final_key)
        if final_obs_key is not None:
            raise AdapterError(
                f"`final_obs_key` is for tasks that reset in the same step; {self._reader.name} "
                f"resets at {told(self._found.style)}. Leave it out."
            )
        return External(*parts) if self._found.style == "D" else NextStep(*parts)

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """True for what has the members of such a task. Imports nothing."""
        return interface_of(env) is not None

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """What to do with a wrapper around such a task; empty for others."""
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
            horizon: Env steps between resets that it is meant for.
            device: `rl_device`; and `sim_device`, unless that is given.
            kwargs: Options of `IsaacGymEnv` and of `isaacgymenvs.make`; `headless` is True and
                `force_render` False where they are not given.

        Raises:
            AdapterError: Where IsaacGymEnvs cannot be imported, or the task cannot be wrapped.

        """
        isaacgymenvs = _import_isaacgymenvs()
        options = {key: kwargs.pop(key) for key in _OPTIONS if key in kwargs}
        made_with = {"seed": 0, "sim_device": str(device), "headless": True, "force_render": False}
        made_with |= {"rl_device": str(device), **kwargs}
        task = isaacgymenvs.make(task=name, num_envs=num_envs, **made_with)
        return cls(task, horizon, device=device, **options)

    def seed(self, seed: int) -> None:
        """Seed the next reset.

        Such tasks draw from the process's generators. Where a task has no `seed` of its own, the
        next reset is drawn from PyTorch's generators as `seed` leaves them, which then are as they
        were before; what is drawn later comes from wherever the process's seed has put them.

        Args:
            seed: Any integer that `torch.manual_seed` takes.

        """
        self._seed = seed

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment.

        In style B they are one env step old, taken with actions of 0: such a task never returns
        the state of a reset.

        Args:
            config: None, or empty: these tasks take no options in a reset.

        Raises:
            AdapterError: Where there are options.
            EnvError: Where the task returns something else than before.

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
        """Whatever is drawn in here is drawn from the seed, where one is waiting."""
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
        """What the action caused: `obs`, `rewards` and the episode keys; see the module.

        Args:
            action: Actions `[num_envs, *action_spec.shape]`, real numbers. Never written to; the
                task is given a copy inside the bounds of its action space.

        Raises:
            AdapterError: Where the action has another shape or kind of dtype.
            EnvError: Where the task returns something else than before.

        """
        return self._endings.step(self._actions.send(action))

    def render(self) -> Any:
        """Whatever the task renders."""
        return self.task.render()

    def close(self) -> None:
        """Close the task, where it can be closed."""
        close = self._reader.method("close")
        if close is not None and not self._is_closed:
            close()
        self._is_closed = True

    def describe(self) -> dict[str, str]:
        """What was detected, one short line each."""
        reader = self._reader
        copies = "handed over as they are, 0 copies; rewards and flags are new"
        if reader.own_device != reader.device:
            copies = f"copied from {reader.own_device} to {reader.device}, actions back"
        own_seed = reader.method("seed") is not None
        return {
            "family": f"a task with the interface of {_INTERFACES[reader.interface]}",
            "environment": reader.name,
            "num_envs": str(self.num_envs),
            "observation": describe_spec(self.observation_spec),
            "action": describe_spec(self.action_spec),
            "resets": f"{told(self.reset_style)}, known from {self._found.known_from}",
            "final observations": self._endings.final_obs,
            "limit": f"time-outs: {self._time_outs.note}",
            "hand-off": f"observations {copies}",
            "seeding": "the task's own `seed`" if own_seed else "the next reset only",
        }

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._reader.name}, num_envs={self.num_envs}, "
            f"horizon={self.horizon}, device={str(self.device)!r}, "
            f"reset_style={self.reset_style!r})"
        )


def _import_isaacgymenvs() -> Any:
    try:
        return import_module("isaacgymenvs")
    except ImportError as error:
        raise AdapterError(
            f"IsaacGymEnvs cannot be imported: {error}. Install Isaac Gym and IsaacGymEnvs from "
            "where NVIDIA offers them, and import `isaacgym` before anything that imports PyTorch, "
            "Everstep included. Tasks made in another way are wrapped by `everstep.wrap(task)`."
        ) from error
