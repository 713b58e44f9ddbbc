"""Tasks that cannot be done without remembering."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep.env import Env
from everstep.env.registry import wrap


class RepeatFirst(Env):
    """Say again and again what was shown first.

    An observation shows one of two cues and whether it is the first. Every action that names the
    first cue earns one over the number of actions that count, so that a perfect horizon earns 1;
    the action that sees the first cue does not count. Later cues are random: without a memory one
    half is the most there is.
    """

    default_num_envs = 128
    default_horizon = 16

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu"
    ) -> None:
        self.length = horizon or self.default_horizon
        super().__init__(num_envs, self.length, device=device)
        self.observation_spec = Unbounded(3, device=torch.device(device))
        self.action_spec = Categorical(2, shape=torch.Size([1]), device=torch.device(device))

    def _show(self, *, is_first: bool) -> torch.Tensor:
        cue = torch.randint(2, (self.num_envs,), device=self.device)
        if is_first:
            self.cue = cue.unsqueeze(-1)
        flag = torch.full((self.num_envs, 1), float(is_first), device=self.device)
        return torch.cat([F.one_hot(cue, 2).float(), flag], -1)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """First cues."""
        self.counts = False
        return self._show(is_first=True)

    def step(self, action: torch.Tensor) -> TensorDict:
        """Random cues, and rewards for actions that name the first ones."""
        right = (action == self.cue).float() / (self.length - 1)
        rewards = right if self.counts else torch.zeros_like(right)
        self.counts = True
        return TensorDict(
            {"obs": self._show(is_first=False), "rewards": rewards}, batch_size=[self.num_envs]
        )


def cartpole_positions(num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu") -> Env:
    """CartPole-v1 whose policy must find out by itself how fast things move."""
    return _without("CartPole-v1", [0, 2], num_envs, horizon, device)


def pendulum_positions(
    num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu", **options: Any
) -> Env:
    """Pendulum-v1 whose policy must find out by itself how fast the pendulum turns."""
    return _without("Pendulum-v1", [0, 1], num_envs, horizon, device, **options)


def _without(
    name: str,
    kept: Sequence[int],
    num_envs: int,
    horizon: None | int,
    device: Any,
    **options: Any,
) -> Env:
    """An environment of Gymnasium that shows some elements of its observations only."""
    import gymnasium
    from gymnasium.vector import AutoresetMode

    class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
        """The environment without its velocities."""

        def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
            super().__init__(env)
            space: Any = env.observation_space
            self.observation_space = gymnasium.spaces.Box(
                space.low[kept], space.high[kept], dtype=space.dtype
            )

        def observation(self, observation: Any) -> Any:
            """Position and angle."""
            return observation[kept]

    env = gymnasium.make_vec(
        name,
        num_envs,
        vectorization_mode="sync",
        wrappers=[Positions],
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    return wrap(env, horizon=horizon, device=device, **options)
