"""Bounds of each dimension of a `Box`, whatever the others have."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import everstep
from everstep.adapters import GymnasiumEnv
from everstep.distributions import Normal, SquashedNormal
from everstep.policies import Policy

INF = math.inf
MIXED = spaces.Box(np.float32([0, -5, -INF, -INF]), np.float32([INF, 5, 3, INF]))


class Acted(gymnasium.Env[Any, Any]):
    """Remembers its actions."""

    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self, space: Any = MIXED) -> None:
        self.action_space, self.actions = space, []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def played(distribution_cls: Any, bias: list[float], **options: Any) -> tuple[Any, Any]:
    """The trainer and the actions `[T, D]` that an environment received."""
    inner = gymnasium.vector.SyncVectorEnv([Acted])
    env = GymnasiumEnv(inner, **options)
    config = {"horizon": 256, "distribution_cls": distribution_cls, "run_dir": None}
    trainer = everstep.Trainer(env, model_config={"log_std_init": 1.0}, **config)
    with torch.no_grad():
        trainer.algorithm.policy.model.policy[-1].bias.copy_(torch.tensor(bias))
    trainer.algorithm.collect()
    return trainer, np.stack(inner.envs[0].unwrapped.actions)


def test_squashed_actions_reach_all_of_the_range_of_each_dimension() -> None:
    _, actions = played(SquashedNormal, [0.0, 0.0, 0.0, 0.0])
    assert (actions[:, 0] > 0).all()  # nothing is clipped
    assert actions[:, 0].max() > 4
    assert actions[:, 1].min() < -4.9
    assert actions[:, 1].max() > 4.9
    assert (actions[:, 2] < 3).all()
    assert actions[:, 2].min() < -1
    assert np.abs(actions[:, 3]).max() <= 1  # as without any bounds


@pytest.mark.parametrize("bounds", ["clip", "rescale"])
def test_normal_actions_are_clipped_where_there_is_a_bound(bounds: str) -> None:
    mean = {"clip": [0.0, 9.0, 0.0, 9.0], "rescale": [0.0, 3.0, 0.0, 9.0]}[bounds]
    _, actions = played(Normal, mean, action_bounds=bounds)
    assert actions[:, 0].min() == 0
    assert actions[:, 1].max() == 5
    assert actions[:, 2].max() == 3
    assert actions[:, 2].min() < -4
    assert actions[:, 3].max() > 9


class Aimed(gymnasium.Env[Any, Any]):
    """Rewards actions near a target between the bounds, whatever their unit."""

    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, half: float, centre: float) -> None:
        self.half, self.centre, self.target = half, centre, 0.0
        self.action_space = spaces.Box(centre - half, centre + half, (1,), np.float64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.target = self.np_random.uniform(-1, 1)
        return np.array([self.target], np.float32), {}

    def step(self, action: Any) -> Any:
        unit = (float(action[0]) - self.centre) / self.half
        obs, _ = self.reset()
        return obs, -abs(unit - self.target), True, False, {}


@pytest.mark.parametrize("distribution_cls", [Normal, SquashedNormal])
@pytest.mark.parametrize(("half", "centre"), [(128, 0), (0.5, 0.5), (2**-10, 0), (4, -64)])
def test_a_training_does_not_depend_on_the_unit_of_actions(
    half: float, centre: float, distribution_cls: Any
) -> None:
    """Powers of two in float64, so that nothing is rounded."""

    def trained(half: float, centre: float) -> dict[str, torch.Tensor]:
        make = [lambda: Aimed(half, centre)] * 4
        env = GymnasiumEnv(gymnasium.vector.SyncVectorEnv(make), 16)
        config = {"distribution_cls": distribution_cls, "seed": 3, "run_dir": None}
        trainer = everstep.Trainer(env, **config)
        for _ in range(3):
            trainer.step()
        return trainer.algorithm.policy.model.state_dict()

    torch.testing.assert_close(trained(half, centre), trained(1, 0), rtol=0, atol=0)


def test_the_density_of_each_dimension_is_the_derivative_of_its_distribution() -> None:
    """Probabilities add up to 1, and entropies are -∫p·log p, in each dimension alone."""
    spec = GymnasiumEnv(gymnasium.vector.SyncVectorEnv([Acted])).action_spec.to(torch.float64)
    edges = [(0.0, 60.0), (-5.0, 5.0), (-57.0, 3.0), (-1.0, 1.0)]
    for i, (low, high) in enumerate(edges):
        one = type("One", (), {"action_spec": spec[i : i + 1]})
        x = torch.linspace(low, high, 600_001, dtype=torch.float64)[1:-1].unsqueeze(-1)
        features = {"mean": torch.full_like(x, 0.4), "log_std": torch.full_like(x, -0.3)}
        distribution = SquashedNormal(features, one)
        logp = distribution.logp(x)
        step = (high - low) / 600_000
        assert float(logp.exp().sum() * step) == pytest.approx(1, abs=1e-5)
        entropy = -float((logp.exp() * logp).sum() * step)
        torch.manual_seed(0)
        assert float(distribution.entropy().mean()) == pytest.approx(entropy, abs=5e-3)


def test_random_actions_of_an_export_are_numbers_within_the_bounds() -> None:
    from everstep.env.specs import random_values

    spec = GymnasiumEnv(gymnasium.vector.SyncVectorEnv([Acted])).action_spec
    drawn = random_values(spec, [1000])
    assert drawn.isfinite().all()
    assert spec.is_in(drawn[0])
    assert (drawn[:, 1].abs() <= 5).all()
    assert drawn[:, 0].min() >= 0
    assert drawn[:, 2].max() <= 3


def test_a_policy_that_was_saved_has_the_same_bounds(tmp_path: Any) -> None:
    trainer, _ = played(SquashedNormal, [0.0, 9.0, 0.0, 0.0], action_bounds="clip")
    trainer.algorithm.policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy")
    action, _ = loaded.predict(np.zeros(2, np.float32), deterministic=True)
    assert action[1] > 4.9
    assert loaded.action_spec.space.high.tolist() == [INF, 5, 3, INF]
