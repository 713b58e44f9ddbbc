"""Environments of other projects: they obey the rules but where they break them, and train.

pip install -c constraints.txt popgym minigrid gymnasium-robotics pybullet_envs_gymnasium
pip install -c constraints.txt highway-env flappy-bird-gymnasium gym-anytrading gym-simplegrid
pip install -c constraints.txt mo-gymnasium gymnasium-sudoku gym-pusht vizdoom rware
python -m pytest -m projects tests/compat
"""

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from gymnasium.wrappers import TimeLimit

import everstep
from everstep import AlgorithmConfig
from everstep.errors import AdapterError
from everstep.testing import run_checks

pytestmark = [
    pytest.mark.projects,
    pytest.mark.filterwarnings("ignore"),  # theirs
]

#: Env steps of the episodes that rules are checked with, so that several end.
SHORT = 7


class Project(NamedTuple):
    """An environment of a project.

    Args:
        module: Registers it, and is skipped where it is not installed.
        id: Its name.
        options: Of the adapter and the environment.
        broken: Rules that it breaks itself, by the names of their checks.

    """

    module: str
    id: str
    options: Mapping[str, Any] = MappingProxyType({})
    broken: tuple[str, ...] = ()


PROJECTS = [
    Project("popgym", "popgym-AutoencodeEasy-v0"),
    Project("popgym", "popgym-BattleshipEasy-v0"),
    Project("popgym", "popgym-MineSweeperEasy-v0"),
    Project("popgym", "popgym-ConcentrationEasy-v0"),
    Project("popgym", "popgym-HigherLowerEasy-v0"),
    Project("popgym", "popgym-MultiarmedBanditEasy-v0"),
    Project("popgym", "popgym-PositionOnlyPendulumEasy-v0"),
    Project("minigrid", "MiniGrid-DoorKey-5x5-v0", {"observation_keys": ["direction", "image"]}),
    Project("minigrid", "BabyAI-GoToObj-v0", {"observation_keys": ["direction", "image"]}),
    Project("gymnasium_robotics", "PointMaze_UMaze-v3"),
    Project("gymnasium_robotics", "AntMaze_UMaze-v5"),
    Project("gymnasium_robotics", "AdroitHandDoor-v1"),
    # PyBullet's state is not restored whole.
    Project("pybullet_envs_gymnasium", "HopperBulletEnv-v0", broken=("reseed",)),
    Project("pybullet_envs_gymnasium", "InvertedPendulumSwingupBulletEnv-v0"),
    Project("highway_env", "highway-fast-v0"),
    Project("highway_env", "parking-v0"),
    # A laser's reading is 1.002, and the space ends at 1.
    Project("flappy_bird_gymnasium", "FlappyBird-v0", broken=("rows",)),
    Project("gym_anytrading", "forex-v0"),
    Project("gym_anytrading", "stocks-v0"),
    Project("gym_simplegrid", "SimpleGrid-8x8-v0"),
    Project("gym_pusht", "gym_pusht/PushT-v0"),
    Project("vizdoom.gymnasium_wrapper", "VizdoomBasic-v1"),
]

#: What one policy cannot learn from, and how the refusal begins.
REFUSED = [
    ("mo_gymnasium", "deep-sea-treasure-v0", r"rewards .* are vectors.*LinearReward"),
    ("rware", "rware-tiny-2ag-v2", r"`action_space` must be .*got Tuple\(Discrete\(5\)"),
    ("gymnasium_sudoku", "sudoku-v0", r"`action_space` must be .*TransformAction"),
    ("minigrid", "MiniGrid-DoorKey-5x5-v0", r"\['mission'\]` cannot be .*observation_keys="),
]


def imported(module: str) -> None:
    """Skip where a project is not installed."""
    pytest.importorskip(module.partition(".")[0])
    importlib.import_module(module)


def make(
    project: Project, mode: str, num_envs: int, horizon: None | int = None, device: Any = "cpu"
) -> everstep.Env:
    """A new environment whose episodes are short, though it ends them itself."""
    return everstep.make(
        f"gymnasium:{project.id}",
        num_envs,
        horizon=horizon,
        device=device,
        autoreset_mode=mode,
        wrappers=[partial(TimeLimit, max_episode_steps=SHORT)],
        **project.options,
    )


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("project", PROJECTS, ids=[x.id for x in PROJECTS])
def test_it_obeys_the_rules_and_trains(
    project: Project, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(project.module)
    monkeypatch.chdir(tmp_path)  # some write files where they are
    results = run_checks(
        partial(make, project, mode),
        num_envs_choices=(2,),
        num_steps=3 * SHORT,
        resets_draw_new_states=False,  # a choice among few does not always show
    )
    broken = {x.name: str(x.violation) for x in results if x.violation is not None}
    assert {*broken} == {*project.broken}, broken
    algorithm = AlgorithmConfig(horizon=16, num_sgd_iters=1).build(make(project, mode, 2))
    for _ in range(2):
        assert algorithm.collect()["env/steps"] > 0
        assert algorithm.step()["monitors/skipped_updates"] == 0
    algorithm.env.close()


@pytest.mark.parametrize(("module", "id", "message"), REFUSED, ids=[x[1] for x in REFUSED])
def test_what_cannot_be_learned_from_is_refused(module: str, id: str, message: str) -> None:
    imported(module)
    with pytest.raises(AdapterError, match=message):
        everstep.make(f"gymnasium:{id}", 2)
