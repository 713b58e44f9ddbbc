"""Environments run in their caller's settings of PyTorch, and keep no graph between env steps."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv

import everstep
from everstep import AlgorithmConfig, DiscreteDummyEnv, Env, RecurrentAlgorithmConfig
from everstep.algorithms.recording import Recorder
from everstep.core.graphs import Tape
from everstep.errors import EnvError
from everstep.evaluation import evaluate
from everstep.testing import run_checks
from everstep.testing._facts import inspect_env

KEYS = frozenset({"terminated", "truncated", "first"})


def settings() -> dict[str, Any]:
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


class Ball(Env):
    """A ball in a potential, whose force is computed by autograd in every call."""

    def __init__(self, num_envs: int = 4, horizon: None | int = 8, **options: Any) -> None:
        super().__init__(num_envs, horizon, **options)
        self.observation_spec, self.action_spec = Unbounded(1), Unbounded(1)
        self.state = torch.zeros(num_envs, 1)
        self.seen: list[dict[str, Any]] = []

    def force(self) -> torch.Tensor:
        self.seen.append(settings())
        x = self.state.detach().requires_grad_()
        (slope,) = torch.autograd.grad((x**4 / 4).sum(), x)
        return -slope  # −x³

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        self.state.fill_(0.5)
        self.force()
        return self.state

    def step(self, action: Any) -> TensorDict:
        self.state += 0.1 * self.force() + 0.01 * action
        return TensorDict({"obs": self.state, "rewards": -self.state.abs()}, [self.num_envs])

    def metrics(self) -> dict[str, Any]:
        return {"force": self.force().mean()}


class Recordable(Ball):
    capturable = True


class Episodic(Ball):
    episode_keys = KEYS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.count = 0

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        self.count = 0
        return super().reset()

    def step(self, action: Any) -> TensorDict:
        row = super().step(action)
        self.count += 1
        ends = torch.full((self.num_envs, 1), self.count % 4 == 0)
        return row.update({"terminated": ends, "truncated": ends & False, "first": ends})


class Dream(Ball):
    """A learned model, whose state has the graph of all env steps before unless it is cut."""

    def __init__(self, *args: Any, returns: str = "graph", **options: Any) -> None:
        super().__init__(*args, **options)
        self.net, self.returns = nn.Linear(2, 1), returns
        self.alive: list[weakref.ref[torch.Tensor]] = []

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        self.state = torch.zeros(self.num_envs, 1)
        return self.state

    def step(self, action: Any) -> TensorDict:
        hidden = self.net(torch.cat([self.state, action], -1))
        self.state = hidden.tanh()
        if hidden.grad_fn is not None:  # a token that lives as long as the graph
            token = torch.zeros(())
            self.alive.append(weakref.ref(token))
            hidden.grad_fn.metadata["token"] = token
        obs = self.state if self.returns == "graph" else self.state.detach()
        return TensorDict({"obs": obs, "rewards": obs}, [self.num_envs])

    def metrics(self) -> dict[str, Any]:
        return {}


def count_alive(env: Any) -> int:
    gc.collect()
    return sum(token() is not None for token in env.alive)


def trained(env: Any, config: Any = AlgorithmConfig, **options: Any) -> Any:
    algorithm = config(seed=0, num_sgd_iters=1, **options).build(env)
    for _ in range(3):
        stats = algorithm.collect()
        algorithm.step()
    return algorithm, stats


@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize("cls", [Ball, Episodic])
def test_an_environment_may_differentiate(cls: Any, config: Any) -> None:
    env = cls()
    algorithm, stats = trained(env, config, horizons_per_env_reset=1, matmul_precision="medium")
    assert all(x == settings() for x in env.seen)
    assert len(env.seen) == 3 * (8 + 1 + 2)  # env steps, resets, and metrics before and after
    x, actions = algorithm.rollout.obs[0], algorithm.rollout.actions[0]
    torch.testing.assert_close(x[1], x[0] - 0.1 * x[0] ** 3 + 0.01 * actions[0])
    assert stats["env/force"] < 0


@pytest.mark.parametrize("context", [
    torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16),
])  # fmt: skip
@pytest.mark.parametrize("amp", [False, True])
def test_the_environment_has_the_settings_of_the_caller(context: Any, amp: bool) -> None:
    class Looking(Ball):
        def force(self) -> torch.Tensor:
            self.seen.append(settings())
            return -(self.state**3)

    env, other = Looking(), Looking()
    algorithm = AlgorithmConfig(enable_amp=amp, amp_dtype="bfloat16").build(env)
    with context():
        expected = settings()
        for _ in range(2):
            algorithm.collect()
            assert settings() == expected
            algorithm.step()
            assert settings() == expected
        evaluate(algorithm.policy, other, episodes=4)
        assert settings() == expected
    assert all(x == expected for x in env.seen + other.seen)
    assert settings()["gradients"]


@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize("source", ["CartPole-v1", DiscreteDummyEnv])
def test_an_algorithm_that_was_built_in_inference_mode_trains_outside(
    config: Any, source: Any
) -> None:
    found = []
    for context in (torch.inference_mode, contextlib.nullcontext):
        with context():
            algorithm, _ = trained(everstep.make(source, 4, horizon=8), config)
        algorithm.collect()
        algorithm.step()
        found.append([*algorithm.parameters()])
    assert all(map(torch.equal, *found))


def test_an_error_leaves_the_settings_of_the_caller() -> None:
    class Failing(Ball):
        def step(self, action: Any) -> TensorDict:
            torch.set_float32_matmul_precision("high")
            raise RuntimeError("broken")

    algorithm, before = AlgorithmConfig().build(Failing()), settings()
    try:
        with pytest.raises(RuntimeError, match="broken"):
            algorithm.collect()
        assert settings() == before
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("cls", [Ball, Episodic])
def test_an_evaluation_may_differentiate(cls: Any) -> None:
    algorithm, _ = trained(cls())
    env = cls()
    numbers = evaluate(algorithm.policy, env, episodes=4)
    assert numbers["episodes/count"] == 4
    assert env.seen
    assert all(x == settings() for x in env.seen)


def test_a_recorded_rollout_may_differentiate() -> None:
    recorded: Any = AlgorithmConfig(seed=0, num_sgd_iters=1).build(Recordable())
    recorded.recorder = Recorder(Tape)
    for _ in range(3):
        recorded.collect()
        recorded.step()
    assert recorded.recorder.collection.refused is None
    x, actions = recorded.rollout.obs[0], recorded.rollout.actions[0]
    torch.testing.assert_close(x[1:], x[:-1] - 0.1 * x[:-1] ** 3 + 0.01 * actions[:-1])
    calls = len(recorded.env.seen)
    # Other settings are another recording.
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        recorded.collect()
    assert len(recorded.env.seen) > calls


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("returns", ["graph", "detached"])
def test_no_graph_is_kept_between_rollouts(returns: str) -> None:
    env = Dream(returns=returns)
    algorithm, _ = trained(env, horizons_per_env_reset=-1)
    count = count_alive(env)
    algorithm.collect()
    assert len(env.alive) == 4 * 8
    assert count_alive(env) <= count <= (1 if returns == "graph" else 8)
    assert not any(x.requires_grad for x in (*algorithm.rollout.obs, algorithm.rollout.rewards))
    assert env.net.weight.grad is None
    assert env.net.weight.requires_grad


def test_no_graph_is_kept_by_an_evaluation() -> None:
    algorithm, _ = trained(Dream())
    for returns in ("graph", "detached"):
        env = Dream(returns=returns, horizon=40)
        evaluate(algorithm.policy, env, episodes=4)
        assert len(env.alive) == 40
        assert count_alive(env) <= 2


class DreamEnv(EnvBase):
    """`Dream` in TorchRL, whose state is in the tensors that are passed on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_spec = everstep_composite(self.batch_size)
        self.action_spec = Unbounded((*self.batch_size, 1))
        self.reward_spec = Unbounded((*self.batch_size, 1))
        self.net = nn.Linear(2, 1)

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        zeros = torch.zeros(*self.batch_size, 1)
        return TensorDict({"state": zeros, "force": zeros}, self.batch_size)

    def _step(self, tensordict: Any) -> Any:
        x = tensordict["state"].detach().requires_grad_()
        (slope,) = torch.autograd.grad((x**4).sum(), x)
        new = self.net(torch.cat([tensordict["state"], tensordict["action"]], -1)).tanh()
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        row = {"state": new, "force": slope, "reward": new, "done": done, "terminated": done}
        return TensorDict(row, self.batch_size)

    def _set_seed(self, seed: Any) -> None:
        torch.manual_seed(0)


def everstep_composite(batch: Any) -> Any:
    from torchrl.data import Composite

    leaves = {name: Unbounded((*batch, 1)) for name in ("state", "force")}
    return Composite(**leaves, shape=batch)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: DreamEnv(batch_size=[4]),
        lambda: SerialEnv(4, DreamEnv),
    ],
    ids=["batched", "serial"],
)
@pytest.mark.parametrize("keys", [["force"], ["state", "force"]])
def test_torchrl_environments_may_differentiate(make: Callable[[], Any], keys: list[str]) -> None:
    env: Any = everstep.wrap(make(), horizon=8, observation_keys=keys)
    algorithm, _ = trained(env, horizons_per_env_reset=-1)
    algorithm.collect()
    assert not any(x.requires_grad for x in (*algorithm.rollout.obs, algorithm.rollout.rewards))
    assert env._data["state"].grad_fn is None


def test_the_checks_of_environments_let_them_differentiate() -> None:
    results = run_checks(lambda n, horizon, device: Episodic(n, horizon, device=device))
    assert [str(x.violation) for x in results if x.violation is not None] == []


# What an environment returns and nothing reads.


class Nested(Ball):
    """Returns what its `extra` says, from its `since`-th env step on; its reset the `opening`."""

    extra: dict[str, Any]
    opening: dict[str, Any]
    since = 1

    def __init__(self, num_envs: int = 4, horizon: None | int = 8, **options: Any) -> None:
        super().__init__(num_envs, horizon, **options)
        self.observation_spec = Composite(a=Unbounded(1), b=Composite(c=Unbounded(1)))
        self.t = 0

    def _observed(self) -> dict[str, Any]:
        return {"a": self.state, "b": {"c": self.state}}

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        super().reset()
        obs = self._observed()
        obs["b"] |= self.opening
        return TensorDict(obs, [self.num_envs])

    def step(self, action: Any) -> TensorDict:
        self.t += 1
        row = {**super().step(action), "obs": self._observed()}
        if self.t >= self.since:
            row["obs"]["b"] |= self.extra.get("b", {})
            row |= {key: value for key, value in self.extra.items() if key != "b"}
        return TensorDict(row, [self.num_envs])


ONE = torch.zeros(4, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("named", "extra", "opening", "since"),
    [
        (["speed"], {"speed": ONE}, {}, 1),
        (["reward", "step"], {"step": ONE, "reward": ONE}, {}, 19),
        (["obs.b.d"], {"b": {"d": ONE}}, {}, 2),
        (["obs.b.e.f"], {}, {"e": {"f": ONE}}, 1),
        (["obs.b.d", "speed"], {"speed": ONE}, {"d": ONE}, 1),
    ],
)
def test_what_nothing_reads_is_named_once_and_by_the_check(
    caplog: Any, named: list[str], extra: Any, opening: Any, since: int
) -> None:
    class Talkative(Nested):
        pass

    Talkative.extra, Talkative.opening, Talkative.since = extra, opening, since
    for _ in range(2):  # once a class, not once an instance
        algorithm = AlgorithmConfig(num_envs=4, horizon=8).build(Talkative)
        for _ in range(4):
            algorithm.collect()
    told = [x.getMessage() for x in caplog.records if "which nothing reads" in x.getMessage()]
    assert [name for name in named if f"`{name}`" in " ".join(told)] == named
    assert sum(message.count("Talkative returns") for message in told) <= len(named)
    assert all("metrics()" in message for message in told)
    facts, _ = inspect_env(lambda: Talkative(4, 8), 40)  # `everstep check` says it, too
    assert facts["not read"].startswith(f"{', '.join(f'`{name}`' for name in named)}: returned")
    assert "metrics()" in facts["not read"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("declared", "returned", "named"),
    [
        (KEYS, "final_obs", "final_obs"),
        (KEYS, "valid", "valid"),
        (frozenset(), "valid", "valid"),
        (frozenset(), "truncated", "episodes would be trained as if they never ended"),
    ],
)
def test_episode_keys_that_are_not_declared_are_refused(
    declared: frozenset[str], returned: str, named: str
) -> None:
    class Undeclared(Ball):
        episode_keys = declared
        t = 0

        def step(self, action: Any) -> TensorDict:
            row = super().step(action)
            self.t += 1
            for key in declared | ({returned} if self.t > 11 else set()):
                row[key] = row["obs"] if key == "final_obs" else torch.zeros_like(ONE).bool()
            return row

    algorithm = AlgorithmConfig(num_envs=4, horizon=8).build(Undeclared)
    algorithm.collect()
    with pytest.raises(EnvError, match=f"`Env.step` returned.*{named}.*episode_keys.*leave"):
        algorithm.collect()
