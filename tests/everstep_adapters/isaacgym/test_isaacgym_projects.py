"""The tasks of IsaacGymEnvs and legged_gym, over a stand-in for their simulator: rows are theirs.

Their source is not on a registry; clone it, and name the clones:

    git clone https://github.com/isaac-sim/IsaacGymEnvs && git clone https://github.com/leggedrobotics/legged_gym
    EVERSTEP_ISAACGYMENVS=IsaacGymEnvs EVERSTEP_LEGGED_GYM=legged_gym python -m pytest -m "" FILE

`-m ""` also runs what is `long`: 256 and 1,024 environments, and ten seeds.
"""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchrl.envs  # noqa: F401  before the stand-in: it looks for `isaacgym`

import everstep
from everstep.errors import AdapterError
from tests.everstep_adapters.isaacgym import isaacgym_stand_in as stand_in
from tests.everstep_adapters.isaacgym.isaacgym_stand_in import set_seed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: `max_episode_length` of the tasks whose rows are compared, and env steps.
LONGEST, STEPS = 20, 80

Row = dict[str, Any]
Rows = list[Row]


class Kind(NamedTuple):
    """A task, and when it resets itself, by reading it."""

    style: str
    module: None | str
    name: str
    config: str
    env: dict[str, Any]


def kinds() -> Iterator[tuple[str, Kind]]:
    """All tasks, by a name; those of legged_gym have no module."""
    tasks = {
        "A": "cartpole:Cartpole ant:Ant humanoid:Humanoid anymal:Anymal "
        "franka_cabinet:FrankaCabinet franka_cube_stack:FrankaCubeStack",
        "B": "ball_balance:BallBalance quadcopter:Quadcopter ingenuity:Ingenuity "
        "allegro_hand:AllegroHand trifinger:Trifinger",
        "C": "anymal_terrain:AnymalTerrain",
        "D": "humanoid_amp:HumanoidAMP",
    }
    for style, names in tasks.items():
        for module, name in (pair.split(":") for pair in names.split()):
            yield name, Kind(style, module, name, name, {})
    hand = ("B", "shadow_hand", "ShadowHand")
    for observed in ("openai", "full_no_vel", "full", "full_state"):
        env = {"observationType": observed, "asymmetric_observations": observed == "full"}
        yield f"ShadowHand {observed}", Kind(*hand, "ShadowHand", env)
    for thing in ("egg", "pen"):
        yield f"ShadowHand {thing}", Kind(*hand, "ShadowHand", {"objectType": thing})
    # Goals that set the clock back; with randomized observations, actions and physics.
    near = {"successTolerance": 1.2, "fallDistance": 1.5, "maxConsecutiveSuccesses": 2}
    yield "ShadowHandOpenAI_FF", Kind(*hand, "ShadowHandOpenAI_FF", near)
    yield "AllegroHand, goals", Kind("B", "allegro_hand", "AllegroHand", "AllegroHand", near)
    for randomized in ("ManualDR", "ADR"):  # ADR: one env step passes before the reset
        name = f"AllegroHandDextreme{randomized}"
        yield name, Kind("B", "dextreme.allegro_hand_dextreme", name, name, {})
    for name in ("anymal_c_flat", "anymal_c_rough", "anymal_b", "a1", "cassie"):
        yield name, Kind("C", None, name, name, {})


KINDS = dict(kinds())

#: Their names as parameters: DeXtreme's randomize one environment after the other, in Python.
NAMES = [pytest.param(n, marks=[pytest.mark.long] * ("Dextreme" in n)) for n in KINDS]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """A maker of tasks from their kind, the number of environments and the seed."""
    roots = {}
    for name, variable in (
        ("IsaacGymEnvs", "EVERSTEP_ISAACGYMENVS"),
        ("legged_gym", "EVERSTEP_LEGGED_GYM"),
    ):
        if os.environ.get(variable):
            roots[name] = Path(os.environ[variable]).resolve()

    def make(kind: Kind, num_envs: int, seed: int) -> Any:
        project = "legged_gym" if kind.module is None else "IsaacGymEnvs"
        if project not in roots:
            pytest.skip(f"{project} is not here; {__name__} says how to get it")
        is_dextreme = "Dextreme" in kind.name
        if num_envs == 1 and (is_dextreme or kind.name == "FrankaCubeStack"):
            pytest.skip(f"{kind.name} fails with one environment: it squeezes or overlaps memory")
        if num_envs >= 256 and is_dextreme:
            pytest.skip("DeXtreme's randomize each environment in Python, which takes too long")
        set_seed(seed)
        with contextlib.redirect_stdout(io.StringIO()):
            if kind.module is None:
                return stand_in.legged(roots[project], kind.name, num_envs)
            names = kind.module, kind.name, kind.config
            return stand_in.vec_task(roots[project], *names, num_envs, **kind.env)

    if not roots:  # each test is skipped
        yield make
        return
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("assets"))
    with stand_in.loaded(*roots.values()):
        yield make
    os.chdir(before)


# ---- rows by hand -----------------------------------------------------------------------------


def next_step(task: Any, actions: torch.Tensor) -> Iterator[Row]:
    """Styles A and B: the row after the end is that of the reset, whose action is 0."""
    task.reset_buf[:] = 1
    yield seen(task.step(torch.zeros_like(actions[0]))[0])
    over = task.reset_buf != 0
    for action in actions:
        obs, rewards, resets, extras = task.step(action.masked_fill(over.unsqueeze(-1), 0.0))
        reset, over = over, resets != 0
        ended = over & ~reset
        up = ended & extras["time_outs"]  # by the clock after the env step
        yield seen(obs) | {
            "rewards": torch.where(reset, 0.0, rewards),
            "terminated": ended & ~up,
            "truncated": up,
            "first": reset,
            "valid": ~reset,
        }


def same_step(task: Any, actions: torch.Tensor) -> Iterator[Row]:
    """Style C of a VecTask: the final observation is lost, and the clock was set back."""
    task.reset_idx(torch.arange(task.num_envs))
    task.compute_observations()
    yield seen({"obs": task.obs_buf.clamp(-task.clip_obs, task.clip_obs)})
    for action in actions:
        clock = task.progress_buf + 1
        obs, rewards, resets, _ = task.step(action)
        ended = resets != 0
        up = ended & (clock >= task.max_episode_length - 1)
        yield seen(obs) | {
            "rewards": rewards.clone(),
            "terminated": ended & ~up,
            "truncated": up,
            "first": ended,
        }


def legged(task: Any, actions: torch.Tensor) -> Iterator[Row]:
    """Style C of legged_gym: it says which episodes had their time."""
    yield seen({"obs": task.reset()[0]})
    for action in actions:
        clock = task.episode_length_buf + 1
        obs, _, rewards, ended, _ = task.step(action)
        up = ended & (clock > task.max_episode_length)
        yield seen({"obs": obs}) | {
            "rewards": rewards.clone(),
            "terminated": ended & ~up,
            "truncated": up,
            "first": ended,
        }


def external(task: Any, actions: torch.Tensor) -> Iterator[Row]:
    """Style D: `step` returns the final observation, `reset_done` what comes after it."""
    task.reset_buf[:] = 1
    yield seen(task.reset_done()[0])
    for action in actions:
        obs, rewards, resets, extras = task.step(action)
        final, rewards, ended = seen(obs)["obs"], rewards.clone(), resets != 0
        failed = ended & (extras["terminate"] != 0)
        yield seen(task.reset_done()[0]) | {
            "rewards": rewards.clone(),
            "terminated": failed,
            "truncated": ended & ~failed,
            "first": ended,
            "final_obs": final,
        }


def seen(obs: dict[str, torch.Tensor]) -> Row:
    """A copy: an observation alone, or `obs` and `states`."""
    copies = {key: x.clone() for key, x in obs.items()}
    return {"obs": copies if len(copies) > 1 else copies["obs"]}


ORACLES = {"A": next_step, "B": next_step, "C": same_step, "D": external}


def differences(row: Any, expected: Row) -> list[str]:
    """Keys whose values are not the expected ones, bit by bit."""
    assert set(row.keys()) == set(expected)
    found = []
    for key, value in expected.items():
        pairs = value.items() if isinstance(value, dict) else [(None, value)]
        for name, x in pairs:
            got = row[key] if name is None else row[key][name]
            if not torch.equal(got.view(x.shape), x):
                found.append(key)
    return found


class Resets:
    """The rows that a task resets in an env step, and when: a second source for its style."""

    def __init__(self, task: Any) -> None:
        self.task, self.own = task, task.reset_idx
        task.reset_idx = self.reset_idx

    def reset_idx(self, env_ids: torch.Tensor, *args: Any) -> Any:
        self.rows[env_ids] = True
        self.frames.add(self.task.sim.frames)
        return self.own(env_ids, *args)

    def check(self, rows: Iterator[Row], kind: Kind) -> Rows:
        """The rows, whose `first` must be those that the task resets when its style says."""
        checked = []
        while True:
            self.rows = torch.zeros(self.task.num_envs, dtype=torch.bool)
            self.frames: set[int] = set()
            before = self.task.sim.frames
            row = next(rows, None)
            if row is None:
                return checked
            checked.append(row)
            if "first" in row:
                # With ADR an env step passes before the reset, and is `first`, too.
                shown = self.rows | row["first"] if "ADR" in kind.name else self.rows
                assert torch.equal(shown, row["first"])
                assert self.frames <= {before if kind.style == "B" else self.task.sim.frames}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.exhaustive) for s in (1, 2))]
)
@pytest.mark.parametrize("num_envs", [1, 64, pytest.param(1024, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_task(make: Any, name: str, num_envs: int, seed: int) -> None:
    kind = KINDS[name]
    # Two of the same, as wrapping takes env steps: one is stepped by the adapter, one by hand.
    tasks = [make(kind, num_envs, seed) for _ in range(2)]
    envs = []
    for task in tasks:
        task.max_episode_length = LONGEST
        set_seed(seed)
        envs.append(everstep.wrap(task, reset_style=kind.style))
    shape = STEPS, num_envs, *envs[0].action_spec.shape
    actions = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    set_seed(seed)
    first = {"obs": envs[0].reset().clone()}
    rows = [first, *(envs[0].step(action).clone() for action in actions)]
    set_seed(seed)
    oracle = legged if kind.module is None else ORACLES[kind.style]
    expected = Resets(tasks[1]).check(oracle(tasks[1], actions), kind)
    wrong = Counter(key for pair in zip(rows, expected, strict=True) for key in differences(*pair))
    assert not wrong, f"{dict(wrong)} of {STEPS} env steps of {num_envs} environments"
    ends = {k: sum(int(row[k].sum()) for row in expected[1:]) for k in ("terminated", "truncated")}
    print(f"\n{name}: {num_envs} × {STEPS} rows, {ends}, 0 wrong")
    assert sum(ends.values()) >= num_envs


@pytest.mark.parametrize(
    "num_envs", [1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in (256, 1024))]
)
@pytest.mark.parametrize("name", NAMES)
def test_the_style_is_right_or_asked_for(make: Any, name: str, num_envs: int) -> None:
    kind, found = KINDS[name], Counter[str]()
    for seed in range(10):
        task = make(kind, num_envs, seed)
        try:
            env = everstep.wrap(task)
        except AdapterError as error:
            assert "Pass `reset_style=`" in str(error)  # noqa: PT017  others are faults
            found["asked"] += 1
        else:
            found[env.reset_style] += 1
            if kind.module is not None and kind.style != "D":
                last = task.max_episode_length - 1
                assert f"after {last} env steps" in env.describe()["limit"]
    print(f"\n{name}: {num_envs} environments: {dict(found)}, expected {kind.style}")
    assert set(found) <= {kind.style, "asked"}


@pytest.mark.parametrize("name", ["Ant", "ShadowHand full", "AnymalTerrain", "HumanoidAMP", "a1"])
def test_a_policy_is_trained(make: Any, name: str) -> None:
    task = make(KINDS[name], 16, 0)
    task.max_episode_length = LONGEST
    with everstep.Trainer(everstep.wrap(task), horizon=32, run_dir=None) as trainer:
        stats = [trainer.step() for _ in range(2)]
    assert all(np.isfinite(x["losses/total"]) for x in stats)
