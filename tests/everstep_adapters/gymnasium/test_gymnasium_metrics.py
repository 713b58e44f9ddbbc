"""Metrics of environments: means of the numbers in infos, against means computed by hand."""

from functools import partial
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from everstep import AlgorithmConfig, Trainer, evaluate
from everstep.env.calls import read_metrics
from everstep_adapters import GymnasiumEnv

LENGTHS = (3, 5, 1)


class Informing(gymnasium.Env[np.ndarray, int]):
    """Reports numbers of many kinds in its infos; `log` lists those of its env steps."""

    def __init__(self, name: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), dtype=np.float32)
        self.action_space = spaces.Discrete(2)
        self.name, self.total = name, 0
        self.log: list[dict[str, Any]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {"distance": 1e6, "is_success": True, "only_reset": 1.0}

    def step(self, action: int) -> Any:
        self.t += 1
        self.total += 1
        done = self.t == LENGTHS[self.name]
        info: dict[str, Any] = {
            "distance": 10.0 * self.name + self.total,
            "is_success": bool(action) or not done,
            "upright": bool(action),
            "parts": {"forward": 0.5 * self.total},
            "gap": np.nan if self.t == 2 else 1.0 * self.t,
            "text": "no number",
            "vector": np.ones(3),
            "seed": 7,
        }
        if done:
            info["score"] = 100.0 * self.name + action
        if self.total > 7:
            info["late"] = self.t
        self.log.append({**info, "done": done})
        return np.zeros(1, np.float32), 1.0, done, False, info


def make(mode: str) -> SyncVectorEnv:
    fns = [partial(Informing, i) for i in range(len(LENGTHS))]
    return SyncVectorEnv(fns, autoreset_mode=AutoresetMode[mode])


def expected(logs: list[dict[str, Any]]) -> dict[str, float]:
    ends = [x for x in logs if x["done"]]
    late = [x["late"] for x in logs if "late" in x]
    return {
        "env/distance": np.mean([x["distance"] for x in logs]),
        "env/is_success": np.mean([x["is_success"] for x in ends]),
        "env/upright": np.mean([x["upright"] for x in logs]),
        "env/parts/forward": np.mean([x["parts"]["forward"] for x in logs]),
        "env/gap": np.nanmean([x["gap"] for x in logs]),
        "env/score": np.mean([x["score"] for x in ends]),
        **({"env/late": np.mean(late)} if late else {}),
    }


def own(stats: Any) -> dict[str, float]:
    counts = ("env/steps", "env/resets")
    return {k: x for k, x in stats.items() if k.startswith("env/") and k not in counts}


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_a_rollouts_metrics_are_those_of_its_env_steps(mode: str) -> None:
    """Not of resets: their infos hold a distance of a million."""
    vector = make(mode)
    algorithm = AlgorithmConfig(horizon=8, horizons_per_env_reset=-1).build(GymnasiumEnv(vector))
    before = [0] * len(LENGTHS)
    for _ in range(3):
        stats = algorithm.collect()
        logs = [env.log[n:] for env, n in zip(vector.envs, before, strict=True)]
        before = [len(env.log) for env in vector.envs]
        assert sum(map(len, logs)) == stats["env/steps"]
        assert own(stats) == pytest.approx(expected(list(chain(*logs))))


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_the_metrics_of_processes_are_the_same(mode: str) -> None:
    fns = [partial(Informing, i) for i in range(len(LENGTHS))]
    vector = AsyncVectorEnv(fns, autoreset_mode=AutoresetMode[mode], context="fork")
    found = []
    for each in (make(mode), vector):
        with GymnasiumEnv(each) as env:
            env.reset()
            for t in range(20):
                env.step(torch.full((3, 1), t % 2))
            found.append(env.metrics())
    assert found[0] == pytest.approx(found[1])
    assert found[0]["distance"] < 100


def test_episode_statistics_of_a_wrapper_are_means_over_episodes() -> None:
    env = GymnasiumEnv(RecordEpisodeStatistics(make("NEXT_STEP")))
    env.reset()
    for _ in range(12):
        env.step(torch.zeros(3, 1, dtype=torch.int64))
    # In 12 env steps, resets included: 3 episodes of 3 steps, 2 of 5, and 6 of 1.
    found = env.metrics()
    assert found["episode/l"] == pytest.approx((3 * 3 + 2 * 5 + 6 * 1) / 11)
    assert found["episode/r"] == pytest.approx(found["episode/l"])


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], set()),
        (["distance"], {"env/distance"}),
        (["parts"], {"env/parts/forward"}),
        (["parts/forward", "nothing"], {"env/parts/forward"}),
    ],
)
def test_metrics_are_chosen_by_name(names: list[str], shown: set[str]) -> None:
    env = GymnasiumEnv(make("SAME_STEP"), horizon=8, metrics=names)
    assert own(AlgorithmConfig().build(env).collect()).keys() == shown


def test_long_loops_that_never_read_metrics_keep_few_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers are added up on the way; the means are those of all."""
    monkeypatch.setattr("everstep_adapters.common.metrics._MOST", 12)
    env = GymnasiumEnv(make("SAME_STEP"))
    env.reset()
    for _ in range(30):
        env.step(torch.zeros(3, 1, dtype=torch.int64))
        assert all(len(x._values) < 4 for x in env._metrics._means.values() if x is not None)
    logs = [x for each in env.env.envs for x in each.log]  # type: ignore[attr-defined]
    assert env.metrics()["distance"] == pytest.approx(np.mean([x["distance"] for x in logs]))
    assert env.metrics() == {}


def test_evaluations_report_metrics_of_their_own_env_steps() -> None:
    trained, tested = make("NEXT_STEP"), make("NEXT_STEP")
    env = GymnasiumEnv(tested)
    with Trainer(GymnasiumEnv(trained, 8), eval_env=env, eval_episodes=6, run_dir=None) as trainer:
        trainer.step()
        env.reset()
        env.step(torch.zeros(3, 1, dtype=torch.int64))  # before the evaluation
        start = [len(each.log) for each in tested.envs]  # type: ignore[attr-defined]
        stats = trainer.eval()
    logs = [x for each, n in zip(tested.envs, start, strict=True) for x in each.log[n:]]  # type: ignore[attr-defined]
    found = {k.removeprefix("eval/"): x for k, x in stats.items()}
    assert own(found) == pytest.approx(expected(logs))
    assert own(evaluate(trainer.algorithm.policy, env, episodes=3)).keys() >= {"env/distance"}


def test_evaluations_on_the_training_environment_average_rollouts() -> None:
    vector = make("SAME_STEP")
    algorithm_env = GymnasiumEnv(vector, 8)
    with Trainer(algorithm_env, horizons_per_env_reset=2, run_dir=None) as trainer:
        trainer.step()
        trainer.step()
        start = [len(each.log) for each in vector.envs]
        stats = trainer.eval()
    logs = [x for each, n in zip(vector.envs, start, strict=True) for x in each.log[n:]]
    distances = np.mean([x["distance"] for x in logs])  # rollouts have as many env steps
    assert stats["eval/env/distance"] == pytest.approx(distances)  # type: ignore[typeddict-item]
    assert stats["eval/env/steps"] == 48


def test_a_rollout_that_failed_leaves_no_metrics() -> None:
    vector = make("SAME_STEP")
    env = GymnasiumEnv(vector)
    algorithm = AlgorithmConfig(horizon=8).build(env)
    step, calls = env.step, iter(range(100))

    def failing(action: Any) -> Any:
        if next(calls) == 4:
            raise RuntimeError("once")
        return step(action)

    env.step = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="once"):
        algorithm.collect()
    start = [len(each.log) for each in vector.envs]
    stats = algorithm.collect()
    logs = [x for each, n in zip(vector.envs, start, strict=True) for x in each.log[n:]]
    assert own(stats) == pytest.approx(expected(logs))


def test_an_environment_without_infos_has_no_metrics() -> None:
    env = GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"))
    env.reset()
    env.step(torch.zeros(2, 1, dtype=torch.int64))
    assert read_metrics(env) == {}


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Reacher-v5"])
def test_mujocos_rewards_are_metrics(name: str) -> None:
    pytest.importorskip("mujoco")
    stats = Trainer(f"gymnasium:{name}", num_envs=2, horizon=16, run_dir=None).step()
    parts = [x for k, x in own(stats).items() if k.startswith("env/reward_")]
    assert len(parts) >= 2
    assert sum(parts) == pytest.approx(stats["rewards/mean"], rel=1e-4)
