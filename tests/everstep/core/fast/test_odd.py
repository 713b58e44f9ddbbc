"""Odd inputs: whatever rows hold, the native way gives what PyTorch gives, row by row.

Networks are drawn as in `test_kernel.py`; observations, and what an update reads, hold NaN,
infinity, subnormal numbers, zeros of both signs, and numbers of any magnitude.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Bounded, Unbounded

from everstep import AlgorithmConfig
from everstep.core.fast import LEVEL, NativeActor, actor
from everstep.distributions import SquashedNormal
from everstep.env.specs import options as options_of
from everstep.nn.modules.activations import SquaredReLU
from tests.everstep.core.fast.test_kernel import built, learned, levels
from tests.everstep.core.fast.test_rollout import env_of

pytestmark = pytest.mark.usefixtures("native")

#: Odd rows of all cases that are marked `exhaustive`.
ROWS = 10_000_000

#: Odd rows of one of them.
ROWS_OF_A_CASE = 200_000

#: Numbers of rows: one, primes, and a tile of the kernel more or less one.
COUNTS = (1, 2, 3, 7, 15, 17, 31, 95, 96, 97, 191, 193, 487, 1009, 4999, 10007, 30011)

#: Fields that an update reads beside observations.
FIELDS = ("logp", "advantages", "returns", "values")

#: What updates may differ by, of the largest gradient.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3}


def odd_numbers(dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Odd numbers, those that are not finite, or also those whose sums overflow, in some order."""
    info = torch.finfo(dtype)
    least = info.tiny * info.eps  # subnormal
    sizes = [0.0, least, info.tiny / 3, info.tiny, 1e-30, 1e-8, 1.0, 20.0, 88.7, 89.0, 710.0]
    more = {"finite": [], "special": [torch.inf, torch.nan]}
    more["any"] = [*more["special"], 1e15, 1e30, 1e38, info.max]
    sizes += [1e4, 1e8, *more[kind]]
    found = torch.tensor(sizes, dtype=dtype)
    return torch.cat([found, -found])


def spoil(x: torch.Tensor, share: float, kind: str) -> torch.Tensor:
    """Which rows of `[B, …]` now have odd numbers: one of them, some, or nothing else."""
    rows = x.view(len(x), -1)
    is_odd = torch.rand(len(rows), 1) < share
    often = torch.tensor([0.05, 0.5, 1.0])[torch.randint(3, (len(rows), 1))]
    places = torch.rand(rows.shape) < often
    places[torch.arange(len(rows)), torch.randint(rows.shape[1], (len(rows),))] = True
    values = odd_numbers(x.dtype, kind)
    drawn = values[torch.randint(len(values), rows.shape)]
    same = values[torch.randint(len(values), (len(rows), 1))].expand(rows.shape)
    drawn = torch.where(torch.rand(len(rows), 1) < 0.3, same, drawn)
    rows.copy_(torch.where(is_odd & places, drawn, rows))
    return is_odd.view(-1)


# ---- networks in float64, with a bound of what rounding can do ---------------------------------


@dataclass
class Rounded:
    """Numbers in float64, how far rounding can be off, and whether it can overflow, per row."""

    x: torch.Tensor
    error: torch.Tensor
    overflows: torch.Tensor


def forward(network: Any, x: torch.Tensor) -> Rounded:
    info = torch.finfo(x.dtype)
    found = Rounded(
        x.double(), 8 * info.eps * x.double().abs(), torch.zeros(len(x), dtype=torch.bool)
    )
    for module in network or ():
        found = _layer(module, found, info)
    return found


def _layer(module: Any, at: Rounded, info: torch.finfo) -> Rounded:
    if isinstance(module, nn.Linear):
        weight = module.weight.double()
        bias = weight.new_zeros(len(weight)) if module.bias is None else module.bias.double()
        y = nn.functional.linear(at.x, weight, bias)
        # What is not finite is so in any order, unless the rest overflows.
        finite = at.x.abs().nan_to_num(0.0, 0.0, 0.0)
        size = nn.functional.linear(finite, weight.abs(), bias.abs())
        error = at.error.nan_to_num(0.0, 0.0, 0.0) @ weight.abs().T
        error += (4 + weight.shape[1] ** 0.5) * 4 * info.eps * size + info.tiny
        return Rounded(y, error, at.overflows | (size > info.max / 8).any(1))
    y = module(at.x)
    slope = 2 * at.x.abs() + at.error if isinstance(module, SquaredReLU) else 1.2
    error = slope * at.error + 16 * info.eps * y.abs() + 16 * info.tiny
    # Some activations take squares and cubes.
    return Rounded(y, error, at.overflows | (y.isfinite() & (y.abs() > info.max / 8)).any(1))


def agrees(
    found: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor, error: torch.Tensor | float
) -> torch.Tensor:
    """Where numbers are those of float64, or of PyTorch in their own dtype."""
    dtype, found = found.dtype, found.double()
    near = torch.zeros_like(found, dtype=torch.bool)
    for other in (exact.to(dtype).double(), plain.double()):
        near |= (
            (found == other) | (found.isnan() & other.isnan()) | ((found - other).abs() <= error)
        )
    return near


# ---- acting -----------------------------------------------------------------------------------


def check_acting(algorithm: Any, is_deterministic: bool) -> int:
    """Number of rows that only their overflows decide."""
    policy, rollout = algorithm.policy, algorithm.rollout
    acts = actor(policy, rollout, deterministic=is_deterministic)
    assert isinstance(acts, NativeActor)
    acts.act(0, ())
    obs, outputs = rollout.obs_at(0), acts._outputs
    undecided = _check_networks(policy, obs, outputs, rollout.values[0])
    latents = rollout.action.unflatten(tuple(x[0] for x in rollout.actions), [len(outputs)])
    _check_actions(acts, outputs, latents, rollout.logp[0])
    acts.finish(())
    last = rollout.obs_at(1)
    undecided += _check_networks(policy, last, None, rollout.values[1])
    return undecided


@torch.no_grad()
def _check_networks(
    policy: Any, obs: Any, outputs: None | torch.Tensor, values: torch.Tensor
) -> int:
    model, normalized = policy.model, policy._normalization()(obs)
    seen = policy._observation.unflatten(normalized, [len(values)])
    x = seen.flatten(1) if model.encoder is None else model.encoder(seen)
    x = x.to(policy.dtype)
    undecided = 0
    for found, head in ((outputs, model.policy), (values, model.vf_model)):
        if found is None:
            continue
        whole = [*(model.trunk or ()), *head]
        exact, plain = forward(whole, x), x
        for module in whole:
            plain = module(plain)
        y, error = exact.x, exact.error
        if found is values and policy.value_normalizer is not None:
            mean, scale = (getattr(policy.value_normalizer, n).double() for n in ("mean", "scale"))
            y, error = mean + scale * y, scale * error
            error += 4 * torch.finfo(policy.dtype).eps * (mean.abs() + y.abs())
            plain = policy.value_normalizer.denormalize(plain)
        if found is outputs and model.has_mask:
            masked = ~seen["action_mask"].bool()
            y, plain = (t.masked_fill(masked, torch.finfo(policy.dtype).min) for t in (y, plain))
        is_same = agrees(found, y, plain, error)
        wrong = ~is_same.all(1)
        assert not (wrong & ~exact.overflows).any(), described(
            wrong & ~exact.overflows, x, found, y, plain
        )
        undecided += int(wrong.sum())
    return undecided


def described(wrong: torch.Tensor, *tensors: torch.Tensor) -> str:
    """The first wrong row of some tensors."""
    row = int(wrong.nonzero()[0])
    return f"{int(wrong.sum())} rows; {row}: " + "; ".join(str(t[row].tolist()) for t in tensors)


@torch.no_grad()
def _check_actions(acts: Any, outputs: torch.Tensor, latents: Any, logp: torch.Tensor) -> None:
    """Actions and log-probabilities are those of the outputs, which were looked at before."""
    policy, eps = acts.policy, torch.finfo(outputs.dtype).eps
    mask = acts._observations.mask(acts.rollout.obs_at(0))
    wide = []
    for z in (outputs.double(), outputs):
        features = policy.model.outputs(z)
        features |= {} if mask is None else {"action_mask": mask}
        distribution = policy._distribution(features)
        wide.append(
            distribution.latents_logp(
                latents.to(z.dtype) if latents.is_floating_point() else latents
            )
        )
    exact, plain = wide
    error = 64 * eps * (1 + exact.abs()) + 8 * (exact - plain).abs().nan_to_num(0.0, 0.0, 0.0)
    if latents.is_floating_point():  # terms of both signs cancel
        size = (outputs.abs().sum(1) + latents.flatten(1).abs().sum(1)).double()
        error += 8 * eps * size.nan_to_num(0.0, 0.0, 0.0).view_as(error)
    is_same = agrees(logp, exact, plain, error)
    assert is_same.all(), described(~is_same.all(1), outputs, latents, logp, exact, plain)
    noise = None if acts._draws is None or acts.deterministic else acts._kept[0]
    if not latents.is_floating_point():
        _check_choices(policy, outputs, latents.view(len(outputs), -1), noise)
        return
    mean, log_std = (features[n].flatten(1).double() for n in ("mean", "log_std"))
    std, noise = (
        log_std.exp(),
        torch.zeros_like(mean) if noise is None else noise.flatten(1).double(),
    )
    exact = mean if acts.deterministic else mean + std * noise
    plain = mean if acts.deterministic else (mean + std.to(outputs.dtype) * noise)
    found = latents.flatten(1)
    error = 8 * eps * (mean.abs() + (1 + log_std.abs()) * std * noise.abs())
    error = error + torch.finfo(outputs.dtype).tiny
    is_same = agrees(found, exact, plain.to(outputs.dtype), error)
    assert is_same.all(), described(~is_same.all(1), outputs, noise, found, exact)


def _check_choices(
    policy: Any, outputs: torch.Tensor, chosen: torch.Tensor, noise: None | torch.Tensor
) -> None:
    start = 0
    for d, options in enumerate(options_of(policy.model.action_spec)):
        z, taken = outputs[:, start : start + options].double(), chosen[:, d : d + 1]
        assert ((taken >= 0) & (taken < options)).all()
        scores = z.log_softmax(-1)
        if noise is not None:
            scores = scores - (-torch.log1p(-noise[:, d, :options])).log()
        best = scores.max(-1, keepdim=True).values
        gap = best - scores.gather(1, taken)
        # Of a row with a logit that is NaN or ∞, none is the likeliest.
        near = (gap <= 1e3 * torch.finfo(outputs.dtype).eps) | best.isnan()
        assert near.all(), described(~near.view(-1), outputs, taken, scores)
        start += options


def test_a_log_probability_that_overflows_is_infinite() -> None:
    """As the sum of its terms is, each of which is finite."""
    algorithm: Any = AlgorithmConfig(
        num_envs=2,
        horizon=1,
        seed=0,
        model_config={"hiddens": ()},
        distribution_cls=SquashedNormal,
    ).build(env_of(Bounded(-1.0, 1.0, (7,))))
    policy, rollout = algorithm.policy, algorithm.rollout
    with torch.no_grad():
        policy.model.policy[-1].bias.fill_(5e37)
    acts = actor(policy, rollout, deterministic=True)
    assert isinstance(acts, NativeActor)
    acts.act(0, ())
    with torch.no_grad():
        distribution, _, _ = policy._respond(rollout.obs_at(0), ())
        expected = distribution.latents_logp(rollout.actions[0][0])
    assert torch.equal(rollout.logp[0], expected)
    assert rollout.logp[0].isposinf().all()


# ---- learning ---------------------------------------------------------------------------------


def check_learning(algorithm: Any) -> bool:
    """Whether gradients are finite; they and the loss are those of autograd."""
    (expected, by_autograd), (terms, found) = (
        learned(algorithm, natively=natively) for natively in (False, True)
    )
    relative = TOLERANCES[found.dtype]
    # Gains of both signs cancel.
    largest = float(algorithm.rollout.advantages.abs().nan_to_num(0.0, 0.0, 0.0).max())
    bound = relative * max(1.0, largest)
    assert terms == pytest.approx(expected, rel=relative, abs=bound, nan_ok=True)
    is_finite = bool(by_autograd.isfinite().all())
    if not all(map(math.isfinite, expected.values())):
        return is_finite  # what has overflowed, or is 0 · ∞, depends on the order of products
    assert bool(found.isfinite().all()) is is_finite  # whether a step is taken depends on it
    if is_finite:
        size = by_autograd.abs().max().clamp(min=1e-3)
        torch.testing.assert_close(found / size, by_autograd / size, rtol=relative, atol=relative)
    return is_finite


def spoil_update(rng: random.Random, algorithm: Any) -> bool:
    """Whether rounding is small beside what ratios of probabilities and clips of values look at.

    Rows as they are collected, some of which then become odd.
    """
    rollout, kind = algorithm.rollout, rng.choice(["finite", "finite", "special"])
    numbers = [leaf[0] for leaf in rollout.obs if leaf.is_floating_point()]
    for leaf in numbers:
        leaf.normal_()
    acts = actor(algorithm.policy, rollout, deterministic=False)
    assert isinstance(acts, NativeActor)
    acts.act(0, ())
    features = algorithm.policy.model.outputs(acts._outputs)
    sizes = [rollout.logp[0].abs().max(), rollout.values[0].abs().max()]
    if "mean" in features:  # what a mean's rounding is, divided by its deviation
        sizes.append((features["mean"].abs() / features["log_std"].exp()).max())
    eps, most = torch.finfo(rollout.dtype).eps, TOLERANCES[rollout.dtype]
    is_exact = all(eps * size < most / 100 for size in sizes)
    with torch.no_grad():  # `check_acting` has looked at both
        distribution, _, _ = algorithm.policy._respond(rollout.obs_at(0), ())
        latents = rollout.action.unflatten(tuple(x[0] for x in rollout.actions), [len(numbers[0])])
        plain = distribution.latents_logp(latents)
    is_exact &= float((plain - rollout.logp[0]).abs().max()) < most / 10
    share = rng.choice([0.0, 0.01, 0.5])
    spoilt = [getattr(rollout, name)[0] for name in FIELDS if rng.random() < 0.3]
    for x in numbers * (rng.random() < 0.5) + spoilt:
        spoil(x, share, kind)
    return is_exact


def test_a_row_far_from_its_mean_adds_nothing_to_the_gradients_of_deviations() -> None:
    """Its ratio is 0, and the square of its distance overflows."""
    algorithm: Any = AlgorithmConfig(
        num_envs=8, horizon=1, seed=0, model_config={"hiddens": ()}
    ).build(env_of(Unbounded(2)))
    algorithm.collect()
    algorithm.estimate()
    algorithm.rollout.obs[0][0, 3] = 1e25
    assert check_learning(algorithm)


# ---- cases ------------------------------------------------------------------------------------


def cases(seed: int, rows: int) -> Iterator[tuple[random.Random, int, int]]:
    """Drawn widths and numbers of rows, until there are so many rows."""
    rng = random.Random(seed)
    while rows > 0:
        widest = rng.choice([1, 3, 8, 17, 64, 65, 200, 513])
        count = rng.choice([n for n in COUNTS if n * widest <= 2_000_000])
        yield rng, widest, count
        rows -= 2 * count


def check(seed: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    found = dict.fromkeys(("rows", "odd", "undecided", "updates", "finite updates"), 0)
    torch.manual_seed(seed)
    for rng, widest, count in cases(seed, rows):
        monkeypatch.setenv(LEVEL, rng.choice(levels()))
        dtype = rng.choice([torch.float64, torch.float32])
        algorithm = built(rng, dtype, widest=widest, rows=count)
        rollout = algorithm.rollout
        for leaf in rollout.obs:
            if leaf.is_floating_point():
                for t in range(2):
                    kind = rng.choice(["finite", "any", "any"])
                    found["odd"] += int(spoil(leaf[t], 0.9, kind).sum())
        found["rows"] += 2 * count
        found["undecided"] += check_acting(algorithm, rng.random() < 0.2)
        if spoil_update(rng, algorithm):
            found["updates"] += 1
            found["finite updates"] += check_learning(algorithm)
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(16))
def test_odd_rows_give_what_they_give_in_pytorch(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(seed, 2000, monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 100 + ROWS // ROWS_OF_A_CASE))
def test_ten_million_odd_rows_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(check(seed, ROWS_OF_A_CASE, monkeypatch))
