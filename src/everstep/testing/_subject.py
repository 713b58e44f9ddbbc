"""The environment under test: how it is made, configured and acted on."""

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from tensordict import TensorDict
from torchrl.data import Binary, TensorSpec

from ..data import DataKeys, Device
from ..env import Env
from ..env.agents import widened
from ..env.specs import options, random_values


class Subject(ABC):
    """An environment under test. Subclasses implement `make_env` and may change the attributes."""

    #: Device that environments are made on.
    device: Device = "cpu"

    #: `horizon` that environments are made with.
    horizon: int = 16

    #: Vector steps that are played; enough for episodes to end.
    num_steps: int = 64

    #: Numbers of parallel environments; a single one if the batch size is fixed.
    num_envs_choices: tuple[int, ...] = (1, 2, 5)

    #: Seed of everything random.
    seed: int = 0

    #: Whether a seed determines everything that follows, in an environment that has `seed`.
    deterministic_by_seed: bool = True

    #: Whether `seed` and `reset` put a used environment into the state of a new one.
    reseedable: bool = True

    #: Whether later resets draw new states.
    resets_draw_new_states: bool = True

    #: Whether episodes end within `num_steps`. True: fail if none does. False: fail if one does.
    #: None: skip the checks of ends that were not observed.
    episodes_end: None | bool = None

    #: Whether only one environment may exist at a time, as with some simulators.
    exclusive: bool = False

    #: A valid config of `reset`.
    reset_config: None | dict[str, Any] = None

    @abstractmethod
    def make_env(self, num_envs: int, horizon: int, device: Device) -> Env:
        """A new environment.

        Args:
            num_envs: One of `num_envs_choices`.
            horizon: Vector steps between resets.
            device: Device of actions and results.

        """

    def choose_action(
        self, env: Env, obs: torch.Tensor | TensorDict, t: int
    ) -> torch.Tensor | TensorDict:
        """Actions `[num_envs, …]` of vector step `t`, random by default.

        Override it if random actions end no episode. PyTorch's generator is seeded before each
        call, so equal vector steps get equal actions.

        Args:
            env: The environment.
            obs: Current observations, `[num_envs, …]`.
            t: Vector steps since the environment was made.

        """
        if (specs := getattr(env, "agent_specs", None)) is not None:  # each agent's own
            count, whole = env.num_envs // len(specs), env.action_spec.zero([env.num_envs])
            for i, spec in enumerate(specs.values()):
                own = random_values(spec.action_spec, [count])
                whole[i :: len(specs)] = widened(own, whole.shape[-1])
            return cast(torch.Tensor, whole)
        return random_actions(env.action_spec, obs, env.num_envs)


def random_actions(
    action_spec: TensorSpec, obs: torch.Tensor | TensorDict, num_envs: int
) -> torch.Tensor | TensorDict:
    """Random actions `[num_envs, …]`, allowed by `action_mask` if observations have it."""
    actions: Any = random_values(action_spec, [num_envs])
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
