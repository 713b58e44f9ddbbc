"""Limits of spaces: whatever is outside is found at the end of a rollout, and named."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from everstep import AlgorithmConfig, Env, RecurrentAlgorithmConfig
from everstep.adapters import GymnasiumEnv
from everstep.distributions import Categorical as CategoricalDistribution
from everstep.distributions import Distribution
from everstep.errors import ConfigError, EnvError
from everstep.evaluation import run_episodes
from everstep.models import Model

N, T = 3, 4
ONE = torch.Size([1])
SPEC = Composite(
    kind=Categorical(5, shape=ONE),
    kinds=MultiCategorical([2, 3]),
    flags=Binary(2, dtype=torch.int8),
    many=Categorical(2000, shape=ONE),
    speed=Bounded(low=torch.tensor([-1.0, 0.0]), high=torch.tensor([1.0, torch.inf])),
    level=Bounded(0, 3, shape=(2,), dtype=torch.int64),
    bytes=Bounded(0, 255, shape=(4,), dtype=torch.uint8),
)


class Odd(Env):
    """Returns zeros, and one number of choice in env step `when` of environment 1."""

    leaf, number, when, final = "kind", 0.0, 2, False

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = SPEC
        self.action_spec = Categorical(2, shape=ONE)
        self.episode_keys = frozenset({"terminated", "truncated", "first", "final_obs"})

    def _zeros(self) -> TensorDict:
        return SPEC.zero([self.num_envs])

    def reset(self, *, config: Any = None) -> Any:
        self.t = 0
        obs = self._zeros()
        if self.when < 0:
            obs[self.leaf][1, -1] = self.number
        return obs

    def step(self, action: Any) -> TensorDict:
        obs, final = self._zeros(), self._zeros()
        ends = torch.zeros(self.num_envs, 1, dtype=torch.bool)
        if self.t == self.when:
            (final if self.final else obs)[self.leaf][1, -1] = self.number
            ends[1] = self.final
        self.t += 1
        out = {"obs": obs, "final_obs": final, "rewards": torch.zeros(self.num_envs, 1)}
        out |= {"terminated": ends & False, "truncated": ends, "first": ends}
        return TensorDict(out, [self.num_envs])


def built(config: Any = AlgorithmConfig, **attributes: Any) -> Any:
    kind = type("Odd", (Odd,), attributes)
    return config(num_envs=N, horizon=T, normalize_observations=False).build(kind)


@pytest.mark.few(3)
@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize(
    ("leaf", "number", "allowed"),
    [
        ("kind", 5, "5, which is no choice of its space: 0 to 4 are"),
        ("kind", -1, "-1, which is no choice of its space: 0 to 4 are"),
        ("kinds", 3, "3 in element 1, which is no choice of its space: 0 to 2 are"),
        ("flags", 2, "2 in element 1, which is no choice of its space: 0 to 1 are"),
        ("many", 2000, "2000, which is no choice of its space: 0 to 1999 are"),
        ("many", -7, "-7, which is no choice of its space: 0 to 1999 are"),
    ],
)
def test_a_choice_that_does_not_exist_is_named(
    config: Any, leaf: str, number: int, allowed: str
) -> None:
    algorithm = built(config, leaf=leaf, number=number)
    before = [p.clone() for p in algorithm.policy.model.parameters()]
    with pytest.raises(EnvError) as error:
        algorithm.collect()
    text = (
        f"`obs.{leaf}` of environment 1 is {allowed}, at env step 2 of the rollout (1 rows in all)"
    )
    assert str(error.value).startswith(text)
    parameters = algorithm.policy.model.parameters()
    assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


@pytest.mark.parametrize(
    ("attributes", "name", "when"),
    [
        ({"when": -1}, "obs", "the reset"),
        ({"final": True}, "final_obs", "env step 2 of the rollout"),
    ],
)
def test_the_first_and_the_final_observation_are_looked_at(
    attributes: Any, name: str, when: str
) -> None:
    algorithm = built(number=9, **attributes)
    with pytest.raises(EnvError, match=f"`{name}.kind` of environment 1 is 9, .*at {when}"):
        algorithm.collect()


@pytest.mark.parametrize(
    ("leaf", "number", "allowed"),
    [
        ("speed", -0.5, "-0.5 in element 1, outside of the bounds of its space, 0.0 to inf"),
        ("level", 4, "4 in element 1, outside of the bounds of its space, 0 to 3"),
    ],
)
def test_numbers_outside_of_their_bounds_are_said_once(
    leaf: str, number: float, allowed: str, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = built(leaf=leaf, number=number)
    for _ in range(3):
        algorithm.collect()
        algorithm.env.t = 0
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"`obs.{leaf}` of environment 1 is {allowed}, at env step 2" in record.getMessage()


@pytest.mark.parametrize(
    ("leaf", "number"), [("kind", 4), ("speed", 1e30), ("level", 3), ("bytes", 255), ("flags", 1)]
)
def test_what_a_space_contains_is_no_fault(
    leaf: str, number: float, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = built(leaf=leaf, number=number)
    algorithm.collect()
    assert caplog.records == []


def test_bounds_that_were_rounded_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    spec = Bounded(low=torch.tensor([0.1, -0.1]), high=torch.tensor([0.3, 0.3]))
    kind = type("Rounded", (Env,), {"__init__": _init(spec), "reset": _edge, "step": _step})
    AlgorithmConfig(num_envs=1, horizon=4).build(kind).collect()
    assert caplog.records == []


def _init(spec: Any) -> Callable[..., None]:
    def init(self: Any, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        Env.__init__(self, num_envs, horizon, device=device)
        self.observation_spec, self.action_spec = spec, Categorical(2, shape=ONE)

    return init


def _edge(self: Any, *, config: Any = None) -> torch.Tensor:
    return torch.tensor([[0.1 - 1e-8, 0.3 + 3e-8]], dtype=torch.float64).float()


def _step(self: Any, action: Any) -> TensorDict:
    return TensorDict({"obs": _edge(self), "rewards": torch.zeros(1, 1)}, [1])


class Beyond(CategoricalDistribution):
    """Draws a choice that does not exist."""

    def sample(self) -> torch.Tensor:
        return super().sample() + 7

    def logp(self, samples: Any) -> torch.Tensor:
        return torch.zeros(len(samples), 1)


def test_actions_that_do_not_exist_are_named() -> None:
    config = AlgorithmConfig(num_envs=N, horizon=T, distribution_cls=Beyond)
    text = r"The policy's `actions` of environment 0 is \d+, which is no choice .* 0 to 1 are"
    with pytest.raises(ConfigError, match=text):
        config.build(Odd).collect()


class Indexing(Model):
    """Indexes by a choice, as models of users do."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.table = torch.nn.Embedding(5, 3)

    def forward(self, batch: Any, /) -> Any:
        self.seen = self.table(batch["obs"]["kind"].squeeze(-1))
        return {"logits": self.seen[:, :2].unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self.seen[:, 2:]


def test_a_model_that_indexes_by_choices_gets_the_same_message() -> None:
    kind = type("Odd", (Odd,), {"number": 5, "when": 0})
    algorithm = AlgorithmConfig(num_envs=N, horizon=T, model_cls=Indexing).build(kind)
    with pytest.raises(EnvError, match=r"`obs.kind` of environment 1 is 5, .* at env step 0"):
        algorithm.collect()


def test_evaluations_name_choices_that_do_not_exist() -> None:
    policy = built().policy
    env = type("Odd", (Odd,), {"number": 5})(N)
    with pytest.raises(EnvError, match=r"`obs.kind` of environment 1 is 5, which is no choice"):
        run_episodes(policy, env, episodes=1, max_env_steps=5)


class Started(gymnasium.Env[Any, Any]):
    """A choice that counts from 3."""

    observation_space = spaces.Discrete(4, start=3)
    action_space = spaces.Discrete(2)
    seen = 6

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return 3, {}

    def step(self, action: Any) -> Any:
        return self.seen, 0.0, False, False, {}


def test_choices_are_named_as_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    env = GymnasiumEnv(gymnasium.vector.SyncVectorEnv([Started] * 2))
    algorithm = AlgorithmConfig(horizon=4).build(env)
    algorithm.collect()
    for seen in (6, np.int64(3)):
        algorithm.policy.predict(seen)
    monkeypatch.setattr(Started, "seen", 7)
    with pytest.raises(EnvError, match=r"`obs` of environment 0 is 7, .*: 3 to 6 are"):
        algorithm.collect()
    with pytest.raises(ValueError, match=r"`obs` of row 1 is 2, .*: 3 to 6 are"):
        algorithm.policy.predict(np.array([[3], [2]]))
    with pytest.raises(ValueError, match=r"`obs` of row 0 is 7, .*: 3 to 6 are"):
        algorithm.policy.predict(torch.tensor(7))


class Grid(gymnasium.Env[Any, Any]):
    """A table of choices, and integers that are measured, with equal specs."""

    CHOICES = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 0], [1, 0]])
    MEASURED = spaces.Box(0, np.array([[1, 2], [3, 4]]), (2, 2), np.int64)
    observation_space = spaces.Dict(table=CHOICES, level=MEASURED)
    action_space = CHOICES
    more: tuple[str, int] = ("", 0)

    def _obs(self) -> Any:
        obs = {"table": np.array([[0, 0], [1, 0]]), "level": np.zeros((2, 2), np.int64)}
        for name in {self.more[0]} & {*obs}:
            obs[name][1, 0] = self.more[1]
        return obs

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        return self._obs(), 0.0, False, False, {}


@pytest.mark.parametrize("number", [0, 5])
def test_a_table_of_choices_has_choices_and_a_box_of_integers_has_bounds(
    number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = GymnasiumEnv(gymnasium.vector.SyncVectorEnv([Grid] * 2))
    algorithm = AlgorithmConfig(horizon=4).build(env)
    algorithm.collect()
    good = Grid()._obs()
    algorithm.policy.predict(good)
    assert not caplog.records
    monkeypatch.setattr(Grid, "more", ("table", number))
    wrong = f"{number} in element 2, which is no choice of its space: 1 to 4 are"
    with pytest.raises(EnvError, match=f"`obs.table` of environment 0 is {wrong}"):
        algorithm.collect()
    with pytest.raises(ValueError, match=wrong):
        algorithm.policy.predict(Grid()._obs())
    monkeypatch.setattr(Grid, "more", ("level", 7))
    algorithm.collect()
    [record] = caplog.records
    assert "`obs.level` of environment 0 is 7 in element 2, outside of" in record.getMessage()


def test_an_action_that_is_no_choice_of_a_table_is_named() -> None:
    env = GymnasiumEnv(gymnasium.vector.SyncVectorEnv([Grid] * 2))

    class Shifted(Distribution.default_dist_cls(env.action_spec)):  # type: ignore[misc]
        def sample(self) -> torch.Tensor:
            return super().sample() + 9

        logp = Beyond.logp

    algorithm = AlgorithmConfig(horizon=T, distribution_cls=Shifted).build(env)
    with pytest.raises(ConfigError, match=r"`actions` of environment 0 is .*which is no choice"):
        algorithm.collect()


def test_numbers_without_limits_need_no_reduction() -> None:
    from everstep.env.limits import limits_of

    spec = Composite(a=Unbounded(2), b=Bounded(-torch.inf, torch.inf, (2,)), c=SPEC["bytes"])
    assert limits_of(spec, torch.device("cpu")) == (None, None, None)
