"""Native updates: those of autograd."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from everstep import AlgorithmConfig, DiscreteDummyEnv
from everstep.adapters import GymnasiumEnv
from everstep.core.fast import Learner, eligible, learner
from everstep.distributions import SquashedNormal
from everstep.errors import DivergedError
from everstep.models import DefaultDiscreteModel
from everstep.objectives import PPO
from tests.everstep.core.fast.test_rollout import env_of
from tests.toys import TERMINATED, TRUNCATED, Episode, scripted_vector_env

DISCRETE = env_of(Categorical(3, shape=(1,)))
NUMBERS = env_of(Unbounded((2, 2)))
BOUNDED = env_of(Bounded(-1.0, 1.0, (3,)))

LOW, HIGH = torch.tensor([[-1.0, 0.0, -math.inf, -math.inf], [3.0, math.inf, 2.0, math.inf]])
SOME_BOUNDS = env_of(Bounded(LOW.double(), HIGH.double(), dtype=torch.float64))
SQUASHED: dict[str, Any] = {"distribution_cls": SquashedNormal}

MAPPING = env_of(
    Categorical(3, shape=(1,)),
    Composite(
        a=Unbounded((2, 2)),
        b=Composite(d=Unbounded(3, dtype=torch.float32), e=Categorical(4, shape=(2,))),
        c=Bounded(0, 255, (5,), dtype=torch.uint8),
    ),
)


def masked(acted: Any, options: int) -> Any:
    """Masks of any options, also of none at all."""
    return env_of(acted, Composite(x=Unbounded(4), action_mask=Binary(options, dtype=torch.bool)))


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
    "elu": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "elu"}}),
    "swish": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "swish"}}),
    "gelu": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "gelu"}}),
    "selu": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "selu"}}),
    "leaky": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "leaky_relu"}}),
    "squares": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "squared_relu"}}),
    "hard tanh": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "hard_tanh"}}),
    "relu6": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "relu6"}}),
    "identity": (NUMBERS, {"model_config": {"hiddens": (8, 5), "activation_fn": "identity"}}),
    "shared": (DISCRETE, {"model_config": {"hiddens": (8, 5), "shared": True}}),
    "shared tanh": (
        NUMBERS,
        {"model_config": {"hiddens": (8,), "shared": True, "activation_fn": "tanh"}},
    ),
    "shared nothing": (NUMBERS, {"model_config": {"hiddens": (), "shared": True}}),
    "other values": (DISCRETE, {"model_config": {"hiddens": (8,), "vf_hiddens": (5, 9, 3)}}),
    "choices": (env_of(Categorical(3, shape=(2,))), {"entropy_coeff": 0.1}),
    "masked": (masked(Categorical(3, shape=(1,)), 3), {"entropy_coeff": 0.1}),
    "masked choices": (masked(Categorical(3, shape=(2,)), 6), {"entropy_coeff": 0.1}),
    "masked uneven": (masked(MultiCategorical([2, 5, 3]), 10), {"objective": "a2c"}),
    "masked minibatches": (
        masked(MultiCategorical([2, 5, 3]), 10),
        {"sgd_minibatch_size": 15, "entropy_coeff": 0.1, "normalize_observations": True},
    ),
    "mapping": (MAPPING, {"sgd_minibatch_size": 15}),
    "mapping normalised": (MAPPING, {"normalize_observations": True}),
    "mapping shared": (MAPPING, {"model_config": {"hiddens": (8,), "shared": True}}),
    "other observations of values": (
        MAPPING,
        {
            "model_config": {"actor_obs": ["a", "c"], "critic_obs": ["a", "b"], "hiddens": (8,)},
            "normalize_observations": True,
        },
    ),
    "one-hot": (env_of(Categorical(3, shape=(1,)), Categorical(7, shape=(1,))), {}),
    "one-hot rows": (
        env_of(Unbounded(2), MultiCategorical([3, 4])),
        {"model_config": {"hiddens": ()}},
    ),
    "uneven": (env_of(MultiCategorical([2, 5, 3])), {"entropy_coeff": 0.1}),
    "deviations": (
        NUMBERS,
        {"model_config": {"hiddens": (8,), "state_dependent_std": True}, "entropy_coeff": 0.1},
    ),
    "values normalised": (DISCRETE, {"normalize_values": True, "vf_clip_param": 0.1}),
    "values normalised in minibatches": (
        NUMBERS,
        {
            "normalize_values": True,
            "sgd_minibatch_size": 15,
            "vf_loss": "mse",
            "model_config": {"hiddens": (8,), "shared": True},
        },
    ),
    "bounds": (BOUNDED, {"bounds_loss_coeff": 0.3}),
    "bounds of some": (SOME_BOUNDS, {"bounds_loss_coeff": 5.0, "sgd_minibatch_size": 15}),
    "bounds without bounds": (
        NUMBERS,
        {
            "bounds_loss_coeff": 0.3,
            "model_config": {"hiddens": (8,), "state_dependent_std": True},
            "accumulate_grads": True,
            "sgd_minibatch_size": 15,
        },
    ),
    "squashed": (env_of(Bounded(-2.0, 1.0, (3,), dtype=torch.float64)), SQUASHED),
    "squashed into some": (SOME_BOUNDS, {**SQUASHED, "entropy_coeff": 0.1}),
    "squashed into none": (
        env_of(Unbounded((2, 2), dtype=torch.float64)),
        {**SQUASHED, "entropy_coeff": 0.1, "sgd_minibatch_size": 15, "objective": "a2c"},
    ),
    "squashed deviations": (
        SOME_BOUNDS,
        {
            **SQUASHED,
            "entropy_coeff": 0.1,
            "model_config": {"hiddens": (8,), "state_dependent_std": True},
            "normalize_values": True,
        },
    ),
    "squashed and accumulated": (
        SOME_BOUNDS,
        {**SQUASHED, "entropy_coeff": 0.1, "sgd_minibatch_size": 15, "accumulate_grads": True},
    ),
    "sgd": (DISCRETE, {"optimizer_cls": torch.optim.SGD, "sgd_minibatch_size": 15}),
    "adamw": (
        NUMBERS,
        {
            "optimizer_cls": torch.optim.AdamW,
            "optimizer_config": {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.8, 0.95)},
            "sgd_minibatch_size": 15,
        },
    ),
    "decay": (
        NUMBERS,
        {"optimizer_config": {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-5}},
    ),
    "not clipped": (NUMBERS, {"max_grad_norm": None}),
    "in order": (DISCRETE, {"shuffle_minibatches": False, "sgd_minibatch_size": 15}),
    "adaptive": (DISCRETE, {"lr_schedule_kind": "adaptive", "target_kl_div": 1e-3}),
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
        patch.setattr("everstep.algorithms.algorithm.learner", lambda *_: None)
        yield


def train(env: Any, *, written_out: bool, **options: Any) -> tuple[Any, list[torch.Tensor]]:
    """An algorithm after three updates; weights and statistics after each."""
    small = {} if isinstance(env, GymnasiumEnv) else {"num_envs": 6, "horizon": 10}
    options = {"model_config": {"hiddens": (16,)}, "seed": 0, **small, **options}
    algorithm: Any = AlgorithmConfig(**options).build(env)
    with torch.no_grad():
        for p in algorithm.policy.model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    assert eligible(algorithm.policy, algorithm.objective) is None
    found: list[torch.Tensor] = []
    for _ in range(3):
        algorithm.collect()
        with nullcontext() if written_out else by_autograd():
            stats = algorithm.step()
        assert (algorithm._fast is not None) is written_out
        found += [torch.tensor(v) for k, v in stats.items() if not k.startswith("profiling")]
        found += [p.detach().clone() for p in algorithm.policy.model.parameters()]
    return algorithm, found


@pytest.mark.few(6)
@pytest.mark.usefixtures("float64")
@pytest.mark.few(22)
@pytest.mark.parametrize("case", CASES)
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


def statistics_and_step(native: bool, logp: float, at: int, **options: Any) -> dict[str, float]:
    """Statistics of an update with such a log-probability in one minibatch, and Adam's steps."""
    config = {"num_envs": 6, "horizon": 10, "seed": 0, "shuffle_minibatches": False, **options}
    algorithm: Any = AlgorithmConfig(**config, sgd_minibatch_size=15).build(DISCRETE)
    algorithm.collect()
    algorithm.rollout.logp[15 * at // 6 + 1, 0] = logp
    with nullcontext() if native else by_autograd():
        try:
            stats = algorithm.step()
        except DivergedError:
            stats = {"diverged": 1.0}
    state = algorithm.optimizer.state[next(algorithm.policy.model.parameters())]
    found = {k: x for k, x in stats.items() if not k.startswith("profiling")}
    return found | {"taken": float(state.get("step", 0.0))}


@pytest.mark.few(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("target_kl_div", [None, 1e9])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("logp", [math.nan, math.inf, -math.inf])
def test_steps_are_skipped_and_refused_as_in_the_general_way(
    logp: float, at: int, target_kl_div: None | float
) -> None:
    options = {"target_kl_div": target_kl_div, "num_sgd_iters": 1}
    expected, found = (statistics_and_step(n, logp, at, **options) for n in (False, True))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)
    if math.isnan(logp):
        left = 3 if target_kl_div is None else at
        assert found["taken"] == left
        assert ("diverged" in found) is (left == 0)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_the_entropy_is_measured_in_every_eighth_step() -> None:
    """With a weight that changes nothing it is measured in each."""
    options: Any = {"num_sgd_iters": 5, "sgd_minibatch_size": 15, "optimizer_config": {"lr": 0.05}}
    found = {}
    for coeff in (0.0, 1e-30):
        ways = []
        for native in (False, True):
            algorithm, _ = train(DISCRETE, written_out=native, entropy_coeff=coeff, **options)
            algorithm.collect()
            with nullcontext() if native else by_autograd():
                ways.append(algorithm.step()["losses/entropy"])
        assert ways[1] == pytest.approx(ways[0], rel=1e-8)
        found[coeff] = ways[1]
    assert found[0.0] != pytest.approx(found[1e-30], rel=1e-6)


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

    fused, algorithm._fast = algorithm._fast, None
    expected, by_autograd = run()
    algorithm._fast = learner(algorithm.policy, algorithm.objective, fused)
    terms, found = run()
    assert terms.keys() == expected.keys()
    for name, term in terms.items():
        torch.testing.assert_close(term, expected[name].detach(), rtol=0, atol=1e-12)
    for a, b in zip(by_autograd, found, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12)
    assert max(g.abs().max() for g in found) > 1e-3


@pytest.mark.few(1)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("activation", "is_fast"),
    [
        (nn.GELU(approximate="tanh"), True),
        (nn.ELU(0.5), False),
        (nn.LeakyReLU(0.2), False),
        (nn.Hardtanh(0.0, 1.0), False),
    ],
)
def test_options_of_an_activation_are_seen(activation: nn.Module, is_fast: bool) -> None:
    """Layers that see numbers of both signs and many sizes."""
    found = []
    for native in (True, False):
        algorithm: Any = AlgorithmConfig(
            num_envs=64, horizon=4, seed=0, model_config={"hiddens": (16, 16)}
        ).build(NUMBERS)
        for i in (1, 3):
            algorithm.policy.model.policy[i] = algorithm.policy.model.vf_model[i] = activation
        with torch.no_grad():
            for p in algorithm.policy.model.parameters():
                p.add_(torch.randn_like(p))
        assert (eligible(algorithm.policy) is None) is is_fast
        algorithm.collect()
        with nullcontext() if native else by_autograd():
            algorithm.step()
        found.append(nn.utils.parameters_to_vector(algorithm.policy.model.parameters()))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_storage_is_used_again_and_follows_the_networks() -> None:
    algorithm, _ = train(DISCRETE, written_out=True)
    first, engine = algorithm._fast, algorithm._fast._engine
    algorithm.collect()
    algorithm.step()
    assert algorithm._fast is first
    assert first._engine is engine
    algorithm.policy.model.policy[0] = nn.Linear(4, 16)
    learner(algorithm.policy, algorithm.objective, first)
    assert first._engine is not engine


def test_parameters_that_are_not_trained_get_no_gradients() -> None:
    model = DefaultDiscreteModel(Unbounded(4), Categorical(3, shape=(1,)), hiddens=(8,))
    model.policy[0].requires_grad_(False)
    options: Any = {"model": model, "num_envs": 6, "horizon": 10}
    algorithm: Any = AlgorithmConfig(**options).build(DISCRETE)
    frozen, trained = (model.policy[i].weight for i in (0, 2))
    before = frozen.clone(), trained.clone()
    algorithm.collect()
    algorithm.step()
    assert isinstance(algorithm._fast, Learner)
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
        (env_of(Binary(2)), {}),
        (NUMBERS, {"model_config": {"activation_fn": "hard_swish"}}),
        (NUMBERS, {"model_config": {"hiddens": (1025,)}}),
    ],
    ids=["objective", "add-on", "bf16", "binary", "hard swish", "wide"],
)
def test_everything_else_goes_the_general_way(env: Any, options: dict[str, Any]) -> None:
    algorithm: Any = AlgorithmConfig(num_envs=6, horizon=10, **options).build(env)
    assert algorithm.general_way is not None
    algorithm.collect()
    algorithm.step()
    assert algorithm._fast is None


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
        each.states = None
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
    algorithm.collect()
    algorithm.estimate()
    algorithm.updater.begin()
    native = learner(algorithm.policy, algorithm.objective, None)
    native(algorithm.policy.sequences(algorithm.rollout).select(None))
    (found,) = algorithm.updater.flats
    assert not ((found != 0) & (found.abs() < torch.finfo(found.dtype).tiny)).any()
    assert found.isfinite().all()
