"""Written-out gradients: those of autograd, and the same updates."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded

from everstep import AlgorithmConfig, DiscreteDummyEnv
from everstep.adapters import GymnasiumEnv
from everstep.fused import MinibatchGradients, gradients
from everstep.models import DefaultDiscreteModel
from everstep.nn import Head
from everstep.objectives import PPO
from tests.everstep.fused.test_rollout import env_of
from tests.toys import TERMINATED, TRUNCATED, Episode, scripted_vector_env

DISCRETE = env_of(Categorical(3, shape=(1,)))
NUMBERS = env_of(Unbounded((2, 2)))
BOUNDED = env_of(Bounded(-1.0, 1.0, (3,)))

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": (DISCRETE, {}),
    "int32": (env_of(Categorical(4, shape=(1,), dtype=torch.int32)), {}),
    "numbers": (NUMBERS, {}),
    "bounded": (BOUNDED, {"entropy_coeff": 0.1}),
    "entropy": (DISCRETE, {"entropy_coeff": 0.1}),
    "entropy schedule": (
        DISCRETE,
        {"entropy_coeff_schedule": [(0, 0.1), (60, 0.0)], "entropy_coeff_schedule_kind": "interp"},
    ),
    "clip schedule": (
        NUMBERS,
        {"clip_param_schedule": [(0, 0.02), (120, 0.005)], "clip_param_schedule_kind": "interp"},
    ),
    "advantages of minibatches": (
        DISCRETE,
        {"normalize_advantages": "minibatch", "sgd_minibatch_size": 15},
    ),
    "a2c": (DISCRETE, {"objective": "a2c"}),
    "a2c numbers": (NUMBERS, {"objective": "a2c", "entropy_coeff": 0.1}),
    "dual clip": (DISCRETE, {"dual_clip_param": 1.5, "clip_param": 0.01}),
    "clipped": (NUMBERS, {"clip_param": 0.01}),
    "values clipped": (DISCRETE, {"vf_clip_param": 0.01}),
    "values not clipped": (DISCRETE, {"vf_clip_param": None, "vf_loss": "mse"}),
    "mse": (DISCRETE, {"vf_loss": "mse", "vf_clip_param": 0.01, "vf_coeff": 0.5}),
    "tanh": (DISCRETE, {"model_config": {"hiddens": (8, 8), "activation_fn": "tanh"}}),
    "sigmoid": (NUMBERS, {"model_config": {"hiddens": (8,), "activation_fn": "sigmoid"}}),
    "linear": (DISCRETE, {"model_config": {"hiddens": ()}}),
    "no bias": (DISCRETE, {"model_config": {"hiddens": (8,), "bias": False}}),
    "minibatches": (DISCRETE, {"sgd_minibatch_size": 15}),
    "accumulated": (DISCRETE, {"sgd_minibatch_size": 15, "accumulate_grads": True}),
    "normalised": (NUMBERS, {"normalize_observations": True}),
    "bonus": (
        DISCRETE,
        {"bonuses": [{"rnd": {"pre_normalization_steps": 0}}], "sgd_minibatch_size": 15},
    ),
    "stopped": (DISCRETE, {"target_kl_div": 1e-3, "optimizer_config": {"lr": 0.05}}),
}


def invalid_rows() -> GymnasiumEnv:
    """Rows that nothing is learned from, and rows whose final observation is not known."""
    script = [[Episode(1 + n % 3, TRUNCATED), Episode(2, TERMINATED)] for n in range(6)]
    return GymnasiumEnv(scripted_vector_env(script, AutoresetMode.NEXT_STEP), horizon=10)


@contextmanager
def by_autograd() -> Iterator[None]:
    """Updates in the block take the general way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.algorithms.algorithm.gradients", lambda *_: None)
        yield


def train(env: Any, *, written_out: bool, **options: Any) -> tuple[Any, list[torch.Tensor]]:
    """An algorithm after three updates; weights and statistics after each."""
    small = {} if isinstance(env, GymnasiumEnv) else {"num_envs": 6, "horizon": 10}
    options = {"model_config": {"hiddens": (16,)}, "seed": 0, **small, **options}
    algorithm: Any = AlgorithmConfig(**options).build(env)
    with torch.no_grad():
        for p in algorithm.policy.model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    assert algorithm.general_way is None
    found: list[torch.Tensor] = []
    for _ in range(3):
        algorithm.collect()
        with nullcontext() if written_out else by_autograd():
            stats = algorithm.step()
        assert (algorithm._fused is not None) is written_out
        found += [torch.tensor(v) for k, v in stats.items() if not k.startswith("profiling")]
        found += [p.detach().clone() for p in algorithm.policy.model.parameters()]
    return algorithm, found


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", list(CASES))
def test_updates_are_those_of_the_general_way(case: str) -> None:
    env, options = CASES[case]
    (_, expected), (_, found) = (train(env, written_out=w, **options) for w in (False, True))
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
def test_they_are_where_rows_are_left_out() -> None:
    expected, found = (train(invalid_rows(), written_out=w)[1] for w in (False, True))
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", ["numbers", "entropy", "dual clip", "mse"])
def test_gradients_and_terms_are_those_of_autograd(case: str) -> None:
    env, options = CASES[case]
    algorithm, _ = train(env, written_out=True, **options)
    algorithm.collect()
    algorithm.estimate()
    minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
    with torch.no_grad():  # so that there is something to clip
        for p in algorithm.policy.model.parameters():
            p.add_(0.05 * torch.randn_like(p))

    def run() -> Any:
        algorithm.updater.begin()
        terms = algorithm._add_gradients(minibatch)
        return terms, [p.grad.clone() for p in algorithm.policy.model.parameters()]

    fused, algorithm._fused = algorithm._fused, None
    expected, by_autograd = run()
    algorithm._fused = gradients(algorithm.policy, algorithm.objective, fused)
    terms, found = run()
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name].detach(), rtol=0, atol=1e-12)
    for a, b in zip(by_autograd, found, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12)
    assert max(g.abs().max() for g in found) > 1e-3


def test_storage_is_used_again_and_follows_the_networks() -> None:
    algorithm, _ = train(DISCRETE, written_out=True)
    first = algorithm._fused
    addresses = [x.data_ptr() for x in first._actor._storage[60][0]]
    algorithm.collect()
    algorithm.step()
    assert algorithm._fused is first
    assert [x.data_ptr() for x in first._actor._storage[60][0]] == addresses
    algorithm.policy.model.policy[0] = layer = nn.Linear(4, 16)
    gradients(algorithm.policy, algorithm.objective, first)
    assert first._actor._tensors[0].weight.data_ptr() == layer.weight.data_ptr()
    algorithm.policy.model.policy[0], algorithm.policy.model.policy[2] = nn.Linear(4, 5), Head(5, 3)
    gradients(algorithm.policy, algorithm.objective, first)
    assert not first._actor._storage  # of other shapes


def test_parameters_that_are_not_trained_get_no_gradients() -> None:
    model = DefaultDiscreteModel(Unbounded(4), Categorical(3, shape=(1,)), hiddens=(8,))
    model.policy[0].requires_grad_(False)
    options: Any = {"model": model, "num_envs": 6, "horizon": 10}
    algorithm: Any = AlgorithmConfig(**options).build(DISCRETE)
    frozen, trained = (model.policy[i].weight for i in (0, 2))
    before = frozen.clone(), trained.clone()
    algorithm.collect()
    algorithm.step()
    assert isinstance(algorithm._fused, MinibatchGradients)
    assert torch.equal(frozen, before[0])
    assert frozen.grad is None
    assert not torch.equal(trained, before[1])


class Own(PPO):
    """An objective of one's own."""


def add_on(minibatch: Any, distribution: Any, values: torch.Tensor) -> torch.Tensor:
    return values.mean()


add_on.name = "mean"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (DISCRETE, {"objective": Own}),
        (DISCRETE, {"policy_loss_addons": [add_on]}),
        (DISCRETE, {"enable_amp": True}),
        (env_of(Categorical(3, shape=(2,))), {}),
        (env_of(MultiCategorical([2, 3])), {}),
        (NUMBERS, {"model_config": {"state_dependent_std": True}}),
    ],
    ids=["objective", "add-on", "bf16", "choices", "uneven", "deviations"],
)
def test_everything_else_goes_the_general_way(env: Any, options: dict[str, Any]) -> None:
    algorithm: Any = AlgorithmConfig(num_envs=6, horizon=10, **options).build(env)
    assert algorithm.general_way is not None
    algorithm.collect()
    algorithm.step()
    assert algorithm._fused is None


@pytest.mark.parametrize("place", ["layer", "parameter", "accumulated"])
def test_hooks_are_called(place: str) -> None:
    algorithm: Any = AlgorithmConfig(num_envs=6, horizon=10).build(DISCRETE)
    algorithm.collect()
    layer, seen = algorithm.policy.model.vf_model[2], []
    if place == "layer":
        layer.register_full_backward_hook(lambda *_: seen.append(1))
    elif place == "parameter":
        layer.weight.register_hook(lambda gradient: seen.append(1))
    else:
        layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
    algorithm.step()
    assert seen


def test_training_continues_from_a_state_that_was_loaded() -> None:
    """The tensors are looked up anew in each update."""

    def algorithm() -> Any:
        return AlgorithmConfig(num_envs=6, horizon=10, seed=0).build(DiscreteDummyEnv)

    one, other = algorithm(), algorithm()
    one.collect()
    one.step()
    other.collect()
    other.step()
    other.collect()
    other.step()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for each in (one, other):
        torch.manual_seed(5)
        each.continues = False
        each.state.horizons = 0
        each.collect()
        each.step()
    pairs = zip(one.policy.model.parameters(), other.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_policy_that_is_sure_of_itself_leaves_no_subnormal_numbers() -> None:
    """With which products of matrices take many times longer."""
    options: Any = {"model_config": {"hiddens": (16,)}, "num_envs": 6, "horizon": 10, "seed": 0}
    algorithm: Any = AlgorithmConfig(**options).build(DISCRETE)
    with torch.no_grad():
        algorithm.policy.model.policy[-1].bias.copy_(torch.tensor([80.0, 0.0, -5.0]))
    algorithm.collect()
    algorithm.step()
    (storage,) = algorithm._fused._actor._storage.values()
    found = torch.cat([x.flatten() for x in (*storage[0], *storage[1])])
    assert not ((found != 0) & (found.abs() < torch.finfo(found.dtype).tiny)).any()
    assert found.isfinite().all()
