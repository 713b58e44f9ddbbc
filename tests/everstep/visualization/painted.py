"""An environment that paints its clock, so that a picture says which env step it is of."""

from typing import Any, ClassVar

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep.data import Device
from everstep.env import Env


class PaintedEnv(Env):
    """Episodes of five env steps; the reward is the action, and noise makes it matter."""

    episode_keys = frozenset({"terminated", "truncated", "first"})
    length = 5

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2, device=torch.device(device))
        self.action_spec = Categorical(3, shape=torch.Size([1]), device=torch.device(device))
        self.random = torch.Generator().manual_seed(0)
        self.clock = 0
        #: The clock that was painted in the last picture of an episode is its length.
        self.shown = 0

    def seed(self, seed: int, /) -> None:
        self.random.manual_seed(seed)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        self.clock = self.shown = 0
        return self.observation()

    def observation(self) -> torch.Tensor:
        return torch.randn(self.num_envs, 2, generator=self.random)

    def step(self, action: torch.Tensor) -> TensorDict:
        self.clock += 1
        ended = self.clock == self.length
        self.shown, self.clock = self.clock, 0 if ended else self.clock
        done = torch.full((self.num_envs, 1), ended)
        row = {"obs": self.observation(), "rewards": action.float().reshape(-1, 1)}
        row |= {"terminated": done, "truncated": torch.zeros_like(done), "first": done}
        return TensorDict(row, batch_size=[self.num_envs])

    def render(self) -> torch.Tensor:
        """A picture whose brightness is the number of the env step."""
        return torch.full((1, 30, 51, 3), 20 * self.shown, dtype=torch.uint8)


class SizedEnv(PaintedEnv):
    """The same, with episodes of a length that is an option."""

    def __init__(self, *arguments: Any, length: int = 5, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.length = length


class EmptyEnv(PaintedEnv):
    """An environment whose pictures have no points."""

    def render(self) -> torch.Tensor:
        return torch.zeros(1, 0, 0, 3, dtype=torch.uint8)


class GrowingEnv(PaintedEnv):
    """An environment whose pictures grow."""

    def render(self) -> torch.Tensor:
        return torch.zeros(1, 30 + self.shown, 51, 3, dtype=torch.uint8)


class RushedEnv(PaintedEnv):
    """An environment that says that it draws more pictures than any file should have."""

    metadata: ClassVar[dict[str, float]] = {"render_fps": 1e9}


class BlindEnv(PaintedEnv):
    """An environment whose pictures are none."""

    def render(self) -> Any:
        return None


class UnrenderedEnv(PaintedEnv):
    """An environment that cannot be rendered."""

    render = None  # type: ignore[assignment]
