"""Running moments, and what training does with them."""

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from everstep import AlgorithmConfig, Policy, RecurrentAlgorithmConfig, Trainer, evaluate
from everstep.core.normalizers import ObservationNormalizer, RunningMoments
from everstep.env import ContinuousDummyEnv, Env
from everstep.errors import CheckpointError, ConfigError, DivergedError
from tests.toys import ConstantEnv


def test_pieces_of_any_size_give_the_moments_of_the_whole() -> None:
    x = 1e3 + torch.randn(1000, 3, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 50.0])
    for sizes in ([1000], [1] * 10 + [990], [500, 0, 499, 1]):
        moments = RunningMoments(3)
        for piece in x.split(sizes):
            moments.update(piece, torch.ones(len(piece), dtype=torch.bool))
        torch.testing.assert_close(moments.mean, x.mean(0), rtol=1e-12, atol=0)
        torch.testing.assert_close(moments.var, x.var(0, correction=0), rtol=1e-9, atol=0)
        assert moments.count == 1000


def test_a_row_that_is_left_out_is_as_if_it_had_never_been() -> None:
    x = torch.randn(50, 2)
    mask = torch.rand(50) < 0.5
    some, whole = RunningMoments(2), RunningMoments(2)
    whole.update(x[mask], torch.ones(int(mask.sum()), dtype=torch.bool))
    x[~mask] = torch.nan
    some.update(x, mask)
    torch.testing.assert_close(some.mean, whole.mean, rtol=0, atol=0)
    # Two sums of the same squares in another order, each with a rounding per row.
    rounding = 2 * len(x) * torch.finfo(torch.float64).eps
    torch.testing.assert_close(some.var, whole.var, rtol=rounding, atol=0)


@pytest.mark.parametrize("power", [-110, -66, -20, -10, 10, 66, 110])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_numbers_of_any_size_are_scaled(power: int, offset: float) -> None:
    x = (offset + torch.randn(1000, 2)) * 2.0**power
    normalizer = ObservationNormalizer(Unbounded(2))
    normalizer.update((x,), torch.ones(len(x), dtype=torch.bool))
    (scaled,) = normalizer((x,))
    # An element has a part of its mean square added to its variance.
    assert scaled.std(0).min() > (0.99 if not offset else 0.94)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-5, 0.1])
def test_rounding_errors_of_a_constant_are_not_scaled_up(value: float) -> None:
    x = torch.full((999, 1), value)
    x[0] = x[0] * (1 + torch.finfo(x.dtype).eps)
    normalizer = ObservationNormalizer(Unbounded(1))
    normalizer.update((x,), torch.ones(len(x), dtype=torch.bool))
    assert float(normalizer((x,))[0].abs().max()) < 1e-2


@pytest.mark.parametrize("normalized", ["running", True])
@pytest.mark.parametrize("power", [-90, -40, 40, 90])
def test_rewards_of_any_size_are_one_training(normalized: Any, power: int) -> None:
    def scaled(power: int) -> torch.Tensor:
        torch.manual_seed(0)
        env = Rewarded(2.0**power)
        trainer = Trainer(
            env, run_dir=None, progress=False, horizon=16, seed=0, normalize_rewards=normalized
        )
        trainer.step()
        return torch.cat([x.flatten() for x in trainer.algorithm.policy.model.parameters()])

    # 1e-8 is added to a deviation of 1, and a hundredth to a small one.
    torch.testing.assert_close(scaled(power), scaled(0), rtol=0, atol=2e-4)


class Rewarded(ConstantEnv):
    """Rewards are random numbers times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__(4)
        self.factor = factor

    def step(self, action: Any) -> TensorDict:
        outcome = super().step(action)
        outcome["rewards"] = torch.randn(4, 1) * self.factor
        return outcome


def test_nothing_seen_leaves_numbers_as_they_are() -> None:
    moments = RunningMoments(2)
    moments.update(torch.full((4, 2), torch.inf), torch.zeros(4, dtype=torch.bool))
    assert moments.mean.tolist() == [0.0, 0.0]
    assert moments.var.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("clip", [None, 10.0])
def test_before_the_first_update_observations_pass_unscaled_and_unclipped(
    clip: None | float,
) -> None:
    normalizer = ObservationNormalizer(Unbounded(2), clip=clip)
    obs = torch.tensor([[3.0, -4e6]])
    assert torch.equal(normalizer((obs,))[0], obs)
    normalizer.update((obs,), torch.zeros(1, dtype=torch.bool))  # no row counts
    assert torch.equal(normalizer((obs,))[0], obs)
    normalizer.update((obs,), torch.ones(1, dtype=torch.bool))
    assert not torch.equal(normalizer((obs,))[0], obs)


def test_one_row_gives_no_nan() -> None:
    normalizer = ObservationNormalizer(Unbounded(2))
    obs = torch.tensor([[3.0, -4.0]])
    normalizer.update((obs,), torch.ones(1, dtype=torch.bool))
    assert normalizer((obs,))[0].tolist() == [[0.0, 0.0]]
    assert normalizer((obs + 1,))[0].tolist() == [[10.0, 10.0]]  # clipped


def test_only_floating_point_leaves_are_normalised() -> None:
    spec = Composite(
        image=Unbounded((3, 4, 4), dtype=torch.uint8),
        position=Unbounded(2),
        kind=Categorical(3, shape=torch.Size([1])),
    )
    leaves = tuple(spec[key].rand([64]) for key in list(spec.keys()))
    normalizer = ObservationNormalizer(spec, clip=None)
    normalizer.update(leaves, torch.ones(64, dtype=torch.bool))
    out = dict(zip(spec.keys(), normalizer(leaves), strict=True))
    given = dict(zip(spec.keys(), leaves, strict=True))
    assert out["image"] is given["image"]
    assert out["kind"] is given["kind"]
    torch.testing.assert_close(out["position"].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(out["position"].std(0, correction=0), torch.ones(2))
    assert out["position"].dtype == given["position"].dtype


def test_a_mask_is_left_as_it_is() -> None:
    spec = Composite(x=Unbounded(2), action_mask=Bounded(0.0, 1.0, shape=(3,)))
    normalizer = ObservationNormalizer(spec)
    leaves = tuple(spec[key].rand([8]) for key in ("x", "action_mask"))
    normalizer.update(leaves, torch.ones(8, dtype=torch.bool))
    assert normalizer(leaves)[1] is leaves[1]


# ---- in training ------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 16, "num_sgd_iters": 2, "seed": 1}


class FarAway(ContinuousDummyEnv):
    """The same point, seen from far away through a microscope."""

    def _seen(self, obs: torch.Tensor) -> torch.Tensor:
        return 1e4 + 1e-2 * obs

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return self._seen(super().reset(config=config))

    def step(self, action: Any) -> TensorDict:
        out = super().step(action)
        return out.set("obs", self._seen(out["obs"]))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_an_update_evaluates_what_was_collected(config_cls: Any) -> None:
    """Statistics change after updates only: the first minibatch has ratio 1."""
    algorithm = config_cls(**SMALL, normalize_observations=True).build(FarAway)
    for _ in range(3):
        algorithm.collect()
        algorithm.estimate()
        minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
        with torch.no_grad():
            distribution, values = algorithm.policy.evaluate(minibatch)
        torch.testing.assert_close(
            distribution.latents_logp(minibatch.actions), minibatch.logp, rtol=0, atol=1e-12
        )
        torch.testing.assert_close(values, minibatch.values, rtol=0, atol=1e-12)
        algorithm.step()


@pytest.mark.usefixtures("float64")
def test_statistics_are_those_of_everything_seen() -> None:
    algorithm = AlgorithmConfig(**SMALL, normalize_observations=True).build(FarAway)
    seen: list[torch.Tensor] = []
    for _ in range(3):
        algorithm.collect()
        seen.append(algorithm.rollout.obs[0][:-1].flatten(0, 1).clone())
        algorithm.step()
    x = torch.cat(seen)
    moments = algorithm.policy.normalizer.moments["0"]
    assert moments.count == len(x)
    torch.testing.assert_close(moments.mean, x.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(moments.var, x.var(0, correction=0), rtol=1e-9, atol=0)


def test_evaluation_leaves_statistics_alone(tmp_path: Any) -> None:
    trainer = Trainer(
        FarAway,
        run_dir=None,
        **SMALL | {"normalize_observations": True, "normalize_rewards": "running"},
    )

    def state() -> dict[str, Any]:
        found = trainer.algorithm.state_dict()
        return copy.deepcopy({k: found[k] for k in ("normalizer", "discounted_returns")})

    def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return all(torch.equal(a[k][n], b[k][n]) for k in a for n in a[k])

    before = state()
    trainer.eval()
    assert same(state(), before)
    trainer.step()
    assert not same(state(), before)
    before = state()
    trainer.eval(deterministic=False)
    evaluate(trainer.algorithm.policy, FarAway(4, 8), episodes=4)
    assert same(state(), before)


class Failing(FarAway):
    """Breaks its promises, or off, while it is told to."""

    how = ""

    def reset(self, *, config: Any = None) -> torch.Tensor:
        obs = super().reset(config=config).clone()
        if self.how == "NaN in the reset":
            obs[0] = torch.nan
        return obs

    def step(self, action: Any) -> TensorDict:
        out = super().step(action)
        if self.how == "an exception":
            raise ZeroDivisionError
        if self.how == "NaN in a step":
            out["rewards"][0] = torch.nan
        return out


def train_once(algorithm: Any) -> dict[str, torch.Tensor]:
    algorithm.collect()
    algorithm.step()
    return copy.deepcopy(dict(algorithm.policy.normalizer.state_dict()))


@pytest.mark.parametrize("how", ["NaN in the reset", "NaN in a step", "an exception"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_rollout_that_fails_leaves_statistics_alone(how: str, after: int) -> None:
    config = AlgorithmConfig(**SMALL, normalize_observations=True)
    untroubled = config.build(Failing)
    algorithm = config.build(Failing)
    for _ in range(after):
        train_once(algorithm)
        train_once(untroubled)
    before = copy.deepcopy(dict(algorithm.policy.normalizer.state_dict()))
    algorithm.env.how = how
    for _ in range(2):
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            algorithm.collect()
    found = algorithm.policy.normalizer.state_dict()
    assert all(torch.equal(found[name], x) for name, x in before.items())
    algorithm.env.how = ""
    expected = train_once(untroubled)["moments.0.count"]
    assert train_once(algorithm)["moments.0.count"] == expected == (1 + after) * 8 * 16
    assert algorithm.rollout.obs[0].isfinite().all()
    assert algorithm.policy.normalizer(algorithm.rollout.obs)[0].isfinite().all()


class Falling(ContinuousDummyEnv):
    """Starts near 0 and moves away by up to a thousand, as an unscaled CartPole's pole does."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(4)
        self.generator = torch.Generator().manual_seed(5)
        self.obs = torch.zeros(num_envs, 4)

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.obs = 50 * (torch.rand(self.num_envs, 4, generator=self.generator) - 0.5)
        return self.obs

    def step(self, action: Any) -> TensorDict:
        self.obs = self.obs + 1e3 * torch.rand(self.num_envs, 4, generator=self.generator) - 500
        rewards = -self.obs.abs().mean(-1, keepdim=True)
        return TensorDict({"obs": self.obs, "rewards": rewards}, [self.num_envs])

    def state_dict(self) -> dict[str, Any]:
        return {"obs": self.obs.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.obs = state["obs"].clone()
        self.generator.set_state(state["generator"])


@pytest.mark.parametrize("num_envs", [1, 4, 64])
def test_few_features_are_clipped_in_the_first_rollouts(num_envs: int) -> None:
    config = AlgorithmConfig(**SMALL | {"num_envs": num_envs}, normalize_observations=True)
    algorithm = config.build(Falling)
    for i in range(3):
        algorithm.collect()
        (seen,) = algorithm.policy.normalizer(algorithm.rollout.obs)
        clipped = seen.abs() == algorithm.policy.normalizer.clip
        assert clipped.double().mean() < 0.01
        if i == 0:
            assert torch.equal(seen, algorithm.rollout.obs[0])
        else:
            assert seen.abs().mean() < 3.0
        algorithm.step()


class LogRatios:
    """An add-on of 0 that records each minibatch's largest |log ratio|."""

    name = "log_ratios"

    def __init__(self) -> None:
        self.largest: list[float] = []

    def __call__(self, minibatch: Any, distribution: Any, values: torch.Tensor) -> torch.Tensor:
        logp = distribution.latents_logp(minibatch.actions)
        self.largest.append(float((logp - minibatch.logp).abs().max().detach()))
        return 0 * values.sum()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("num_envs", [1, 4, 64])
def test_the_first_minibatch_of_every_update_has_ratio_1(num_envs: int) -> None:
    moved = LogRatios()
    algorithm = AlgorithmConfig(
        **SMALL | {"num_envs": num_envs},
        normalize_observations=True,
        sgd_minibatch_size=4 * num_envs,
        policy_loss_addons=[moved],
    ).build(Falling)
    for _ in range(2):
        algorithm.collect()
        moved.largest.clear()
        algorithm.step()
        assert moved.largest[0] < 1e-9
        assert max(moved.largest) > 1e-6  # later minibatches have moved away


@pytest.mark.parametrize("after", [0, 1])
def test_a_resumed_run_equals_an_uninterrupted_one(after: int) -> None:
    config = AlgorithmConfig(
        **SMALL, normalize_observations=True, horizons_per_env_reset=-1, cuda_graphs=False
    )
    whole = config.build(Falling)
    for _ in range(after):
        train_once(whole)
    state = copy.deepcopy(whole.state_dict())
    for _ in range(2):
        expected = train_once(whole)
    resumed = config.build(Falling)
    resumed.load_state_dict(state)
    for _ in range(2):
        found = train_once(resumed)
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    for one, other in zip(
        whole.policy.model.parameters(), resumed.policy.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("every", [1, -1])
def test_the_first_rollout_enters_the_statistics_after_the_first_update(every: int) -> None:
    """Even if an evaluation came first, after which the environments are not reset again."""
    config = AlgorithmConfig(**SMALL, normalize_observations=True, horizons_per_env_reset=every)
    algorithm = config.build(FarAway)
    with algorithm.evaluating():
        algorithm.collect(deterministic=True)
    moments = algorithm.policy.normalizer.moments["0"]
    algorithm.collect()
    assert moments.count == 0
    algorithm.step()
    assert moments.count == 8 * 16
    seen = algorithm.rollout.obs[0][:-1].flatten(0, 1).double()
    torch.testing.assert_close(moments.mean, seen.mean(0), rtol=1e-9, atol=0)


def test_an_update_that_diverges_leaves_statistics_alone() -> None:
    algorithm = AlgorithmConfig(**SMALL, normalize_observations=True).build(FarAway)
    train_once(algorithm)
    algorithm.collect()
    before = copy.deepcopy(dict(algorithm.policy.normalizer.state_dict()))
    algorithm.rollout.logp.fill_(-torch.inf)
    with pytest.raises(DivergedError):
        algorithm.step()
    found = algorithm.policy.normalizer.state_dict()
    assert all(torch.equal(found[name], x) for name, x in before.items())


def test_they_are_saved_with_the_policy(tmp_path: Any) -> None:
    algorithm = AlgorithmConfig(**SMALL, normalize_observations=True, clip_observations=3.0).build(
        FarAway
    )
    algorithm.collect()
    algorithm.step()
    algorithm.policy.save(tmp_path / "policy")
    policy = Policy.load(tmp_path / "policy")
    batch = TensorDict({"obs": 1e4 + torch.randn(5, 1, 1)}, [5, 1])
    ours, theirs = (
        p.sample(batch, deterministic=True, return_values=True) for p in (algorithm.policy, policy)
    )
    assert torch.equal(ours["values"], theirs["values"])
    assert policy.normalizer is not None
    assert policy.normalizer.clip == 3.0


def test_a_checkpoint_with_them_does_not_fit_without() -> None:
    state = AlgorithmConfig(**SMALL, normalize_observations=True).build(FarAway).state_dict()
    with pytest.raises(CheckpointError, match="`normalize_observations`"):
        AlgorithmConfig(**SMALL).build(FarAway).load_state_dict(state)


class Masked(ConstantEnv):
    """Half of the rows are invalid, and see and earn what is absurd."""

    def step(self, action: Any) -> Any:
        out = super().step(action)
        out["valid"] = torch.tensor([[True], [False], [True], [False]])
        garbage = torch.where(out["valid"], 1.0, 1e6)
        out["obs"] = torch.randn(4, 3) * garbage
        out["rewards"] = torch.randn(4, 1) * garbage
        return out


def test_invalid_rows_reach_no_statistic() -> None:
    env = Masked(4, 8, episode_keys=frozenset({"terminated", "truncated", "first", "valid"}))
    algorithm = AlgorithmConfig(normalize_observations=True, normalize_rewards="running").build(env)
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
    moments = algorithm.policy.normalizer.moments["0"]
    assert 0.3 < float(moments.std.max()) < 3.0
    assert float(algorithm.discounted_returns.std) < 20


# ---- rewards ----------------------------------------------------------------------------------


class Scripted(Env):
    """Rewards from a list; episodes of four env steps."""

    episode_keys = frozenset({"terminated", "truncated", "first"})

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec, self.action_spec = Unbounded(1), Unbounded(1)
        self.generator = torch.Generator().manual_seed(3)

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.t = 0
        return torch.zeros(self.num_envs, 1)

    def step(self, action: Any) -> TensorDict:
        self.t += 1
        done = torch.full((self.num_envs, 1), self.t % 4 == 0)
        rewards = torch.randn(self.num_envs, 1, generator=self.generator) * self.t
        out = {"obs": torch.zeros(self.num_envs, 1), "rewards": rewards}
        flags = {"terminated": done, "truncated": done & False, "first": done}
        return TensorDict({**out, **flags}, [self.num_envs])


@pytest.mark.usefixtures("float64")
def test_the_running_scale_is_that_of_a_filter_over_the_whole_training() -> None:
    """The filter starts anew with every episode and goes on over rollouts; its spread is that of
    all sums so far.
    """
    algorithm = AlgorithmConfig(
        num_envs=3, horizon=6, gamma=0.9, normalize_rewards="running"
    ).build(Scripted)
    sums, total, t = [], torch.zeros(3), 0
    for _ in range(5):
        algorithm.collect()
        for rewards in algorithm.rollout.rewards[:-1, :, 0].clone():
            total = rewards + 0.9 * total
            sums.append(total.clone())
            t += 1
            if t % 4 == 0:
                total = torch.zeros(3)
        expected = torch.cat(sums).std(correction=0)
        assert algorithm.state.reward_scale == pytest.approx(float(expected), rel=1e-6)
        algorithm.step()


def test_a_rollout_that_is_refused_leaves_the_filter_alone() -> None:
    class Breaking(Scripted):
        broken = False

        def step(self, action: Any) -> TensorDict:
            out = super().step(action)
            if self.broken:
                out["rewards"][0] = torch.nan
            return out

    algorithm = AlgorithmConfig(num_envs=3, horizon=6, normalize_rewards="running").build(Breaking)
    algorithm.collect()
    before = copy.deepcopy(algorithm.discounted_returns.state_dict())
    algorithm.env.broken = True
    with pytest.raises(RuntimeError, match="not finite"):
        algorithm.collect()
    assert all(
        torch.equal(x, before[name])
        for name, x in algorithm.discounted_returns.state_dict().items()
    )


# ---- the adaptive learning rate ---------------------------------------------------------------


def test_the_learning_rate_follows_the_divergence() -> None:
    def train(target: float) -> list[float]:
        algorithm = AlgorithmConfig(
            **SMALL | {"num_sgd_iters": 4},
            sgd_minibatch_size=32,
            lr_schedule_kind="adaptive",
            target_kl_div=target,
            optimizer_config={"lr": 1e-3},
        ).build(ContinuousDummyEnv)
        rates = []
        for _ in range(3):
            algorithm.collect()
            stats = algorithm.step()
            assert stats["monitors/skipped_updates"] == 0
            rates.append(algorithm.lr_scheduler.coeff)
            assert rates[-1] == algorithm.optimizer.param_groups[0]["lr"]
        return rates

    assert train(1e9) == pytest.approx([1e-2] * 3)  # never far enough: it rises to its end
    assert train(1e-12)[-1] == pytest.approx(1e-5)  # always too far: it falls to its end


def test_it_survives_a_checkpoint() -> None:
    config = AlgorithmConfig(
        **SMALL, sgd_minibatch_size=32, lr_schedule_kind="adaptive", target_kl_div=1e9
    )
    one = config.build(ContinuousDummyEnv)
    one.collect()
    one.step()
    other = config.build(ContinuousDummyEnv)
    other.load_state_dict(one.state_dict())
    assert other.lr_scheduler.coeff == one.lr_scheduler.coeff > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs `target_kl_div`"),
        ({"target_kl_div": 0.01, "lr_schedule": [(0, 1e-3)]}, "exclude each other"),
    ],
)
def test_it_needs_a_target_and_no_schedule(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**SMALL, lr_schedule_kind="adaptive", **options).validate()


def test_normalised_observations_are_clipped_on_both_sides() -> None:
    normalizer = ObservationNormalizer(Unbounded(1), clip=2.0)
    rows = torch.tensor([[-1.0], [1.0]])
    normalizer.update((rows,), torch.ones(2, dtype=torch.bool))
    (found,) = normalizer((torch.tensor([[-9.0], [-1.5], [0.0], [1.5], [9.0]]),))
    expected = torch.tensor([[-2.0], [-1.5], [0.0], [1.5], [2.0]])
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("before", [0, 7])
def test_moments_of_copies_are_those_of_all_their_rows(before: int) -> None:
    """Each copy has seen rows of its own, of another mean and spread; one has seen none."""
    own = RunningMoments(2)
    seen = [torch.randn(before, 2) + 5.0]
    own.update(seen[0], torch.ones(before, dtype=torch.bool))
    copies = [copy.deepcopy(own) for _ in range(3)]
    for i, count in enumerate((11, 0, 4)):
        rows = (1 + 3 * i) * torch.randn(count, 2) - 4.0 * i
        copies[i].update(rows, torch.ones(count, dtype=torch.bool))
        seen.append(rows)
    own.merge(copies)
    whole = torch.cat(seen)
    assert own.count == len(whole)
    torch.testing.assert_close(own.mean, whole.mean(0))
    torch.testing.assert_close(own.var, whole.var(0, correction=0))


def test_statistics_begin_with_a_single_observation() -> None:
    normalizer, obs = ObservationNormalizer(Unbounded(1)), (torch.tensor([[100.0]]),)
    assert normalizer(obs)[0] == 100.0
    normalizer.update((torch.ones(2, 1),), torch.tensor([False, False]))
    assert normalizer(obs)[0] == 100.0
    normalizer.update((torch.ones(2, 1),), torch.tensor([False, True]))
    assert normalizer(obs)[0] == 10.0


def test_numbers_whose_squares_are_infinite_are_counted_in_silence() -> None:
    moments = RunningMoments(2)
    for size in (1e200, -1e200):
        rows = torch.full((3, 2), size, dtype=torch.float64)
        moments.update(rows, torch.ones(3, dtype=torch.bool))
    assert moments.mean.tolist() == [0.0, 0.0]
