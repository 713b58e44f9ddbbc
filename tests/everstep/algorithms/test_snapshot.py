"""The state that training continues from: every part of it, one by one and all together."""

import copy
import math
import statistics
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.bonuses import RandomNetworkDistillation
from everstep.core.checkpoints import load_state, save_state
from everstep.models import RecurrentModel
from tests.toys import RecordedEnv, flags

pytestmark = pytest.mark.usefixtures("float64")

GAMMA, HORIZON, NUM_ENVS, ROLLOUTS = 0.9, 6, 3, 5
STEPS = HORIZON * ROLLOUTS
#: Rows that end an episode, (env step, environment): environment 0's with the second rollout, and
#: environment 1's in the middle of the first and the third. Environment 2 has one only.
TERMINATED, TRUNCATED = [(11, 0), (3, 1), (14, 1)], [(14, 0)]


class Sums(RecurrentModel):
    """Values are the sums of the episode's observations so far; they decide on the actions."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite(sums=Unbounded((1,), dtype=torch.float64))
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        sums = states["sums"] + batch["obs"].sum(-1, keepdim=True).cumsum(1)  # [B, L, 1]
        self._value = sums.flatten(0, 1)
        out = self._value * self.gain
        logits = torch.cat([out, -out], -1).unsqueeze(1)
        return {"logits": logits}, TensorDict({"sums": sums[:, -1]}, [len(sums)])

    def value_function(self) -> torch.Tensor:
        return self._value


def recorded() -> RecordedEnv:
    generator = torch.Generator().manual_seed(1)
    terminated = flags(STEPS, NUM_ENVS, *TERMINATED)
    truncated = flags(STEPS, NUM_ENVS, *TRUNCATED)
    return RecordedEnv(
        torch.randn(STEPS + 1, NUM_ENVS, 3, generator=generator),
        HORIZON,
        rewards=1.0 + torch.randn(STEPS, NUM_ENVS, 1, generator=generator),
        terminated=terminated,
        truncated=truncated,
        first=terminated | truncated,
        final_obs=torch.randn(STEPS, NUM_ENVS, 3, generator=generator),
    )


def feedforward(**options: Any) -> Any:
    config = {"gamma": GAMMA, "seed": 2, "model_config": {"hiddens": (8,)}, **options}
    return AlgorithmConfig(**config).build(recorded())


def recurrent(**options: Any) -> Any:
    config = {"gamma": GAMMA, "seed": 2, "model_cls": Sums, "seq_len": 3, **options}
    config.setdefault("normalize_observations", False)
    return RecurrentAlgorithmConfig(**config).build(recorded())


def train(algorithm: Any, rollouts: int) -> Any:
    for _ in range(rollouts):
        algorithm.collect()
        algorithm.step()
    return algorithm


def continued(make: Any, rollouts: int, **options: Any) -> Any:
    """An algorithm built anew, which continues from where another one is after `rollouts`."""
    state = copy.deepcopy(train(make(**options), rollouts).state_dict())
    algorithm = make(**{**options, "seed": 7})
    algorithm.load_state_dict(state)
    return algorithm


def untimed(stats: Any) -> dict[str, float]:
    return {name: x for name, x in stats.items() if not name.startswith("profiling/")}


def weights(algorithm: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in algorithm.policy.model.parameters()]


# ---- all together -------------------------------------------------------------------------------

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (feedforward, {}),
    "minibatches": (feedforward, {"sgd_minibatch_size": 6}),
    "running rewards": (feedforward, {"normalize_rewards": "running"}),
    "normalized observations": (feedforward, {"normalize_observations": True}),
    "schedules": (
        feedforward,
        {
            "lr_schedule": [(0, 1e-2), (90, 1e-4)],
            "lr_schedule_kind": "interp",
            "entropy_coeff_schedule": [(0, 0.1), (18, 0.05), (54, 0.2)],
        },
    ),
    "adaptive": (feedforward, {"lr_schedule_kind": "adaptive", "target_kl_div": 1e-5}),
    "momentum": (
        feedforward,
        {"optimizer_cls": torch.optim.SGD, "optimizer_config": {"lr": 0.01, "momentum": 0.9}},
    ),
    "half precision": (feedforward, {"enable_amp": True, "amp_dtype": "float16"}),
    "recurrent": (recurrent, {}),
    "bonus": (feedforward, {}),
}


def make_of(kind: str) -> tuple[Any, dict[str, Any]]:
    make, options = KINDS[kind]
    if kind == "bonus":  # a bonus belongs to one algorithm
        bonus = RandomNetworkDistillation(
            pre_normalization_steps=0, features=4, hiddens=(4,), episodic=True
        )
        return make, {**options, "bonuses": [bonus]}
    return make, options


@pytest.mark.few(5)
@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_to_the_bit(kind: str, after: int, tmp_path: Any) -> None:
    """In the middle of episodes and at the end of one, in an algorithm that is built anew."""
    make, options = make_of(kind)
    one = train(make(**options), after)
    save_state(tmp_path / "state", one.state_dict())
    generator = torch.get_rng_state()
    expected = train_and_record(one)
    make, options = make_of(kind)
    other = make(**{**options, "seed": 7})
    other.load_state_dict(load_state(tmp_path / "state"))
    assert torch.equal(torch.get_rng_state(), generator)
    assert_same(train_and_record(other), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_back_to_the_bit(kind: str) -> None:
    """To an earlier state of the same algorithm, of which nothing later is left."""
    make, options = make_of(kind)
    algorithm = train(make(**options), 1)
    state = copy.deepcopy(algorithm.state_dict())
    expected = train_and_record(algorithm)
    for rollouts in (0, 1):  # back from where an episode has just ended, and from elsewhere
        algorithm.load_state_dict(copy.deepcopy(state))
        train(algorithm, rollouts)
        algorithm.collect()
        algorithm.load_state_dict(copy.deepcopy(state))
        assert_same(train_and_record(algorithm), expected)


def train_and_record(algorithm: Any) -> list[dict[str, Any]]:
    """Two more rollouts: statistics, buffers and weights."""
    found = []
    for _ in range(2):
        stats = untimed(algorithm.collect()) | untimed(algorithm.step())
        tensors = {key: x.clone() for key, x in algorithm.buffer.items()}
        found.append({"stats": stats, **tensors, **dict(enumerate(weights(algorithm)))})
    return found


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["stats"] == theirs["stats"]
        for key in theirs.keys() - {"stats"}:
            assert torch.equal(ours[key], theirs[key]), key


# ---- one by one --------------------------------------------------------------------------------


def test_returns_and_lengths_of_open_episodes_go_on() -> None:
    algorithm = continued(feedforward, 2)
    rewards = recorded().rows["rewards"][..., 0]
    # Environment 0's second episode is three env steps long; environment 1's began in env step 4.
    returns = [float(rewards[12:15, 0].sum()), float(rewards[4:15, 1].sum())]
    before = [float(rewards[:12, 0].sum()), float(rewards[:4, 1].sum())]
    stats = algorithm.collect()
    assert stats["episodes/count"] == 2
    assert stats["episodes/return_min"] == pytest.approx(min(returns))
    assert stats["episodes/return_max"] == pytest.approx(max(returns))
    assert stats["episodes/length_mean"] == (3 + 11) / 2
    assert stats["episodes/return_mean_100"] == pytest.approx(statistics.fmean(returns + before))


@pytest.mark.parametrize("kind", [True, "running"])
def test_discounted_sums_of_rewards_go_on_but_for_an_episode_that_has_ended(kind: Any) -> None:
    algorithm = continued(feedforward, 2, normalize_rewards=kind)
    rewards = recorded().rows["rewards"][..., 0]
    opened = {0: 12, 1: 4, 2: 0}  # where each environment's episode began
    expected = [
        sum(GAMMA ** (11 - t) * float(rewards[t, n]) for t in range(start, 12))
        for n, start in opened.items()
    ]
    algorithm.collect()
    found = algorithm.buffer["reversed_discounted_returns"][:, 0, 0].tolist()
    assert found == pytest.approx(expected, abs=1e-12)
    assert found[0] == 0.0


def test_the_running_spread_of_discounted_sums_goes_on() -> None:
    algorithm = continued(feedforward, 2, normalize_rewards="running")
    rows, ends = recorded().rows, {*TERMINATED, *TRUNCATED}
    sums = []
    for n in range(NUM_ENVS):
        total = 0.0
        for t in range(3 * HORIZON):
            total = GAMMA * total + float(rows["rewards"][t, n])
            sums.append(total)
            total = 0.0 if (t, n) in ends else total
    algorithm.collect()
    expected = math.sqrt(statistics.pvariance(sums) + 1e-8)
    assert algorithm.state.reward_scale == pytest.approx(expected, rel=1e-12)


def test_recurrent_states_go_on() -> None:
    """In the middle of an episode, and anew where one has just ended."""
    algorithm = continued(recurrent, 2, optimizer_config={"lr": 0.0})
    algorithm.collect()
    obs = recorded().obs.sum(-1)
    for n, start in ((0, 12), (1, 4), (2, 0)):
        expected = float(obs[start:13, n].sum())
        assert float(algorithm.buffer["values"][n, 0, 0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["step", "interp"])
def test_schedules_are_where_they_were(kind: Any) -> None:
    """From the first update on, which reports what it has used."""
    points = {"step": (0.02, 0.3), "interp": (0.02 + 0.05 / 2, 0.3 + 0.1 / 2)}[kind]
    algorithm = continued(
        feedforward,
        2,  # 36 transitions
        lr_schedule=[(0, 0.01), (27, 0.02), (45, 0.07)],
        lr_schedule_kind=kind,
        entropy_coeff_schedule=[(0, 0.1), (27, 0.3), (45, 0.4)],
        entropy_coeff_schedule_kind=kind,
    )
    algorithm.collect()
    stats = algorithm.step()
    assert stats["coefficients/lr"] == pytest.approx(points[0])
    assert stats["coefficients/entropy"] == pytest.approx(points[1])


def test_another_schedule_is_followed_from_where_training_was() -> None:
    state = copy.deepcopy(train(feedforward(), 2).state_dict())
    algorithm = feedforward(
        lr_schedule=[(0, 0.01), (36, 0.02)], entropy_coeff_schedule=[(0, 0.1), (36, 0.3)]
    )
    algorithm.load_state_dict(state)
    assert [group["lr"] for group in algorithm.optimizer.param_groups] == [0.02]
    algorithm.collect()
    stats = algorithm.step()
    assert (stats["coefficients/lr"], stats["coefficients/entropy"]) == (0.02, 0.3)


def test_the_scale_of_gradients_goes_on() -> None:
    options = {"enable_amp": True, "amp_dtype": "float16"}
    one = train(feedforward(**options), 1)
    one.grad_scaler.update(128.0)
    other = feedforward(**options)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert other.grad_scaler.get_scale() == 128.0


def test_counters_go_on() -> None:
    algorithm = continued(feedforward, 2)
    assert (algorithm.state.horizons, algorithm.state.env_steps) == (2, 2 * HORIZON * NUM_ENVS)
    assert not algorithm.state.buffered
    assert algorithm.collect()["env/resets"] == 0


def test_without_the_environments_state_it_is_reset() -> None:
    """Nothing of the episodes that were open is left then."""

    one = train(feedforward(normalize_rewards="running"), 2)
    state = {**copy.deepcopy(one.state_dict()), "env": None}
    algorithm = feedforward(normalize_rewards="running")
    algorithm.load_state_dict(state)
    stats = algorithm.collect()
    assert stats["env/resets"] == NUM_ENVS
    rewards = recorded().rows["rewards"][..., 0]
    assert stats["episodes/count"] == 1  # environment 1's, in env step 3
    assert stats["episodes/return_mean"] == pytest.approx(float(rewards[:4, 1].sum()))
    assert not algorithm.buffer["reversed_discounted_returns"][:, 0].any()
