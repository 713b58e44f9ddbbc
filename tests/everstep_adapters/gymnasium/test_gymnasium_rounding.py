"""float64 observations whose differences float32 does not have are named, once."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from everstep import AlgorithmConfig
from everstep.adapters import GymnasiumEnv


class Far(gymnasium.Env[Any, Any]):
    """A position far away, whose last digits change."""

    action_space = spaces.Discrete(2)

    def __init__(self, centre: float, width: float, dtype: Any = np.float64) -> None:
        place = spaces.Box(-np.inf, np.inf, (2,), dtype)
        self.observation_space = spaces.Dict(place=place, other=spaces.Discrete(2))
        self.centre, self.width, self.dtype = centre, width, dtype

    def _obs(self) -> Any:
        noise = self.np_random.uniform(-self.width, self.width)
        return {"place": np.array([noise, self.centre + noise], self.dtype), "other": 0}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("centre", "width", "dtype", "warns"),
    [
        (5_400_000, 0.2, np.float64, True),
        (1e9, 30.0, np.float64, True),
        (5_400_000, 200.0, np.float64, False),
        (5_400_000, 0.0, np.float64, False),  # a constant has no differences
        (0.0, 1e-9, np.float64, False),
        (1.0, 1e-15, np.float64, False),  # rounding errors, of float64 itself
        (5_400_000, 0.2, np.float32, False),  # nothing is rounded here
    ],
)
def test_differences_that_float32_does_not_have_are_named_once(
    centre: float, width: float, dtype: Any, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    vector = gymnasium.vector.SyncVectorEnv([lambda: Far(centre, width, dtype)] * 2)
    algorithm = AlgorithmConfig(horizon=100).build(GymnasiumEnv(vector))
    for _ in range(2):
        algorithm.collect()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == warns
    if warns:
        assert "`obs['place']` are lost: element 1 of its numbers were between" in texts[0]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_that_are_read_one_by_one_are_looked_at(
    mode: AutoresetMode, caplog: pytest.LogCaptureFixture
) -> None:
    make = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=1)
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: make(Far(5_400_000, 0.2))] * 2, autoreset_mode=mode
    )
    AlgorithmConfig(horizon=66).build(GymnasiumEnv(vector)).collect()
    [record] = caplog.records
    assert "`obs['place']` are lost: element 1 of its numbers" in record.getMessage()


class Tensors(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A batch of tensors far away."""

    num_envs, metadata = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    single_action_space = spaces.Discrete(2)
    observation_space = gymnasium.vector.utils.batch_space(single_observation_space, 2)
    action_space = gymnasium.vector.utils.batch_space(single_action_space, 2)

    def _obs(self) -> torch.Tensor:
        return 5_400_000 + 0.2 * torch.rand(2, 2, dtype=torch.float64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        no = torch.zeros(2, dtype=torch.bool)
        return self._obs(), torch.zeros(2), no, no, {}


def test_tensors_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = AlgorithmConfig(horizon=100).build(GymnasiumEnv(Tensors()))
    for _ in range(2):
        algorithm.collect()
    [record] = caplog.records
    assert "`obs` are lost: element 0 of its numbers were between" in record.getMessage()


class Paid(Far):
    """Rewards that differ by little beside what they are."""

    def step(self, action: Any) -> Any:
        observation, _, *others = super().step(action)
        return {**observation, "place": np.zeros(2)}, float(observation["place"][1]), *others

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        return {**observation, "place": np.zeros(2)}, info


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("centre", "width", "warns"), [(1e9, 9.0, 1), (1.0, 1e-13, 0), (1, 1, 0)])
def test_rewards_whose_differences_float32_does_not_have_are_named_once(
    centre: float, width: float, warns: int, mode: AutoresetMode, caplog: pytest.LogCaptureFixture
) -> None:
    """The row of a reset, whose reward is 0, hides nothing."""
    make = partial(gymnasium.wrappers.TimeLimit, max_episode_steps=9)
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: make(Paid(centre, width))] * 2, autoreset_mode=mode
    )
    env = GymnasiumEnv(vector)
    env.reset()
    for _ in range(160):
        env.step(torch.zeros(2, 1, dtype=torch.int64))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == warns
    assert all("Differences in `rewards` are lost: its numbers were between 99" in x for x in texts)
