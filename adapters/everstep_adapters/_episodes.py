"""Where episodes end in the rows of a Gymnasium vector environment, in each autoreset mode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from everstep.data import DataKeys
from everstep.errors import AdapterError, EnvError

from ._rows import BoolArray, Row

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv

ObjectArray = npt.NDArray[np.object_]

_FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})

#: Where environments leave the observation before a reset in their infos.
_FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")


_MODES = (
    "Pass `autoreset_mode=` with what the environment does when an episode has ended: 'NEXT_STEP' "
    "(the next step resets it and ignores the action), 'SAME_STEP' (the same step returns the next "
    "episode's observation) or 'DISABLED' (it waits for a reset)."
)


def resolve_mode(
    env: "VectorEnv[Any, Any, Any]", override: "None | str | AutoresetMode"
) -> "AutoresetMode":
    """When `env` resets itself: the override, else its attribute, else its metadata.

    Metadata that is the base class's own dictionary says nothing: an environment that wrote its
    mode there wrote it for every class that has no metadata.

    Raises:
        AdapterError: Where nothing says it, or what it says is no mode.

    """
    from gymnasium.vector import VectorEnv

    declared = override if override is not None else getattr(env, "autoreset_mode", None)
    if declared is None and env.metadata is not VectorEnv.metadata:
        declared = env.metadata.get("autoreset_mode")
    if declared is None:  # wrappers do not forward attributes
        declared = getattr(env.unwrapped, "autoreset_mode", None)
    if declared is None:
        raise AdapterError(f"{env} does not say when it resets itself. {_MODES}")
    return parse_mode(declared)


def parse_mode(declared: object) -> "AutoresetMode":
    """The mode that `declared` is or names: `"NEXT_STEP"`, `"NextStep"` and `"next_step"` are one.

    Raises:
        AdapterError: Where it is no mode.

    """
    from gymnasium.vector import AutoresetMode

    if isinstance(declared, AutoresetMode):
        return declared
    spelled = str(declared).replace("_", "").lower()
    for mode in AutoresetMode:
        if mode.value.lower() == spelled:
            return mode
    raise AdapterError(f"{declared!r} is not a time at which environments are reset. {_MODES}")


def resets_single_rows(env: "VectorEnv[Any, Any, Any]") -> bool:
    """True where `reset(options={"reset_mask": …})` is known to reset the masked rows only.

    Others ignore the mask without a word and reset every row.
    """
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    base = env.unwrapped
    if isinstance(base, AsyncVectorEnv):
        return bool(base.shared_memory)
    return isinstance(base, SyncVectorEnv)


class EpisodeClock:
    """Counts env steps of each row's episode, and says where they reach a limit.

    Args:
        num_envs: Number of rows.
        limit: Env steps of an episode; `None` for no limit.
        random_phase: Start at a random count below the limit after every reset of all rows.

    Raises:
        AdapterError: Where the limit is not positive, or there is no limit to be at a phase of.

    """

    #: True where episodes can expire.
    is_limited: bool

    def __init__(self, num_envs: int, limit: None | int, random_phase: bool) -> None:
        if limit is not None and limit < 1:
            raise AdapterError(f"`max_episode_steps` must be at least 1; got {limit}.")
        if random_phase and limit is None:
            raise AdapterError("`random_phase` needs `max_episode_steps`, which it is a phase of.")
        self.is_limited = limit is not None
        self._limit = limit or 0
        self._random_phase = random_phase
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._expired = np.zeros(num_envs, dtype=np.bool_)
        self._random = np.random.default_rng()

    def seed(self, seed: int) -> None:
        """Seed the phases."""
        self._random = np.random.default_rng(seed)

    def start(self) -> None:
        """Every row was reset."""
        self._elapsed.fill(0)
        if self._random_phase:
            self._elapsed += self._random.integers(self._limit, size=len(self._elapsed))

    def tick(self, counted: BoolArray) -> BoolArray:
        """Rows `[num_envs]` whose time is up after an env step in the rows `counted`."""
        self._elapsed += counted
        np.greater_equal(self._elapsed, self._limit, out=self._expired)
        return self._expired

    def restart(self, rows: BoolArray) -> None:
        """The episodes of `rows` ended."""
        self._elapsed[rows] = 0


class Endings(Protocol):
    """How a mode ends episodes."""

    #: Episode keys of its rows.
    episode_keys: frozenset[str]

    def start(self) -> None:
        """Every row was reset."""
        ...

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """Complete a row that holds what the environment returned.

        Args:
            row: Row with the environment's observations, rewards and flags.
            infos: The environment's infos.

        """
        ...


class NextStepEndings:
    """The environment resets a row in the env step after it was done, ignoring the action."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]", clock: EpisodeClock) -> None:
        self.episode_keys = _FLAGS | {DataKeys.VALID}
        if clock.is_limited:
            self.episode_keys |= {DataKeys.FINAL_OBS}
        self._env, self._clock = env, clock
        self._pending = np.zeros(env.num_envs, dtype=np.bool_)
        self._survives_reset = _pending_survives_reset(env)

    def start(self) -> None:
        """See `Endings.start`."""
        if not self._survives_reset:
            self._pending.fill(False)

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        pending = self._pending
        np.copyto(row.first, pending)
        np.logical_not(pending, out=row.valid)
        # What an environment reports of a reset is not to be trusted: some repeat the last row.
        np.copyto(row.rewards, 0, where=pending)
        np.logical_and(row.terminated, row.valid, out=row.terminated)
        np.logical_and(row.truncated, row.valid, out=row.truncated)
        np.logical_or(row.terminated, row.truncated, out=pending)
        if self._clock.is_limited:
            self._expire(row)

    def _expire(self, row: Row) -> None:
        """Rows whose time is up are reset here, at once; the environment resets the others."""
        expired = self._clock.tick(row.valid)
        self._clock.restart(self._pending | expired)
        np.logical_or(row.truncated, expired, out=row.truncated)
        np.logical_or(row.first, expired, out=row.first)
        np.logical_and(self._pending, ~expired, out=self._pending)
        row.keep_final()
        _reset_rows(self._env, row, expired)


class SameStepEndings:
    """The environment resets a row in the env step that ends it."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]", clock: EpisodeClock) -> None:
        self.episode_keys = _FLAGS | {DataKeys.FINAL_OBS}
        self._env, self._clock = env, clock

    def start(self) -> None:
        """See `Endings.start`."""

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        done = row.terminated | row.truncated
        row.keep_final()
        if np.count_nonzero(done):  # a third of the cost of `any`
            _read_final(row, infos, done)
        np.copyto(row.first, done)
        if self._clock.is_limited:
            self._expire(row, done)

    def _expire(self, row: Row, done: BoolArray) -> None:
        """Rows whose time is up are reset here; those that are done the environment has reset."""
        expired = self._clock.tick(row.valid)
        np.logical_or(row.truncated, expired, out=row.truncated)
        np.logical_or(row.first, expired, out=row.first)
        self._clock.restart(row.first)
        _reset_rows(self._env, row, expired & ~done)


class DisabledEndings:
    """The environment waits for a reset, which it gets in the env step that ends a row."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]", clock: EpisodeClock) -> None:
        self.episode_keys = _FLAGS | {DataKeys.FINAL_OBS}
        self._env, self._clock = env, clock
        self._mask_is_known = resets_single_rows(env)

    def start(self) -> None:
        """See `Endings.start`."""

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        if self._clock.is_limited:
            np.logical_or(row.truncated, self._clock.tick(row.valid), out=row.truncated)
        np.logical_or(row.terminated, row.truncated, out=row.first)
        self._clock.restart(row.first)
        row.keep_final()
        reset = _reset_rows(self._env, row, row.first)
        if not self._mask_is_known and reset is not None and not row.first.all():
            self._check_mask(row, reset)

    def _check_mask(self, row: Row, reset: Any) -> None:
        """Once, where it shows: an environment that ignores the mask has reset every row."""
        if not all(leaf.equals(reset, ~row.first) for leaf in row.obs):
            raise EnvError(
                f"{self._env} changed rows that `reset(options={{'reset_mask': …}})` left out, so "
                "it cannot be used in the mode DISABLED. Pass the `autoreset_mode` that it has."
            )
        self._mask_is_known = True


def make_endings(
    env: "VectorEnv[Any, Any, Any]", mode: "AutoresetMode", clock: EpisodeClock
) -> Endings:
    """How episodes of `env` end in `mode`.

    Raises:
        AdapterError: Where the clock has to reset single rows and the environment cannot.

    """
    if clock.is_limited and not resets_single_rows(env):
        raise AdapterError(
            "`max_episode_steps` needs an environment that resets single rows: a `SyncVectorEnv`, "
            f"or an `AsyncVectorEnv` with `shared_memory=True`; got {env}. Set the limit in the "
            "environment, or make it with `vectorization_mode='sync'`."
        )
    families: dict[str, type[NextStepEndings | SameStepEndings | DisabledEndings]] = {
        "NEXT_STEP": NextStepEndings,
        "SAME_STEP": SameStepEndings,
        "DISABLED": DisabledEndings,
    }
    return families[mode.name](env, clock)


def _pending_survives_reset(env: "VectorEnv[Any, Any, Any]") -> bool:
    """True where a row that was done is reset once more in the env step after a reset.

    The workers of an `AsyncVectorEnv` without shared memory keep their flag over a reset
    (Gymnasium 1.1 to 1.4).
    """
    from gymnasium.vector import AsyncVectorEnv

    base = env.unwrapped
    return isinstance(base, AsyncVectorEnv) and not base.shared_memory


def _reset_rows(env: "VectorEnv[Any, Any, Any]", row: Row, rows: BoolArray) -> Any:
    """Reset `rows` and take their observations. What the environment returned; `None` for no rows.

    The options are new each time and the mask is a copy: Gymnasium pops and keeps them.
    """
    if not np.count_nonzero(rows):
        return None
    observation, _ = env.reset(options={"reset_mask": rows.copy()})
    row.read_obs_rows(observation, rows)
    return observation


def _read_final(row: Row, infos: dict[str, Any], done: BoolArray) -> None:
    """Take the final observations of the rows `done` from the infos, in whatever form they are.

    An object array or a list holds one observation for each row, `None` where there is none;
    anything else is a batch of observations, with a mask of its rows beside it or without.
    """
    key = next((key for key in _FINAL_KEYS if key in infos), _FINAL_KEYS[0])
    final = infos.get(key)
    if final is None:
        found = np.zeros_like(done)
    elif isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype.kind == "O"):
        found = _read_final_rows(row, final, done)
    else:
        found = done & np.asarray(infos.get(f"_{key}", done), dtype=np.bool_)
        for leaf in row.final:
            leaf.read_rows(final, found)
    lost = done & ~found & row.truncated & ~row.terminated
    if np.count_nonzero(lost):
        _mark_lost(row, lost)


def _read_final_rows(row: Row, final: Sequence[Any] | ObjectArray, done: BoolArray) -> BoolArray:
    """The rows `done` that had a final observation, which the row now holds."""
    found = np.zeros_like(done)
    for i in np.flatnonzero(done).tolist():
        if final[i] is not None:
            found[i] = True
            for leaf in row.final:
                leaf.read_row(final[i], i)
    return found


def _mark_lost(row: Row, lost: BoolArray) -> None:
    """Put NaN where the value of a final observation is wanted and the observation is lost."""
    floating = [leaf for leaf in row.final if leaf.array.dtype.kind == "f"]
    if not floating:
        raise EnvError(
            f"The episodes of rows {np.flatnonzero(lost).tolist()} were truncated and the infos "
            f"hold no final observation ({', '.join(_FINAL_KEYS)}), which integer observations "
            "cannot mark. Use the mode NEXT_STEP or DISABLED."
        )
    for leaf in floating:
        leaf.array[lost] = np.nan
