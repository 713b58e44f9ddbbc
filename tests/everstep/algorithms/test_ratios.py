"""Ratios are 1 on the first minibatch: the update evaluates the policy that has acted."""

from itertools import chain
from typing import Any

import pytest
import torch
from torchrl.data import Categorical, Composite, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.algorithms.recording import optimizer_steps
from tests.everstep.core.fast.test_rollout import env_of

pytestmark = pytest.mark.usefixtures("float64")

DISCRETE = env_of(Categorical(3, shape=(1,)))
NUMBERS = env_of(Unbounded((2,)))
GROUPS = env_of(Unbounded(2), Composite(actor=Unbounded(3), critic=Unbounded(4)))

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fused": (AlgorithmConfig, {}),
    "general": (AlgorithmConfig, {"model_config": {"activation_fn": "gelu"}}),
    "recurrent": (RecurrentAlgorithmConfig, {"model_config": {"hidden_size": 16}}),
}

#: Environment and options of each way to say something else than the defaults.
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "advantages of minibatches": (DISCRETE, {"normalize_advantages": "minibatch"}),
    "clip schedule": (NUMBERS, {"clip_param_schedule": [(0, 0.1), (100, 0.01)]}),
    "rewards": (NUMBERS, {"reward_scale": 0.1, "clip_rewards": 1.0}),
    "normalised values": (DISCRETE, {"normalize_values": True}),
    "gSDE": (NUMBERS, {"model_config": {"use_sde": True, "sde_sample_freq": 3}}),
    "bounds": (NUMBERS, {"bounds_loss_coeff": 0.01}),
    "frames": (DISCRETE, {"model_config": {"frame_stack": 3}}),
    "two heads": (NUMBERS, {"model_config": {"shared": True, "ortho_init": False}}),
    "asymmetric": (GROUPS, {"model_config": {"actor_obs": ["actor"], "critic_obs": ["critic"]}}),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_the_first_minibatch_has_ratios_of_1(case: str, kind: str) -> None:
    env, options = CASES[case]
    config, others = KINDS[kind]
    if case == "frames" and kind == "recurrent":
        pytest.skip("an LSTM sees the past without a stack")
    model = {**others.get("model_config", {}), **options.get("model_config", {})}
    small = {"num_envs": 6, "horizon": 8, "seed": 0, "sgd_minibatch_size": 6}
    algorithm: Any = config(**small | options | {"model_config": model}).build(env)
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
    algorithm.collect()
    algorithm.estimate()
    first = next(chain.from_iterable(optimizer_steps(algorithm.parts, 1, chunk=None)))
    distribution, values = algorithm.policy.evaluate(first)
    ratios = (distribution.latents_logp(first.actions) - first.logp).exp()
    torch.testing.assert_close(ratios, torch.ones_like(ratios), rtol=0, atol=1e-9)
    torch.testing.assert_close(values, first.values, rtol=0, atol=1e-9)
    assert algorithm.step()["monitors/clip_fraction"] < 1
