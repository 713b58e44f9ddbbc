"""dm_control: the discount says how an episode ended; options are those of Gymnasium's adapter."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep.adapters import DMControlEnv
from everstep.errors import AdapterError
from everstep.testing import run_checks

dm_env = pytest.importorskip("dm_env")
specs = pytest.importorskip("dm_env.specs")

pytestmark = pytest.mark.filterwarnings("ignore")


class Count(dm_env.Environment):  # type: ignore[misc]
    """Observes the env step and the last action; ends after some, with a discount."""

    def __init__(self, end: int = 3, discount: float = 1.0, action: Any = None) -> None:
        self.end, self.discount = end, discount
        self.action = action or specs.BoundedArray((2,), np.float64, [-1, -2], [1, 2])
        self.last: Any = 0.0
        self.closed = 0

    def observation_spec(self) -> Any:
        return {
            "time": specs.Array((), np.float64),
            "image": specs.Array((2, 2), np.uint8),
            "last": specs.Array(self.action.shape, np.float64),
        }

    def action_spec(self) -> Any:
        return self.action

    def seen(self) -> Any:
        self.image[:] = self.t
        last = np.zeros(self.action.shape) + self.last
        return {"time": float(self.t), "image": self.image, "last": last}

    def reset(self) -> Any:
        self.t, self.last, self.image = 0, 0.0, np.zeros((2, 2), np.uint8)
        return dm_env.restart(self.seen())

    def step(self, action: Any) -> Any:
        self.t, self.last = self.t + 1, action
        if self.t < self.end:
            return dm_env.transition(None, self.seen())
        kind = dm_env.StepType.LAST
        return dm_env.TimeStep(kind, float(self.t), self.discount, self.seen())

    def close(self) -> None:
        self.closed += 1


def rows_of(env: Any, steps: int) -> list[Any]:
    env.reset()
    action = torch.zeros(env.num_envs, *env.action_spec.shape, dtype=env.action_spec.dtype)
    return [env.step(action).clone() for _ in range(steps)]


@pytest.mark.parametrize(
    ("discount", "kind"), [(1.0, "truncated"), (0.0, "terminated"), (0.5, "truncated")]
)
def test_the_discount_says_how_an_episode_ended(discount: float, kind: str) -> None:
    env = everstep.wrap(Count(discount=discount), autoreset_mode="SAME_STEP")
    assert isinstance(env, DMControlEnv)
    rows = rows_of(env, 4)
    other = {"truncated": "terminated", "terminated": "truncated"}[kind]
    assert [row[kind].item() for row in rows] == [False, False, True, False]
    assert not any(row[other].item() for row in rows)
    assert [row["rewards"].item() for row in rows] == [0, 0, 3, 0]  # None is 0
    assert rows[2]["final_obs", "time"].item() == 3
    assert rows[2]["final_obs", "image"].eq(3).all()  # of an array that is written to again
    assert rows[2]["obs", "time"].item() == 0


def test_a_list_is_a_batch_and_is_closed_once() -> None:
    envs = [Count(2), Count(3)]
    with everstep.wrap(envs) as env:
        rows = rows_of(env, 3)
    assert [row["truncated"].flatten().tolist() for row in rows] == [
        *([False, False], [True, False], [False, True])
    ]
    assert [x.closed for x in envs] == [1, 1]


def test_options_are_gymnasiums() -> None:
    env = everstep.make(
        Count, 2, end=9, max_episode_steps=4, observation_keys=["time"], action_bounds="rescale"
    )
    assert isinstance(env, DMControlEnv)
    rows = rows_of(env, 4)
    assert rows[3]["truncated"].all()
    assert rows[3]["final_obs"].flatten().tolist() == [4, 4]
    env = everstep.make(Count, 1, action_bounds="rescale")
    env.reset()
    row = env.step(torch.tensor([[0.5, 0.5]]))
    assert row["obs", "last"].tolist() == [[0.5, 1.0]]


def test_choices_are_categories() -> None:
    env = everstep.wrap(Count(action=specs.DiscreteArray(3)), observation_keys=["time"])
    assert env.action_spec.space.n == 3
    assert rows_of(env, 1)[0]["obs"].item() == 1


def test_specs_that_are_no_numbers_are_refused() -> None:
    class Words(Count):
        def observation_spec(self) -> Any:
            return {"mission": specs.StringArray(())}

    with pytest.raises(AdapterError, match="`observation/mission` must be one of numbers"):
        everstep.wrap(Words())


@pytest.mark.slow
def test_rules_of_the_protocol() -> None:
    def make(num_envs: int, horizon: int, device: Any) -> Any:
        return everstep.make(
            Count, num_envs, horizon=horizon, device=device, observation_keys=["time", "last"]
        )

    results = run_checks(make, resets_draw_new_states=False)
    assert [x for x in results if x.status == "failed"] == []


def test_names() -> None:
    with pytest.raises(AdapterError, match="written 'domain/task'"):
        everstep.make("dm_control:cartpole", 1)


@pytest.fixture
def suite() -> Any:
    found = pytest.importorskip("dm_control.suite")
    try:
        found.load("cartpole", "balance")
    except AttributeError as error:  # a MuJoCo that it does not know
        pytest.skip(str(error))
    return found


@pytest.mark.slow
def test_rows_of_the_suite_are_its_own(suite: Any) -> None:
    """With its time limit, against the environment itself from the same seed."""
    limit = {"time_limit": 0.05}  # 5 env steps
    env = everstep.make("dm_control:cartpole/swingup", 2, task_kwargs=limit)
    assert env.max_episode_steps == 5
    env.seed(4)
    obs = env.reset()
    alone = suite.load("cartpole", "swingup", task_kwargs={**limit, "random": 5})
    alone_step = alone.reset()
    for t in range(1, 6):
        expected = torch.as_tensor(alone_step.observation["position"]).float()
        torch.testing.assert_close(obs["position"][1], expected)
        alone_step = alone.step(np.array([0.3]))
        row = env.step(torch.full((2, 1), 0.3))
        obs = row["obs"]
        assert row["truncated"].tolist() == [[t == 5]] * 2
        assert row["rewards"][1].item() == pytest.approx(alone_step.reward)
    assert alone_step.last()


@pytest.mark.slow
def test_the_suite_trains_from_a_file(suite: Any, tmp_path: Path) -> None:
    from everstep.__main__ import main

    file = tmp_path / "train.yaml"
    file.write_text(
        "env_cls: dm_control:cartpole/balance\nenv_kwargs: {task_kwargs: {time_limit: 0.1}}\n"
        "num_envs: 2\nhorizon: 16\ntotal_env_steps: 64\n"
    )
    run = tmp_path / "run"
    assert main(["train", "-f", str(file), "--no-mlflow", "--run-dir", str(run)]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) >= 2


@pytest.mark.slow
def test_unknown_tasks(suite: Any) -> None:
    with pytest.raises(AdapterError, match="dm_control cannot make 'cartpole/stand'"):
        everstep.make("dm_control:cartpole/stand", 1)
