"""Bonuses: streams of rewards, and random network distillation against references written here."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Bounded, Categorical, Composite, Unbounded

from everstep import (
    AlgorithmConfig,
    DiscreteDummyEnv,
    RecurrentAlgorithmConfig,
    TrainConfig,
    Trainer,
)
from everstep.bonuses import Bonus, RandomNetworkDistillation, Stream
from everstep.core.advantages import gae, values_beyond
from everstep.core.rollouts import Sequences
from everstep.distributions import Normal
from everstep.env import ContinuousDummyEnv, Env
from everstep.errors import CheckpointError, ConfigError, NonFiniteError
from everstep.models import DefaultContinuousModel, DefaultDiscreteModel, Model
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.toys import TERMINATED, TRUNCATED, Episode, scripted_vector_env

FEW: dict[str, Any] = {"pre_normalization_steps": 0}
SMALL: dict[str, Any] = {"num_envs": 6, "horizon": 8, "seed": 0}


class Counted(Bonus):
    """Rewards that are written down beforehand: 1, 2, 3, … over the rows of a rollout."""

    name = "counted"

    def __init__(self, stream: Stream, extrinsic_weight: float = 1.0) -> None:
        super().__init__()
        self.stream, self.extrinsic_weight = stream, extrinsic_weight

    def build(self, observation_spec: Any, num_envs: int, device: torch.device) -> None:
        self.weight = nn.Parameter(torch.zeros(()))

    def rewards(self, rollout: Any) -> torch.Tensor:
        count = rollout.horizon * rollout.num_envs
        rows = torch.arange(1.0, count + 1, dtype=rollout.dtype)
        return rows.view(rollout.horizon, rollout.num_envs, 1).sin()

    def losses(self, minibatch: Any) -> torch.Tensor:
        return (self.weight - 1).square()


def named_bonus(name: Any) -> Bonus:
    return type("Other", (Counted,), {"name": name})(Stream(0.9))


SCRIPTS = [
    [Episode(4, TERMINATED), Episode(2, TRUNCATED)],
    [Episode(1, TRUNCATED), Episode(3, TERMINATED)],
    [Episode(50, TERMINATED)],
]


class TwoValues(Model):
    """Two columns of values that are fixed functions of the observation; a uniform policy."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, batch: TensorDict, /) -> Any:
        self.obs = batch["obs"]
        logits = torch.zeros(len(self.obs), 1, 2) + 0 * self.unused
        return TensorDict({"logits": logits}, batch.batch_size)

    def value_function(self) -> torch.Tensor:
        mixed = self.obs @ torch.tensor([[1.0, 0.3], [2.0, 1.1], [0.7, 1.9]])
        return mixed.cos() + 0 * self.unused


# ---- streams ---------------------------------------------------------------------------------


def caches_of(bonuses: Any) -> dict[str, Any]:
    return {bonus.name: bonus.cache for bonus in bonuses}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("episodic", [True, False])
def test_each_stream_has_its_own_returns(mode: AutoresetMode, episodic: bool) -> None:
    bonus = Counted(Stream(0.7, weight=0.5, episodic=episodic), extrinsic_weight=2.0)
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS, mode), horizon=12)
    algorithm = AlgorithmConfig(
        model_cls=TwoValues,
        gamma=0.9,
        gae_lambda=0.8,
        normalize_advantages=False,
        normalize_rewards=False,
        bonuses=[bonus],
    ).build(env)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
        rollout = algorithm.rollout
        for n in range(3):
            extrinsic = reference(rollout, n, 0, gamma=0.9, episodic=True)
            intrinsic = reference(rollout, n, 1, gamma=0.7, episodic=episodic)
            valid = rollout.valid[:, n, 0]
            found = rollout.advantages[:-1, n, 0][valid]
            expected = 2.0 * extrinsic + 0.5 * intrinsic
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def reference(rollout: Any, n: int, k: int, *, gamma: float, episodic: bool) -> torch.Tensor:
    """Advantages of one stream of one environment, row by row; invalid rows do not exist."""
    rows = [t for t in range(rollout.horizon) if rollout.valid[t, n, 0]]
    done = [bool(rollout.done[t, n, 0]) for t in rows]
    advantages, following = [], 0.0
    for i in reversed(range(len(rows))):
        t = rows[i]
        if episodic and rollout.terminated[t, n, 0]:
            beyond = 0.0
        elif episodic and rollout.final[t, n, 0]:
            beyond = float(rollout.final_values[t, n, k])
        elif episodic and done[i]:
            beyond = float(rollout.values[t + 1, n, k])
        else:  # the value of the next observation that is acted on
            after = rows[i + 1] if i + 1 < len(rows) else rollout.horizon
            beyond = float(rollout.values[after, n, k])
        delta = float(rollout.rewards[t, n, k]) + gamma * beyond - float(rollout.values[t, n, k])
        following = delta + (0.0 if episodic and done[i] else gamma * 0.8 * following)
        advantages.append(following)
    return torch.tensor(advantages[::-1])


@pytest.mark.usefixtures("float64")
def test_rows_that_are_passed_are_as_if_they_were_not_there() -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(9, 1, 1), torch.randn(10, 1, 1)
    valid = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=torch.bool).view(9, 1, 1)
    never = torch.zeros(9, 1, 1, dtype=torch.bool)
    found = gae(
        rewards,
        values[:-1],
        values_beyond(values, valid),
        never,
        gamma=0.9,
        gae_lambda=0.8,
        passed=~valid,
    )
    kept = valid.flatten()
    last = torch.cat([kept, torch.tensor([True])])
    alone = gae(
        rewards[kept],
        values[last][:-1],
        values[last][1:],
        never[kept],
        gamma=0.9,
        gae_lambda=0.8,
    )
    torch.testing.assert_close(found[kept], alone, rtol=0, atol=1e-12)


def test_without_extrinsic_rewards_there_is_no_extrinsic_advantage() -> None:
    class Nothing(DiscreteDummyEnv):
        def step(self, action: Any) -> TensorDict:
            out = super().step(action)
            return out.set("rewards", torch.zeros_like(out["rewards"]))

    def collected(**options: Any) -> torch.Tensor:
        bonus = RandomNetworkDistillation(**FEW, **options)
        algorithm = AlgorithmConfig(**SMALL, bonuses=[bonus], model_cls=ZeroValues).build(Nothing)
        algorithm.collect()
        algorithm.estimate()
        return algorithm.rollout.advantages.clone()

    # Not even normalising makes noise of nothing: a thousandfold weight changes nothing.
    torch.testing.assert_close(collected(ext_adv_coeff=2.0), collected(ext_adv_coeff=2000.0))


class ZeroValues(Model):
    """Values of 0; logits that are learned."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, num_values: int = 1) -> None:
        super().__init__(observation_spec, action_spec, num_values=num_values)
        self.logits, self.columns = nn.Parameter(torch.zeros(1, 1, 2)), num_values

    def forward(self, batch: TensorDict, /) -> Any:
        self.rows = batch.batch_size[0]
        return TensorDict({"logits": self.logits.expand(self.rows, 1, 2)}, batch.batch_size)

    def value_function(self) -> torch.Tensor:
        return torch.zeros(self.rows, self.columns)


# ---- values ----------------------------------------------------------------------------------


class Linear(Model):
    """A model that knows of one stream only."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.policy, self.vf = nn.Linear(1, 2), nn.Linear(1, 1)

    def forward(self, batch: TensorDict, /) -> Any:
        self.seen = batch["obs"]
        return TensorDict({"logits": self.policy(self.seen).unsqueeze(1)}, batch.batch_size)

    def value_function(self) -> torch.Tensor:
        return self.vf(self.seen)


def test_a_model_of_one_value_gets_a_critic_beside_it() -> None:
    bonus = RandomNetworkDistillation(**FEW)
    algorithm = AlgorithmConfig(**SMALL, model_cls=Linear, bonuses=[bonus]).build(DiscreteDummyEnv)
    algorithm.validate()
    assert bonus.critic is not None
    before = [p.detach().clone() for p in bonus.critic.parameters()]
    algorithm.collect()
    algorithm.step()
    assert algorithm.rollout.values.shape[-1] == 2
    moved = [not torch.equal(a, b) for a, b in zip(before, bonus.critic.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.parametrize("recurrent", [False, True])
def test_default_models_value_every_stream_themselves(recurrent: bool) -> None:
    config_cls = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    bonus = RandomNetworkDistillation(**FEW)
    algorithm = config_cls(**SMALL, bonuses=[bonus]).build(DiscreteDummyEnv)
    assert bonus.critic is None
    algorithm.collect()
    stats = algorithm.step()
    assert algorithm.rollout.values[..., 1].abs().max() > 0
    assert stats["losses/rnd"] > 0  # type: ignore[typeddict-item]


def test_a_model_of_another_width_is_told() -> None:
    with pytest.raises(ConfigError, match=r"gives values \[B, 2\]; expected \[B, 1\], or \[B, 3\]"):
        AlgorithmConfig(
            num_envs=2,
            horizon=4,
            model_cls=TwoValues,
            bonuses=[Counted(Stream(0.9)), RandomNetworkDistillation(ext_adv_coeff=1.0, **FEW)],
        ).build(GymnasiumEnv(scripted_vector_env(SCRIPTS[:2], AutoresetMode.SAME_STEP)))


# ---- random network distillation -------------------------------------------------------------


def distilling(env_cls: Any = DiscreteDummyEnv, **options: Any) -> tuple[Any, Any]:
    bonus = RandomNetworkDistillation(**{**FEW, **options})
    return AlgorithmConfig(**SMALL, bonuses=[bonus]).build(env_cls), bonus


@torch.no_grad()
def novelty(bonus: Any, obs: Any) -> torch.Tensor:
    """Mean squared errors of the predictor, `[R, 1]`."""
    seen = bonus._normalized(obs)
    return (bonus.predictor(seen) - bonus.target(seen)).square().mean(-1, keepdim=True)


def test_rewards_are_filtered_errors_of_the_predictor() -> None:
    algorithm, bonus = distilling(gamma_intrinsic=0.8)
    sums, seen = np.zeros(6), []
    for _ in range(3):
        algorithm.collect()
        rollout = algorithm.rollout
        moments = bonus.moments["0"]
        mean, std = moments.mean.numpy(), np.sqrt(moments.var.numpy() + 1e-8)
        normalized = np.clip((rollout.obs[0][1:].numpy() - mean) / std, -5, 5)
        inputs = torch.from_numpy(normalized).float().flatten(0, 1)
        with torch.no_grad():
            difference = bonus.predictor((inputs,)) - bonus.target((inputs,))
        errors = difference.square().mean(-1).view(8, 6).numpy()
        for row in errors:
            sums = row + 0.8 * sums
            seen.append(sums)
        expected = errors / np.sqrt(np.var(np.concatenate(seen)) + 1e-8)
        found = rollout.rewards[:-1, :, 1]
        torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-5)
        algorithm.step()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("episodic", [False, True])
def test_discounted_sums_are_those_of_a_walk_over_the_rows(
    mode: AutoresetMode, episodic: bool
) -> None:
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS, mode), horizon=9)
    bonus = RandomNetworkDistillation(gamma_intrinsic=0.9, episodic=episodic, **FEW)
    algorithm = AlgorithmConfig(bonuses=[bonus]).build(env)
    so_far, carried = [0.0] * 3, 0.0
    for _ in range(4):
        algorithm.collect()
        rollout = algorithm.rollout
        bonus.sums.copy_(torch.tensor(so_far).unsqueeze(-1))
        rewards = torch.randn(9, 3, 1).masked_fill(~rollout.valid, float("nan"))
        found = bonus._discounted(rewards, rollout)
        for n in range(3):
            for t in range(9):
                if rollout.valid[t, n]:
                    so_far[n] = float(rewards[t, n]) + 0.9 * so_far[n]
                assert abs(float(found[t, n]) - so_far[n]) <= 1e-12
                so_far[n] *= not (episodic and rollout.done[t, n])
        carried += sum(map(abs, so_far))
        expected = torch.tensor(so_far).unsqueeze(-1)
        torch.testing.assert_close(bonus.sums, expected, rtol=0, atol=1e-12)
    assert carried > 0


def test_the_bonus_belongs_to_what_the_action_led_to() -> None:
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS, AutoresetMode.SAME_STEP), horizon=8)
    bonus = RandomNetworkDistillation(**FEW)
    algorithm = AlgorithmConfig(bonuses=[bonus]).build(env)
    algorithm.collect()
    rollout = algorithm.rollout
    assert rollout.ends.any()
    led_to = torch.where(rollout.ends, rollout.final_obs[0], rollout.obs[0][1:]).flatten(0, 1)
    assert torch.equal(rollout.next_obs(0, 8)[0], led_to)
    errors = novelty(bonus, (led_to,)).view(8, 3, 1)
    scale = bonus.spread.std.float()
    torch.testing.assert_close(rollout.rewards[:-1, :, 1:], errors / scale)
    (minibatch,) = algorithm.policy.sequences(
        rollout, cache=caches_of(algorithm.bonuses)
    ).minibatches(24, shuffle=False, joint=False, permute=torch.randperm)
    assert torch.equal(minibatch.next_obs[0], led_to)


def test_a_lost_final_observation_earns_nothing() -> None:
    algorithm, bonus = distilling(Losing)
    algorithm.collect()
    rollout = algorithm.rollout
    lost = rollout.done & rollout.first
    assert lost.any()
    assert not rollout.next_known[lost].any()
    assert rollout.rewards[:-1, :, 1:][lost].abs().max() == 0
    assert algorithm.step()["losses/rnd"] > 0
    assert bonus.moments["0"].count == int((~lost).sum())


def test_the_predictor_does_not_learn_from_what_is_not_known() -> None:
    """Not even where the row itself is learned from, without what followed it."""
    bonus = RandomNetworkDistillation(**FEW)
    config = AlgorithmConfig(**SMALL, bonuses=[bonus], on_missing_final="terminate")
    algorithm = config.build(Losing)
    algorithm.collect()
    rollout = algorithm.rollout
    lost = rollout.ends.flatten()
    assert rollout.known.all()
    minibatch = Sequences(rollout, rollout.valid, cache={"rnd": bonus.cache}).select(None)
    assert (minibatch.weight == 1 / 48).all()
    errors = novelty(bonus, minibatch.next_obs).flatten()
    expected = errors[~lost].sum() / 48
    torch.testing.assert_close(bonus.losses(minibatch).detach(), expected)
    assert errors[lost].min() > 0


@pytest.mark.parametrize("policy", ["mask", "approximate", "terminate"])
def test_a_final_observation_that_is_not_finite_reaches_no_gradient(policy: Any) -> None:
    class NaN(Losing):
        episode_keys = Losing.episode_keys | {"final_obs"}

        def step(self, action: Any) -> TensorDict:
            out = super().step(action)
            return out.set("final_obs", out["obs"].where(~out["first"], torch.nan))

    bonus = RandomNetworkDistillation(**FEW)
    config = AlgorithmConfig(**SMALL, bonuses=[bonus], on_missing_final=policy)
    algorithm = config.build(NaN)
    algorithm.collect()
    assert algorithm.step()["monitors/skipped_updates"] == 0


def test_the_rows_of_a_share_keep_their_weights() -> None:
    """Rows without weight are drawn as often; those that are drawn count for all that there are."""
    algorithm, bonus = distilling(predictor_proportion=0.5)
    algorithm.collect()
    rollout = algorithm.rollout
    valid = torch.rand(8, 6, 1) < 0.5
    minibatch = Sequences(rollout, valid, cache={"rnd": bonus.cache}).select(None)
    errors, weight = novelty(bonus, minibatch.next_obs), minibatch.weight
    torch.manual_seed(7)
    found = bonus.losses(minibatch)
    torch.manual_seed(7)
    chosen = torch.randperm(48)[:24]
    chosen = chosen[valid.flatten()[chosen]]
    assert 0 < len(chosen) < 24
    torch.testing.assert_close(weight.sum(), torch.tensor(1.0))
    torch.testing.assert_close(found.detach(), errors[chosen].mean())


def test_its_stream_has_the_discount_and_the_weights_that_are_given() -> None:
    bonus = RandomNetworkDistillation(
        gamma_intrinsic=0.8, int_adv_coeff=0.3, ext_adv_coeff=1.7, episodic=True, **FEW
    )
    assert bonus.stream == Stream(0.8, 0.3, True)
    assert bonus.extrinsic_weight == 1.7


@pytest.mark.usefixtures("float64")
def test_rewards_are_divided_by_the_spread_of_sums_in_valid_rows() -> None:
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS, AutoresetMode.NEXT_STEP), horizon=9)
    bonus = RandomNetworkDistillation(gamma_intrinsic=0.9, **FEW)
    algorithm = AlgorithmConfig(bonuses=[bonus]).build(env)
    sums, seen = [0.0] * 3, []
    for _ in range(3):
        algorithm.collect()
        rollout = algorithm.rollout
        assert not rollout.valid.all()
        errors = rollout.rewards[:-1, :, 1] * bonus.spread.std
        assert not errors[~rollout.valid[..., 0]].any()
        for t in range(9):
            for n in range(3):
                if rollout.valid[t, n]:
                    sums[n] = float(errors[t, n]) + 0.9 * sums[n]
                    seen.append(sums[n])
        assert bonus.spread.count == len(seen)
        assert float(bonus.spread.var) == pytest.approx(np.var(seen), rel=1e-9)


class Losing(DiscreteDummyEnv):
    """Every third env step ends an episode, and its final observation is lost."""

    episode_keys = frozenset({"terminated", "truncated", "first"})

    def step(self, action: Any) -> TensorDict:
        out = super().step(action)
        self.t = getattr(self, "t", 0) + 1
        done = torch.full((self.num_envs, 1), self.t % 3 == 0)
        return out.update({"terminated": done & False, "truncated": done, "first": done})


def test_the_predictor_learns_from_a_share_of_the_rows() -> None:
    algorithm, bonus = distilling(predictor_proportion=0.25)
    algorithm.collect()
    algorithm.estimate()
    (minibatch,) = algorithm.policy.sequences(
        algorithm.rollout, cache=caches_of(algorithm.bonuses)
    ).minibatches(48, shuffle=False, joint=False, permute=torch.randperm)
    errors = novelty(bonus, minibatch.next_obs)
    torch.manual_seed(7)
    found = bonus.losses(minibatch)
    torch.manual_seed(7)
    chosen = torch.randperm(48)[:12]
    torch.testing.assert_close(found.detach(), errors[chosen].mean())


class Counting(nn.Linear):
    """Counts the rows that it is asked about."""

    def __init__(self, spec: Any, /) -> None:
        super().__init__(spec.shape.numel(), 3)
        self.rows = 0

    def forward(self, leaves: Any) -> torch.Tensor:  # type: ignore[override]
        self.rows += len(leaves[0])
        return super().forward(leaves[0])


@pytest.mark.parametrize(("proportion", "rows"), [(0.25, 12), (1.0, 48)])
def test_what_the_predictor_does_not_learn_from_costs_nothing(proportion: float, rows: int) -> None:
    algorithm, bonus = distilling(network_cls=Counting, predictor_proportion=proportion)
    algorithm.collect()
    bonus.predictor.rows = bonus.target.rows = 0
    algorithm.step()
    assert bonus.predictor.rows == algorithm.hparams.num_sgd_iters * rows
    assert bonus.target.rows == 0


@pytest.mark.usefixtures("float64")
def test_the_losses_of_chunks_add_up() -> None:
    algorithm, bonus = distilling(Losing, predictor_proportion=1.0)
    algorithm.collect()
    algorithm.estimate()
    sequences = algorithm.policy.sequences(algorithm.rollout, cache=caches_of(algorithm.bonuses))
    whole = bonus.losses(sequences.select(None))
    cuts = [slice(0, 7), slice(7, 30), slice(30, 48)]
    parts = [bonus.losses(sequences.select(cut, sequences.learnable)) for cut in cuts]
    torch.testing.assert_close(sum(parts), whole, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_seen_earns_less_than_the_unseen() -> None:
    algorithm, bonus = distilling(Corner)
    for _ in range(60):
        algorithm.collect()
        algorithm.step()
    near = torch.rand(64, 2)
    seen, unseen = (novelty(bonus, (near + shift,)).mean() for shift in (0.0, 1.5))
    assert unseen > 5 * seen


class Corner(Env):
    """Observes points of the unit square, whatever is done."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(2)
        self.action_spec = Categorical(2, shape=torch.Size([1]))

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return torch.rand(self.num_envs, 2)

    def step(self, action: Any) -> TensorDict:
        rewards = torch.zeros(self.num_envs, 1)
        return TensorDict({"obs": self.reset(), "rewards": rewards}, [self.num_envs])


OBSERVED = {
    "vector": Unbounded(3),
    "grey": Bounded(0, 255, (1, 36, 36), dtype=torch.uint8),
    "RGB": Bounded(0, 255, (3, 36, 36), dtype=torch.uint8),
    "mapping": Composite({"place": Unbounded(2), "choice": Categorical(4, shape=torch.Size([1]))}),
}


class Random(Env):
    """Observes samples of a spec."""

    def __init__(self, spec: Any, num_envs: int, /, horizon: Any = None, **_: Any) -> None:
        super().__init__(num_envs, horizon)
        self.observation_spec, self.seen = spec, []
        self.action_spec = Categorical(2, shape=torch.Size([1]))

    def reset(self, *, config: Any = None) -> Any:
        return self.observation_spec.rand(torch.Size([self.num_envs]))

    def step(self, action: Any) -> TensorDict:
        obs = self.reset()
        self.seen.append(obs)
        rewards = torch.zeros(self.num_envs, 1)
        return TensorDict({"obs": obs, "rewards": rewards}, [self.num_envs])


@pytest.mark.parametrize("kind", OBSERVED)
def test_statistics_are_those_of_all_observations_feature_by_feature(kind: str) -> None:
    env = Random(OBSERVED[kind], 4, 3)
    bonus = RandomNetworkDistillation(pre_normalization_steps=2, pre_normalization_length=2)
    algorithm = AlgorithmConfig(bonuses=[bonus], num_sgd_iters=1, seed=0).build(env)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    seen = torch.stack(env.seen)
    leaf = seen["place"] if kind == "mapping" else seen
    rows = leaf.flatten(0, 1).double()
    place = "0" if kind != "mapping" else str(list(OBSERVED[kind].keys()).index("place"))
    moments = bonus.moments[place]
    assert len(bonus.moments) == 1
    assert moments.count == 4 * (2 * 2 + 2 * 3)
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.var.sqrt(), rows.std(0, correction=0))


def test_the_target_never_changes() -> None:
    algorithm, bonus = distilling()

    def fingerprint(module: nn.Module) -> str:
        raw = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
        return hashlib.sha256(raw).hexdigest()

    target, predictor = fingerprint(bonus.target), fingerprint(bonus.predictor)
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
    assert fingerprint(bonus.target) == target
    assert fingerprint(bonus.predictor) != predictor


def test_the_target_does_not_decay() -> None:
    bonus = RandomNetworkDistillation(**FEW)
    config = AlgorithmConfig(
        **SMALL,
        bonuses=[bonus],
        optimizer_cls=torch.optim.AdamW,
        optimizer_config={"lr": 0.01, "weight_decay": 0.1},
    )
    algorithm = config.build(DiscreteDummyEnv)
    before = [p.clone() for p in bonus.target.parameters()]
    algorithm.collect()
    algorithm.step()
    assert all(map(torch.equal, before, bonus.target.parameters()))


def test_networks_may_be_ones_own() -> None:
    class Own(nn.Module):
        def __init__(self, spec: Any, width: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(spec.shape[0], width), nn.ReLU(), nn.Linear(width, 5)
            )

        def forward(self, leaves: Any) -> torch.Tensor:
            return self.layers(leaves[0])

    algorithm, bonus = distilling(
        network_cls=Own, target_config={"width": 4}, predictor_config={"width": 9}
    )
    algorithm.collect()
    assert algorithm.step()["losses/rnd"] > 0
    assert bonus.predictor.layers[0].out_features == 9
    with pytest.raises(ConfigError, match="bonuses"):
        distilling(network_cls=Own)


# ---- as part of training ---------------------------------------------------------------------


def test_training_goes_on_exactly_from_its_state() -> None:
    def build() -> Any:
        return distilling()[0]

    whole, first, second = build(), build(), build()
    torch.manual_seed(1)
    for algorithm in (whole, first):
        torch.manual_seed(1)
        for _ in range(2):
            algorithm.collect()
            algorithm.step()
    state = first.state_dict()
    second.load_state_dict(state)
    found = []
    for algorithm in (whole, second):
        torch.manual_seed(2)
        algorithm.states = None
        algorithm.collect()
        found.append({**algorithm.step(), "profiling/step_ms": 0})
    assert found[0] == found[1]
    plain = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    with pytest.raises(CheckpointError, match="bonuses"):
        plain.load_state_dict(state)


def test_a_rollout_that_failed_leaves_no_trace() -> None:
    class Failing(DiscreteDummyEnv):
        fails = False

        def step(self, action: Any) -> TensorDict:
            out = super().step(action)
            return out.set("obs", out["obs"] * float("nan")) if self.fails else out

    algorithm, bonus = distilling(Failing)
    algorithm.collect()
    algorithm.step()
    before = {name: x.clone() for name, x in bonus.state_dict().items()}
    algorithm.env.fails = True
    with pytest.raises(NonFiniteError):
        algorithm.collect()
    assert all(torch.equal(x, before[name]) for name, x in bonus.state_dict().items())


def test_evaluation_leaves_no_trace() -> None:
    algorithm, bonus = distilling()
    algorithm.collect()
    algorithm.step()
    before = {name: x.clone() for name, x in bonus.state_dict().items()}
    with algorithm.evaluating():
        stats = algorithm.collect()
    assert "bonuses/rnd_mean" not in stats
    assert all(torch.equal(x, before[name]) for name, x in bonus.state_dict().items())


class Syncs(TorchDispatchMode):
    """Counts operations that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in ("_local_scalar_dense", "nonzero", "masked_select")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("proportion", [0.25, 1.0])
def test_a_bonus_adds_no_synchronisation(proportion: float) -> None:
    counts = []
    bonus = RandomNetworkDistillation(predictor_proportion=proportion, **FEW)
    for bonuses in ([], [bonus]):
        algorithm = AlgorithmConfig(**SMALL, bonuses=bonuses).build(DiscreteDummyEnv)
        algorithm.collect()
        algorithm.step()
        with Syncs() as syncs:
            algorithm.collect()
            algorithm.step()
        counts.append(syncs.count)
    assert counts[0] == counts[1]


def test_files_describe_bonuses(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "env_cls: everstep.env.DiscreteDummyEnv\nnum_envs: 4\nhorizon: 4\n"
        "bonuses: [{rnd: {gamma_intrinsic: 0.9, pre_normalization_steps: 0}}]\n"
    )
    trainer = TrainConfig.from_file(file).build(run_dir=tmp_path / "run", track=False)
    trainer.step()
    again = TrainConfig.from_file(tmp_path / "run" / "config.yaml").build(run_dir=None)
    (bonus,) = again.algorithm.bonuses
    assert bonus.stream.gamma == 0.9
    assert bonus.pre_normalization == 0


class Line(nn.Module):
    """A network of one's own."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(spec.shape[0], 2)

    def forward(self, leaves: Any) -> torch.Tensor:
        return self.layer(leaves[0])


def test_files_name_networks(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "env_cls: everstep.env.DiscreteDummyEnv\nnum_envs: 4\nhorizon: 4\n"
        f"bonuses: [{{rnd: {{network_cls: {__name__}.Line, pre_normalization_steps: 0}}}}]\n"
    )
    trainer = TrainConfig.from_file(file).build(run_dir=tmp_path / "run", track=False)
    again = TrainConfig.from_file(tmp_path / "run" / "config.yaml").build(run_dir=None)
    for built in (trainer, again):
        assert type(built.algorithm.bonuses[0].predictor) is Line
    file.write_text(file.read_text().replace("Line", "Lime"))
    with pytest.raises(ConfigError, match="Lime"):
        TrainConfig.from_file(file)


@pytest.mark.parametrize(
    ("bonuses", "message"),
    [
        ([{"rdn": {}}], "has 'rdn'; known are rnd"),
        ([{"rnd": {"gamma": 0.9}}], "unexpected keyword argument 'gamma'"),
        ([{"rnd": {"gamma_intrinsic": 1.5}}], r"must be in \(0, 1\]; got 1.5"),
        ([{"rnd": {"predictor_proportion": 0}}], "above 0; got 0"),
        (["rnd"], "expected objects, or mappings"),
        ([{"rnd": {}}, {"rnd": {}}], "different names"),
        ([named_bonus(None)], "`bonuses`: .* needs a name.*got `name = None`"),
        ([named_bonus(property(lambda self: self.missing))], "needs a name.*got no `name`"),
        ([named_bonus(5)], "got `name = 5`"),
        ([named_bonus("total")], "other than 'total'"),
        ([named_bonus("symmetry")], "and 'symmetry'; got `name = 'symmetry'`"),
        ([{"rnd": {}}, Counted(Stream(0.9))], "must agree on the weight"),
    ],
)
def test_bonuses_that_cannot_be_made_are_told(bonuses: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**SMALL, bonuses=bonuses).build(DiscreteDummyEnv)


@pytest.mark.parametrize(
    ("env", "options", "reason"),
    [
        (DiscreteDummyEnv, {"distribution_cls": Normal}, "Normal needs 'mean'"),
        (DiscreteDummyEnv, {"model_cls": DefaultContinuousModel}, "Categorical needs 'logits'"),
        (ContinuousDummyEnv, {"model_cls": DefaultDiscreteModel}, "unflatten"),
    ],
)
@pytest.mark.parametrize("bonuses", [[], [RandomNetworkDistillation(gamma_intrinsic=0.99)]])
def test_a_policy_that_cannot_act_is_refused_with_a_bonus_as_without(
    env: type[Env], options: dict[str, Any], reason: str, bonuses: list[Bonus]
) -> None:
    with pytest.raises(ConfigError, match=f"cannot act on an observation of zeros: .*{reason}"):
        Trainer(env, num_envs=4, horizon=8, run_dir=None, bonuses=bonuses, **options)
