"""The native library itself: its functions, odd sizes and numbers, and each processor level."""

import ctypes
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from everstep import AlgorithmConfig
from everstep.core.fast import LEVEL, learner, library
from everstep.core.fast.library import LEVELS, RESULTS, Batch, Library, Loss, addresses
from everstep.distributions import SquashedNormal
from everstep.env.specs import options as options_of
from tests.everstep.core.fast.test_rollout import env_of

pytestmark = pytest.mark.usefixtures("native")

#: Largest errors of the elementwise functions, in units in the last place of float32.
FUNCTIONS = {
    **{"exp": (0, 1), "expm1": (1, 2), "tanh": (2, 6), "sigmoid": (3, 3)},
    **{"log": (5, 1), "softplus": (6, 2)},
}

ACTIVATIONS = (
    *("relu", "tanh", "sigmoid", "elu", "swish", "gelu", "selu"),
    *("leaky_relu", "squared_relu", "hard_tanh", "relu6", "identity"),
)


def levels() -> list[str]:
    """Levels that this processor has, lowest first."""
    found = library()
    if isinstance(found, str):
        return []
    names = list(LEVELS.values())
    return [found.level] if found.level == "plain" else names[1 : names.index(found.level) + 1]


@pytest.fixture(params=["plain", pytest.param("v2", marks=pytest.mark.slow), "v3", "v4"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each level that this processor has."""
    if request.param not in levels():
        pytest.skip(f"this processor does not have {request.param}")
    monkeypatch.setenv(LEVEL, request.param)
    return str(request.param)


# ---- functions --------------------------------------------------------------------------------


def applied(which: int, x: np.ndarray) -> np.ndarray:
    native = library()
    assert isinstance(native, Library)
    y = np.ascontiguousarray(x, np.float32).copy()
    native.apply(which, len(y), y.ctypes.data)
    return y


def exact(name: str, x: np.ndarray) -> Any:
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if name == "sigmoid":
            return 1 / (1 + np.exp(-wide))
        if name == "softplus":  # with PyTorch's threshold
            return np.where(wide > 20, wide, np.log1p(np.exp(np.minimum(wide, 20))))
        return getattr(np, name)(wide)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_err_by_a_few_units_in_the_last_place(name: str, level: str) -> None:
    which, bound = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    spread = rng.normal(size=2**16) * 10.0 ** rng.uniform(-8, 2, 2**16)
    x = np.concatenate([spread, np.linspace(-110, 110, 2**16)]).astype(np.float32)
    if name == "log":  # of normal numbers above 0
        x = np.concatenate([np.exp(x[np.abs(x) < 86]), np.float32(1) + x[np.abs(x) < 0.5]])
        x = x[: len(x) // 16 * 16]
    expected, found = exact(name, x), applied(which, x)
    with np.errstate(over="ignore"):
        near = expected.astype(np.float32)
    is_normal = (np.abs(expected) > 2.6e-38) & np.isfinite(near)
    unit = np.spacing(np.abs(near[is_normal])).astype(np.float64)
    assert (np.abs(found[is_normal] - expected[is_normal]) / unit).max() <= bound + 0.5
    # What is below is 0, or close to it.
    rest = ~is_normal & np.isfinite(near)
    np.testing.assert_allclose(found[rest], near[rest], rtol=0, atol=2.6e-38)
    assert (found[~np.isfinite(near)] == near[~np.isfinite(near)]).all()


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_of_what_is_special(name: str, level: str) -> None:
    special = [0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, -1e-45, 1e-38, 88.0, -88.0, 89.0]
    x = np.array([*special, *[0.0] * 4], np.float32)
    if name == "log":
        x = np.where(x < 2e-38, np.float32(1), x)
    with np.errstate(over="ignore"):
        expected = exact(name, x).astype(np.float32)
    found = applied(FUNCTIONS[name][0], x)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1.2e-38)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_nan_of_either_sign_stays_where_it_is(name: str, level: str) -> None:
    """Numbers that share a division, too; infinity times 0 is NaN with a sign."""
    x = np.random.default_rng(0).uniform(0.5, 9, 160).astype(np.float32)
    x[[3, 70, 130]], x[[21, 100]] = np.nan, -np.float32(np.nan)
    found = applied(FUNCTIONS[name][0], x)
    assert np.isnan(found).tolist() == np.isnan(x).tolist()
    alone = applied(FUNCTIONS[name][0], np.where(np.isnan(x), np.float32(1), x))
    np.testing.assert_allclose(found[~np.isnan(x)], alone[~np.isnan(x)], rtol=1e-6)


def test_the_normal_distribution_is_exact_to_the_last_digits(level: str) -> None:
    """Φ, which GELU multiplies by: in its tail, the square's rounding is what e^(−x²/2) errs by."""
    x = np.concatenate([np.linspace(-12, 12, 2**16), [-np.inf, np.inf, 0, 1e-45] * 4]).astype("f4")
    exact = np.array([0.5 * math.erfc(-t / math.sqrt(2)) for t in x.tolist()])
    found = applied(4, x)
    unit = np.finfo(np.float32).eps
    bound = unit * np.minimum(2, exact * (4 + 0.5 * np.where(np.isfinite(x), x, 0) ** 2))
    assert (np.abs(found - exact) <= bound + 1e-37).all()
    assert np.isnan(applied(4, np.full(16, np.nan, np.float32))).all()


# ---- networks ---------------------------------------------------------------------------------


def observed(rng: random.Random, widest: int, options: int) -> Any:
    """A drawn observation: numbers, choices, or several of them, with a mask if it has options."""
    if rng.random() < 0.4:
        return Unbounded(rng.randint(1, widest))
    leaves: dict[str, Any] = {"x": Unbounded((rng.randint(1, widest), 1))}
    if rng.random() < 0.5:
        leaves["choices"] = MultiCategorical([rng.randint(1, 7) for _ in range(rng.randint(2, 4))])
    if rng.random() < 0.5:
        leaves["count"] = Bounded(0, 9, (2,), dtype=torch.uint8)
    if options and rng.random() < 0.7:
        leaves["action_mask"] = Binary(options, dtype=torch.bool)
    return Composite(leaves)


#: Two bounds, one, and none.
BOUNDS = torch.tensor([[-1.0, 0.0, -torch.inf, -torch.inf], [3.0, torch.inf, 2.0, torch.inf]])


def built(rng: random.Random, dtype: torch.dtype, *, widest: int, rows: int) -> Any:
    """A drawn algorithm with that many rows, ready to learn."""
    action: Any = rng.choice(
        [
            Categorical(rng.randint(2, 9), shape=(1,)),
            MultiCategorical([rng.randint(1, 7) for _ in range(rng.randint(1, 4))]),
            Unbounded(rng.randint(1, 9), dtype=dtype),
            Bounded(*BOUNDS[:, : rng.randint(1, 4)].to(dtype), dtype=dtype),
        ]
    )
    hiddens = tuple(rng.randint(1, widest) for _ in range(rng.randint(0, 4)))
    network: dict[str, Any] = {
        "hiddens": hiddens,
        "activation_fn": rng.choice(ACTIVATIONS),
        "bias": rng.random() < 0.8,
        "shared": rng.random() < 0.4,
    }
    numbers: dict[str, Any] = {}
    if isinstance(action, Unbounded | Bounded):
        network["state_dependent_std"] = rng.random() < 0.4
        is_squashed = rng.random() < 0.5
        numbers["distribution_cls"] = SquashedNormal if is_squashed else None
        numbers["bounds_loss_coeff"] = rng.choice([0.0, 0.0 if is_squashed else 0.3])
    options = {
        "objective": rng.choice(["ppo", "ppo", "a2c"]),
        "entropy_coeff": rng.choice([0.0, 0.02]),
        "vf_loss": rng.choice(["mse", "smooth_l1"]),
        "vf_clip_param": rng.choice([None, 0.2]),
        "normalize_advantages": rng.choice([True, "minibatch", False]),
        "normalize_observations": rng.random() < 0.5,
        "normalize_values": rng.random() < 0.5,
        **numbers,
    }
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        env = env_of(action, observed(rng, widest, sum(options_of(action))))
        algorithm: Any = AlgorithmConfig(
            num_envs=rows, horizon=1, seed=0, model_config=network, **options
        ).build(env)
        algorithm.collect()
        algorithm.estimate()
        if algorithm.policy.value_normalizer is not None:
            algorithm.policy.update_statistics(algorithm.rollout)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for p in algorithm.policy.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return algorithm


def learned(algorithm: Any, *, natively: bool) -> tuple[dict[str, float], torch.Tensor]:
    """Terms of the loss and gradients of all rows."""
    minibatch = algorithm.policy.sequences(
        algorithm.rollout,
        standardized=algorithm.config.normalize_advantages == "minibatch",
    )
    (step,) = minibatch.steps(
        minibatch.count, chunk=None, shuffle=False, joint=False, permute=torch.randperm
    )
    algorithm._fast = learner(algorithm.policy, algorithm.objective, None) if natively else None
    assert natively is (algorithm._fast is not None)
    algorithm.updater.begin()
    torch.manual_seed(0)  # of the noise that entropies of squashed numbers are estimated with
    terms = algorithm._add_gradients(next(step))
    flat = torch.cat([p.grad.flatten() for p in algorithm.policy.model.parameters()])
    return {k: float(x) for k, x in terms.items()}, flat.clone()


def check_gradients(seed: int, dtype: torch.dtype, widest: int, rows: int) -> torch.Tensor:
    torch.manual_seed(seed)
    algorithm = built(random.Random(seed), dtype, widest=widest, rows=rows)
    (expected, exact_), (terms, found) = (learned(algorithm, natively=x) for x in (False, True))
    relative = 1e-10 if dtype is torch.float64 else 1e-3
    assert terms == pytest.approx(expected, rel=relative, abs=relative, nan_ok=True)
    if not exact_.isfinite().all():  # layers of squares overflow; the step is skipped
        assert not found.isfinite().all()
        return found
    size = exact_.abs().max().clamp(min=1e-3)
    torch.testing.assert_close(found / size, exact_ / size, rtol=relative, atol=relative)
    return found


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(24))
def test_gradients_of_odd_sizes_are_those_of_autograd(seed: int, level: str) -> None:
    rng = random.Random(seed)
    widest = rng.choice([1, 3, 8, 17, 33, 70, 130])
    rows = rng.choice([1, 2, 3, 15, 16, 17, 95, 96, 97, 191, 192, 193, 300])
    check_gradients(seed, torch.float64 if seed % 3 else torch.float32, widest, rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24, 36))
def test_gradients_of_wide_layers_are_those_of_autograd(seed: int, level: str) -> None:
    check_gradients(seed, torch.float64, 513, random.Random(seed).choice([1, 97, 200]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 3000))
def test_gradients_of_thousands_of_networks_are_those_of_autograd(seed: int, level: str) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([torch.float64, torch.float64, torch.float32])
    check_gradients(seed, dtype, rng.choice([4, 40, 200, 513]), rng.randint(1, 400))


@pytest.mark.parametrize("seed", range(6))
def test_levels_agree_within_rounding(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in levels():
        monkeypatch.setenv(LEVEL, name)
        found.append(check_gradients(100 + seed, torch.float64, 40, 150))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_numbers_come_out_every_time(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        algorithm = built(random.Random(1), torch.float32, widest=200, rows=2000)
        first, again = (learned(algorithm, natively=True) for _ in range(2))
        expected = learned(algorithm, natively=False)
    finally:
        torch.set_num_threads(before)
    assert first[0] == again[0]
    assert torch.equal(first[1], again[1])
    size = expected[1].abs().max()
    torch.testing.assert_close(first[1] / size, expected[1] / size, rtol=1e-3, atol=1e-4)


# ---- rows -------------------------------------------------------------------------------------


@pytest.mark.few(15)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-42])
@pytest.mark.parametrize("field", ["obs", "logp", "advantages", "returns", "values"])
def test_one_strange_number_reaches_what_it_reaches_in_autograd(
    field: str, value: float, level: str
) -> None:
    torch.manual_seed(0)
    drawn = random.Random(f"{field} {value}")
    algorithm = built(drawn, torch.float32, widest=9, rows=100)
    stored = getattr(algorithm.rollout, field)
    leaves = stored if isinstance(stored, tuple) else (stored,)
    next(x for x in leaves if x.is_floating_point())[0, 37] = value
    (expected, by_autograd), (terms, found) = (
        learned(algorithm, natively=x) for x in (False, True)
    )
    assert terms == pytest.approx(expected, rel=1e-3, abs=1e-3, nan_ok=True)
    # Whether a step is taken depends on it.
    assert bool(found.isfinite().all()) is bool(by_autograd.isfinite().all())


@pytest.mark.parametrize("field", ["obs", "logp", "advantages", "returns", "values", "actions"])
def test_what_rows_hold_that_are_left_out_reaches_nothing(field: str, level: str) -> None:
    found = []
    for is_spoilt in (False, True):
        torch.manual_seed(0)
        algorithm = built(random.Random(5), torch.float32, widest=9, rows=100)
        algorithm.rollout.valid[0, 30:60] = False
        stored = getattr(algorithm.rollout, field)
        rows = stored[0] if isinstance(stored, tuple) else stored
        if is_spoilt:
            rows[0, 30:60] = torch.nan if rows.is_floating_point() else 2**40
        native = library()
        assert isinstance(native, Library)
        found.append(whole_step(algorithm))
    assert torch.equal(*found)
    assert found[0].isfinite().all()


def whole_step(algorithm: Any) -> torch.Tensor:
    """Weights after a step of the whole rollout, which reads its rows where they are."""
    fast = learner(algorithm.policy, algorithm.objective, None)
    assert fast is not None
    algorithm.updater.begin()
    fast.learn(
        algorithm.rollout,
        [None],
        algorithm.rollout.num_envs,
        algorithm.updater,
        chunk=None,
        standardized=True,
        target_kl=None,
    )
    return nn.utils.parameters_to_vector(algorithm.policy.model.parameters()).detach()


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_rows_that_are_all_left_out_change_nothing(rows: int, level: str) -> None:
    torch.manual_seed(0)
    algorithm = built(random.Random(6), torch.float64, widest=9, rows=4)
    fast = learner(algorithm.policy, algorithm.objective, None)
    assert fast is not None
    algorithm.updater.begin()
    engine, native = fast._engine, fast._library
    mask = torch.zeros(4, dtype=torch.bool)
    strange = torch.full((4, 64), torch.nan, dtype=torch.float64)
    names = ("actions", "logp", "advantages", "returns", "values")
    leaves = addresses([strange] * len(fast._observations.leaves))
    batch = Batch(
        rows=rows,
        obs=ctypes.addressof(leaves),
        standardized=1,
        mask=mask.data_ptr(),
        **dict.fromkeys(names, strange.data_ptr()),
    )
    results = np.full(len(RESULTS), np.nan)
    loss = Loss(is_ppo=1, clip=0.2, dual_clip=np.nan, vf_clip=np.nan, vf_coeff=1.0)
    native.learn(
        engine.address,
        engine.is_double,
        ctypes.addressof(batch),
        ctypes.addressof(loss),
        None,
        results.ctypes.data,
    )
    assert (results == 0).all()
    assert all((p.grad == 0).all() for p in algorithm.policy.model.parameters())


# ---- choices ----------------------------------------------------------------------------------


def test_a_choice_that_is_impossible_is_never_drawn(level: str) -> None:
    """Logits far apart: an option of probability 0 has no luck that makes it win."""
    torch.manual_seed(0)
    algorithm: Any = AlgorithmConfig(
        num_envs=64, horizon=20, seed=0, model_config={"hiddens": ()}
    ).build(env_of(Categorical(5, shape=(1,)), Unbounded(1)))
    with torch.no_grad():
        head = algorithm.policy.model.policy[-1]
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, -1e30, 0.0, -500.0, -torch.inf]))
    algorithm.collect()
    drawn = algorithm.rollout.actions[0][:-1]
    assert set(drawn.unique().tolist()) == {0, 2}
    assert algorithm.rollout.logp[:-1].sub(np.log(0.5)).abs().max() < 1e-6
