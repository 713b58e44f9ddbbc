"""The algorithm: laws of collect and step, and what bad environments and models cannot do."""

import copy
import math
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Composite, MultiCategorical, Unbounded

from everstep import (
    Algorithm,
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentAlgorithmConfig,
    evaluate,
)
from everstep.core.rollouts import Sequences
from everstep.data import EPISODE_KEYS
from everstep.distributions import Normal
from everstep.env import Env
from everstep.errors import (
    ConfigError,
    DivergedError,
    EnvError,
    NonFiniteError,
    NotBufferedError,
)
from everstep.models import DefaultDiscreteModel, Model
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.toys import TERMINATED, TRUNCATED, ConstantEnv, Episode, KnownValue, scripted_vector_env

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 16, "model_config": {"hiddens": (16,)}}


def weights(algorithm: Algorithm) -> list[torch.Tensor]:
    return [p.detach().clone() for p in algorithm.policy.model.parameters()]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# ---- what rl8's documentation promises --------------------------------------------------------


@pytest.mark.parametrize("env_cls", [ContinuousDummyEnv, DiscreteDummyEnv])
def test_attributes_and_statistics(env_cls: type[Env]) -> None:
    algorithm = AlgorithmConfig(**SMALL, entropy_coeff=0.1).build(env_cls)
    collected = algorithm.collect()
    assert algorithm.state.buffered
    stepped = algorithm.step()
    assert not algorithm.state.buffered
    expected = {"env/resets", "env/steps", "profiling/collect_ms", "profiling/env_ms"}
    expected |= {f"{x}/{y}" for x in ("returns", "rewards") for y in ("min", "max", "mean", "std")}
    assert set(collected) == expected
    assert 0 < collected["profiling/env_ms"] < collected["profiling/collect_ms"]
    assert collected["env/resets"] == 8
    assert collected["env/steps"] == 128
    for key in ("entropy", "policy", "vf", "total"):
        assert math.isfinite(stepped[f"losses/{key}"])
    assert stepped["coefficients/entropy"] == 0.1
    assert stepped["coefficients/vf"] == 1.0
    assert stepped["monitors/kl_div"] >= 0
    assert stepped["profiling/step_ms"] > 0
    assert algorithm.horizons_per_env_reset == 1
    assert algorithm.hparams.horizon == 16
    assert algorithm.hparams.num_minibatches == 1
    assert algorithm.hparams.device_type == "cpu"
    assert algorithm.state.horizons == 1
    assert set(algorithm.memory_stats()) == {"memory/free", "memory/total", "memory/percent"}
    assert algorithm.params["optimizer_cls"] == "Adam"
    with pytest.raises(AttributeError, match="read-only"):
        algorithm.hparams.gamma = 0.5


def test_the_buffer_is_a_view_of_the_rollout_and_survives_the_update() -> None:
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    buffer = algorithm.buffer
    assert buffer.batch_size == (8, 17)
    assert set(algorithm.buffer_spec.keys()) == set(buffer.keys())
    algorithm.collect()
    observations = buffer["obs"].clone()
    algorithm.step()
    assert algorithm.buffer is buffer
    assert buffer["obs"].data_ptr() == algorithm.rollout.obs[0].data_ptr()
    assert torch.equal(buffer["obs"], observations)
    assert buffer["returns"][:, :-1].abs().min() > 0


def test_returns_are_sums_of_all_rewards() -> None:
    env = ConstantEnv()
    stats = AlgorithmConfig().build(env).collect()
    assert stats["returns/mean"] == stats["returns/min"] == stats["returns/max"] == 8.0


def test_step_before_collect() -> None:
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    with pytest.raises(NotBufferedError, match="collect"):
        algorithm.step()
    algorithm.collect()
    algorithm.step()
    with pytest.raises(RuntimeError, match="collect"):
        algorithm.step()


@pytest.mark.parametrize(("every", "resets"), [(1, 4), (2, 2), (3, 2), (-1, 1), (-7, 1)])
def test_resets_follow_the_horizons(every: int, resets: int) -> None:
    algorithm = AlgorithmConfig(**SMALL, horizons_per_env_reset=every).build(DiscreteDummyEnv)
    assert sum(algorithm.collect()["env/resets"] for _ in range(4)) == 8 * resets


def test_horizons_continue_where_the_last_ended() -> None:
    algorithm = AlgorithmConfig(**SMALL, horizons_per_env_reset=-1).build(DiscreteDummyEnv)
    algorithm.collect()
    last = algorithm.buffer["obs"][:, -1].clone()
    filtered = algorithm.buffer["reversed_discounted_returns"][:, -1].clone()
    algorithm.step()
    algorithm.collect()
    assert torch.equal(algorithm.buffer["obs"][:, 0], last)
    assert torch.equal(algorithm.buffer["reversed_discounted_returns"][:, 0], filtered)
    assert filtered.abs().min() > 0


def test_auto_is_resolved_from_the_environment() -> None:
    episodic = GymnasiumEnv(gym.make_vec("CartPole-v1", num_envs=3), horizon=11)
    algorithm = AlgorithmConfig().build(episodic)
    assert (algorithm.hparams.num_envs, algorithm.hparams.horizon) == (3, 11)
    assert algorithm.hparams.horizons_per_env_reset == -1
    assert algorithm.hparams.sgd_minibatch_size == 33
    assert str(algorithm.hparams.device) == "cpu"
    endless = AlgorithmConfig(num_envs=2).build(DiscreteDummyEnv)
    assert endless.hparams.horizon == 32
    assert endless.hparams.horizons_per_env_reset == 1


def test_sizes_above_the_environments_maximum_are_clipped_with_one_warning() -> None:
    class Limited(DiscreteDummyEnv):
        max_num_envs = 5
        max_horizon = 7

    with pytest.warns(UserWarning, match="at most") as warned:
        algorithm = AlgorithmConfig(num_envs=9, horizon=4).build(Limited)
    assert len(warned) == 1
    assert (algorithm.hparams.num_envs, algorithm.hparams.horizon) == (5, 4)
    assert AlgorithmConfig(num_envs=2).build(Limited).hparams.horizon == 7  # no warning for "auto"


def test_schedules_count_env_steps() -> None:
    algorithm = AlgorithmConfig(
        **SMALL,
        lr_schedule=[(0, 1e-3), (129, 5e-4), (384, 1e-4)],
        entropy_coeff_schedule=[(0, 0.1), (256, 0.0)],
        entropy_coeff_schedule_kind="interp",
    ).build(DiscreteDummyEnv)
    rates, coefficients = [], []
    for _ in range(4):
        algorithm.collect()
        with algorithm.evaluating():
            algorithm.collect()  # evaluation does not count
        algorithm.collect()
        stats = algorithm.step()
        rates.append(stats["coefficients/lr"])
        coefficients.append(stats["coefficients/entropy"])
    assert rates == [1e-3, 1e-3, 5e-4, 1e-4]
    assert coefficients == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert algorithm.state.env_steps == 4 * 128


def test_same_seed_same_training() -> None:
    def train(seed: int) -> list[torch.Tensor]:
        algorithm = AlgorithmConfig(**SMALL, seed=seed, sgd_minibatch_size=32).build(
            ContinuousDummyEnv
        )
        for _ in range(3):
            algorithm.collect()
            algorithm.step()
        return weights(algorithm)

    assert same(train(3), train(3))
    assert not same(train(3), train(4))


# ---- laws -------------------------------------------------------------------------------------


class Mixed(ContinuousDummyEnv):
    """The continuous environment with another action spec."""

    spec: Any

    def _make_action_spec(self) -> Any:
        return self.spec

    def step(self, action: Any) -> TensorDict:
        return super().step(action.to(self.state.dtype).mean(-1, keepdim=True))


@pytest.mark.parametrize(
    "spec",
    [
        lambda: DiscreteDummyEnv(1).action_spec,
        lambda: Unbounded(3),
        lambda: Bounded(-1.0, 1.0, shape=(2,), dtype=torch.float64),
        lambda: MultiCategorical([2, 4]),
    ],
    ids=["categorical", "normal", "bounded", "multi-categorical"],
)
@pytest.mark.usefixtures("float64")
def test_the_first_minibatch_after_a_rollout_has_ratio_1(spec: Any) -> None:
    cls = type("SpecEnv", (Mixed,), {"spec": spec()})
    algorithm = AlgorithmConfig(**SMALL, sgd_minibatch_size=32).build(cls)
    for _ in range(3):
        algorithm.collect()
        algorithm.estimate()
        sequences = algorithm.policy.sequences(algorithm.rollout)
        for minibatch in sequences.minibatches(
            32, shuffle=True, joint=False, permute=torch.randperm
        ):
            distribution, values = algorithm.policy.evaluate(minibatch)
            ratio = (distribution.logp(minibatch.actions) - minibatch.logp).exp()
            torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-12)
            torch.testing.assert_close(values, minibatch.values, rtol=0, atol=1e-12)
            losses = algorithm.objective(minibatch, distribution, values)
            assert losses["kl_div"].abs() < 1e-12
            assert losses["clip_fraction"] == 0
        algorithm.step()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("minibatch_size", [16, 32, 64])
def test_accumulated_gradients_are_those_of_the_whole_rollout(minibatch_size: int) -> None:
    """Also where minibatches have different numbers of valid rows."""

    def train(**options: Any) -> list[torch.Tensor]:
        script = [[Episode(1 + n % 3, TRUNCATED)] for n in range(8)]
        env = GymnasiumEnv(scripted_vector_env(script, AutoresetMode.NEXT_STEP), horizon=16)
        algorithm = AlgorithmConfig(
            seed=1, model_config={"hiddens": (16,)}, entropy_coeff=0.05, **options
        ).build(env)
        for _ in range(3):
            algorithm.collect()
            assert not algorithm.rollout.valid.all()
            algorithm.step()
        return weights(algorithm)

    whole = train(sgd_minibatch_size=None)
    # Not shuffled: drawing an order would change the actions of the next rollout.
    parts = train(
        accumulate_grads=True, sgd_minibatch_size=minibatch_size, shuffle_minibatches=False
    )
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("vf_loss", ["smooth_l1", "mse"])
def test_invalid_rows_do_not_reach_the_gradient(vf_loss: Any) -> None:
    class Garbage(Env):
        """Every third row is invalid: NaN reward, and an observation of garbage before it."""

        episode_keys = EPISODE_KEYS - {"final_obs"}

        def __init__(self, garbage: float) -> None:
            super().__init__(4, 12)
            self.observation_spec = Unbounded(3)
            self.action_spec = DiscreteDummyEnv(1).action_spec
            self.garbage = garbage

        def reset(self, *, config: Any = None) -> torch.Tensor:
            self.t = 0
            return torch.ones(4, 3)

        def step(self, action: Any) -> TensorDict:
            self.t += 1
            yes, no = torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, 1, dtype=torch.bool)
            ended, is_reset = self.t % 3 == 2, self.t % 3 == 0
            obs = torch.sin(torch.arange(12.0).view(4, 3) + self.t)
            reward = obs[:, :1].clone()
            return TensorDict(
                {
                    "obs": torch.full_like(obs, self.garbage) if ended else obs,
                    "rewards": torch.full_like(reward, torch.nan) if is_reset else reward,
                    "terminated": yes if ended else no,
                    "truncated": no,
                    "first": yes if is_reset else no,
                    "valid": no if is_reset else yes,
                },
                batch_size=[4],
            )

    def train(garbage: float) -> tuple[list[torch.Tensor], dict[str, float]]:
        algorithm = AlgorithmConfig(
            seed=5, model_config={"hiddens": (8,)}, vf_loss=vf_loss, vf_clip_param=0.1
        ).build(Garbage(garbage))
        assert algorithm.collect()["env/steps"] == 4 * 8
        stats = dict(algorithm.step())
        del stats["profiling/step_ms"]
        return weights(algorithm), stats

    expected, losses = train(0.0)
    assert all(w.isfinite().all() for w in expected)
    for garbage in (1e30, 3e38):
        found, stats = train(garbage)
        assert same(found, expected)
        assert stats == losses


def test_every_column_of_a_minibatch_is_from_the_same_row() -> None:
    """Observations encode (environment, time); everything else is looked up from them."""
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    algorithm.collect()
    rollout = algorithm.rollout
    code = torch.arange(17 * 8.0).view(17, 8, 1)  # t·N + n
    for x in (rollout.obs[0], rollout.values, rollout.logp, rollout.advantages, rollout.returns):
        x.copy_(code)
    rollout.actions[0].copy_(code)
    sequences = Sequences(rollout, rollout.valid)
    for shuffle in (False, True):
        seen = []
        for minibatch in sequences.minibatches(
            16, shuffle=shuffle, joint=False, permute=torch.randperm
        ):
            columns = [minibatch.obs[0].flatten(), minibatch.actions.flatten().float()]
            columns += [
                getattr(minibatch, name).flatten()
                for name in ("values", "logp", "advantages", "returns")
            ]
            assert all(torch.equal(columns[0], column) for column in columns)
            assert minibatch.weight.double().sum() == pytest.approx(1.0)
            seen += columns[0].tolist()
        assert sorted(seen) == list(range(128))


def test_values_are_read_after_their_own_forward() -> None:
    class Counting(DefaultDiscreteModel):
        """Its values say which forward they belong to."""

        calls = 0

        def forward(self, batch: Any, /) -> Any:
            self.calls += 1
            return super().forward(batch)

        def value_function(self) -> torch.Tensor:
            return 0 * super().value_function() + self.calls

    script = [[Episode(4, TRUNCATED)]] * 2
    env = GymnasiumEnv(scripted_vector_env(script, AutoresetMode.SAME_STEP), horizon=6)
    algorithm = AlgorithmConfig(model_cls=Counting).build(env)
    algorithm.policy.model.calls = 0
    algorithm.collect()
    assert algorithm.buffer["values"][0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert algorithm.rollout.final_values[3].flatten().tolist() == [8, 8]


@pytest.mark.usefixtures("general")
def test_a_kl_target_stops_the_update_before_the_step_that_would_follow() -> None:
    def optimizer_steps(**options: Any) -> tuple[int, float]:
        algorithm = AlgorithmConfig(
            **SMALL, seed=0, num_sgd_iters=50, optimizer_config={"lr": 3e-3}, **options
        ).build(ContinuousDummyEnv)
        algorithm.collect()
        steps, divergences = 0, []
        original, losses = algorithm.updater.step, algorithm._add_gradients

        def counting(**options: Any) -> None:
            nonlocal steps
            steps += 1
            original(**options)

        def watching(minibatch: Any) -> Any:
            found = losses(minibatch)
            divergences.append(float(found["kl_div"]))
            return found

        algorithm.updater.step = counting  # type: ignore[method-assign]
        algorithm._add_gradients = watching  # type: ignore[method-assign]
        algorithm.step()
        if steps < 50:
            assert divergences[-1] > options["target_kl_div"] >= max(divergences[:-1])
        return steps, max(divergences)

    steps, divergence = optimizer_steps()
    assert steps == 50
    stopped, _ = optimizer_steps(target_kl_div=divergence / 4)
    assert 0 < stopped < 50


class Switches(Env):
    """Two of four switches may be pressed in a row; a third of the rows are invalid."""

    episode_keys = frozenset({"terminated", "truncated", "first", "valid"})

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Composite(x=Unbounded(3), action_mask=Binary(4, dtype=torch.bool))
        self.action_spec = Binary(4)

    def reset(self, *, config: Any = None) -> TensorDict:
        allowed = torch.rand(self.num_envs, 4).argsort(-1) < 2
        obs = {"x": torch.randn(self.num_envs, 3), "action_mask": allowed}
        return TensorDict(obs, [self.num_envs])

    def step(self, action: Any) -> TensorDict:
        no = torch.zeros(self.num_envs, 1, dtype=torch.bool)
        out = {"obs": self.reset(), "rewards": torch.randn(self.num_envs, 1), "valid": ~no}
        out["valid"] = torch.rand(self.num_envs, 1) < 0.7
        flags = dict.fromkeys(("terminated", "truncated", "first"), no)
        return TensorDict({**out, **flags}, [self.num_envs])


@pytest.mark.parametrize("seq_len", [None, 1, 4])
def test_what_invalid_rows_did_under_a_mask_is_no_divergence(seq_len: None | int) -> None:
    """Their observations are cleared, but not so that what they did becomes impossible."""
    config: Any = AlgorithmConfig(num_envs=16, horizon=8, seed=0)
    if seq_len is not None:
        config = RecurrentAlgorithmConfig(num_envs=16, horizon=8, seq_len=seq_len, seed=0)
    algorithm = config.build(Switches)
    for _ in range(2):
        algorithm.collect()
        algorithm.estimate()
        minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
        distribution, _ = algorithm.policy.evaluate(minibatch)
        assert distribution.latents_logp(minibatch.actions).isfinite().all()
        assert float(algorithm._losses(minibatch)["kl_div"]) == pytest.approx(0.0, abs=1e-6)
        stats = algorithm.step()
        assert 0 <= stats["monitors/kl_div"] < 1
        assert stats["monitors/skipped_updates"] == 0


def test_what_weighs_nothing_may_be_impossible() -> None:
    """Whatever a policy of one's own makes of an invalid row, losses and gradients are finite."""
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    algorithm.collect()
    algorithm.estimate()
    minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
    expected = algorithm._losses(minibatch)
    minibatch.weight[:3] = 0.0
    minibatch.logp[:3] = torch.tensor([[math.inf], [-math.inf], [math.nan]])
    found = algorithm._losses(minibatch)
    assert expected.keys() == found.keys()
    assert all(x.isfinite() for x in found.values())
    found["total"].backward()
    assert algorithm.updater._norm().isfinite()


@pytest.mark.usefixtures("general")
@pytest.mark.parametrize("at", [0, 3])
def test_a_divergence_that_is_not_a_number_stops_the_update(at: int) -> None:
    algorithm = AlgorithmConfig(
        **SMALL, sgd_minibatch_size=16, num_sgd_iters=1, target_kl_div=1e9
    ).build(DiscreteDummyEnv)
    algorithm.collect()
    original, calls = algorithm._add_gradients, 0

    def broken(minibatch: Any) -> Any:
        nonlocal calls
        calls += 1
        found = original(minibatch)
        return found | {"kl_div": found["kl_div"] + (math.nan if calls > at else 0.0)}

    algorithm._add_gradients = broken  # type: ignore[method-assign]
    before = weights(algorithm)
    if at == 0:
        with pytest.raises(DivergedError, match="weights are as before"):
            algorithm.step()
        assert same(before, weights(algorithm))
    else:
        assert algorithm.step()["monitors/skipped_updates"] == 1
        assert not same(before, weights(algorithm))
    assert calls == at + 1


def test_a_divergence_that_is_not_a_number_is_too_large_for_the_learning_rate() -> None:
    algorithm = AlgorithmConfig(
        **SMALL,
        sgd_minibatch_size=64,
        num_sgd_iters=1,
        lr_schedule_kind="adaptive",
        target_kl_div=1e9,
        optimizer_config={"lr": 1e-3},
    ).build(DiscreteDummyEnv)
    algorithm.collect()
    # Two minibatches, and before the first the policy has not moved.
    assert algorithm.step()["coefficients/lr"] == pytest.approx(1.5e-3)
    original = algorithm._add_gradients
    nan = {"kl_div": torch.tensor(math.nan)}
    broken = lambda minibatch: original(minibatch) | nan  # noqa: E731
    algorithm._add_gradients = broken  # type: ignore[method-assign]
    algorithm.collect()
    assert algorithm.step()["coefficients/lr"] == pytest.approx(1e-3)


# ---- lost final observations ------------------------------------------------------------------


class LostFinal(Env):
    """Resets in the same step and has lost the final observation; `final_obs` may hold NaN."""

    def __init__(self, with_final: bool) -> None:
        super().__init__(3, 4)
        self.observation_spec = Unbounded(3)
        self.action_spec = DiscreteDummyEnv(1).action_spec
        keys = {"terminated", "truncated", "first"}
        self.episode_keys = frozenset(keys | {"final_obs"} if with_final else keys)

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.t = 0
        return self._obs()

    def _obs(self) -> torch.Tensor:
        return torch.arange(9.0).view(3, 3) + self.t

    def step(self, action: Any) -> TensorDict:
        self.t += 1
        truncated = torch.full((3, 1), self.t == 2)
        out = {
            "obs": self._obs(),
            "rewards": torch.ones(3, 1),
            "terminated": torch.zeros(3, 1, dtype=torch.bool),
            "truncated": truncated,
            "first": truncated,
            "final_obs": torch.where(truncated, torch.nan, self._obs()),
        }
        keys = {"obs", "rewards", *self.episode_keys}
        return TensorDict({k: out[k] for k in keys}, batch_size=[3])


@pytest.mark.parametrize("with_final", [True, False], ids=["NaN", "undeclared"])
@pytest.mark.parametrize("policy", ["mask", "approximate", "terminate"])
def test_missing_final_observations(policy: str, with_final: bool) -> None:
    algorithm = AlgorithmConfig(
        model_cls=KnownValue,
        normalize_advantages=False,
        normalize_rewards=False,
        gamma=0.5,
        on_missing_final=policy,
    ).build(LostFinal(with_final))
    stats = algorithm.collect()
    algorithm.step()
    values = algorithm.buffer["values"][:, 1]
    expected = {"mask": 0 * values, "approximate": 1 - 0.5 * values, "terminate": 1 - values}
    torch.testing.assert_close(algorithm.buffer["advantages"][:, 1], expected[policy])
    assert algorithm.rollout.known[1].all() == (policy != "mask")
    assert stats["episodes/return_mean"] == 2.0  # the lost row's reward counts


def test_missing_final_observations_can_be_an_error() -> None:
    algorithm = AlgorithmConfig(on_missing_final="error").build(LostFinal(False))
    with pytest.raises(EnvError, match="3 truncated rows have no final observation"):
        algorithm.collect()
    assert not algorithm.state.buffered


# ---- bad environments and models --------------------------------------------------------------

FLAGS = frozenset({"terminated", "truncated", "first"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outcome": {"obs": torch.zeros(4, 2)}}, r"`obs` with shape \[4, 2\]; expected \[4, 3\]"),
        ({"outcome": {"obs": torch.zeros(1, 3)}}, r"`obs` with shape \[1, 3\]"),
        ({"outcome": {"obs": torch.zeros(4, 3).double()}}, "`obs` with dtype torch.float64"),
        ({"outcome": {"obs": torch.zeros(4, 3, device="meta")}}, "`obs` with device meta"),
        ({"outcome": {"obs": [0.0]}}, "`obs` with type list"),
        ({"outcome": {"rewards": torch.ones(1)}}, r"`rewards` with shape \[1\]"),
        ({"outcome": {"rewards": torch.ones(4)}}, r"`rewards` with shape \[4\]"),
        ({"outcome": {"rewards": torch.ones(4, 1).long()}}, "`rewards` with dtype torch.int64"),
        ({"reset_obs": torch.zeros(3)}, r"`obs` with shape \[3\]"),
        ({"reset_obs": TensorDict({}, batch_size=[4])}, "expected a tensor"),
        (
            {"episode_keys": FLAGS, "outcome": {"truncated": torch.zeros(4, 1)}},
            "`truncated` with dtype torch.float32; expected torch.bool",
        ),
        (
            {"episode_keys": FLAGS, "outcome": {"first": torch.zeros(4).bool()}},
            r"`first` with shape \[4\]",
        ),
    ],
)
def test_lies_of_the_environment_are_named(arguments: dict[str, Any], message: str) -> None:
    algorithm = AlgorithmConfig().build(ConstantEnv(**arguments))
    before = weights(algorithm)
    with pytest.raises(EnvError, match=message):
        algorithm.collect()
    assert not algorithm.state.buffered
    assert same(before, weights(algorithm))


@pytest.mark.parametrize("key", ["obs", "rewards", "terminated"])
def test_missing_keys_are_named(key: str) -> None:
    env = ConstantEnv(episode_keys=FLAGS)
    del env.outcome[key]
    with pytest.raises(EnvError, match=f"'{key}' is missing"):
        AlgorithmConfig().build(env).collect()


def test_episode_keys_that_go_together() -> None:
    with pytest.raises(EnvError, match="go together"):
        AlgorithmConfig().build(ConstantEnv(episode_keys=frozenset({"terminated"})))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["obs", "rewards"])
@pytest.mark.parametrize(("env", "t"), [(0, 0), (3, 7), (2, 4)])
def test_numbers_that_are_not_finite_are_found(value: float, key: str, env: int, t: int) -> None:
    class Poisoned(ConstantEnv):
        def step(self, action: Any) -> Any:
            outcome = {k: v.clone() for k, v in super().step(action).items()}
            if self.steps == t + 1:
                outcome[key][env, -1] = value
            return outcome

    poisoned = Poisoned()
    algorithm = AlgorithmConfig().build(poisoned)
    before = weights(algorithm)
    with pytest.raises(NonFiniteError, match=f"`{key}` of environment {env} .* env step {t} "):
        algorithm.collect()
    with pytest.raises(NotBufferedError):
        algorithm.step()
    assert same(before, weights(algorithm))
    assert algorithm.collect()["env/resets"] == 4  # starts anew, and works


def test_a_rollout_that_was_refused_leaves_no_trace_in_the_statistics() -> None:
    class Once(ConstantEnv):
        def step(self, action: Any) -> Any:
            outcome = dict(super().step(action))
            if self.steps == 3:
                outcome["rewards"] = torch.full((4, 1), math.nan)
            return outcome

    yes = torch.ones(4, 1, dtype=torch.bool)
    flags = {"terminated": yes, "first": yes, "truncated": ~yes}
    algorithm = AlgorithmConfig().build(Once(episode_keys=FLAGS, outcome=flags))
    with pytest.raises(NonFiniteError):
        algorithm.collect()
    assert algorithm.episodes.finished == 0
    assert algorithm.collect()["episodes/return_mean_100"] == 1.0


@pytest.mark.parametrize("reward", [3.7, -16.3, 1000.1])
def test_equal_rewards_are_not_scaled_by_rounding(reward: float) -> None:
    outcome = {"rewards": torch.full((7, 1), reward), "obs": torch.zeros(7, 3)}
    algorithm = AlgorithmConfig().build(
        ConstantEnv(7, 1, outcome=outcome, reset_obs=torch.zeros(7, 3))
    )
    algorithm.collect()
    assert algorithm.state.reward_scale == 1.0


@pytest.mark.parametrize("outcome", [None, (1, 2), torch.zeros(4, 3)])
def test_outcomes_that_are_no_mappings_are_named(outcome: Any) -> None:
    env = ConstantEnv()
    env.step = lambda action: outcome  # type: ignore[method-assign]
    with pytest.raises(EnvError, match="must return a TensorDict; got"):
        AlgorithmConfig().build(env).collect()


def test_the_optimizers_own_zero_grad_breaks_nothing() -> None:
    def train(forget: bool) -> list[torch.Tensor]:
        algorithm = AlgorithmConfig(**SMALL, seed=4, max_grad_norm=0.1).build(ContinuousDummyEnv)
        for _ in range(3):
            algorithm.collect()
            if forget:
                algorithm.optimizer.zero_grad()
            algorithm.step()
        return weights(algorithm)

    assert same(train(True), train(False))


def test_a_policy_can_be_copied_after_an_update() -> None:
    algorithm = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    algorithm.collect()
    algorithm.step()
    assert copy.deepcopy(algorithm.policy).model._values is None
    assert algorithm.policy.model._values is not None


def test_storage_stays_where_it_is() -> None:
    """Addresses of everything that a captured graph would read and write."""
    env = GymnasiumEnv(gym.make_vec("CartPole-v1", num_envs=4), horizon=16)
    algorithm = AlgorithmConfig(sgd_minibatch_size=32).build(env)

    def addresses() -> list[int]:
        rollout = vars(algorithm.rollout).values()
        leaves = [x for v in rollout for x in (v if isinstance(v, tuple) else (v,))]
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        tensors += [algorithm.objective.entropy_coeff, *algorithm.episodes.state_dict().values()]
        for p in algorithm.policy.model.parameters():
            tensors += [p, p.grad]
        return [x.data_ptr() for x in tensors]

    before = addresses()
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
        assert addresses() == before
    algorithm.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    assert addresses() == before


def test_huge_numbers_are_finite() -> None:
    env = ConstantEnv(outcome={"obs": torch.full((4, 3), 3e38)}, reset_obs=torch.full((4, 3), 3e38))
    algorithm = AlgorithmConfig(model_cls=KnownValue).build(env)
    algorithm.collect()


def world(algorithm: Algorithm) -> tuple[bool, list[bool]]:
    return torch.is_grad_enabled(), [m.training for m in algorithm.policy.model.modules()]


@pytest.mark.parametrize("where", ["env", "reset", "model", "distribution", "outputs"])
@pytest.mark.parametrize("training", [True, False])
def test_exceptions_leave_the_world_as_it_was(where: str, training: bool) -> None:
    algorithm = AlgorithmConfig(**SMALL, horizons_per_env_reset=-1).build(DiscreteDummyEnv)
    algorithm.policy.model.train(training)
    algorithm.policy.model.vf_model.train(not training)  # mixed modes come back too
    before, calls = world(algorithm), 0
    target, name = {
        "env": (algorithm.env, "step"),
        "reset": (algorithm.env, "reset"),
        "model": (algorithm.policy.model, "value_function"),
        "distribution": (algorithm.policy, "act"),
        "outputs": (algorithm.policy.model.outputs, "forward"),
    }[where]
    original = getattr(target, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == {"reset": 1, "outputs": 2}.get(where, 3):
            raise ZeroDivisionError("in the middle")
        return original(*args, **kwargs)

    setattr(target, name, fail)
    with pytest.raises(ZeroDivisionError, match="in the middle"):
        algorithm.collect()
    assert world(algorithm) == before
    assert not algorithm.state.buffered
    assert algorithm.collect()["env/resets"] == 8  # the environment's place was lost
    algorithm.step()
    assert world(algorithm) == before


def test_an_exception_in_the_update_leaves_the_world_as_it_was() -> None:
    algorithm = AlgorithmConfig(**SMALL, sgd_minibatch_size=32).build(DiscreteDummyEnv)
    algorithm.collect()
    before, evaluate = world(algorithm), algorithm.policy.evaluate
    calls = iter([evaluate, evaluate, None])

    def fail(minibatch: Any) -> Any:
        call = next(calls)
        if call is None:
            raise ZeroDivisionError("in the middle")
        return call(minibatch)

    algorithm.policy.evaluate = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError, match="in the middle"):
        algorithm.step()
    algorithm.policy.evaluate = evaluate  # type: ignore[method-assign]
    assert world(algorithm) == before
    algorithm.collect()
    algorithm.step()


@pytest.mark.parametrize(
    "optimizer",
    [
        {},
        {"optimizer_cls": torch.optim.AdamW, "optimizer_config": {"lr": 1e-3}},
        {"optimizer_config": {"lr": 1e-3, "foreach": True}},
        {"optimizer_cls": torch.optim.RMSprop, "optimizer_config": {"lr": 1e-3}},
        {"optimizer_cls": torch.optim.SGD, "optimizer_config": {"lr": 0.1, "momentum": 0.9}},
    ],
    ids=["Adam", "AdamW", "Adam unfused", "RMSprop", "SGD"],
)
def test_gradients_that_are_not_finite_change_nothing(optimizer: dict[str, Any]) -> None:
    algorithm = AlgorithmConfig(**SMALL, **optimizer).build(DiscreteDummyEnv)
    algorithm.collect()
    algorithm.step()
    algorithm.collect()
    algorithm.rollout.logp[3, 2] = -math.inf  # the ratio is infinite
    before = weights(algorithm)
    moments = copy.deepcopy(algorithm.optimizer.state_dict()["state"])
    with pytest.raises(DivergedError, match="weights are as before"):
        algorithm.step()
    assert same(before, weights(algorithm))
    for old, new in zip(
        moments.values(), algorithm.optimizer.state_dict()["state"].values(), strict=True
    ):
        assert all(torch.equal(old[k], new[k]) for k in old)
    algorithm.collect()
    algorithm.step()
    assert not same(before, weights(algorithm))


class WrongShape(Model):
    """A model whose values have lost their column."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.logits = torch.nn.Linear(1, 2)

    def forward(self, batch: Any, /) -> Any:
        self._value = batch["obs"].squeeze(-1)
        return {"logits": self.logits(batch["obs"]).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self._value


def test_models_of_the_wrong_shape_are_refused_at_build() -> None:
    with pytest.raises(ConfigError, match=r"values have shape \[8\]; expected \[8, 1\]"):
        AlgorithmConfig(num_envs=8, model_cls=WrongShape).build(DiscreteDummyEnv)


def test_validation_touches_neither_environment_nor_generators() -> None:
    env = ConstantEnv()
    torch.manual_seed(0)
    algorithm = Algorithm(env)
    state = torch.get_rng_state()
    algorithm.validate()
    assert torch.equal(torch.get_rng_state(), state)
    assert env.steps == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sgd_minibatch_size": 100}, "must divide the 128 .* got 100. Try 64 or 128"),
        ({"accumulate_grads": True}, "more than one minibatch"),
        ({"accumulate_grads": True, "target_kl_div": 0.1, "sgd_minibatch_size": 8}, "drop one"),
        ({"horizons_per_env_reset": 0}, "must not be 0"),
        ({"gamma": 1.5}, r"`gamma`: expected float in \(0, 1\] or 'auto'; got 1.5"),
        ({"gamma": math.nan}, "`gamma`"),
        ({"clip_param": 1.0}, "`clip_param`"),
        ({"dual_clip_param": 1.0}, "`dual_clip_param`"),
        ({"lr_schedule": [(5, 1e-3)]}, "must start at 0"),
        ({"lr_schedule": [(0, 1e-3), (10, 1e-4), (5, 1e-5)]}, "count env steps upwards"),
        ({"shuffle_minibatches": "false"}, "`shuffle_minibatches`: expected bool"),
        ({"num_envs": 0}, "`num_envs`: expected int > 0 or 'auto'"),
        ({"optimizer_cls": "Adam"}, "`optimizer_cls`: expected a subclass of Optimizer"),
        ({"model": torch.nn.Linear(1, 1), "model_cls": WrongShape}, "mutually exclusive"),
    ],
)
def test_bad_hyperparameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**{**SMALL, **options}).build(DiscreteDummyEnv)


@pytest.mark.parametrize("options", [{"sgd_minibatch_size": 7}, {"model_cls": WrongShape}])
def test_an_environment_made_for_a_build_that_fails_is_closed(options: dict[str, Any]) -> None:
    closed = []

    class Closing(DiscreteDummyEnv):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ConfigError):
        AlgorithmConfig(num_envs=8, **options).build(Closing)
    assert len(closed) == 1
    with pytest.raises(ConfigError):
        AlgorithmConfig(**options).build(Closing(8, 4))
    assert len(closed) == 1  # the caller's own stays open


def test_a_distribution_that_does_not_fit_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot act on an observation of zeros: Normal needs 'mean', which"
    ):
        AlgorithmConfig(num_envs=8, distribution_cls=Normal).build(DiscreteDummyEnv)


def test_all_bad_hyperparameters_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        AlgorithmConfig(gamma=2.0, horizon=0, vf_coeff=-1.0).build(DiscreteDummyEnv)
    assert len(caught.value.problems) == 3


def test_a_config_that_contradicts_a_made_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="`num_envs` is 9, but the environment has 4"):
        AlgorithmConfig(num_envs=9).build(ConstantEnv())


def test_specs_without_a_default_say_what_to_set() -> None:
    class Integers(ConstantEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_spec = Unbounded(3, dtype=torch.int64)

    with pytest.raises(ConfigError, match="model_cls"):
        AlgorithmConfig().build(Integers())


# ---- precision and state ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_amp_trains_close_to_full_precision(dtype: str) -> None:
    def train(**options: Any) -> tuple[Algorithm, dict[str, float]]:
        algorithm = AlgorithmConfig(**SMALL, seed=2, num_sgd_iters=1, **options).build(
            ContinuousDummyEnv
        )
        start, first = weights(algorithm), {}
        for _ in range(20):  # gradient scaling begins too high, and skips until it fits
            algorithm.collect()
            stats = dict(algorithm.step())
            first = first or stats  # of the same weights: nothing has been learned before it
        assert not same(start, weights(algorithm))
        return algorithm, first

    _, full = train()
    algorithm, half = train(enable_amp=True, amp_dtype=dtype)
    assert algorithm.grad_scaler.is_enabled() == (dtype == "float16")
    assert algorithm.buffer["logp"].dtype == torch.float32
    assert half["losses/vf"] == pytest.approx(full["losses/vf"], rel=0.05)
    assert not torch.is_autocast_enabled("cpu")


def test_resuming_from_a_state_is_exact_where_the_environment_has_one() -> None:
    class Remembering(DiscreteDummyEnv):
        def state_dict(self) -> dict[str, Any]:
            return {"state": self.state.clone()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state["state"].clone()

    def build() -> Algorithm:
        return AlgorithmConfig(
            **SMALL, seed=1, horizons_per_env_reset=-1, sgd_minibatch_size=32
        ).build(Remembering)

    def train(algorithm: Algorithm, updates: int) -> list[torch.Tensor]:
        for _ in range(updates):
            algorithm.collect()
            algorithm.step()
        return weights(algorithm)

    first = build()
    train(first, 2)
    state = copy.deepcopy(first.state_dict())
    expected = train(first, 3)
    second = build()
    second.load_state_dict(state)
    assert same(train(second, 3), expected)


def test_evaluating_leaves_no_trace() -> None:
    script = [[Episode(10, TERMINATED)]] * 2
    env = GymnasiumEnv(scripted_vector_env(script, AutoresetMode.SAME_STEP), horizon=8)
    algorithm = AlgorithmConfig(horizons_per_env_reset=-1).build(env)
    algorithm.collect()
    with algorithm.evaluating():
        assert algorithm.collect(deterministic=True)["episodes/count"] == 2
    assert algorithm.episodes.finished == 0
    with pytest.raises(NotBufferedError):
        algorithm.step()
    # Episodes that were open are still those of the environment: 10 env steps long.
    stats = algorithm.collect()
    assert stats["episodes/length_mean"] == 10
    assert algorithm.episodes.finished == 2


def test_evaluating_leaves_the_scale_of_rewards_alone() -> None:
    algorithm = AlgorithmConfig(**SMALL).build(ContinuousDummyEnv)
    algorithm.collect()
    scale = algorithm.state.reward_scale
    with algorithm.evaluating():
        algorithm.collect(deterministic=True)
        assert algorithm.state.reward_scale != scale
    assert algorithm.state.reward_scale == scale


class DuckTyped:
    """An environment of rl8's protocol that knows nothing of episodes, and no base class."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        self.num_envs, self.horizon, self.device = num_envs, horizon, device
        self.inner = DiscreteDummyEnv(num_envs, horizon, device=device)
        self.observation_spec = self.inner.observation_spec
        self.action_spec = self.inner.action_spec
        self.reset, self.step = self.inner.reset, self.inner.step


@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_an_environment_need_not_know_of_episodes(config_cls: Any) -> None:
    algorithm = config_cls(num_envs=4, horizon=8).build(DuckTyped)
    assert algorithm.hparams.horizons_per_env_reset == 1
    algorithm.collect()
    algorithm.step()
    stats = evaluate(algorithm.policy, cast(Env, DuckTyped(4, 8)), episodes=6)
    assert stats["episodes/length_mean"] == 8


def test_episode_statistics_are_absent_where_none_ended() -> None:
    env = GymnasiumEnv(
        scripted_vector_env([[Episode(10, TERMINATED)]] * 2, AutoresetMode.SAME_STEP), horizon=8
    )
    algorithm = AlgorithmConfig(horizons_per_env_reset=-1).build(env)
    first, second = algorithm.collect(), algorithm.collect()
    assert not [key for key in first if key.startswith("episodes/")]
    assert second["episodes/count"] == 2
    assert second["episodes/length_mean"] == 10


@pytest.mark.gpu
@pytest.mark.parametrize("env_cls", [ContinuousDummyEnv, DiscreteDummyEnv])
def test_training_on_cuda(env_cls: type[Env]) -> None:
    algorithm = AlgorithmConfig(**SMALL, seed=0, device="cuda", sgd_minibatch_size=32).build(
        env_cls
    )
    before = weights(algorithm)
    for _ in range(3):
        algorithm.collect()
        stats = algorithm.step()
    assert algorithm.buffer.device.type == "cuda"
    assert math.isfinite(stats["losses/total"])
    assert not same(before, weights(algorithm))


on_every_device = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)


class Counting(Env):
    """Observes the env step, and is rewarded by it, both in float64."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2, dtype=torch.float64, device=torch.device(device))
        self.action_spec = Bounded(-1.0, 1.0, 1, device=torch.device(device))

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        self.t = 0
        return self.observation_spec.zero([self.num_envs])

    def step(self, action: Any) -> TensorDict:
        self.t += 1
        obs = torch.full((self.num_envs, 2), self.t + 0.1, dtype=torch.float64, device=self.device)
        return TensorDict({"obs": obs, "rewards": 10 * obs[:, :1]}, [self.num_envs])


@on_every_device
def test_what_an_environment_returns_is_kept_in_the_rollouts_dtypes(device: str) -> None:
    algorithm = AlgorithmConfig(**SMALL, device=device, normalize_rewards=False).build(Counting)
    algorithm.collect()
    steps = torch.arange(1.0, 17.0)
    obs, rewards = algorithm.rollout.obs[0].cpu(), algorithm.rollout.rewards.cpu()
    assert obs.dtype is torch.float64
    assert rewards.dtype is torch.float32
    assert torch.equal(obs[1:17], (steps.double() + 0.1).view(16, 1, 1).expand(16, 8, 2))
    torch.testing.assert_close(rewards[:16], (10 * steps + 1).view(16, 1, 1).expand(16, 8, 1))


@on_every_device
def test_a_memory_may_have_learning_rates_of_its_own(device: str) -> None:
    """Whose parameters are found by differentiating in eval mode, which cuDNN refuses."""
    enabled = torch.backends.cudnn.enabled
    algorithm = RecurrentAlgorithmConfig(
        num_envs=4,
        horizon=8,
        device=device,
        model_config={"hidden_size": 8},
        optimizer_config={"lr_pi": 1e-3, "lr_v": 1e-2},
    ).build(DiscreteDummyEnv)
    algorithm.collect()
    algorithm.step()
    assert torch.backends.cudnn.enabled is enabled
    rates = [float(group["lr"]) for group in algorithm.optimizer.param_groups]
    assert rates == pytest.approx([1e-3, 1e-2])
