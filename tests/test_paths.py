"""Every way through an update leads to the same place, and learns.

The reference is plain: float32 or float64, eager, minibatches at once. Its rollouts are replayed
on every path, so that a path differs by its arithmetic alone. What a path has learned shows in an
environment where the better action is known.
"""

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep import AlgorithmConfig
from everstep.env import Env
from everstep.models import DefaultDiscreteModel
from everstep.policies import load_policy

pytestmark = pytest.mark.slow

UPDATES = 20


class Signs(Env):
    """Observes two random numbers; the action is worth 1 that says whether the first is larger."""

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2, dtype=torch.get_default_dtype())
        self.action_spec = Categorical(2, shape=torch.Size([1]))
        self.generator = torch.Generator().manual_seed(0)

    def reset(self, *, config: Any = None) -> torch.Tensor:
        drawn = torch.randn(self.num_envs, 2, generator=self.generator, dtype=torch.float64)
        self.obs = drawn.to(torch.get_default_dtype())
        return self.obs

    def step(self, action: Any) -> TensorDict:
        first_is_larger = self.obs[:, :1] > self.obs[:, 1:]
        rewards = (first_is_larger == (action == 1)).to(self.obs.dtype)
        return TensorDict({"obs": self.reset(), "rewards": rewards}, [self.num_envs])


class Compiled(DefaultDiscreteModel):
    """A model that its user has compiled."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self.compiled = torch.compile(super().forward, backend="aot_eager")

    def forward(self, batch: Any, /) -> Any:
        return self.compiled(batch)


def build(**options: Any) -> Any:
    """PPO in 32 environments × 16 env steps, minibatches at once."""
    config: dict[str, Any] = {
        "num_envs": 32,
        "horizon": 16,
        "seed": 0,
        "gamma": 0.5,
        "normalize_rewards": False,  # by the spread in what is collected, before it is replayed
        "optimizer_config": {"lr": 3e-3},
        "model_config": {"hiddens": (32,), "activation_fn": "tanh"},
        **options,
    }
    algorithm = AlgorithmConfig(**config).build(Signs)
    algorithm.chunk_size = None
    return algorithm


@dataclass
class Trace:
    """Results of 20 updates."""

    #: What was collected before each update, by name.
    rollouts: list[dict[str, torch.Tensor]]
    #: Statistics of each update.
    stats: list[dict[str, float]]
    #: All weights in the end.
    weights: torch.Tensor
    #: Mean reward in the end, by the policy's modes.
    reward: float


COLLECTED = ("actions", "logp", "obs", "rewards", "values")


def train(algorithm: Any, replayed: None | Trace = None) -> Trace:
    """Twenty updates, with rollouts of its own or those of another training."""
    rollouts, stats = [], []
    for i in range(UPDATES):
        algorithm.collect()
        buffer = {key: algorithm.buffer[key] for key in COLLECTED}
        if replayed is not None:
            for key, x in replayed.rollouts[i].items():
                buffer[key].copy_(x)
        rollouts.append({key: x.clone() for key, x in buffer.items()})
        torch.manual_seed(i)  # of the order of rows
        found: dict[str, float] = algorithm.step()
        stats.append({key: x for key, x in found.items() if key.startswith("losses/")})
    weights = torch.cat([p.detach().flatten() for p in algorithm.policy.model.parameters()])
    reward = algorithm.collect(deterministic=True)["rewards/mean"]
    return Trace(rollouts, stats, weights.clone(), reward)


@cache
def reference_of(dtype: torch.dtype, shuffled: bool) -> Trace:
    """The plain training, once for all paths; `dtype` is the default one."""
    assert torch.get_default_dtype() == dtype
    return train(build(**SHUFFLED if shuffled else {}))


SHUFFLED: dict[str, Any] = {"sgd_minibatch_size": 256}

#: Whether the reference has minibatches, what the path is built with, and its chunk.
PATHS: dict[str, tuple[bool, dict[str, Any], None | int]] = {
    "again": (False, {}, None),
    "chunks": (False, {}, 96),
    "chunks of minibatches": (True, SHUFFLED, 96),
    "accumulated": (False, {**SHUFFLED, "accumulate_grads": True}, None),
    "accumulated in chunks": (False, {**SHUFFLED, "accumulate_grads": True}, 96),
}

#: Mean reward that says that it was learned; without learning it is 0.5.
LEARNED = 0.95


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_exact_paths_end_where_the_reference_does(
    path: str, dtype: str, tolerance: float, request: pytest.FixtureRequest
) -> None:
    if dtype == "float64":
        request.getfixturevalue("float64")
    is_shuffled, options, chunk = PATHS[path]
    reference = reference_of(getattr(torch, dtype), is_shuffled)
    algorithm = build(**options)
    algorithm.chunk_size = chunk
    found = train(algorithm, reference)
    torch.testing.assert_close(found.weights, reference.weights, rtol=0, atol=tolerance)
    for mine, other in zip(found.stats, reference.stats, strict=True):
        assert mine == pytest.approx(other, rel=0, abs=tolerance)
    assert found.weights.dtype == getattr(torch, dtype)
    assert min(found.reward, reference.reward) > LEARNED


def test_half_precision_stays_near_and_learns_the_same() -> None:
    """bfloat16 has 8 bits: losses of about 0.1 are off by a few thousandths."""
    reference = reference_of(torch.float32, True)
    found = train(build(**SHUFFLED, enable_amp=True), reference)
    for mine, other in zip(found.stats, reference.stats, strict=True):
        assert mine == pytest.approx(other, rel=0, abs=5e-3)
    assert not torch.equal(found.weights, reference.weights)
    assert (found.weights - reference.weights).abs().max() < 2e-2
    assert found.reward == pytest.approx(reference.reward, abs=0.01)
    assert found.reward > LEARNED


@pytest.mark.slow
def test_a_model_that_its_user_compiled_ends_where_the_reference_does() -> None:
    reference = reference_of(torch.float32, False)
    algorithm = build(model_cls=Compiled)
    torch._dynamo.utils.counters.clear()
    found = train(algorithm, reference)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    torch.testing.assert_close(found.weights, reference.weights, rtol=0, atol=1e-5)
    assert found.reward > LEARNED


def test_models_are_compiled_by_config(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_envs": 8, "horizon": 4}
    plain, compiled = (build(**options, compile=backend) for backend in (False, "eager"))
    assert compiled.policy.model._compiled_call_impl is not None
    for algorithm in (plain, compiled):
        torch.manual_seed(1)
        algorithm.collect(deterministic=True)
        algorithm.step()
    names = plain.policy.model.state_dict()
    assert names.keys() == compiled.policy.model.state_dict().keys()
    for name, p in compiled.policy.model.state_dict().items():
        torch.testing.assert_close(p, names[name])
    copy.deepcopy(compiled.policy.model)
    compiled.policy.save(tmp_path / "policy")
    load_policy(tmp_path / "policy")


def test_a_path_of_its_own_is_noticed() -> None:
    reference = reference_of(torch.float32, False)
    found = train(build(clip_param=0.19), reference)
    assert (found.weights - reference.weights).abs().max() > 1e-5
    assert reference.rollouts[0]["rewards"].mean() < 0.6
