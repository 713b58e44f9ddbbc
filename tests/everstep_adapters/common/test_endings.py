"""The law of autoreset: a table of cases, and drawn episodes beside copies stepped one by one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from everstep.data import DataKeys
from everstep_adapters import GymnasiumEnv
from everstep_adapters.common.endings import external, next_step, same_step, with_nan

NAN = float("nan")


class Row(NamedTuple):
    """A row: the observation to act on next, the final one, and the rest."""

    obs: float
    final: None | float
    reward: float
    terminated: bool
    truncated: bool
    first: bool
    valid: bool


class Case(NamedTuple):
    """One environment in a vector step."""

    words: str

    #: When the environment is reset: `next_step`, `same_step` or `external`.
    mode: str

    #: Whether the vector step before this one ended its episode.
    ended_before: bool

    #: What the environment returned: observation, reward, terminated, truncated.
    returned: tuple[float, float, bool, bool]

    #: The final observation that it reported, and what a reset returns.
    reported: None | float
    opening: float

    row: Any = None


#: Observations are 1, 2, … in an episode and 10 at the beginning of the next one.
TABLE = [
    Case(
        "next step, an episode goes on: the row is what was returned",
        *("next_step", False, (2.0, 0.5, False, False), None, 10.0),
        Row(2.0, None, 0.5, False, False, first=False, valid=True),
    ),
    Case(
        "next step, an episode terminates: its observation is the final one",
        *("next_step", False, (3.0, 0.5, True, False), None, 10.0),
        Row(3.0, None, 0.5, True, False, first=False, valid=True),
    ),
    Case(
        "next step, an episode is truncated: its observation is the final one",
        *("next_step", False, (3.0, 0.5, False, True), None, 10.0),
        Row(3.0, None, 0.5, False, True, first=False, valid=True),
    ),
    Case(
        "next step, an episode terminates at its time limit: both flags stay",
        *("next_step", False, (3.0, 0.5, True, True), None, 10.0),
        Row(3.0, None, 0.5, True, True, first=False, valid=True),
    ),
    Case(
        "next step, after an end: the row is the reset, first and not valid",
        *("next_step", True, (10.0, 0.0, False, False), None, 10.0),
        Row(10.0, None, 0.0, False, False, first=True, valid=False),
    ),
    Case(
        "next step, after an end, and the last reward is repeated: it is 0",
        *("next_step", True, (10.0, 0.5, False, False), None, 10.0),
        Row(10.0, None, 0.0, False, False, first=True, valid=False),
    ),
    Case(
        "next step, after an end, and the reward is NaN: it is 0",
        *("next_step", True, (10.0, NAN, False, False), None, 10.0),
        Row(10.0, None, 0.0, False, False, first=True, valid=False),
    ),
    Case(
        "next step, after an end, and the last flags are repeated: nothing ends",
        *("next_step", True, (10.0, 0.5, True, True), None, 10.0),
        Row(10.0, None, 0.0, False, False, first=True, valid=False),
    ),
    Case(
        "same step, an episode goes on: the final observation is the row's",
        *("same_step", False, (2.0, 0.5, False, False), None, 10.0),
        Row(2.0, 2.0, 0.5, False, False, first=False, valid=True),
    ),
    Case(
        "same step, an episode terminates: the row opens the next one, the final one is reported",
        *("same_step", False, (10.0, 0.5, True, False), 3.0, 10.0),
        Row(10.0, 3.0, 0.5, True, False, first=True, valid=True),
    ),
    Case(
        "same step, an episode is truncated: the row opens the next one, the final one is reported",
        *("same_step", False, (10.0, 0.5, False, True), 3.0, 10.0),
        Row(10.0, 3.0, 0.5, False, True, first=True, valid=True),
    ),
    Case(
        "same step, an episode of one env step: the row after an end can end, too",
        *("same_step", True, (10.0, 0.5, True, False), 11.0, 10.0),
        Row(10.0, 11.0, 0.5, True, False, first=True, valid=True),
    ),
    Case(
        "same step, truncated and lost: the final observation is needed, so it is NaN",
        *("same_step", False, (10.0, 0.5, False, True), None, 10.0),
        Row(10.0, NAN, 0.5, False, True, first=True, valid=True),
    ),
    Case(
        "same step, terminated and lost: the final observation is not needed",
        *("same_step", False, (10.0, 0.5, True, False), None, 10.0),
        Row(10.0, 10.0, 0.5, True, False, first=True, valid=True),
    ),
    Case(
        "same step, terminated at the time limit and lost: it is not needed either",
        *("same_step", False, (10.0, 0.5, True, True), None, 10.0),
        Row(10.0, 10.0, 0.5, True, True, first=True, valid=True),
    ),
    Case(
        "external, an episode goes on: no reset, the final observation is the row's",
        *("external", False, (2.0, 0.5, False, False), None, 10.0),
        Row(2.0, 2.0, 0.5, False, False, first=False, valid=True),
    ),
    Case(
        "external, an episode terminates: the row shows the reset, the final one was returned",
        *("external", False, (3.0, 0.5, True, False), None, 10.0),
        Row(10.0, 3.0, 0.5, True, False, first=True, valid=True),
    ),
    Case(
        "external, an episode is truncated: the row shows the reset, the final one was returned",
        *("external", False, (3.0, 0.5, False, True), None, 10.0),
        Row(10.0, 3.0, 0.5, False, True, first=True, valid=True),
    ),
]

#: Functions that make an array of a library.
LIBRARIES: dict[str, Callable[[Any], Any]] = {"numpy": np.array, "torch": torch.tensor}

each_library = pytest.mark.parametrize("library", LIBRARIES)


def rows_of(mode: str, cases: list[Case], array: Callable[[Any], Any], shape: Any) -> list[Row]:
    """Rows by the law, of one environment a case."""

    def column(values: Any) -> Any:
        return array(list(values)).reshape(shape)

    def leaf(values: Any, width: int = 2) -> Any:
        return array([[float(x)] * width for x in values])

    obs, rewards, terminated, truncated = zip(*(case.returned for case in cases), strict=True)
    rewards, terminated, truncated = map(column, (rewards, terminated, truncated))
    ended, observed = terminated | truncated, leaf(obs)
    flags = {DataKeys.TERMINATED: terminated, DataKeys.TRUNCATED: truncated}
    if mode == "next_step":
        pending = column(case.ended_before for case in cases)
        row = next_step(pending, rewards, terminated, truncated)
        final: Any = None
    else:
        row = {**flags, DataKeys.REWARDS: rewards, DataKeys.FIRST: ended}
        row[DataKeys.VALID] = ended | ~ended
    if mode == "same_step":
        reported = [case.reported for case in cases]
        has_final = column(x is not None for x in reported)
        garbage = leaf(-1.0 if x is None else x for x in reported)
        (final,) = same_step(ended, terminated, truncated, [observed], [garbage], has_final)
    elif mode == "external":
        opening = leaf(case.opening if any(case.returned[2:]) else -1.0 for case in cases)
        (observed,), (final,) = external(ended, [observed], [opening])
    found = []
    for i in range(len(cases)):
        last = None if final is None else float(final[i, 1])
        reward = float(row[DataKeys.REWARDS].reshape(-1)[i])
        keys = DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST, DataKeys.VALID
        found.append(
            Row(float(observed[i, 0]), last, reward, *(bool(row[x].reshape(-1)[i]) for x in keys))
        )
    return found


def same(row: Row, other: Row) -> bool:
    return np.array_equal(
        np.array(row, dtype=float), np.array(other, dtype=float), equal_nan=True
    ) and ((row.final is None) is (other.final is None))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["flat", "columns"])
@each_library
@pytest.mark.parametrize("case", TABLE, ids=[case.words for case in TABLE])
def test_each_case_of_the_law(case: Case, library: str, shape: Any) -> None:
    (row,) = rows_of(case.mode, [case], LIBRARIES[library], shape)
    assert same(row, case.row)


@pytest.mark.parametrize("library", [*LIBRARIES, pytest.param("jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "external"])
def test_rows_do_not_touch_each_other(mode: str, library: str) -> None:
    is_jax = library == "jax"
    array = pytest.importorskip("jax.numpy").asarray if is_jax else LIBRARIES[library]
    cases = [case for case in TABLE if case.mode == mode]
    found = rows_of(mode, cases, array, (-1, 1))
    assert all(map(same, found, [case.row for case in cases]))


MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "external": AutoresetMode.DISABLED,
}


class Script(VectorEnv[Any, Any, Any]):
    """An environment a case, which begins at 1, ends where the case says so, and then is the case.

    Its arrays are NumPy's or PyTorch's.
    """

    resets_single_rows = True

    def __init__(self, cases: list[Case], array: Callable[[Any], Any]) -> None:
        self.cases, self.num_envs, self._array = cases, len(cases), array
        self.metadata = {"autoreset_mode": MODES[cases[0].mode]}
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._step = 0

    def _batch(self, values: Any) -> Any:
        return self._array(np.array([[x] * 2 for x in values], np.float32))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if not options:
            self._step = 0
            return self._batch(1.0 for _ in self.cases), {}
        mask = options["reset_mask"]
        values = [
            case.opening if reset else case.returned[0]
            for case, reset in zip(self.cases, mask, strict=True)
        ]
        return self._batch(values), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._step += 1
        if self._step == 1:
            ends = [case.ended_before for case in self.cases]
            flags = self._array(ends)
            is_same = self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
            obs = [10.0 if is_same and ended else 2.0 for ended in ends]
            infos = self._infos([2.0 if is_same and ended else None for ended in ends])
            return (
                self._batch(obs),
                self._array([0.5] * self.num_envs),
                flags,
                ~flags & flags,
                infos,
            )
        obs, *others = zip(*(case.returned for case in self.cases), strict=True)
        infos = self._infos([case.reported for case in self.cases])
        return self._batch(obs), *(self._array(list(x)) for x in others), infos

    def _infos(self, reported: list[None | float]) -> dict[str, Any]:
        mask = np.array([x is not None for x in reported])
        if not mask.any():
            return {}
        final = self._batch(-1.0 if x is None else x for x in reported)
        return {"final_obs": final, "_final_obs": self._array(mask)}


@each_library
@pytest.mark.parametrize("mode", ["next_step", "same_step", "external"])
def test_rows_of_gymnasium_follow_it(mode: str, library: str) -> None:
    """NumPy's in place, tensors by the law; DISABLED needs the host."""
    cases = [case for case in TABLE if case.mode == mode]
    if mode == "external":  # an environment that waits for a reset gets it in the step of the end
        cases = [case for case in cases if not case.ended_before]
    env = GymnasiumEnv(Script(cases, LIBRARIES[library]))
    env.reset()
    action = torch.zeros(len(cases), 1, dtype=torch.int64)
    env.step(action)
    row = env.step(action)
    for i, case in enumerate(cases):
        final = row[DataKeys.FINAL_OBS][i, 1].item() if DataKeys.FINAL_OBS in row else None
        keys = DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST
        found = Row(
            row[DataKeys.OBS][i, 0].item(),
            final,
            row[DataKeys.REWARDS][i, 0].item(),
            *(row[key][i, 0].item() for key in keys),
            row[DataKeys.VALID][i, 0].item() if DataKeys.VALID in row else True,
        )
        assert same(found, case.row), case.words


@each_library
def test_arguments_are_never_written_to(library: str) -> None:
    array = LIBRARIES[library]
    pending, flags = array([True, False]), array([True, True])
    rewards, leaf = array([1.0, 2.0]), array([[1.0], [2.0]])
    next_step(pending, rewards, flags, flags)
    same_step(flags, flags, flags, [leaf], [leaf + 1], pending)
    (obs,), _ = external(flags, [leaf], [leaf + 1])
    assert rewards.tolist() == [1.0, 2.0]
    assert leaf.tolist() == [[1.0], [2.0]]
    assert obs.tolist() == [[2.0], [3.0]]
    assert flags.tolist() == [True, True]


@each_library
def test_integers_have_no_nan_and_are_copied(library: str) -> None:
    array = LIBRARIES[library]
    leaf = array([[1], [2]])
    found = with_nan(leaf, array([True, False]))
    assert found.tolist() == leaf.tolist()
    assert found.dtype == leaf.dtype
    assert found is not leaf


# ---- drawn episodes --------------------------------------------------------------------------


class Copy:
    """One environment: its observations count up, and its episodes end as was drawn."""

    def __init__(self, ends: list[tuple[int, bool, bool]]) -> None:
        self._ends, self._episode, self._count = ends, -1, 0.0

    def reset(self) -> float:
        self._episode, self._env_steps = self._episode + 1, 0
        return self._observe()

    def _observe(self) -> float:
        self._count += 1
        return self._count

    def step(self) -> tuple[float, float, bool, bool]:
        length, terminated, truncated = self._ends[self._episode]
        self._env_steps += 1
        over = self._env_steps == length
        obs = self._observe()
        return obs, obs / 8, terminated and over, truncated and over


class Transition(NamedTuple):
    obs: float
    reward: float
    next_obs: float
    terminated: bool
    truncated: bool


def one_by_one(ends: list[tuple[int, bool, bool]], count: int) -> list[Transition]:
    """Transitions of a copy that whoever steps it resets."""
    copy, found = Copy(ends), []
    obs = copy.reset()
    for _ in range(count):
        following, reward, terminated, truncated = copy.step()
        found.append(Transition(obs, reward, following, terminated, truncated))
        obs = copy.reset() if terminated or truncated else following
    return found


class Batch:
    """Copies that reset themselves in a mode; a row that was reset has garbage beside it."""

    def __init__(self, mode: str, drawn: list[list[tuple[int, bool, bool]]]) -> None:
        self.mode, self.copies = mode, [Copy(ends) for ends in drawn]
        self.pending = [False] * len(drawn)

    def reset(self) -> list[float]:
        return [copy.reset() for copy in self.copies]

    def step(self, i: int) -> Case:
        copy = self.copies[i]
        if self.mode == "next_step" and self.pending[i]:
            self.pending[i] = False
            return Case("", self.mode, True, (copy.reset(), 7.0, True, False), None, NAN)
        obs, *others = copy.step()
        self.pending[i] = ended = any(others[1:])
        final, opening = obs, NAN
        if ended and self.mode != "next_step":
            opening = copy.reset()
            obs = opening if self.mode == "same_step" else obs
        reported = final if ended and self.mode == "same_step" else None
        return Case("", self.mode, False, (obs, *others), reported, opening)


def transitions(rows: list[Row], obs: float) -> list[Transition]:
    """Transitions that a learner sees in the rows of one environment."""
    found = []
    for row in rows:
        if row.valid:
            following = row.obs if row.final is None else row.final
            ends = row.terminated, row.truncated
            found.append(Transition(obs, row.reward, following, *ends))
        obs = row.obs
    return found


@each_library
@pytest.mark.parametrize("mode", ["next_step", "same_step", "external"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_hold_what_copies_show_that_are_stepped_one_by_one(
    mode: str, library: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    kinds = [(True, False), (False, True), (True, True)]
    drawn = [
        [(int(random.integers(1, 5)), *kinds[random.integers(3)]) for _ in range(60)]
        for _ in range(5)
    ]
    batch = Batch(mode, drawn)
    opening = batch.reset()
    steps = [
        rows_of(mode, [batch.step(i) for i in range(len(drawn))], LIBRARIES[library], (-1, 1))
        for _ in range(50)
    ]
    for i, ends in enumerate(drawn):
        rows = [step[i] for step in steps]
        found = transitions(rows, opening[i])
        assert found == one_by_one(ends, len(found))
        starts = [row.obs for row in rows if row.first]  # every episode opens where it is `first`
        own = Copy(ends)
        expected = [own.reset()]
        for length, *_ in ends[: len(starts)]:
            for _ in range(length):
                own.step()
            expected.append(own.reset())
        assert starts == expected[1 : len(starts) + 1]
