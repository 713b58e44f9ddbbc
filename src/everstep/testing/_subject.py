"""The environment under test: how it is made, what it is told, how it is acted on."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Binary, TensorSpec

from ..data import DataKeys, Device
from ..env import Env
from ..specs import options


class Subject(ABC):
    """An environment under test. A subclass says how it is made, and may change the attributes."""

    #: Device that environments are made on.
    device: Device = "cpu"

    #: Env steps between resets that environments are made for.
    horizon: int = 16

    #: Env steps that are played in search of a broken rule; enough for episodes to end.
    num_steps: int = 64

    #: Numbers of parallel environments. One is enough where the batch is fixed; several show more.
    num_envs_choices: tuple[int, ...] = (1, 2, 5)

    #: Seed of everything random.
    seed: int = 0

    #: Whether a seed decides everything that follows, in an environment that has `seed`.
    deterministic_by_seed: bool = True

    #: Whether `seed` and `reset` make an environment that was used before like a new one.
    reseedable: bool = True

    #: Whether a later reset draws new states, as it does unless every reset gives the same ones.
    resets_draw_new_states: bool = True

    #: Whether episodes end while `num_steps` are played. True: it is a failure if none does.
    #: False: it is a failure if one does. None: what is not seen is not checked, visibly.
    episodes_end: None | bool = None

    #: Whether only one environment may exist at a time, as with simulators that own the process.
    exclusive: bool = False

    #: A config that `reset` takes.
    reset_config: None | dict[str, Any] = None

    @abstractmethod
    def make_env(self, num_envs: int, horizon: int, device: Device) -> Env:
        """A new environment.

        Args:
            num_envs: One of `num_envs_choices`.
            horizon: Env steps between resets that it is meant for.
            device: Device of everything that goes in and comes out.

        """

    def choose_action(
        self, env: Env, obs: torch.Tensor | TensorDict, t: int
    ) -> torch.Tensor | TensorDict:
        """Actions `[num_envs, …]` of env step `t`: random ones, unless a suite knows better.

        Override it where random actions end no episode. PyTorch's generator is seeded anew before
        each call, so equal env steps get equal actions.

        Args:
            env: The environment.
            obs: What is acted on, `[num_envs, …]`.
            t: Env steps since the environment was made.

        """
        return random_actions(env.action_spec, obs, env.num_envs)


def random_actions(
    action_spec: TensorSpec, obs: torch.Tensor | TensorDict, num_envs: int
) -> torch.Tensor | TensorDict:
    """Random actions `[num_envs, …]`; allowed ones where observations hold an `action_mask`."""
    actions = action_spec.rand(torch.Size([num_envs]))
    mask = None if isinstance(obs, torch.Tensor) else obs.get(DataKeys.ACTION_MASK, None)
    counts = options(action_spec)
    if mask is None or not counts:
        return actions
    allowed = mask.reshape(num_envs, -1)
    if isinstance(action_spec, Binary):
        return torch.where(allowed.view_as(actions), actions, 0)
    if allowed.shape[1] != sum(counts):
        return actions
    choices = [torch.multinomial(group.double(), 1) for group in allowed.split(counts, -1)]
    return torch.cat(choices, -1).reshape(actions.shape).to(actions.dtype)
