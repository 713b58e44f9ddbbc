"""Patches, hooks and classes of one's own: called in collection and update."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.optim import optimizer as global_optimizer_hooks
from torchrl.data import Categorical, Unbounded

from everstep import AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv
from everstep.core.fast import eligible
from everstep.models import DefaultContinuousModel, DefaultDiscreteModel, DefaultModel
from everstep.models._defaults import Gaussian
from everstep.views import ViewRequirement
from tests.everstep.algorithms.test_frozen import SMALL
from tests.everstep.core.fast.test_property import DrawnEnv

#: One optimizer step: the divergence of its only minibatch is that of the collected policy.
ONE: Any = {**SMALL, "num_sgd_iters": 1, "model_config": {"hiddens": (8,)}}


def check_same_policy(algorithm: Any) -> None:
    """The policy of the update is the one that has acted."""
    algorithm.collect()
    assert algorithm.step()["monitors/kl_div"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", ["policy.0", "policy", "vf_model", "outputs"])
def test_a_patched_forward_is_called(name: str) -> None:
    algorithm: Any = AlgorithmConfig(**ONE).build(ContinuousDummyEnv)
    check_same_policy(algorithm)
    module = algorithm.policy.model.get_submodule(name)
    original, calls = module.forward, []

    def forward(x: torch.Tensor) -> Any:
        calls.append(torch.is_grad_enabled())
        out = original(x)
        return 2 * out if isinstance(out, torch.Tensor) else {**out, "mean": 2 + out["mean"]}

    module.forward = forward
    check_same_policy(algorithm)
    assert calls.count(False) >= algorithm.rollout.horizon
    assert calls.count(True) == 1


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_global_module_hooks_are_called(kind: str) -> None:
    algorithm: Any = AlgorithmConfig(**ONE).build(ContinuousDummyEnv)
    algorithm.collect()
    algorithm.step()
    calls: list[Any] = []
    register = getattr(global_hooks, f"register_module_{kind}_hook")
    handle = register(lambda module, *_: calls.append(type(module)))
    try:
        check_same_policy(algorithm)
    finally:
        handle.remove()
    assert calls.count(DefaultContinuousModel) > algorithm.rollout.horizon
    assert calls.count(nn.Linear) > algorithm.rollout.horizon


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_global_optimizer_hooks_are_called(kind: str) -> None:
    """In every step, from the update on that follows their registration."""
    algorithm: Any = AlgorithmConfig(**ONE | {"num_sgd_iters": 3}).build(DiscreteDummyEnv)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    calls: list[Any] = []
    register = getattr(global_optimizer_hooks, f"register_optimizer_step_{kind}_hook")
    algorithm.collect()
    handle = register(lambda optimizer, *_: calls.append(optimizer))
    try:
        algorithm.step()
    finally:
        handle.remove()
    assert calls == [algorithm.optimizer] * 3


class Bounded(Gaussian):
    """Means between −1 and 1."""

    calls = 0

    def forward(self, outputs: torch.Tensor) -> Any:
        type(self).calls += 1
        features = super().forward(outputs)
        return {**features, "mean": features["mean"].tanh()}


def test_outputs_of_ones_own_are_called() -> None:
    env = ContinuousDummyEnv(6, 8)
    outputs = Bounded(env.action_spec, -1.0, state_dependent_std=False)
    model = DefaultModel(env.observation_spec, env.action_spec, outputs=outputs, hiddens=(8,))
    nn.init.constant_(model.policy[-1].bias, 1.5)
    options = {k: v for k, v in ONE.items() if k != "model_config"}
    algorithm: Any = AlgorithmConfig(model=model, **options).build(env)
    Bounded.calls = 0
    check_same_policy(algorithm)
    assert Bounded.calls >= 8 + 1


def test_actions_of_rows_that_weigh_nothing_may_overflow() -> None:
    """38 log-probabilities near 3 nats: a ratio against 0 is infinite in float32."""
    env = DrawnEnv(Unbounded(38), "next")
    options = {"model_config": {"hiddens": (8,), "log_std_init": -4.0}, "seed": 0}
    algorithm: Any = AlgorithmConfig(**options, optimizer_config={"lr": 1e-5}).build(env)
    before = [p.detach().clone() for p in algorithm.policy.model.parameters()]
    for _ in range(2):
        algorithm.collect()
        assert not algorithm.rollout.valid.all()
        assert algorithm.rollout.logp[:-1].max() > 89  # e^89 overflows
        stats = algorithm.step()
        assert algorithm._fast is not None
        assert stats["monitors/skipped_updates"] == 0
        assert all(x == x for x in stats.values())
    assert all(p.isfinite().all() for p in algorithm.policy.model.parameters())
    assert not any(map(torch.equal, algorithm.policy.model.parameters(), before))


def test_values_of_final_observations_in_another_dtype() -> None:
    algorithm: Any = AlgorithmConfig(seed=0).build(DrawnEnv(Unbounded(2), "same"))
    algorithm.policy.model.double()
    algorithm.collect()
    algorithm.step()


def test_a_head_alone_follows_a_patched_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm: Any = AlgorithmConfig(**{**ONE, "model_config": {"hiddens": ()}}).build(
        DiscreteDummyEnv
    )
    original, calls = nn.Linear.forward, []

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return 2 * original(self, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    algorithm.collect()
    algorithm.step()
    assert algorithm._fast is None
    assert len(calls) >= 2 * 9


def test_a_default_model_of_windows_is_called() -> None:
    """Acting in blocks would take windows as present observations."""
    action_spec = Categorical(2, shape=torch.Size([1]))
    model = DefaultDiscreteModel(Unbounded(9), action_spec, hiddens=(8,))
    model.view_requirements = {("obs",): ViewRequirement(shift=2, method="rolling_window")}
    algorithm: Any = AlgorithmConfig(model=model, seed=0).build(DrawnEnv(action_spec, None))
    assert algorithm.policy.history == 2
    assert eligible(algorithm.policy) == "the policy sees windows of past observations"


def test_a_critic_of_a_bonus_is_called() -> None:
    """A default model that was made before the bonus has one column of values."""
    env = DiscreteDummyEnv(6, 8)
    model = DefaultDiscreteModel(env.observation_spec, env.action_spec, hiddens=(8,))
    bonuses = [{"rnd": {"pre_normalization_steps": 0}}]
    algorithm: Any = AlgorithmConfig(model=model, bonuses=bonuses, seed=0).build(env)
    assert algorithm.policy.critic is not None
    assert "a bonus has a critic of its own" in str(eligible(algorithm.policy))
    before = [p.detach().clone() for p in algorithm.policy.critic.parameters()]
    algorithm.collect()
    algorithm.step()
    assert algorithm._fast is None
    assert not any(map(torch.equal, algorithm.policy.critic.parameters(), before))
