"""Environments drawn at random, beside copies that are stepped one by one."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from everstep.algorithms import Algorithm
from everstep.core.hyperparameters import Hyperparameters
from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_draws import (
    ENDS,
    FAULTS,
    Draw,
    Oracle,
    Row,
    Summary,
    action_of,
    choose,
    draw,
    draw_choices,
    draw_image,
    draw_integers,
    leaves_of,
    made,
    pick,
    tensor_of,
    with_fault,
)

# Python 3.12 and JAX warn of forks in a process that has threads, which `AsyncVectorEnv` does.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]

HORIZON, GAMMA, LAMBDA = 10, 0.9, 0.8

#: Draws that always run, and those that `-m long` runs, some a test.
DRAWS, MORE, CHUNK = 40, 2000, 50


def observed(drawn: Draw, values: list[Any]) -> list[torch.Tensor]:
    """Leaves `[len(values), …]` of observations, in the space's order."""
    return [
        torch.stack([tensor_of(space, pick(value, path)) for value in values])
        for path, space in leaves_of(drawn.observation)
    ]


def leaves_in(drawn: Draw, obs: Any) -> list[torch.Tensor]:
    """The same of what Everstep returns."""
    paths = [tuple(map(str, path)) for path, _ in leaves_of(drawn.observation)]
    return [obs[path] if path else obs for path in paths]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor], message: str) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, msg=lambda x: f"{message}: {x}")


def advantages_of(rows: list[Row], values: list[float], next_values: list[float]) -> list[float]:
    """Generalised advantages of one environment's rows, in float64, backwards by definition."""
    found, following = [0.0] * len(rows), 0.0
    for t in reversed(range(len(rows))):
        row = rows[t]
        if not row.valid:
            following = 0.0
            continue
        goes_on = not (row.terminated or row.truncated)
        bootstrap = 0.0 if row.terminated else next_values[t]
        delta = row.reward + GAMMA * bootstrap - values[t]
        following = delta + GAMMA * LAMBDA * goes_on * following
        found[t] = following
    return found


class Recorder:
    """Keeps the actions and rows of an environment."""

    def __init__(self, env: GymnasiumEnv) -> None:
        self.env, self._step, self.actions, self.rows = env, env.step, [], []
        env.step = self.step  # type: ignore[method-assign]

    def step(self, action: Any) -> Any:
        self.actions.append(action.clone())
        row = self._step(action)
        self.rows.append(row.clone())
        return row


def check(seed: int) -> bool:
    """Check a draw; whether it was refused, as it has to be."""
    torch.manual_seed(seed)
    drawn = draw(seed)
    env: None | GymnasiumEnv = None
    if drawn.fault is not None:
        with pytest.raises((AdapterError, EnvError), match=rf"(?s){FAULTS[drawn.fault]}"):
            play(env := made(drawn, HORIZON))
        return True
    env = made(drawn, HORIZON)
    try:
        compare(drawn, env)
    finally:
        env.close()
    return False


def play(env: GymnasiumEnv) -> None:
    env.reset()
    for _ in range(4):
        env.step(env.action_spec.zero(torch.Size([env.num_envs])))


def compare(drawn: Draw, env: GymnasiumEnv) -> None:
    recorder = Recorder(env)
    raw: Any = dict.fromkeys(("normalize_advantages", "normalize_rewards"), False)
    raw["horizons_per_env_reset"] = -1
    config = Hyperparameters(model_cls=Summary, gamma=GAMMA, gae_lambda=LAMBDA, **raw)
    algorithm = Algorithm(env, config)
    oracles = [Oracle(drawn, row) for row in range(drawn.num_envs)]
    before = [oracle.reset() for oracle in oracles]
    for _ in range(2):
        recorder.actions.clear()
        recorder.rows.clear()
        algorithm.collect()
        algorithm.estimate()
        expected = [
            compare_step(drawn, oracles, *x)
            for x in zip(recorder.actions, recorder.rows, strict=True)
        ]
        compare_rollout(drawn, algorithm, before, expected)
        before = [row.obs for row in expected[-1]]


def compare_step(drawn: Draw, oracles: list[Oracle], action: Any, found: Any) -> list[Row]:
    """The oracles' rows of a vector step, which are those that were found."""
    actions = [action_of(drawn.action, x) for x in action.numpy()]
    rows = [oracle.step(x) for oracle, x in zip(oracles, actions, strict=True)]
    assert_equal(leaves_in(drawn, found["obs"]), observed(drawn, [x.obs for x in rows]), "obs")
    rewards = torch.tensor([[row.reward] for row in rows], dtype=torch.float64).float()
    assert_equal([found["rewards"]], [rewards], "rewards")
    keys = set(found.keys())
    for key in ("terminated", "truncated", "first", "valid"):
        if key in keys:
            assert found[key].flatten().tolist() == [getattr(row, key) for row in rows], key
    if "final_obs" in keys:
        final = observed(drawn, [row.final for row in rows])
        assert_equal(leaves_in(drawn, found["final_obs"]), final, "final_obs")
    assert ("valid" in keys) is (drawn.mode == "NEXT_STEP")
    return rows


def compare_rollout(
    drawn: Draw, algorithm: Algorithm, before: list[Any], steps: list[list[Row]]
) -> None:
    """Observations, masks and advantages of a rollout."""
    rollout, policy = algorithm.rollout, algorithm.policy

    def values(observations: list[Any]) -> list[float]:
        leaves = leaves_in(drawn, as_everstep(drawn, observations))
        with torch.no_grad():
            return policy.values(ordered(algorithm, drawn, leaves), ()).flatten().tolist()

    stream = [before, *([row.obs for row in rows] for rows in steps)]
    of_obs = np.array([values(observations) for observations in stream])
    of_final = np.array([values([row.final for row in rows]) for rows in steps])
    np.testing.assert_allclose(rollout.values[..., 0].numpy(), of_obs, rtol=1e-5, atol=1e-5)
    for n in range(drawn.num_envs):
        rows = [step[n] for step in steps]
        following = np.where([row.first for row in rows], of_final[:, n], of_obs[1:, n])
        expected = advantages_of(rows, of_obs[:-1, n].tolist(), following.tolist())
        found = rollout.advantages[:-1, n, 0].double().numpy()
        is_valid = np.array([row.valid for row in rows])
        assert rollout.valid[:, n, 0].tolist() == is_valid.tolist()
        scale = 1 + np.abs(expected).max()
        np.testing.assert_allclose(
            found[is_valid] / scale, np.array(expected)[is_valid] / scale, atol=1e-5
        )


def as_everstep(drawn: Draw, observations: list[Any]) -> Any:
    """A batch of observations under the keys of the specs."""
    leaves = observed(drawn, observations)
    paths = [tuple(map(str, path)) for path, _ in leaves_of(drawn.observation)]
    return leaves[0] if paths == [()] else dict(zip(paths, leaves, strict=True))


def ordered(algorithm: Algorithm, drawn: Draw, leaves: list[torch.Tensor]) -> Any:
    """Leaves in the order of the rollout's."""
    paths = [tuple(map(str, path)) for path, _ in leaves_of(drawn.observation)]
    by_path = dict(zip(paths, leaves, strict=True))
    wanted = algorithm.rollout.observation.paths
    return tuple(by_path[tuple(path)] for path in wanted) if paths != [()] else tuple(leaves)


@pytest.mark.few(8)
@pytest.mark.parametrize("seed", range(DRAWS))
def test_a_drawn_environment_is_that_of_its_copies(seed: int) -> None:
    check(seed)


def right_or_refused(seed: int) -> tuple[int, str]:
    """Ends of a drawn environment that overwrites them, which are right; why it was refused."""
    random = np.random.default_rng(seed)
    drawn = with_fault(draw(seed), random, choose(random, ["held", "overwritten"]))
    space = choose(random, [draw_integers, draw_image, draw_choices])(random)
    scripts = [[(choose(random, ENDS), int(random.integers(1, 6))) for _ in range(3)]] * 4
    own = {"observation": space, "scripts": scripts, "action": spaces.Discrete(2)}
    drawn = replace(drawn, **own)
    env, ends = made(drawn, HORIZON), 0
    oracles = [Oracle(drawn, row) for row in range(drawn.num_envs)]
    env.reset()
    for oracle in oracles:
        oracle.reset()
    action = env.action_spec.zero(torch.Size([env.num_envs]))
    for _ in range(40):
        try:
            row = env.step(action)
        except EnvError as error:
            return ends, str(error)
        expected = [oracle.step(0) for oracle in oracles]
        final = observed(drawn, [x.final for x in expected])
        for i, each in enumerate(expected):
            if each.truncated and not each.terminated:
                found = [leaf[i] for leaf in leaves_in(drawn, row["final_obs"])]
                assert_equal(found, [leaf[i] for leaf in final], f"final_obs of {i}")
                ends += 1
    return ends, ""


def test_final_observations_of_integers_are_right_or_refused() -> None:
    """No wrong one is returned where it is needed, in any env step."""
    reasons = [right_or_refused(seed)[1] for seed in range(200)]
    refusals = r"writes into final observations|may have overwritten the final observations"
    assert sum(bool(re.search(refusals, reason)) for reason in reasons) > 180
    assert all(re.search(refusals, reason) for reason in reasons if reason)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(DRAWS, DRAWS + MORE, CHUNK))
def test_many_drawn_environments_are_those_of_their_copies(start: int) -> None:
    refused = [check(seed) for seed in range(start, start + CHUNK)]
    assert 0 < sum(refused) < CHUNK / 3
