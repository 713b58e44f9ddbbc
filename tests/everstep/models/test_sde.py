"""Generalised state-dependent exploration: its formula, its noise, and stable-baselines3."""

import json
import subprocess
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.distributions import Normal, SquashedNormal
from everstep.errors import ConfigError
from everstep.models import DefaultContinuousModel
from tests.everstep.core.fast.test_rollout import env_of
from tests.test_coming_from import python_of

SDE: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 3, "log_std_init": -1}
CONFIGS = pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
#: Always the same observation, so that noise changes with the exploration weights alone.
SAME = Bounded(1.0, 1.0, (4,))


def model_of(*, full_std: bool) -> DefaultContinuousModel:
    model = DefaultContinuousModel(
        Unbounded(5), Unbounded(2), hiddens=[7], policy_gain=1.0, full_std=full_std, **SDE
    )
    with torch.no_grad():
        model.policy[-1].log_std.add_(0.3 * torch.randn_like(model.policy[-1].log_std))
    return model


def distribution_of(model: Any, obs: torch.Tensor) -> Normal:
    return Normal(model(TensorDict({"obs": obs}, [len(obs)])), model)


def written_out(model: Any, obs: torch.Tensor) -> tuple[Any, Any, Any]:
    """Latents h = relu(W1·x + b1), means W2·h + b2, and deviations √(h²·σ² + 1e-6)."""
    first, head = (model.policy[i] for i in (0, -1))
    latents = np.maximum(obs.numpy() @ first.weight.detach().numpy().T, 0)
    sigma = np.exp(head.log_std.detach().numpy()) * np.ones((7, 2))
    mean = latents @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    return latents, mean, np.sqrt(latents**2 @ sigma**2 + 1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("full_std", [True, False])
def test_log_probabilities_and_entropies_are_those_of_the_marginal(full_std: bool) -> None:
    model, obs = model_of(full_std=full_std), torch.randn(20, 5)
    distribution, actions = distribution_of(model, obs), torch.randn(20, 2)
    _, mean, std = written_out(model, obs)
    scaled = (actions.numpy() - mean) / std
    logp = (-0.5 * scaled**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(-1, keepdims=True)
    entropy = (np.log(std) + 0.5 + 0.5 * np.log(2 * np.pi)).sum(-1, keepdims=True)
    np.testing.assert_allclose(distribution.logp(actions).detach(), logp, rtol=0, atol=1e-9)
    np.testing.assert_allclose(distribution.entropy().detach(), entropy, rtol=0, atol=1e-9)
    np.testing.assert_allclose(distribution.deterministic_sample().detach(), mean, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_features_have_no_gradient_of_the_deviations() -> None:
    model, obs = model_of(full_std=True), torch.randn(20, 5)
    entropy = distribution_of(model, obs).entropy().sum()
    by_weight, by_std = torch.autograd.grad(
        entropy, [model.policy[0].weight, model.policy[-1].log_std], allow_unused=True
    )
    assert by_weight is None or not by_weight.any()
    assert by_std.any()


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("full_std", [True, False])
def test_stable_baselines3_has_the_same_log_probabilities(full_std: bool) -> None:
    program = """
import json, sys
import torch
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
given = json.loads(sys.stdin.read())
x = {k: torch.tensor(v, dtype=torch.float64) for k, v in given.items() if k != "full_std"}
own = StateDependentNoiseDistribution(2, full_std=given["full_std"])
own.proba_distribution_net(7, 0.0)
own.proba_distribution(x["mean"], x["log_std"], x["latents"])
print(json.dumps([own.log_prob(x["actions"]).tolist(), own.entropy().tolist()]))
"""
    python = python_of("stable-baselines3")
    model, obs = model_of(full_std=full_std), torch.randn(20, 5)
    distribution, actions = distribution_of(model, obs), torch.randn(20, 2)
    latents, mean, _ = written_out(model, obs)
    given = {"latents": latents.tolist(), "mean": mean.tolist(), "actions": actions.tolist()}
    given |= {"log_std": model.policy[-1].log_std.tolist(), "full_std": full_std}
    done = subprocess.run(
        [python, "-c", program], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    logp, entropy = (torch.tensor(x).unsqueeze(-1) for x in json.loads(done.stdout))
    own = distribution.logp(actions).detach(), distribution.entropy().detach()
    torch.testing.assert_close(own, (logp, entropy), rtol=0, atol=1e-9)


# ---- rollouts ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@CONFIGS
@pytest.mark.parametrize("every", [3, -1])
def test_noise_is_one_function_of_the_state_between_draws(config: Any, every: int) -> None:
    """Of one observation it is the same, until new weights are drawn; environments differ.

    Recurrent latents change with the state, so noise is compared with that of its weights.
    """
    model_config = SDE | {"sde_sample_freq": every}
    options = {"num_envs": 5, "horizon": 8, "seed": 0, "model_config": model_config}
    algorithm: Any = config(**options).build(env_of(Unbounded(2), SAME))
    head = algorithm.policy.model.policy[-1]
    drawn: list[torch.Tensor] = []
    original = head.draw

    def draw(num_envs: int) -> None:
        original(num_envs)
        drawn.append(head.exploration.clone())

    head.draw = draw
    algorithm.collect()
    assert len(drawn) == (3 if every == 3 else 1)
    assert head.exploration is None
    if config is RecurrentAlgorithmConfig:
        return
    obs = algorithm.rollout.obs_at(0)[0].double()
    features = algorithm.policy.model(TensorDict({"obs": obs}, [5]))
    noise = (algorithm.rollout.actions[0][:-1] - features["mean"]).detach()
    latents = algorithm.policy.model.policy[:-1](obs).detach()
    for t in range(8):
        weights = drawn[t // 3 if every == 3 else 0]
        expected = torch.einsum("nd,ndw->nw", latents, weights)
        torch.testing.assert_close(noise[t], expected, rtol=0, atol=1e-9)
    assert not torch.equal(noise[0, 0], noise[0, 1])


@pytest.mark.usefixtures("float64")
def test_weights_are_drawn_with_their_deviations() -> None:
    """Over many draws noise has the deviation of the log-probabilities."""
    model, obs = model_of(full_std=True), torch.randn(1, 5)
    head = model.policy[-1]
    head.draw(20_000)
    with torch.no_grad():
        noise = model(TensorDict({"obs": obs.expand(20_000, 5)}, [20_000]))["noise"]
    _, _, std = written_out(model, obs)
    np.testing.assert_allclose(noise.std(0), std[0], rtol=0.03)
    np.testing.assert_allclose(noise.mean(0), 0, atol=0.03)


def test_predict_samples_without_the_weights_of_a_rollout() -> None:
    options: dict[str, Any] = {"num_envs": 4, "horizon": 4, "model_config": SDE}
    algorithm: Any = AlgorithmConfig(**options).build(env_of(Unbounded(2)))
    algorithm.collect()
    obs = torch.randn(4, 4).numpy()
    draws = [algorithm.policy.predict(obs, deterministic=False)[0] for _ in range(2)]
    modes = [algorithm.policy.predict(obs)[0] for _ in range(2)]
    assert (draws[0] != draws[1]).all()
    assert (modes[0] == modes[1]).all()
    collected = algorithm.collect(deterministic=True)
    assert collected["env/steps"] == 16


@CONFIGS
def test_it_trains_and_is_saved(config: Any, tmp_path: Any) -> None:
    options: dict[str, Any] = {"num_envs": 4, "horizon": 8, "model_config": SDE}
    options["distribution_cls"] = SquashedNormal if config is AlgorithmConfig else None
    algorithm: Any = config(**options).build(env_of(Bounded(-2.0, 2.0, (2,))))
    before = algorithm.policy.model.policy[-1].log_std.detach().clone()
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    assert algorithm.general_way is not None
    assert not torch.equal(before, algorithm.policy.model.policy[-1].log_std)
    algorithm.policy.save(tmp_path / "policy")
    policy = type(algorithm.policy).load(tmp_path / "policy")
    obs = torch.randn(3, 4).numpy()
    assert (policy.predict(obs)[0] == algorithm.policy.predict(obs)[0]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sde_sample_freq": 0}, "`model_config.sde_sample_freq` expected int > 0, or -1"),
        ({"state_dependent_std": True}, "`model_config.use_sde` excludes"),
    ],
)
def test_options_that_do_not_fit_are_told(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(num_envs=4, model_config=SDE | options).build(env_of(Unbounded(2)))
