"""Images for next to nothing, as an environment of Gymnasium: the same code on every side."""

from typing import Any

import gymnasium
import numpy as np


class Frames(gymnasium.Env[np.ndarray, np.int64]):
    """Four images of 84 × 84 pixels, the newest last; the task is to name a corner.

    A bright square lies in one of the corners of each image, and the action that names the newest
    image's corner is rewarded with 1. Images before the first are black. After 250 env steps an
    episode is truncated.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)
    max_episode_steps = 250

    def reset(
        self, *, seed: None | int = None, options: None | dict[str, Any] = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The first images."""
        super().reset(seed=seed)
        self.images = np.zeros((84, 84, 4), np.uint8)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The next images, and whether the action was the corner."""
        reward = float(action == self.corner)
        self.steps += 1
        return self._observe(), reward, False, self.steps == self.max_episode_steps, {}

    def _observe(self) -> np.ndarray:
        images = np.empty_like(self.images)
        images[..., :3] = self.images[..., 1:]
        images[..., 3] = 64
        self.corner = int(self.np_random.integers(4))
        top, left = 42 * (self.corner // 2) + 10, 42 * (self.corner % 2) + 10
        images[top : top + 20, left : left + 20, 3] = 255
        self.images = images
        return images
