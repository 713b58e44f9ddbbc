"""Tests of the tasks that defaults are chosen and judged by."""

import numpy as np
import pytest
from examples.defaults.tasks import SETS, TASKS, make_env

SMALL = [name for name, task in TASKS.items() if task.env.startswith("small:")]
POOLS = [name for name, task in TASKS.items() if task.env.startswith(("pool:", "envpool:"))]


def test_no_task_is_in_two_sets() -> None:
    names = [name for tasks in SETS.values() for name in tasks]
    made = [(task.env, str(task.options)) for task in SETS["choosing"].values()]
    assert len(names) == len(TASKS)
    for tasks in (tasks for name, tasks in SETS.items() if name.startswith("held-out")):
        assert not {(task.env, str(task.options)) for task in tasks.values()} & {*made}


@pytest.mark.parametrize("name", SMALL)
def test_small_environments_keep_to_their_spaces_and_lengths(name: str) -> None:
    task, env = TASKS[name], make_env(TASKS[name])
    env.action_space.seed(0)
    assert env.observation_space.contains(env.reset(seed=0)[0])
    lengths, steps = [], 0
    limit = (task.options or {}).get("max_episode_steps", 0)
    for _ in range(300 + limit):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        steps += 1
        if terminated or truncated:
            lengths.append(steps)
            steps = 0
            env.reset()
    assert bool(lengths) is (task.cut is None)
    assert not lengths or max(lengths) <= env.unwrapped.length or env.unwrapped.length == 0


def test_a_seed_draws_the_same_episode_again() -> None:
    for name in SMALL:
        first, second = (make_env(TASKS[name]) for _ in range(2))
        first.action_space.seed(1)
        seen = [first.reset(seed=3)[0], second.reset(seed=3)[0]]
        action = first.action_space.sample()
        for env in (first, second):
            seen.append(env.step(action)[0])
        for a, b in (seen[:2], seen[2:]):
            pairs = zip(*(x.values() if isinstance(x, dict) else [x] for x in (a, b)), strict=True)
            assert all(np.array_equal(x, y) for x, y in pairs), name


@pytest.mark.parametrize("name", POOLS)
def test_an_environment_of_a_pool_takes_its_seed_and_says_its_limit(name: str) -> None:
    pytest.importorskip("envpool", reason="needs EnvPool")
    first, second = (make_env(TASKS[name]) for _ in range(2))
    drawn = [env.reset(seed=seed)[0] for env, seed in ((first, 3), (second, 3), (second, 4))]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])
    assert not np.array_equal(drawn[2], second.reset()[0])
    assert all(map(first.observation_space.contains, drawn))
    assert first.spec is not None
    assert first.spec.max_episode_steps == 1000
