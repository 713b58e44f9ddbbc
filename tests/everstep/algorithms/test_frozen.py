"""Frozen parameters: they stay what they are, and train again once they are not frozen."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Categorical, Unbounded

from everstep import AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv
from everstep.errors import ConfigError
from everstep.models import DefaultContinuousModel, DefaultDiscreteModel, Model

SMALL: Any = {"num_envs": 6, "horizon": 8, "seed": 0}


def built(env_cls: Any = ContinuousDummyEnv, **options: Any) -> Any:
    config = {**SMALL, "model_config": {"hiddens": (8,)}, **options}
    return AlgorithmConfig(**config).build(env_cls)


def train(algorithm: Any, updates: int = 1) -> None:
    for _ in range(updates):
        algorithm.collect()
        algorithm.step()


def state_of(algorithm: Any, parameters: Any) -> list[Any]:
    """Parameters, and what the optimizer stores for them."""
    return [
        (p.detach().clone(), copy.deepcopy(algorithm.optimizer.state.get(p))) for p in parameters
    ]


def is_same(found: list[Any], expected: list[Any]) -> bool:
    return all(
        torch.equal(p, q) and (s is None) is (r is None) and all(torch.equal(s[k], r[k]) for k in r)
        for (p, s), (q, r) in zip(
            [(p, s or {}) for p, s in found], [(q, r or {}) for q, r in expected], strict=True
        )
    )


def parts(algorithm: Any, name: str) -> list[nn.Parameter]:
    return list(getattr(algorithm.policy.model, name).parameters())


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "general"])
@pytest.mark.parametrize("before", [0, 2], ids=["at once", "after updates"])
@pytest.mark.parametrize("name", ["policy", "outputs", "vf_model"])
def test_what_is_frozen_after_the_build_stays(
    name: str, before: int, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam would go on by the moments of earlier updates."""
    if not is_fast:
        monkeypatch.setattr("everstep.algorithms.algorithm.learner", lambda *_: None)
    algorithm = built(entropy_coeff=0.01, sgd_minibatch_size=16)
    train(algorithm, before)
    getattr(algorithm.policy.model, name).requires_grad_(False)
    others = {"policy", "outputs", "vf_model"} - {name}
    expected = state_of(algorithm, parts(algorithm, name))
    moving = [state_of(algorithm, parts(algorithm, other)) for other in sorted(others)]
    train(algorithm, 2)
    assert (algorithm._fast is not None) is is_fast
    assert is_same(state_of(algorithm, parts(algorithm, name)), expected)
    for other, was in zip(sorted(others), moving, strict=True):
        assert not is_same(state_of(algorithm, parts(algorithm, other)), was)
    getattr(algorithm.policy.model, name).requires_grad_(True)
    train(algorithm)
    assert (algorithm._fast is not None) is is_fast
    for (p, _), q in zip(expected, parts(algorithm, name), strict=True):
        assert not torch.equal(p, q)


def test_a_frozen_actor_with_a_learning_rate_of_its_values() -> None:
    model = DefaultContinuousModel(
        ContinuousDummyEnv(1).observation_spec, ContinuousDummyEnv(1).action_spec, hiddens=(8,)
    )
    for part in (model.policy, model.outputs):
        part.requires_grad_(False)
    algorithm = built(model=model, model_config=None, optimizer_config={"lr_pi": 0.5, "lr_v": 0.02})
    groups = algorithm.optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.5, 0.02]
    actor = [*parts(algorithm, "policy"), *parts(algorithm, "outputs")]
    assert {*groups[1]["params"]} == {*parts(algorithm, "vf_model")}
    before, values = state_of(algorithm, actor), state_of(algorithm, parts(algorithm, "vf_model"))
    train(algorithm, 2)
    assert is_same(state_of(algorithm, actor), before)
    after = state_of(algorithm, parts(algorithm, "vf_model"))
    assert all(not torch.equal(a, b) for (a, _), (b, _) in zip(after, values, strict=True))
    # A first step of Adam is the learning rate.
    assert (
        max(float((a - b).abs().max()) for (a, _), (b, _) in zip(after, values, strict=True)) > 0.02
    )


def test_only_values_are_trained_with_their_rate_alone() -> None:
    env = DiscreteDummyEnv(1)
    model = DefaultDiscreteModel(env.observation_spec, env.action_spec, hiddens=(8,))
    model.policy.requires_grad_(False)
    algorithm = built(
        DiscreteDummyEnv, model=model, model_config=None, optimizer_config={"lr_v": 0.02}
    )
    before = [p.detach().clone() for p in model.policy.parameters()]
    values = [p.detach().clone() for p in model.vf_model.parameters()]
    train(algorithm)
    assert all(map(torch.equal, before, model.policy.parameters()))
    assert not any(map(torch.equal, values, model.vf_model.parameters()))


def test_a_model_that_is_frozen_as_a_whole() -> None:
    model = DefaultDiscreteModel(Unbounded(1), Categorical(2, shape=torch.Size([1])))
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"every parameter .* frozen .*requires_grad_\(True\)"):
        built(DiscreteDummyEnv, model=model, model_config=None)
    algorithm = built(DiscreteDummyEnv)
    algorithm.policy.model.requires_grad_(False)
    algorithm.collect()
    with pytest.raises(ConfigError, match=r"every parameter .* frozen"):
        algorithm.step()
    algorithm.policy.model.requires_grad_(True)
    algorithm.step()


class Empty(Model):
    """A model without parameters."""

    def forward(self, batch: Any, /) -> Any:
        return {"logits": torch.zeros(len(batch), 1, 2)}

    def value_function(self) -> torch.Tensor:
        return torch.zeros(1, 1)


def test_a_model_without_parameters() -> None:
    with pytest.raises(ConfigError, match=r"Empty has no parameters.*give the model at least one"):
        built(DiscreteDummyEnv, model_cls=Empty, model_config=None)


# ---- models that are converted ------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1], ids=["at once", "after an update"])
@pytest.mark.parametrize("norm", [None, 1e-3])
@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "general"])
def test_training_goes_on_in_a_model_that_was_converted_and_back(
    norm: None | float, after: int, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients were replaced; those of an update must still be clipped."""
    if not is_fast:
        monkeypatch.setattr("everstep.algorithms.algorithm.learner", lambda *_: None)
    # SGD: a step is its gradient, clipped or not.
    options: Any = {"max_grad_norm": norm, "optimizer_cls": torch.optim.SGD}
    one, twin = (built(**options, optimizer_config={"lr": 0.01}) for _ in range(2))
    for i in range(after + 2):
        if i == after:
            one.policy.model.double().float()
        for algorithm in (one, twin):
            torch.manual_seed(i)
            algorithm.collect()
        found, expected = one.step(), twin.step()
        assert found["monitors/grad_norm"] == expected["monitors/grad_norm"] > 0
        assert all(map(torch.equal, one.policy.model.parameters(), twin.policy.model.parameters()))
    flat = one.updater.flats[0].untyped_storage().data_ptr()
    parameters = list(one.policy.model.parameters())
    assert all(p.grad.untyped_storage().data_ptr() == flat for p in parameters)


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "general"])
def test_a_loss_that_is_not_finite_is_skipped_in_a_converted_model(
    is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fast:
        monkeypatch.setattr("everstep.algorithms.algorithm.learner", lambda *_: None)
    algorithm = built(sgd_minibatch_size=24, num_sgd_iters=1, shuffle_minibatches=False)
    train(algorithm)
    algorithm.policy.model.double().float()
    algorithm.collect()
    algorithm.rollout.logp[0, 0] = -torch.inf
    before = [p.detach().clone() for p in algorithm.policy.model.parameters()]
    stats = algorithm.step()
    assert stats["monitors/skipped_updates"] == 1
    assert stats["monitors/grad_norm"] > 0
    for p, was in zip(algorithm.policy.model.parameters(), before, strict=True):
        assert p.isfinite().all()
        assert not torch.equal(p, was)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, ContinuousDummyEnv])
@pytest.mark.parametrize("converted", ["before the build", "after the build"])
def test_default_models_train_in_every_dtype(converted: str, env_cls: Any, dtype: Any) -> None:
    env = env_cls(6, 8)
    cls: Any = DefaultDiscreteModel if env_cls is DiscreteDummyEnv else DefaultContinuousModel
    model = cls(env.observation_spec, env.action_spec, hiddens=(8,))
    if converted == "before the build":
        model.type(dtype)
    algorithm: Any = AlgorithmConfig(model=model, seed=0).build(env)
    model.type(dtype)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert algorithm._fast is None
    assert all(p.isfinite().all() for p in model.parameters())
    assert not all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("dtypes", [[torch.float64], [torch.float64, torch.float32]])
def test_a_model_of_choices_that_was_converted_by_to(dtypes: list[Any]) -> None:
    env = DiscreteDummyEnv(6, 8)
    model = DefaultDiscreteModel(env.observation_spec, env.action_spec, hiddens=(8,))
    for dtype in dtypes:
        model.to(dtype)
    assert model.action_spec.dtype is torch.int64
    AlgorithmConfig(model=model, seed=0).build(env)
