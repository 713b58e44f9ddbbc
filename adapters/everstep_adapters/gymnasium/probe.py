"""When a vector environment really resets itself, found out by playing it.

An episode is played to its end twice, from the same seed and with the same actions, and left with
different ones. What the last env steps returned tells:

* the infos hold a final observation, and another one was returned: it was reset in the same step;
* the env step after the end did the same whatever the action was: it was the reset;
* that env step was refused, or episodes stayed at their end: nothing was reset;
* otherwise it was reset in the same step, and the final observation is lost.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from everstep.data import DataKeys
from everstep.errors import EnvError

from ..common.calls import Calls
from .final_observations import left_another
from .rows import BoolArray, Row
from .spaces import observation_parts

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv

_FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})


class Evidence(NamedTuple):
    """What playing an environment has shown."""

    #: When it resets itself; `None` where that could not be seen.
    mode: "None | AutoresetMode"

    #: What was seen, or why nothing was.
    reason: str


class _Played(NamedTuple):
    """What an env step of all rows returned."""

    #: Leaves of the observation.
    obs: list[npt.NDArray[Any]]

    done: BoolArray

    #: Whether the infos held another observation, the final one.
    left_another: bool

    def equals(self, other: "_Played", rows: BoolArray) -> bool:
        """True where both observed the same in `rows`."""
        pairs = zip(self.obs, other.obs, strict=True)
        return all(np.array_equal(one[rows], another[rows]) for one, another in pairs)


def probe_autoreset(
    env: "VectorEnv[Any, Any, Any]", calls: Calls, max_env_steps: int = 1000, seed: int = 0
) -> Evidence:
    """When `env` resets itself. Plays it, unless its class tells; reset it afterwards.

    Args:
        env: The vector environment.
        calls: How it is called.
        max_env_steps: Env steps in which an episode has to end.
        seed: Seed of its resets and of the random actions.

    """
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    base = env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv) and not getattr(base, "worker", None):
        return Evidence(base.autoreset_mode, f"every {type(base).__name__} does what it says")
    player = _Player(env, calls, seed)
    count, end = player.play_to_an_end(max_env_steps)
    rows = end.done
    if not rows.any():
        return Evidence(None, f"no episode ended in {count} env steps of random actions")
    if end.left_another:
        return Evidence(AutoresetMode.SAME_STEP, "its infos hold final observations")
    try:
        after = player.step(count)
    except EnvError:
        return Evidence(AutoresetMode.DISABLED, "it refuses the env step after an end")
    same_end, other = player.replay(count)
    if not end.equals(same_end, ~rows | rows):
        return Evidence(None, "the same seed and actions gave other observations")
    if not player.actions_matter(rows):
        return Evidence(None, "what its actions change cannot be seen in one env step")
    stays = bool(count > 1 and after.done[rows].all() and other.done[rows].all())
    if stays and (after.equals(end, rows) or not after.equals(other, rows)):
        return Evidence(AutoresetMode.DISABLED, "what has ended stays at its end")
    if after.equals(other, rows):
        return Evidence(AutoresetMode.NEXT_STEP, "the action after an end changes nothing")
    return Evidence(
        AutoresetMode.SAME_STEP, "the action after an end counts, and no final observation is left"
    )


class _Player:
    """Plays an environment from a seed, with the same actions each time, or with others."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]", calls: Calls, seed: int) -> None:
        cpu = torch.device("cpu")
        self._row = Row(
            observation_parts(env.single_observation_space, cpu), _FLAGS, env.num_envs, cpu
        )
        self._env, self._calls, self._seed = env, calls, seed
        self._done = np.zeros(env.num_envs, dtype=np.bool_)

    def play_to_an_end(self, max_env_steps: int) -> tuple[int, _Played]:
        """The number of env steps until one ended an episode, and what that one returned."""
        self._reset()
        for t in range(max_env_steps):
            played = self.step(t)
            if played.done.any():
                break
        return t + 1, played

    def replay(self, count: int) -> tuple[_Played, _Played]:
        """The last of `count` env steps with the same actions, and one more with others."""
        self._reset()
        for t in range(count):
            played = self.step(t)
        return played, self.step(count, other=True)

    def actions_matter(self, rows: BoolArray) -> bool:
        """True where another first action leads every row of `rows` elsewhere."""
        outcomes = []
        for other in (False, True):
            self._reset()
            outcomes.append(self.step(0, other))
        each = np.eye(len(rows), dtype=np.bool_)[rows]
        return not any(outcomes[0].equals(outcomes[1], row) for row in each)

    def step(self, t: int, other: bool = False) -> _Played:
        """Env step `t`, with its own action or with another."""
        observation, _, terminated, truncated, infos = self._calls.step(self._action(t, other))
        row = self._row
        row.read_obs(observation)
        row.terminated[:], row.truncated[:] = terminated, truncated
        self._done = row.terminated | row.truncated
        left = bool(self._done.any()) and left_another(row, infos)
        return _Played([leaf.array.copy() for leaf in row.obs], self._done, left)

    def _reset(self) -> None:
        """Reset it, in a state in which no row is about to be: some reset that row once more."""
        try:
            for t in range(10):
                if self._done.any():
                    self.step(t)
        except EnvError:
            pass  # it refuses env steps after an end, and keeps nothing over a reset
        self._calls.reset(seed=self._seed)

    def _action(self, t: int, other: bool) -> Any:
        """The action of env step `t`, or one that differs in every row, if there is one."""
        from gymnasium.vector.utils import batch_space

        space = batch_space(self._env.single_action_space, self._env.num_envs)
        space.seed(1000 * self._seed + t)
        action = changed = space.sample()
        for _ in range(100 if other else 0):
            changed = space.sample()
            if (action != changed).reshape(len(action), -1).any(1).all():
                break
        return changed
