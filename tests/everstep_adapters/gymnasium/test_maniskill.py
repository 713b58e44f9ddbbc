"""ManiSkill's vector environment over a small task: rows are those of the task, stepped by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space

import everstep

vector: Any = pytest.importorskip("mani_skill.vector.wrappers.gymnasium")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: Env steps of an episode, and those after which rows fail in their first episodes.
LIMIT, FAILURES = 5, [[2, 9, 4], [9, 9, 9], [5, 3, 9], [1, 1, 1]]


class Small(gym.Env[Any, Any]):
    """Observes its episode and env step, in tensors, as ManiSkill's tasks do."""

    num_envs, device, reconfiguration_freq = 4, torch.device("cpu"), 0
    single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    observation_space = batch_space(single_observation_space, 4)
    action_space = batch_space(single_action_space, 4)

    def __init__(self) -> None:
        self.episode, self.t = torch.full((4,), -1), torch.zeros(4, dtype=torch.int64)

    @property
    def elapsed_steps(self) -> torch.Tensor:
        return self.t

    def seen(self) -> torch.Tensor:
        return torch.stack([self.episode, self.t], dim=-1).float()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        rows = (options or {}).get("env_idx", torch.arange(4))
        self.episode[rows] += 1
        self.t[rows] = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = [script[min(i, 2)] for script, i in zip(FAILURES, self.episode, strict=True)]
        failed = self.t == torch.tensor(ends)
        return self.seen(), self.t.float(), failed, self.t >= LIMIT, {"success": failed.clone()}


@pytest.mark.parametrize("records", [False, True])
def test_rows_are_those_of_the_task(records: bool) -> None:
    env = everstep.wrap(vector.ManiSkillVectorEnv(Small(), record_metrics=records))
    assert env.describe()["resets"].startswith("SAME_STEP")
    start = env.reset()
    by_hand = [[0, 0] for _ in FAILURES]
    first = start[:, 0].tolist()
    for _ in range(20):
        row = env.step(torch.zeros(4, 1)).clone()
        for i, script in enumerate(FAILURES):
            by_hand[i][1] += 1
            episode, t = by_hand[i]
            failed = t == script[min(int(first[i]) + episode, 2)]
            ended = failed or t >= LIMIT
            assert row["terminated"][i].item() is failed
            assert row["truncated"][i].item() is (t >= LIMIT)
            assert row["first"][i].item() is ended
            assert row["rewards"][i].item() == t
            assert row["final_obs"][i].tolist() == [first[i] + episode, t]
            by_hand[i] = [episode + 1, 0] if ended else [episode, t]
            assert row["obs"][i].tolist() == [first[i] + by_hand[i][0], by_hand[i][1]]
