"""Tasks with IsaacGym's interfaces in another Python: rows are those of the adapter in-process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import AdapterError, EnvError
from everstep.testing import run_checks
from everstep_adapters import IsaacGymEnv
from everstep_adapters.bridge import BridgeEnv
from everstep_adapters.bridge.env import BridgeTaskEnv
from tests.everstep_adapters.bridge import numpy_tasks
from tests.everstep_adapters.bridge.test_bridge import assert_equal
from tests.everstep_adapters.bridge.test_pythons import python
from tests.everstep_adapters.isaacgym.isaacgym_tasks import (
    LIMIT,
    LONGEST,
    SCRIPTS,
    check_rows,
    play,
    some_actions,
)

TASKS = "tests.everstep_adapters.bridge.numpy_tasks"


@contextmanager
def remote(entry: str, scripts: Any, **options: Any) -> Iterator[Any]:
    kwargs = {"scripts": scripts, **options.pop("kwargs", {})}
    options = {"python": sys.executable, **options}
    with BridgeEnv.make(f"{TASKS}:{entry}", len(scripts), kwargs=kwargs, **options) as env:
        assert isinstance(env, BridgeTaskEnv)
        yield env


def assert_alike(env: Any, own: Any, steps: int = 40) -> None:
    """Detected properties, rows and metrics are equal, bit for bit."""
    same = ("resets", "final observations", "limit", "observation", "action")
    assert [env.describe()[x] for x in same] == [own.describe()[x] for x in same]
    assert env.episode_keys == own.episode_keys
    actions = some_actions(steps, own.num_envs)
    for _ in range(2):  # a second full reset, with a reset pending
        (first, rows), (own_first, own_rows) = play(env, actions), play(own, actions)
        assert_equal(first, own_first)
        for row, own_row in zip(rows, own_rows, strict=True):
            assert_equal(row, own_row)
    assert env.metrics() == own.metrics()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "scripts", "options"),
    [
        ("A", "both", {"num_states": 2}),  # observations for a critic
        ("A", "where it was put", {"alias": True}),  # one buffer for all observations
        ("B", "both", {"num_states": 2}),
        ("C", "both", {"num_states": 2}),
        ("C", "both", {"compute": False}),  # none computed after a reset
        ("D", "both", {"num_states": 2, "fresh": False}),
        ("legged", "both", {}),
        ("rsl", "both", {}),
        ("lab", "both", {"final": True}),
    ],
)
def test_rows_are_those_in_process_bit_for_bit(style: str, scripts: str, options: Any) -> None:
    given = SCRIPTS[scripts]
    own = IsaacGymEnv(numpy_tasks.torch_task(len(given), style, given, **options))
    with remote("torch_task", given, kwargs={"style": style, **options}) as env:
        assert_alike(env, own)


@pytest.mark.few(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("where", ["here", "py36", "py38"])
@pytest.mark.parametrize("style", ["A", "B", "C", "D"])
def test_tasks_in_numpy_are_as_stepped_by_hand(style: str, where: str) -> None:
    """There is no PyTorch where they are hosted, or it is not used."""
    given = SCRIPTS["both"]
    interpreter = sys.executable if where == "here" else python(where)
    with remote("vec_task", given, python=interpreter, kwargs={"style": style}) as env:
        assert env.reset_style == style
        check_rows(env, style, given, knows_failures=style == "D")
        assert env.metrics() == {"speed": 2.5}
    with remote("vec_task", given, reset_style=style, kwargs={"style": style}) as env:
        check_rows(env, style, given, knows_failures=style == "D")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("where", ["here", "py38"])
def test_legged_tasks_in_numpy_are_as_stepped_by_hand(where: str) -> None:
    given = SCRIPTS["both"]
    interpreter = sys.executable if where == "here" else python(where)
    with remote("legged", given, python=interpreter) as env:
        check_rows(env, "C", given, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["A", "B", "C", "D"])
def test_it_obeys_the_protocol(style: str) -> None:
    def make(num_envs: int, horizon: None | int = None, device: Any = "cpu") -> Any:
        return BridgeEnv(
            python=sys.executable,
            entry=f"{TASKS}:vec_task",
            num_envs=num_envs,
            kwargs={"style": style, "scripts": [[5, 9]] * num_envs, "max_episode_length": 12},
            horizon=horizon,
            device=device,
        )

    results = run_checks(make, deterministic_by_seed=False, resets_draw_new_states=False)
    assert [str(x.violation) for x in results if x.status == "failed"] == []


@pytest.mark.slow
def test_large_batches_and_what_does_not_fit_the_first_memory() -> None:
    given = [[3], [4, 2]] * 20_000
    own = IsaacGymEnv(numpy_tasks.torch_task(len(given), "A", given))
    with remote("torch_task", given, kwargs={"style": "A"}) as env:
        assert_alike(env, own, steps=5)


def test_it_trains_from_a_name() -> None:
    env_kwargs = {
        "python": sys.executable,
        "kwargs": {"style": "C", "scripts": [[5]] * 4, "max_episode_length": LONGEST},
    }
    factory = everstep.factory(f"bridge:{TASKS}:vec_task", env_kwargs=env_kwargs)
    with everstep.Trainer(factory, seed=0, num_envs=4, horizon=8, run_dir=None) as trainer:
        stats: Any = trainer.step()
    assert stats["env/speed"] == 2.5


def test_errors_and_refusals() -> None:
    given = [[3], [3]]
    with remote("vec_task", given, reset_style="A", kwargs={"style": "A", "fails_at": 3}) as env:
        env.reset()
        with pytest.raises(EnvError, match=r"the physics exploded[^$]*numpy_tasks.py"):
            env.step(torch.zeros(2, 1))
    kwargs = {"scripts": given, "style": "A"}
    options: Any = {"python": sys.executable, "kwargs": kwargs}
    with pytest.raises(AdapterError, match="`processes: 1`"):
        BridgeEnv.make(f"{TASKS}:vec_task", 2, processes=2, **options)
    with pytest.raises(AdapterError, match="has no option max_episode_steps"):
        BridgeEnv.make(f"{TASKS}:vec_task", 2, max_episode_steps=3, **options)


def test_a_bridge_is_made_by_its_class() -> None:
    with BridgeEnv(python=sys.executable, entry="gymnasium:CartPole-v1", num_envs=2) as env:
        assert tuple(env.reset().shape) == (2, 4)
    with pytest.raises(AdapterError, match="needs `python` and `entry`"):
        BridgeEnv(python=sys.executable)
