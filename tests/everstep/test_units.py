"""Units of rewards, values and means: scaled and clipped rewards, normalised values, bounds."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torchrl.data import Bounded, Unbounded

from everstep import AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv, RecurrentAlgorithmConfig
from everstep.adapters import GymnasiumEnv
from everstep.core.normalizers import ValueNormalizer
from everstep.distributions import Normal, SquashedNormal
from everstep.errors import CheckpointError, ConfigError
from everstep.policies import Policy
from tests.everstep.core.fast.test_rollout import env_of
from tests.toys import TERMINATED, TRUNCATED, Episode, scripted_vector_env

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "seed": 0, "normalize_rewards": False}
CONFIGS = pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])


def episodic() -> GymnasiumEnv:
    """Episodes that are terminated and truncated, with final observations."""
    script = [[Episode(2 + n % 3, TRUNCATED), Episode(3, TERMINATED)] for n in range(4)]
    return GymnasiumEnv(scripted_vector_env(script, AutoresetMode.SAME_STEP), horizon=12)


# ---- rewards ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("normalized", [False, True])
def test_rewards_are_divided_scaled_and_clipped_in_this_order(normalized: bool) -> None:
    """Without discount they are returns minus values; statistics are of the rewards themselves."""
    options: dict[str, Any] = {"reward_scale": 3.0, "clip_rewards": 0.8, "gae_lambda": 0.0}
    options |= {"normalize_rewards": normalized, "gamma": 1e-12, "normalize_advantages": False}
    algorithm = AlgorithmConfig(**SMALL | options).build(env_of(Unbounded(1)))
    stats = algorithm.collect()
    algorithm.estimate()
    rollout = algorithm.rollout
    scale = algorithm.state.reward_scale + 1e-8 if normalized else 1.0
    assert (algorithm.state.reward_scale != 1) is normalized
    expected = np.clip(rollout.rewards[:-1].numpy() / scale * 3.0, -0.8, 0.8)
    np.testing.assert_allclose(rollout.returns[:-1].numpy(), expected, rtol=0, atol=1e-9)
    assert (np.abs(expected) == 0.8).any()
    assert (np.abs(expected) < 0.8).any()
    assert stats["rewards/max"] == pytest.approx(float(rollout.rewards[:-1].max()))


# ---- values -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@CONFIGS
def test_moments_are_those_of_all_returns(config: Any) -> None:
    algorithm = config(**SMALL, normalize_values=True).build(DiscreteDummyEnv)
    rows = []
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
        rows.append(algorithm.rollout.returns[:-1].flatten().clone())
    normalizer = algorithm.policy.value_normalizer
    returns = torch.cat(rows).numpy()
    assert float(normalizer.count) == len(returns)
    np.testing.assert_allclose(normalizer.mean, [returns.mean()], rtol=0, atol=1e-9)
    np.testing.assert_allclose(normalizer.scale, [np.sqrt(returns.var() + 1e-5)], rtol=0, atol=1e-9)


@pytest.mark.usefixtures("float64")
@CONFIGS
def test_the_value_loss_is_that_of_the_normalised_values_and_returns(config: Any) -> None:
    """Half the mean of ((y - (R - m)/s))², and its larger one if values are clipped."""
    options = {"normalize_values": True, "vf_loss": "mse", "vf_clip_param": 0.01}
    algorithm = config(**SMALL | options).build(DiscreteDummyEnv)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    algorithm.collect()
    algorithm.estimate()
    minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
    with torch.no_grad():  # so that values have moved
        for p in algorithm.policy.model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    found = algorithm._losses(minibatch)["vf"].detach()
    _, values = algorithm.policy.evaluate(minibatch)
    normalizer = algorithm.policy.value_normalizer
    mean, scale = float(normalizer.mean), float(normalizer.scale)
    raw = algorithm.policy.model.value_function().detach().numpy()
    np.testing.assert_allclose(values.detach().numpy(), raw * scale + mean, rtol=0, atol=1e-9)
    target = (minibatch.returns.numpy() - mean) / scale
    previous = (minibatch.values.numpy() - mean) / scale
    near = previous + np.clip(raw - previous, -0.01, 0.01)
    expected = 0.5 * np.maximum((raw - target) ** 2, (near - target) ** 2).mean()
    assert float(found) == pytest.approx(expected, rel=0, abs=1e-9)
    assert (np.abs(raw - previous) > 0.01).any()


@pytest.mark.usefixtures("float64")
@CONFIGS
def test_bootstraps_are_in_units_of_rewards(config: Any) -> None:
    """With λ = 0 the return of a truncated row is r + γ·(s·y(final observation) + m)."""
    options = {"normalize_values": True, "gae_lambda": 0.0, "gamma": 0.9, "seed": 0}
    options |= {"normalize_rewards": False, "normalize_observations": False}
    algorithm = config(**options).build(episodic())
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    algorithm.collect()
    algorithm.estimate()
    rollout, policy = algorithm.rollout, algorithm.policy
    assert rollout.final.any()
    assert abs(float(policy.value_normalizer.mean)) > 0.1
    if config is AlgorithmConfig:
        obs = rollout.final_obs[0][rollout.final.squeeze(-1)]
        with torch.no_grad():
            policy.model(TensorDict({"obs": obs}, [len(obs)]))
        y = policy.model.value_function()
        expected = y * policy.value_normalizer.scale + policy.value_normalizer.mean
        torch.testing.assert_close(
            rollout.final_values[rollout.final.squeeze(-1)], expected, rtol=0, atol=1e-9
        )
    next_values = torch.where(rollout.final, rollout.final_values, rollout.values[1:])
    next_values = next_values.masked_fill(rollout.terminated, 0.0)
    expected = rollout.rewards[:-1] + 0.9 * next_values
    torch.testing.assert_close(rollout.returns[:-1], expected, rtol=0, atol=1e-9)


@CONFIGS
def test_moments_are_in_checkpoints_policies_and_weights(config: Any, tmp_path: Path) -> None:
    def make() -> Any:
        return config(**SMALL, normalize_values=True).build(DiscreteDummyEnv)

    algorithm = make()
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    state = copy.deepcopy(algorithm.state_dict())
    algorithm.policy.save(tmp_path / "policy")
    policy = type(algorithm.policy).load(tmp_path / "policy")
    again = make()
    again.load_state_dict(state)
    third = make()
    third.set_weights(algorithm.get_weights())
    own = algorithm.policy.value_normalizer
    for other in (policy, again.policy, third.policy):
        assert torch.equal(other.value_normalizer.mean, own.mean)
        assert torch.equal(other.value_normalizer.var, own.var)
    assert {"values.mean", "values.var"} <= algorithm.get_moments().keys()
    obs = algorithm.rollout.obs_at(0)
    states = algorithm.policy.memory.flatten(algorithm.policy.init_states(4))
    with torch.no_grad():
        values = [p.values(obs, states) for p in (algorithm.policy, policy, again.policy)]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    with pytest.raises(CheckpointError, match="value_normalizer"):
        config(**SMALL).build(DiscreteDummyEnv).load_state_dict(state)


@pytest.mark.slow
def test_exported_policies_have_values_in_units_of_rewards(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    algorithm = AlgorithmConfig(**SMALL, normalize_values=True).build(DiscreteDummyEnv)
    algorithm.collect()
    algorithm.step()
    algorithm.policy.export(tmp_path / "exported")
    obs = torch.randn(5, 1)
    with torch.no_grad():
        expected = algorithm.policy.values((obs,), ())
    found = mlflow.pyfunc.load_model(str(tmp_path / "exported")).predict({"obs": obs.numpy()})
    torch.testing.assert_close(torch.tensor(found["values"]), expected)


def test_a_bonus_has_moments_of_its_own() -> None:
    options = {"normalize_values": True, "bonuses": [{"rnd": {"pre_normalization_steps": 0}}]}
    algorithm: Any = AlgorithmConfig(**SMALL, **options).build(DiscreteDummyEnv)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    normalizer: ValueNormalizer = algorithm.policy.value_normalizer
    expected = algorithm.rollout.returns[:-1].flatten(0, 1)
    assert normalizer.mean.shape == (2,)
    assert normalizer.mean[0] != normalizer.mean[1]
    assert expected.shape[-1] == 2


# ---- bounds -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        (Bounded(-2.0, 6.0, (2, 3)), -2.0, 6.0),
        (Unbounded((2, 3)), -1.0, 1.0),
    ],
)
def test_the_bounds_loss_is_rl_games_formula(spec: Any, low: float, high: float) -> None:
    """Clamp_min(μ - 1.1, 0)² + clamp_max(μ + 1.1, 0)², μ in the units that rl_games rescales."""
    policy: Any = Policy(Unbounded(4), spec)
    mean = 8 * torch.randn(50, 2, 3)
    found = Normal({"mean": mean, "log_std": torch.zeros_like(mean)}, policy.model).beyond_bounds()
    mu = (mean.numpy() - (low + high) / 2) / ((high - low) / 2)
    expected = np.maximum(mu - 1.1, 0) ** 2 + np.minimum(mu + 1.1, 0) ** 2
    np.testing.assert_allclose(
        found.numpy(), expected.reshape(50, -1).sum(-1, keepdims=True), rtol=0, atol=1e-9
    )
    assert (found == 0).any() or (found > 0).all()


def test_the_bounds_loss_is_that_of_each_dimension() -> None:
    """None, one, two, or equal bounds; beside each, the squared distances of means from them."""
    low = torch.tensor([-torch.inf, 0.0, -torch.inf, -5.0, 3.0])
    high = torch.tensor([torch.inf, torch.inf, 2.0, 5.0, 3.0])
    policy: Any = Policy(Unbounded(4), Bounded(low=low, high=high))
    mean = torch.tensor([[-2.0, 9.0, -9.0, 4.0, 3.0], [1.0, -1.0, 2.6, 7.0, 4.0]])
    found = Normal({"mean": mean, "log_std": torch.zeros_like(mean)}, policy.model).beyond_bounds()
    expected = [0.9**2, 0.9**2 + 0.5**2 + 0.3**2 + 0.9**2]
    torch.testing.assert_close(found.flatten(), torch.tensor(expected))


@CONFIGS
def test_means_outside_of_the_bounds_come_back(config: Any) -> None:
    """The loss is added with its weight, and pulls means towards the bounds."""
    found = {}
    for weight in (0.0, 10.0):
        options = {"bounds_loss_coeff": weight, "num_sgd_iters": 4}
        options |= {"optimizer_cls": torch.optim.SGD, "lr": 1e-2, "max_grad_norm": None}
        env = env_of(Bounded(-1.0, 1.0, (2,)))
        algorithm: Any = config(**SMALL | options).build(env)
        with torch.no_grad():
            algorithm.policy.model.policy[-1].bias.fill_(3.0)
        for _ in range(5):
            algorithm.collect()
            stats = algorithm.step()
        found[weight] = float(algorithm.policy.model.policy[-1].bias.detach().mean())
        assert ("losses/bounds" in stats) is (weight > 0)
    assert found[10.0] < found[0.0] - 0.1
    assert (algorithm.general_way is None) is False


def test_the_total_has_the_bounds_loss() -> None:
    options = {"bounds_loss_coeff": 0.5, "vf_coeff": 2.0}
    algorithm: Any = AlgorithmConfig(**SMALL | options).build(ContinuousDummyEnv)
    with torch.no_grad():
        algorithm.policy.model.policy[-1].bias.fill_(1e4)
    algorithm.collect()
    stats = algorithm.step()
    total = 2.0 * stats["losses/vf"] - stats["losses/policy"] + 0.5 * stats["losses/bounds"]
    assert stats["losses/bounds"] > 1
    assert stats["losses/total"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("env", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_other_distributions_refuse_the_bounds_loss(env: Any) -> None:
    kind = None if env is DiscreteDummyEnv else SquashedNormal
    name = "Categorical" if env is DiscreteDummyEnv else "SquashedNormal"
    with pytest.raises(ConfigError, match=f"got {name}"):
        AlgorithmConfig(**SMALL, bounds_loss_coeff=0.1, distribution_cls=kind).build(env)
