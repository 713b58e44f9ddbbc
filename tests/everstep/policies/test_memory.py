"""Policies that remember: recurrent states and windows, at every boundary."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, Composite, Unbounded

from everstep import (
    Algorithm,
    AlgorithmConfig,
    RecurrentAlgorithm,
    RecurrentAlgorithmConfig,
    RecurrentPolicy,
    RecurrentTrainer,
    TrainConfig,
    Trainer,
    evaluate,
)
from everstep.env import ContinuousDummyEnv, DiscreteDummyEnv, Env
from everstep.errors import ConfigError
from everstep.models import Model, RecurrentModel
from everstep.views import ViewRequirement
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.everstep.algorithms.test_bootstrap_oracle import SCRIPTS
from tests.toys import (
    TERMINATED,
    TRUNCATED,
    Episode,
    Script,
    obs_of,
    oracle_advantages,
    scripted_vector_env,
    stream,
)

HORIZON, ROLLOUTS, GAMMA, LAMBDA = 6, 4, 0.9, 0.8

WEIGHTS = torch.tensor([[0.3], [1.1], [0.7]], dtype=torch.float64)


class KnownMemory(RecurrentModel):
    """Values and logits are fixed functions of a decaying sum over the episode."""

    DECAY = 0.8

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite(sums=Unbounded((1,), dtype=torch.float64))
        self.gain = nn.Parameter(torch.ones(1, dtype=torch.float64))

    @classmethod
    def value_of(cls, obs: torch.Tensor) -> torch.Tensor:
        """The value of the last of an episode's observations `[t + 1, 3]`, from the definition."""
        t = len(obs)
        decays = cls.DECAY ** torch.arange(t - 1, -1, -1, dtype=torch.float64)
        return torch.cos((decays.unsqueeze(-1) * obs.double() @ WEIGHTS).sum())

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        sums, rows = states["sums"][:, 0], []
        for x in (batch["obs"].double() @ WEIGHTS).unbind(1):
            sums = self.DECAY * sums + x
            rows.append(sums)
        out = torch.stack(rows, 1).flatten(0, 1) * self.gain
        self._value = out.cos()
        logits = torch.stack([out, -0.5 * out], -1)
        return {"logits": logits}, TensorDict({"sums": sums}, [len(sums)])

    def value_function(self) -> torch.Tensor:
        return self._value


class KnownWindow(Model):
    """Values and logits are fixed functions of a window, its padding told apart from zeros."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, *, shift: int) -> None:
        super().__init__(observation_spec, action_spec, shift=shift)
        self.view_requirements["obs"] = ViewRequirement(shift=shift)
        self.gain = nn.Parameter(torch.ones(1, dtype=torch.float64))

    @staticmethod
    def value_of(obs: torch.Tensor, shift: int) -> torch.Tensor:
        """The value of the last of an episode's observations `[t + 1, 3]`, from the definition."""
        recent = list(obs.double().flip(0)[: shift + 1])
        total = sum(0.7**i * (1.0 + x @ WEIGHTS) for i, x in enumerate(recent))
        return torch.cos(torch.as_tensor(total))

    def forward(self, batch: TensorDict, /) -> Any:
        inputs, padding = batch["obs", "inputs"], batch["obs", "padding_mask"]
        assert not inputs[padding].any()
        size = inputs.shape[1]
        decays = 0.7 ** torch.arange(size - 1, -1, -1, dtype=torch.float64)
        terms = (1.0 + inputs.double() @ WEIGHTS).squeeze(-1) * decays
        out = torch.where(padding, 0.0, terms).sum(-1, keepdim=True) * self.gain
        self._value = out.cos()
        return {"logits": torch.stack([out, -0.5 * out], -1)}

    def value_function(self) -> torch.Tensor:
        return self._value


COMMON: dict[str, Any] = {
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "normalize_advantages": False,
    "normalize_rewards": False,
}


def recurrent(seq_len: int = 3, **options: Any) -> RecurrentAlgorithmConfig:
    return RecurrentAlgorithmConfig(
        **{"model_cls": KnownMemory, "seq_len": seq_len, **COMMON, **options}
    )


def windowed(shift: int = 3, **options: Any) -> AlgorithmConfig:
    return AlgorithmConfig(model_cls=KnownWindow, model_config={"shift": shift}, **COMMON | options)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    **{
        f"sequences of {n}": (lambda n=n: recurrent(n), KnownMemory.value_of)  # type: ignore[misc]
        for n in (2, 6)
    },
    **{
        f"windows of {n + 1}": (
            lambda n=n: windowed(n),  # type: ignore[misc]
            lambda obs, n=n: KnownWindow.value_of(obs, n),  # type: ignore[misc]
        )
        for n in (4, 8)
    },
}


@pytest.mark.few(9)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.few(4)
@pytest.mark.parametrize("scripts", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_advantages_equal_the_oracle(scripts: list[Script], mode: AutoresetMode, kind: str) -> None:
    """Episodes are remembered whole, over rollouts, and nothing beyond their ends.

    The values of final observations are taken in the memory of the episode that ends there.
    """
    make, value_of = KINDS[kind]
    config = make()
    config.horizons_per_env_reset = -1
    algorithm = config.build(GymnasiumEnv(scripted_vector_env(scripts, mode), horizon=HORIZON))
    found = []
    for _ in range(ROLLOUTS):
        algorithm.collect()
        assert_first_ratio_is_1(algorithm)
        found.append(algorithm.buffer["advantages"][:, :-1, 0].clone())
    with_resets = mode is AutoresetMode.NEXT_STEP
    for env, script in enumerate(scripts):
        rows = stream(script, HORIZON * ROLLOUTS, with_reset_rows=with_resets)
        for rollout, advantages in enumerate(found):
            window = rows[rollout * HORIZON : (rollout + 1) * HORIZON]
            expected = oracle_advantages(
                env, script, window, gamma=GAMMA, gae_lambda=LAMBDA, value_of=value_of
            )
            for t, row in enumerate(window):
                if not row.is_reset:
                    assert float(advantages[env, t]) == pytest.approx(expected[t], abs=1e-12)


def assert_first_ratio_is_1(algorithm: Any) -> None:
    """Evaluating the collected rollout again gives the same probabilities and values."""
    algorithm.estimate()
    minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
    with torch.no_grad():
        distribution, values = algorithm.policy.evaluate(minibatch)
    seen = (minibatch.weight > 0).flatten()
    logp = distribution.latents_logp(minibatch.actions)
    torch.testing.assert_close(logp[seen], minibatch.logp[seen], rtol=0, atol=1e-12)
    torch.testing.assert_close(values[seen], minibatch.values[seen], rtol=0, atol=1e-12)


class Absent(Env):
    """A third of the rows are invalid, anywhere in an episode; some of the others end one."""

    episode_keys = frozenset({"terminated", "truncated", "first", "valid"})

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3)
        self.action_spec = Categorical(2, shape=torch.Size([1]))
        self.generator = torch.Generator().manual_seed(7)

    def _draw(self, probability: float) -> torch.Tensor:
        return torch.rand(self.num_envs, 1, generator=self.generator) < probability

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return torch.randn(self.num_envs, 3, generator=self.generator)

    def step(self, action: Any) -> TensorDict:
        valid, ended = self._draw(0.7), self._draw(0.2)
        flags = {
            "terminated": ended & valid,
            "truncated": torch.zeros_like(valid),
            "first": ended,
            "valid": valid,
        }
        out = {"obs": self.reset(), "rewards": torch.randn(self.num_envs, 1), **flags}
        return TensorDict(out, [self.num_envs])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seq_len", [1, 2, 6])
def test_invalid_rows_are_remembered_as_they_were(seq_len: int) -> None:
    algorithm = recurrent(seq_len, num_envs=16, horizon=12).build(Absent)
    for _ in range(2):
        algorithm.collect()
        assert 0.6 < algorithm.rollout.valid.double().mean() < 0.8
        assert_first_ratio_is_1(algorithm)
        algorithm.step()


class Rounded(KnownMemory):
    """Its states are stored with fewer digits than it computes with."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite(sums=Unbounded((1,), dtype=torch.float32))


@pytest.mark.usefixtures("float64")
def test_a_policy_acts_with_the_states_that_are_stored() -> None:
    algorithm = recurrent(1, model_cls=Rounded, num_envs=16, horizon=12).build(Absent)
    algorithm.collect()
    assert_first_ratio_is_1(algorithm)


class Opening(KnownMemory):
    """Episodes open with a state of its own."""

    def init_states(self, n: int, /) -> TensorDict:
        return TensorDict({"sums": torch.full((n, 1), 2.5)}, [n])


@pytest.mark.usefixtures("float64")
def test_every_episode_opens_with_the_models_own_states() -> None:
    script = [Episode(4, TRUNCATED), Episode(3, TERMINATED)]
    env = GymnasiumEnv(scripted_vector_env([script], AutoresetMode.SAME_STEP), horizon=HORIZON)
    algorithm = recurrent(3, model_cls=Opening).build(env)
    rows = stream(script, HORIZON * 3, with_reset_rows=False)
    for rollout in range(3):
        algorithm.collect()
        assert_first_ratio_is_1(algorithm)
        for t, row in enumerate(rows[rollout * HORIZON : (rollout + 1) * HORIZON]):
            sums = torch.tensor(2.5)
            for i in range(row.t + 1):
                obs = torch.tensor(obs_of(0, row.episode, i))
                sums = KnownMemory.DECAY * sums + obs @ WEIGHTS.flatten()
            value = float(algorithm.buffer["values"][0, t])
            assert value == pytest.approx(float(sums.cos()), abs=1e-12)


class Stateless(RecurrentModel):
    """Remembers nothing at all."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite()
        self.net = nn.Linear(3, 3)

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        assert list(states.keys()) == []
        out = self.net(batch["obs"].flatten(0, 1).to(self.net.weight.dtype))
        self._value = out[:, :1]
        return {"logits": out[:, 1:].unsqueeze(1)}, states[:, 0]

    def value_function(self) -> torch.Tensor:
        return self._value


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_a_recurrent_model_may_remember_nothing(mode: AutoresetMode, tmp_path: Any) -> None:
    env = GymnasiumEnv(
        scripted_vector_env([[Episode(4, TRUNCATED)], [Episode(3, TRUNCATED)]], mode),
        horizon=HORIZON,
    )
    algorithm = recurrent(3, model_cls=Stateless).build(env)
    for _ in range(2):
        algorithm.collect()
        assert_first_ratio_is_1(algorithm)
        assert algorithm.step()["monitors/skipped_updates"] == 0
    # It is a feedforward policy: final observations have the values of what is seen in them.
    final = algorithm.rollout.final.squeeze(-1)
    if mode is AutoresetMode.SAME_STEP:
        assert final.any()
        algorithm.collect()
        seen = algorithm.rollout.final_obs[0][final]
        expected = algorithm.policy.values((seen,), ())
        assert torch.equal(algorithm.rollout.final_values[final], expected)
    algorithm.policy.save(tmp_path / "policy")
    loaded = RecurrentPolicy.load(tmp_path / "policy", model_cls=Stateless)
    batch = TensorDict({"obs": torch.randn(2, 5, 3)}, [2, 5])
    out, states = loaded.sample(batch, deterministic=True)
    assert out.batch_size == (10,)
    assert states.batch_size == (2,)
    assert evaluate(loaded, Absent(4), episodes=4)["episodes/count"] == 4


# ---- without episodes -------------------------------------------------------------------------


class Counting(Env):
    """Observations count the env steps since the reset, and never end."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3)
        self.action_spec = Categorical(2, shape=torch.Size([1]))

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.obs = torch.zeros(self.num_envs, 3)
        self.obs[:, 1] = torch.arange(self.num_envs)
        return self.obs

    def step(self, action: Any) -> TensorDict:
        self.obs[:, 2] += 1
        rewards = torch.ones(self.num_envs, 1)
        return TensorDict({"obs": self.obs, "rewards": rewards}, [self.num_envs])


def value_at(kind: str, env: int, first: int, t: int) -> float:
    obs = torch.tensor([[0.0, env, i] for i in range(first, t + 1)])
    return float(KINDS[kind][1](obs))


@pytest.mark.few(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("every", [1, 2, -1])
def test_memory_goes_on_until_the_environments_are_reset(kind: str, every: int) -> None:
    config = KINDS[kind][0]()
    config.horizons_per_env_reset, config.num_envs, config.horizon = every, 2, HORIZON
    if isinstance(config, RecurrentAlgorithmConfig):
        config.seqs_per_state_reset = -1
    algorithm = config.build(Counting)
    for rollout in range(4):
        algorithm.collect()
        assert_first_ratio_is_1(algorithm)
        start = HORIZON * (rollout % every if every > 0 else rollout)
        for env in range(2):
            values = algorithm.buffer["values"][env, :, 0].tolist()
            expected = [value_at(kind, env, 0, start + t) for t in range(HORIZON + 1)]
            assert values == pytest.approx(expected, abs=1e-12)


@pytest.mark.usefixtures("float64")
def test_states_start_anew_after_so_many_sequences() -> None:
    """`seq_len` 2 and `seqs_per_state_reset` 2: every fourth env step, whatever the horizon."""
    config = recurrent(
        2, seqs_per_state_reset=2, horizons_per_env_reset=2, num_envs=2, horizon=HORIZON
    )
    algorithm = config.build(Counting)
    for rollout in range(4):
        algorithm.collect()
        start = HORIZON * (rollout % 2)
        values = algorithm.buffer["values"][1, :, 0].tolist()
        for t in range(HORIZON):
            now = start + t
            expected = value_at("sequences of 2", 1, now - now % 4, now)
            assert values[t] == pytest.approx(expected, abs=1e-12)
    assert algorithm.state.seqs == 4 * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seq_len": 5}, "`seq_len` must divide `horizon` (6); got 5. Try 3 or 6."),
        ({"seqs_per_state_reset": 3}, "must divide the 2 sequences between resets"),
        ({"seqs_per_state_reset": 0}, "`seqs_per_state_reset` must not be 0"),
        ({"seq_len": 0}, "`seq_len`: expected int > 0"),
        ({"sgd_minibatch_size": 3}, "must divide the 4 sequences of a rollout"),
    ],
)
def test_sequences_must_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recurrent(**{"num_envs": 2, "horizon": HORIZON, **options}).build(Counting)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"horizon": 32}, 8),
        ({"horizon": 24}, 6),
        ({"horizon": 24, "horizons_per_env_reset": 4}, 8),
        ({"horizon": 24, "horizons_per_env_reset": -1}, -1 * 6),
    ],
)
def test_auto_resets_states_as_rl8_does_where_that_fits(
    options: dict[str, Any], expected: int
) -> None:
    algorithm = recurrent(4, num_envs=2, **options).build(Counting)
    found = algorithm.hparams.seqs_per_state_reset
    assert found == expected or (found < 0 and expected < 0)


def test_kinds_of_policies_models_and_configs_must_agree() -> None:
    with pytest.raises(ConfigError, match="KnownMemory is a RecurrentModel"):
        AlgorithmConfig(model_cls=KnownMemory, num_envs=2, horizon=6).build(Counting)
    with pytest.raises(ConfigError, match="Unpadded is a feedforward Model"):
        RecurrentAlgorithmConfig(
            model_cls=Unpadded, model_config={"shift": 1}, num_envs=2, horizon=8
        ).build(Counting)
    with pytest.raises(ConfigError, match=r"^AlgorithmConfig is .* pass RecurrentAlgorithmConfig"):
        RecurrentAlgorithm(Counting, AlgorithmConfig(num_envs=2, horizon=8))
    with pytest.raises(ConfigError, match="pass AlgorithmConfig"):
        Algorithm(Counting, RecurrentAlgorithmConfig(num_envs=2, horizon=8))


class Forgetful(KnownMemory):
    """Does not say what it remembers."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        del self.state_spec


def test_a_recurrent_model_must_say_what_it_remembers() -> None:
    config = RecurrentAlgorithmConfig(model_cls=Forgetful, num_envs=2, horizon=8)
    with pytest.raises(ConfigError, match=r"Forgetful has no `state_spec`.*an empty one"):
        config.build(Counting)


def test_a_feedforward_model_may_call_something_its_state_spec() -> None:
    class Named(Nested):
        state_spec = "of California"

    AlgorithmConfig(model_cls=Named, num_envs=2, horizon=8).build(Prices).collect()


HALF: dict[str, Any] = {
    "num_envs": 2,
    "horizon": 8,
    "enable_amp": True,
    "amp_dtype": "float16",
    "device": "cpu",
}


class WithoutHalf(KnownMemory):
    """Fails under float16 autocast as nn.LSTM does on processors without a kernel for it."""

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16:
            raise RuntimeError("could not create a primitive descriptor")
        return super().forward(batch, states)


def test_a_model_without_float16_is_refused_with_a_way_out() -> None:
    config = RecurrentAlgorithmConfig(model_cls=WithoutHalf, **HALF)
    with pytest.raises(ConfigError, match=r"primitive descriptor.*set `amp_dtype` to bfloat16"):
        config.build(Counting)
    # What the error proposes works.
    RecurrentAlgorithmConfig(model_cls=WithoutHalf, **HALF | {"amp_dtype": "bfloat16"}).build(
        Counting
    ).collect()
    RecurrentAlgorithmConfig(model_cls=WithoutHalf, **HALF | {"enable_amp": False}).build(
        Counting
    ).collect()


def test_the_default_model_trains_in_float16_or_is_refused() -> None:
    refused = pytest.raises(ConfigError, match="set `amp_dtype` to bfloat16")
    lstm, x = nn.LSTM(3, 8, batch_first=True), torch.zeros(1, 8, 3)
    with torch.autocast("cpu", torch.float16):
        try:
            lstm(x)
            expected: Any = contextlib.nullcontext()
        except RuntimeError:
            expected = refused
    with expected:
        algorithm = RecurrentAlgorithmConfig(**HALF).build(Counting)
        algorithm.collect()
        algorithm.step()


def test_trainers_take_algorithms_of_their_kind() -> None:
    feedforward = AlgorithmConfig(num_envs=2, horizon=8).build(DiscreteDummyEnv)
    with_memory = RecurrentAlgorithmConfig(num_envs=2, horizon=8).build(DiscreteDummyEnv)
    with pytest.raises(ConfigError, match="Algorithm trains a Policy: pass it to Trainer"):
        RecurrentTrainer(feedforward, run_dir=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="trains a RecurrentPolicy: pass it to RecurrentTrainer"):
        Trainer(with_memory, run_dir=None)  # type: ignore[arg-type]
    Trainer(feedforward, run_dir=None).step()
    RecurrentTrainer(with_memory, run_dir=None).step()


def test_episodes_reset_states_themselves() -> None:
    env = GymnasiumEnv(
        scripted_vector_env([[Episode(4, TRUNCATED)]], AutoresetMode.NEXT_STEP), horizon=HORIZON
    )
    algorithm = recurrent().build(env)
    assert algorithm.hparams.seqs_per_state_reset == -1
    assert algorithm.hparams.horizons_per_env_reset == "restarts"


# ---- a window without padding -----------------------------------------------------------------


class Unpadded(Model):
    """Looks at a window that is not padded."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, *, shift: int) -> None:
        super().__init__(observation_spec, action_spec, shift=shift)
        self.view_requirements["obs"] = ViewRequirement(shift=shift, method="rolling_window")
        self.net = nn.Linear((shift + 1) * 3, 3)

    def forward(self, batch: TensorDict, /) -> Any:
        out = self.net(batch["obs"].flatten(1))
        self._value = out[:, :1]
        self.seen = batch["obs"].detach().clone()
        return {"logits": out[:, 1:].unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self._value


def test_rows_without_a_full_window_are_acted_on_but_not_learned_from() -> None:
    config = AlgorithmConfig(
        model_cls=Unpadded,
        model_config={"shift": 2},
        num_envs=2,
        horizon=HORIZON,
        horizons_per_env_reset=2,
    )
    algorithm = config.build(Counting)
    for rollout in range(4):
        algorithm.collect()
        minibatch = algorithm.policy.sequences(algorithm.rollout).select(None)
        learned = (minibatch.weight > 0).view(HORIZON, 2)
        expected = torch.arange(HORIZON) + HORIZON * (rollout % 2) >= 2
        assert torch.equal(learned, expected.unsqueeze(-1).expand(-1, 2))
        assert minibatch.weight.double().sum() == pytest.approx(1.0)
        for t, window in enumerate(minibatch.obs[0].view(HORIZON, 2, 3, 3)):
            if expected[t]:
                now = t + HORIZON * (rollout % 2)
                assert window[1, :, 2].tolist() == [now - 2, now - 1, now]
        before = copy.deepcopy(algorithm.policy.model.state_dict())
        stats = algorithm.step()
        assert any(
            not torch.equal(w, before[n]) for n, w in algorithm.policy.model.state_dict().items()
        )
        assert stats["monitors/kl_div"] >= 0


def test_windows_that_leave_nothing_to_learn_from_are_refused() -> None:
    config = AlgorithmConfig(
        model_cls=Unpadded, model_config={"shift": HORIZON}, num_envs=2, horizon=HORIZON
    )
    with pytest.raises(ConfigError, match="drops the first 6 rows after a reset"):
        config.build(Counting)


class Nested(Model):
    """A window of one leaf beside the present observation of all of them, as rl8's examples do."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, *, key: Any = "price") -> None:
        super().__init__(observation_spec, action_spec)
        self.view_requirements["obs", key] = ViewRequirement(shift=2)
        self.net = nn.Linear(4, 3)

    def forward(self, batch: TensorDict, /) -> Any:
        price, flag = batch["obs", "price"], batch["obs", "flag"]
        assert price["inputs"].shape[1:] == (3, 1)
        assert price["padding_mask"].shape[1:] == (3,)
        x = torch.cat([price["inputs"].flatten(1), flag.float()], -1)
        out = self.net(x)
        self._value = out[:, :1]
        return TensorDict({"logits": out[:, 1:].unsqueeze(1)}, [len(x)])

    def value_function(self) -> torch.Tensor:
        return self._value


class Prices(Counting):
    """Observations are mappings."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Composite(
            price=Unbounded(1), flag=Categorical(2, shape=torch.Size([1]))
        )

    def _mapping(self, obs: torch.Tensor) -> TensorDict:
        flag = (obs[:, 2:] % 2).long()
        return TensorDict({"price": obs[:, 2:], "flag": flag}, [self.num_envs])

    def reset(self, *, config: Any = None) -> Any:
        return self._mapping(super().reset(config=config))

    def step(self, action: Any) -> TensorDict:
        out = super().step(action)
        return TensorDict(
            {"obs": self._mapping(out["obs"]), "rewards": out["rewards"]}, [self.num_envs]
        )


def test_one_leaf_has_a_window_and_the_others_do_not() -> None:
    config = AlgorithmConfig(model_cls=Nested, num_envs=4, horizon=8, sgd_minibatch_size=8)
    algorithm = config.build(Prices)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    batch = TensorDict({"obs": Prices(4).observation_spec.rand([4, 5])}, [4, 5])
    assert algorithm.policy.sample(batch, kind="all", return_values=True)["values"].shape == (20, 1)


class Several(Model):
    """Windows of different sizes and methods, declared from the inside outwards."""

    view_requirements: ClassVar[Any] = {
        ("obs", "price"): ViewRequirement(shift=3, method="rolling_window"),
        ("obs", "flag"): ViewRequirement(shift=1, method="rolling_window"),
        "obs": ViewRequirement(shift=0),
    }

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, batch: TensorDict, /) -> Any:
        obs = batch["obs"]
        assert obs["price"].shape[1:] == (4, 1)
        assert obs["flag"].shape[1:] == (2, 1)
        out = obs["price"].flatten(1) @ torch.tensor([1.0, 20.0, 300.0, 4000.0]).unsqueeze(-1)
        self._value = (out + obs["flag"].float().flatten(1).sum(-1, keepdim=True)) * self.gain
        return {"logits": torch.stack([self._value, -self._value], -1)}

    def value_function(self) -> torch.Tensor:
        return self._value


def test_windows_of_different_sizes_end_in_the_same_rows() -> None:
    config = AlgorithmConfig(model_cls=Several, num_envs=4, horizon=8)
    algorithm = config.build(Prices)
    algorithm.collect(deterministic=True)
    buffer = algorithm.buffer
    batch = TensorDict({"obs": buffer["obs"][:, :-1]}, [4, 8])
    out = algorithm.policy.sample(batch, kind="all", deterministic=True, return_values=True)
    assert out.batch_size == (4 * (8 - 3),)
    torch.testing.assert_close(out["values"].view(4, 5, 1), buffer["values"][:, 3:-1])
    last = algorithm.policy.sample(batch, deterministic=True, return_values=True)
    torch.testing.assert_close(last["values"], buffer["values"][:, 7])


def test_what_a_class_declares_is_not_shared_between_its_models() -> None:
    spec = Prices(1).observation_spec
    one, other = (Several(spec, Categorical(2, shape=torch.Size([1]))) for _ in range(2))
    one.view_requirements["obs", "flag"] = ViewRequirement(shift=9)
    assert other.view_requirements == Several.view_requirements
    assert Several.view_requirements["obs", "flag"].shift == 1


def test_a_window_of_what_is_not_observed_is_told() -> None:
    config = AlgorithmConfig(
        model_cls=Nested, model_config={"key": "prices"}, num_envs=4, horizon=8
    )
    with pytest.raises(ConfigError, match=r"\('obs', 'prices'\), which is not observed"):
        config.build(Prices)


# ---- what rl8's users call --------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_sample_sees_what_collection_saw(shift: int) -> None:
    """`sample` over a whole sequence equals acting step by step from its beginning."""
    algorithm = windowed(shift, num_envs=3, horizon=5).build(Counting) if shift else None
    if algorithm is None:
        algorithm = AlgorithmConfig(num_envs=3, horizon=5).build(Counting)
    algorithm.collect(deterministic=True)
    buffer = algorithm.buffer
    batch = TensorDict({"obs": buffer["obs"][:, :-1]}, [3, 5])
    out = algorithm.policy.sample(
        batch, kind="all", deterministic=True, return_logp=True, return_values=True
    )
    for key in ("actions", "logp", "values"):
        torch.testing.assert_close(out[key].view(3, 5, 1), buffer[key][:, :-1], rtol=0, atol=1e-12)
    last = algorithm.policy.sample(batch, deterministic=True, return_values=True)
    torch.testing.assert_close(last["values"], buffer["values"][:, 4], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_recurrent_sample_sees_what_collection_saw() -> None:
    algorithm = recurrent(5, num_envs=3, horizon=5).build(Counting)
    algorithm.collect(deterministic=True)
    buffer = algorithm.buffer
    batch = TensorDict({"obs": buffer["obs"][:, :-1]}, [3, 5])
    out, states = algorithm.policy.sample(batch, deterministic=True, return_values=True)
    torch.testing.assert_close(
        out["values"].view(3, 5, 1), buffer["values"][:, :-1], rtol=0, atol=1e-12
    )
    half, between = algorithm.policy.sample(batch[:, :2], deterministic=True)
    rest, after = algorithm.policy.sample(
        batch[:, 2:], between.reshape(3, 1), deterministic=True, return_values=True
    )
    assert half.batch_size == (6,)
    torch.testing.assert_close(
        rest["values"].view(3, 3, 1), buffer["values"][:, 2:-1], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(after["sums"], states["sums"], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_of_several_states_a_recurrent_sample_takes_the_first() -> None:
    """States as they lie in a batch `[B, T]` that is acted on again."""
    policy = recurrent(num_envs=2, horizon=6).build(Counting).policy
    batch = TensorDict({"obs": torch.randn(2, 3, 3)}, [2, 3])
    states = TensorDict({"sums": torch.randn(2, 3, 1)}, [2, 3])
    found, after = policy.sample(batch, states, deterministic=True, return_values=True)
    expected, rest = policy.sample(batch, states[:, :1], deterministic=True, return_values=True)
    assert torch.equal(found["values"], expected["values"])
    assert torch.equal(after["sums"], rest["sums"])


@pytest.mark.parametrize("make", [recurrent, windowed], ids=["recurrent", "windowed"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_sample_is_in_eval_mode(
    make: Callable[..., Any], deterministic: bool
) -> None:
    policy = make(num_envs=2, horizon=6).build(Counting).policy
    modes: list[bool] = []
    policy.model.register_forward_pre_hook(lambda model, _: modes.append(model.training))
    batch = TensorDict({"obs": torch.randn(2, 3, 3)}, [2, 3])
    policy.sample(batch, deterministic=deterministic)
    assert modes == [not deterministic]
    assert policy.model.training


def test_sample_leaves_no_trace_when_the_model_fails() -> None:
    algorithm = recurrent(num_envs=3, horizon=6).build(Counting)
    policy, model = algorithm.policy, algorithm.policy.model
    for fails in ("forward", "value_function"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, fails, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                policy.sample(TensorDict({"obs": torch.zeros(2, 1, 3)}, [2, 1]), deterministic=True)
        assert torch.is_grad_enabled()
        assert model.training


# ---- training, evaluation, continuing ---------------------------------------------------------


@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_a_recurrent_trainer_trains_evaluates_and_saves(tmp_path: Any, env_cls: Any) -> None:
    config = TrainConfig(
        env_cls, recurrent=True, num_envs=8, horizon=8, horizons_per_env_reset=2, gamma=0.9
    )
    trainer = config.build(run_dir=tmp_path / "run", track=False)
    assert isinstance(trainer, RecurrentTrainer)
    trainer.run(steps_per_eval=2, total_env_steps=8 * 8 * 4)
    policy = RecurrentPolicy.load(tmp_path / "run" / "policy")
    obs = TensorDict({"obs": torch.randn(4, 6, 1)}, [4, 6])
    ours, _ = policy.sample(obs, deterministic=True)
    theirs, _ = trainer.algorithm.policy.sample(obs, deterministic=True)
    assert torch.equal(ours["actions"], theirs["actions"])
    assert "seq_len: 4" in (tmp_path / "run" / "config.yaml").read_text()
    again = TrainConfig.from_file(tmp_path / "run" / "config.yaml")
    assert again.recurrent
    assert again.seq_len == 4


@pytest.mark.parametrize("make", [recurrent, windowed], ids=["recurrent", "windowed"])
def test_training_continues_exactly(make: Callable[..., Any]) -> None:
    """An environment that tells its state goes on in the middle of what is remembered."""

    class Telling(Counting):
        def state_dict(self) -> dict[str, Any]:
            return {"obs": self.obs.clone()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.obs = state["obs"].clone()

    def build() -> Any:
        return make(num_envs=4, horizon=6, horizons_per_env_reset=-1, seed=3).build(Telling)

    one = build()
    for _ in range(2):
        one.collect()
        one.step()
    state = copy.deepcopy(one.state_dict())
    one.collect()
    expected = one.step()
    other = build()
    other.load_state_dict(state)
    other.collect()
    found = other.step()
    timed = "profiling/step_ms"
    assert {k: v for k, v in found.items() if k != timed} == {
        k: v for k, v in expected.items() if k != timed
    }
    assert torch.equal(one.policy.model.gain, other.policy.model.gain)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["sequences of 2", "windows of 5"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_evaluation_remembers_as_collection_does(mode: AutoresetMode, kind: str) -> None:
    """Values seen while complete episodes are played are those of the definition."""
    make, value_of = KINDS[kind]
    script = [Episode(5, TRUNCATED), Episode(3, TRUNCATED)]
    algorithm = make().build(GymnasiumEnv(scripted_vector_env([script], mode), horizon=HORIZON))
    seen: list[float] = []
    respond = algorithm.policy._respond

    def watch(obs: Any, states: Any) -> Any:
        out = respond(obs, states)
        seen.append(float(out[1]))
        return out

    algorithm.policy._respond = watch
    evaluate(algorithm.policy, GymnasiumEnv(scripted_vector_env([script], mode)), episodes=4)
    rows = stream(script, len(seen), with_reset_rows=mode is AutoresetMode.NEXT_STEP)
    for value, row in zip(seen, rows, strict=True):
        if not row.is_reset:
            obs = torch.tensor([[0.0, row.episode, float(t)] for t in range(row.t + 1)])
            assert value == pytest.approx(float(value_of(obs)), abs=1e-12)
