"""Tasks of IsaacGymEnvs and legged_gym in another process: rows are those in-process.

The simulator is a stand-in; `test_isaacgym_projects` says how to get the projects, and names them.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.testing import run_checks
from everstep_adapters import IsaacGymEnv
from everstep_adapters.bridge import BridgeEnv
from everstep_adapters.bridge.env import BridgeTaskEnv
from tests.everstep_adapters.bridge.test_bridge import assert_equal
from tests.everstep_adapters.bridge.test_pythons import python
from tests.everstep_adapters.isaacgym.isaacgym_stand_in import set_seed
from tests.everstep_adapters.isaacgym.test_isaacgym_projects import KINDS, LONGEST
from tests.everstep_adapters.isaacgym.test_isaacgym_projects import make as make  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS, SEED = 60, 7

#: Servers find the tests in their current folder, which the fixture `make` leaves.
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def root_folder(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def remote(name: str, num_envs: int, interpreter: str = sys.executable, **options: Any) -> Any:
    """The task of a name, hosted by a server."""
    kind = KINDS[name]
    variable = "EVERSTEP_LEGGED_GYM" if kind.module is None else "EVERSTEP_ISAACGYMENVS"
    kwargs = {
        "project": str(Path(os.environ[variable]).resolve()),
        "name": kind.name,
        "module": kind.module,
        "config": kind.config,
        "longest": LONGEST,
    }
    entry = "tests.everstep_adapters.bridge.bridge_toys:isaacgym_project"
    options |= {"python": interpreter, "kwargs": kwargs, "reset_style": kind.style}
    return BridgeEnv.make(entry, num_envs, **options)


def local(make: Any, name: str, num_envs: int) -> IsaacGymEnv:
    """The same in this process; its seed is that of all generators, as a server's is."""
    task = make(KINDS[name], num_envs, 0)
    task.max_episode_length, task.seed = LONGEST, set_seed
    return IsaacGymEnv(task, reset_style=KINDS[name].style)


@pytest.mark.parametrize("where", ["here", "py310"])
@pytest.mark.parametrize("num_envs", [1, 64])
@pytest.mark.parametrize("name", ["Cartpole", "Ant", "Anymal", "anymal_c_flat", "HumanoidAMP"])
def test_rows_are_those_in_process_bit_for_bit(
    make: Any, name: str, num_envs: int, where: str
) -> None:
    own = local(make, name, num_envs)
    interpreter = sys.executable if where == "here" else python(where)
    ends = 0
    with remote(name, num_envs, interpreter) as env:
        assert isinstance(env, BridgeTaskEnv)
        same = ("resets", "final observations", "limit", "observation", "action")
        assert [env.describe()[x] for x in same] == [own.describe()[x] for x in same]
        assert env.episode_keys == own.episode_keys
        shape = STEPS, num_envs, *own.action_spec.shape
        actions = 2 * torch.rand(shape, generator=torch.Generator().manual_seed(SEED)) - 1
        for each in (env, own):
            each.seed(SEED)
        assert_equal(env.reset(), own.reset())
        for action in actions:
            row, expected = env.step(action), own.step(action)
            assert_equal(row, expected)
            ends += int((expected["terminated"] | expected["truncated"]).sum())
        assert env.metrics() == own.metrics()
    print(f"\n{name}: {num_envs} × {STEPS} rows, {ends} ends, {where}, {env}")
    assert ends >= num_envs


@pytest.mark.long  # a server for each environment
@pytest.mark.parametrize("name", ["Cartpole", "anymal_c_flat"])
def test_it_obeys_the_protocol(make: Any, name: str) -> None:
    make(KINDS[name], 1, 0)  # or the test is skipped

    def made(num_envs: int, horizon: None | int = None, device: Any = "cpu") -> Any:
        return remote(name, num_envs, horizon=horizon, device=device)

    results = run_checks(made)
    assert [str(x.violation) for x in results if x.status == "failed"] == []
