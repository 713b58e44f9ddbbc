"""The autoreset mode of a vector environment, determined by stepping it.

An episode is played to its end twice, from the same seed and with the same actions, and then
stepped once more with different ones. The last vector steps show the mode:

* the infos hold a final observation, and another one was returned: SAME_STEP;
* the env step after the end returned the same for either action: NEXT_STEP;
* that env step was refused, or episodes stayed at their end: DISABLED;
* otherwise SAME_STEP, with final observations that are lost.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from everstep.errors import EnvError

from ..common.calls import VectorCalls
from ..common.endings import FLAGS
from .final_observations import holds_another
from .modes import AnyVectorEnv
from .rows import BoolArray, RowMemory
from .specs import observation_parts, single_space

#: Most vector steps until an episode ends.
_MOST_ENV_STEPS = 1000

#: Seed of the resets, and of the first action.
_SEED = 0


class Evidence(NamedTuple):
    """Result of a probe."""

    #: The mode; `None` if it could not be determined.
    mode: None | AutoresetMode

    #: Observation that shows the mode, or the reason why none does.
    reason: str


class _Played(NamedTuple):
    """Results of a vector step of all rows."""

    #: Leaves of the observation.
    obs: list[npt.NDArray[Any]]

    done: BoolArray

    #: Whether the infos held a final observation, other than `obs`.
    holds_another: bool

    def equals(self, other: "_Played", rows: BoolArray) -> bool:
        """Whether both have the same observations in `rows`."""
        pairs = zip(self.obs, other.obs, strict=True)
        return all(np.array_equal(one[rows], another[rows]) for one, another in pairs)


def probe_autoreset(env: AnyVectorEnv, calls: VectorCalls) -> Evidence:
    """The autoreset mode of `env`. Steps it, unless its class has only one; reset it afterwards.

    Args:
        env: The vector environment.
        calls: Calls to it.

    """
    base = env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv) and not getattr(base, "worker", None):
        return Evidence(base.autoreset_mode, f"every {type(base).__name__} does what it declares")
    player = _Player(env, calls)
    count, end = player.play_to_an_end()
    rows = end.done
    if not rows.any():
        return Evidence(None, f"no episode ended in {count} vector steps of random actions")
    if end.holds_another:
        return Evidence(AutoresetMode.SAME_STEP, "its infos hold final observations")
    try:
        after = player.step(count)
    except EnvError:
        return Evidence(AutoresetMode.DISABLED, "it refuses the env step after an end")
    same_end, other = player.replay(count)
    if not end.equals(same_end, ~rows | rows):
        return Evidence(None, "the same seed and actions gave other observations")
    if not player.actions_matter(rows):
        return Evidence(None, "what its actions change cannot be seen in one vector step")
    stays = bool(count > 1 and after.done[rows].all() and other.done[rows].all())
    if stays and (after.equals(end, rows) or not after.equals(other, rows)):
        return Evidence(AutoresetMode.DISABLED, "what has ended stays at its end")
    if after.equals(other, rows):
        return Evidence(AutoresetMode.NEXT_STEP, "the action after an end changes nothing")
    return Evidence(
        AutoresetMode.SAME_STEP, "the action after an end counts, and no final observation is left"
    )


class _Player:
    """Steps an environment from a seed, with the same actions each time, or with others."""

    def __init__(self, env: AnyVectorEnv, calls: VectorCalls) -> None:
        cpu = torch.device("cpu")
        parts = observation_parts(single_space(env, "observation_space"), cpu)
        self._row = RowMemory(parts, FLAGS, env.num_envs, cpu).writable()
        self._env, self._calls = env, calls
        self._done = np.zeros(env.num_envs, dtype=np.bool_)

    def play_to_an_end(self) -> tuple[int, _Played]:
        """The number of vector steps until one ended an episode, and its results."""
        self._reset()
        for t in range(_MOST_ENV_STEPS):
            played = self.step(t)
            if played.done.any():
                break
        return t + 1, played

    def replay(self, count: int) -> tuple[_Played, _Played]:
        """The last of `count` vector steps with the same actions, and one more with others."""
        self._reset()
        for t in range(count):
            played = self.step(t)
        return played, self.step(count, other=True)

    def actions_matter(self, rows: BoolArray) -> bool:
        """Whether another first action changes the observation of every row of `rows`."""
        outcomes = []
        for other in (False, True):
            self._reset()
            outcomes.append(self.step(0, other))
        each = np.eye(len(rows), dtype=np.bool_)[rows]
        return not any(outcomes[0].equals(outcomes[1], row) for row in each)

    def step(self, t: int, other: bool = False) -> _Played:
        """Vector step `t`, with its own action or with another."""
        observation, _, terminated, truncated, infos = self._calls.step(self._action(t, other))
        row = self._row
        row.read_obs(observation)
        row.terminated[:], row.truncated[:] = terminated, truncated
        self._done = row.terminated | row.truncated
        left = bool(self._done.any()) and holds_another(row, infos)
        return _Played([leaf.array.copy() for leaf in row.obs], self._done, left)

    def _reset(self) -> None:
        """Reset it while no row waits for a reset: some environments reset that row once more."""
        try:
            for t in range(10):
                if self._done.any():
                    self.step(t)
        except EnvError:
            pass  # it refuses env steps after an end; a reset is enough
        self._calls.reset(seed=_SEED)

    def _action(self, t: int, other: bool) -> Any:
        """The action of vector step `t`, or one that differs from it in every row if possible."""
        space = batch_space(single_space(self._env, "action_space"), self._env.num_envs)
        space.seed(_SEED + t)
        action = changed = space.sample()
        for _ in range(100 if other else 0):
            changed = space.sample()
            if (action != changed).reshape(len(action), -1).any(1).all():
                break
        return changed
