"""Ends of episodes in the rows of a Gymnasium vector environment, one class an autoreset mode."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode

from everstep.data import DataKeys
from everstep.errors import AdapterError, EnvError

from ..common.calls import VectorCalls
from ..common.endings import FLAGS
from .final_observations import WrapperCheck, check_no_final, keep_final, read_final
from .modes import AnyVectorEnv, pending_survives_reset, resets_single_rows
from .rows import BoolArray, Row
from .values import decode_generator, decode_like, encode, encode_generator


class EpisodeClock:
    """Count of env steps in each row's episode, and the limit at which the adapter truncates.

    Args:
        num_envs: Number of rows.
        limit: Env steps of an episode; `None` for no limit.
        random_phase: Start at a random count below the limit after every reset of all rows.

    Raises:
        AdapterError: If phases are asked for without a limit.

    """

    #: Whether there is a limit.
    is_limited: bool

    def __init__(self, num_envs: int, limit: None | int, random_phase: bool) -> None:
        if random_phase and limit is None:
            raise AdapterError("`random_phase` needs `max_episode_steps`, which it is a phase of.")
        self.is_limited = limit is not None
        self._limit = limit or 0
        self._random_phase = random_phase
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._expired = np.zeros(num_envs, dtype=np.bool_)
        self._random = np.random.default_rng()

    @property
    def description(self) -> str:
        """The limit, for `describe`."""
        if not self.is_limited:
            return "only the environment's own"
        return f"{self._limit} env steps, counted by the adapter"

    def seed(self, seed: int) -> None:
        """Seed the phases."""
        self._random = np.random.default_rng(seed)

    def start(self) -> None:
        """Start the episodes of all rows."""
        self._elapsed.fill(0)
        if self._random_phase:
            self._elapsed += self._random.integers(self._limit, size=len(self._elapsed))

    def tick(self, counted: BoolArray) -> BoolArray:
        """Count a vector step in the rows `counted`; rows `[num_envs]` that are at the limit."""
        self._elapsed += counted
        np.greater_equal(self._elapsed, self._limit, out=self._expired)
        return self._expired

    def restart(self, rows: BoolArray) -> None:
        """Start the episodes of `rows`."""
        self._elapsed[rows] = 0

    def state_dict(self) -> dict[str, Any]:
        """Counts, and the generator of phases."""
        return {
            "elapsed": encode(self._elapsed),
            "random": encode_generator(self._random),
        }

    def checked(self, state: dict[str, Any]) -> Callable[[], None]:
        """Assignment of a state of `state_dict`, which was checked.

        Raises:
            CheckpointError: If it is of another number of rows.

        """
        elapsed = decode_like(self._elapsed, state["elapsed"], "elapsed")
        random = decode_generator(state["random"])

        def assign() -> None:
            self._elapsed[...] = elapsed
            self._random = random

        return assign


class Endings(ABC):
    """Completion of the rows that a vector environment returns, in one autoreset mode.

    It is the law of `common.endings` in place: in NEXT_STEP its functions, whose results would be
    copied into the row, take 1.2 µs of processor time a vector step more with one environment, 1.9
    with 8, 2.8 with 1,024.

    Args:
        env: The environment.
        calls: Calls to it.
        clock: The adapter's own limit.

    """

    #: Source of final observations, for `describe`.
    final_observations: ClassVar[str]

    #: Episode keys of the rows.
    episode_keys: frozenset[str] = FLAGS | {DataKeys.FINAL_OBS}

    def __init__(self, env: AnyVectorEnv, calls: VectorCalls, clock: EpisodeClock) -> None:
        self._env, self._calls, self._clock = env, calls, clock
        self._is_checked = False

    def start(self) -> None:
        """Start the episodes of all rows, after a reset."""
        self._clock.start()

    @property
    def pending(self) -> None | BoolArray:
        """Rows that the environment resets in the next env step; None in modes without them."""
        return None

    @abstractmethod
    def end(self, row: Row, observation: Any, infos: dict[str, Any]) -> None:
        """Complete a row that holds what the environment returned.

        Args:
            row: Row with the environment's observations, rewards and flags.
            observation: What it was read from.
            infos: The environment's infos.

        """

    def _check_mode(self, mode: str, row: Row, done: BoolArray, infos: dict[str, Any]) -> None:
        """Check, at the first end of an episode, that the environment has not reset itself."""
        if np.count_nonzero(done):
            check_no_final(self._env, mode, row, infos)
            self._is_checked = True

    def _reset(self, row: Row, rows: BoolArray) -> Any:
        """Reset `rows`, read their observations, and return what the environment returned.

        Returns `None` if there are no rows to reset.
        """
        if not np.count_nonzero(rows):
            return None
        observation = self._calls.reset_rows(rows)
        row.read_obs_rows(observation, rows)
        return observation

    def reset_rows(self, row: Row, rows: BoolArray) -> None:
        """Reset rows now, and read their observations."""
        self._reset(row, rows)
        self._clock.restart(rows)


class NextStepEndings(Endings):
    """The environment resets a row in the env step after it was done, ignoring the action."""

    final_observations = "the observation of the row that is done"

    def __init__(self, env: AnyVectorEnv, calls: VectorCalls, clock: EpisodeClock) -> None:
        super().__init__(env, calls, clock)
        self.episode_keys = FLAGS | {DataKeys.VALID}
        if clock.is_limited:
            self.episode_keys |= {DataKeys.FINAL_OBS}
        self._pending = np.zeros(env.num_envs, dtype=np.bool_)
        self._survives_reset = pending_survives_reset(env)

    @property
    def pending(self) -> BoolArray:
        """See `Endings.pending`."""
        return self._pending

    def start(self) -> None:
        """See `Endings.start`."""
        super().start()
        if not self._survives_reset:
            self._pending.fill(False)

    def end(self, row: Row, observation: Any, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        # No branch, and few kinds of operations: a slow vector step leaves none of their code in
        # the processor's caches, and fetching it is what they cost.
        valid, pending = row.valid, self._pending
        row.first[...] = pending
        np.logical_not(pending, valid)
        # Rewards and flags of a reset are not trusted: some environments repeat the last row's.
        np.logical_and(row.terminated, valid, row.terminated)
        np.logical_and(row.truncated, valid, row.truncated)
        row.rewards[pending] = 0
        np.logical_or(row.terminated, row.truncated, pending)
        if not self._is_checked:
            self._check_mode("NEXT_STEP", row, pending, infos)
        if self._clock.is_limited:
            self._expire(row)

    def reset_rows(self, row: Row, rows: BoolArray) -> None:
        """See `Endings.reset_rows`."""
        super().reset_rows(row, rows)
        self._pending[rows] = False

    def _expire(self, row: Row) -> None:
        """Reset rows at the limit at once; the environment resets the others."""
        expired = self._clock.tick(row.valid)
        self._clock.restart(self._pending | expired)
        np.logical_or(row.truncated, expired, out=row.truncated)
        np.logical_or(row.first, expired, out=row.first)
        np.logical_and(self._pending, ~expired, out=self._pending)
        row.copy_final()
        self._reset(row, expired)


class SameStepEndings(Endings):
    """The environment resets a row in the env step that ends it."""

    final_observations = "the infos; where they hold none, it is lost"

    def __init__(self, env: AnyVectorEnv, calls: VectorCalls, clock: EpisodeClock) -> None:
        super().__init__(env, calls, clock)
        self._overwrites = keep_final(env)
        self._wrappers = WrapperCheck.of(env)

    def end(self, row: Row, observation: Any, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        np.logical_or(row.terminated, row.truncated, out=row.first)
        row.copy_final()
        # `count_nonzero` takes a third of the time of `any`.
        if self._overwrites is not None or np.count_nonzero(row.first):
            read_final(row, infos, row.first, observation, self._overwrites)
        if self._wrappers is not None:
            self._wrappers.look(row, observation, infos)
        if self._clock.is_limited:
            self._expire(row)

    def _expire(self, row: Row) -> None:
        """Reset rows at the limit; the environment has reset those that are done."""
        expired = self._clock.tick(row.valid)
        remaining = expired & ~row.first
        np.logical_or(row.truncated, expired, out=row.truncated)
        np.logical_or(row.first, expired, out=row.first)
        self._clock.restart(row.first)
        self._reset(row, remaining)


class DisabledEndings(Endings):
    """The environment waits for a reset, which it gets in the env step that ends a row."""

    final_observations = "the observation before the adapter resets the row"

    def __init__(self, env: AnyVectorEnv, calls: VectorCalls, clock: EpisodeClock) -> None:
        super().__init__(env, calls, clock)
        self._is_mask_checked = resets_single_rows(env)

    def end(self, row: Row, observation: Any, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        if self._clock.is_limited:
            np.logical_or(row.truncated, self._clock.tick(row.valid), out=row.truncated)
        np.logical_or(row.terminated, row.truncated, out=row.first)
        self._clock.restart(row.first)
        row.copy_final()
        if not self._is_checked:
            self._check_mode("DISABLED", row, row.first, infos)
        reset = self._reset(row, row.first)
        if not self._is_mask_checked and reset is not None and not row.first.all():
            self._check_mask(row, reset)

    def _check_mask(self, row: Row, reset: Any) -> None:
        """At the first reset of some rows: an environment that ignores the mask resets them all."""
        if not all(leaf.equals(reset, ~row.first) for leaf in row.obs):
            raise EnvError(
                f"{self._env} changed rows that `reset(options={{'reset_mask': …}})` left out, so "
                "it cannot be used in the mode DISABLED. Pass the `autoreset_mode` that it has."
            )
        self._is_mask_checked = True


_ENDINGS: dict[str, type[Endings]] = {
    "NEXT_STEP": NextStepEndings,
    "SAME_STEP": SameStepEndings,
    "DISABLED": DisabledEndings,
}


def make_endings(
    env: AnyVectorEnv, calls: VectorCalls, mode: AutoresetMode, clock: EpisodeClock
) -> Endings:
    """The endings of `env` in `mode`.

    Raises:
        AdapterError: If the clock has to reset single rows and the environment cannot.

    """
    if clock.is_limited and not resets_single_rows(env):
        raise AdapterError(
            "`max_episode_steps` needs an environment that resets single rows: a `SyncVectorEnv`, "
            f"or an `AsyncVectorEnv` with `shared_memory=True`; got {env}. Set the limit in the "
            "environment, or make it with `vectorization_mode='sync'`."
        )
    return _ENDINGS[mode.name](env, calls, clock)
