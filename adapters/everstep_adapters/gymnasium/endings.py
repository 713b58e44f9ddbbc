"""Where episodes end in the rows of a Gymnasium vector environment, in each autoreset mode."""

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from everstep.data import DataKeys
from everstep.errors import AdapterError, EnvError

from ..common.autoreset import MODES, parse_mode
from ..common.calls import Calls
from .final_observations import ReuseCheck, check_no_final, read_final
from .rows import BoolArray, Row

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv

_FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})


class FoundMode(NamedTuple):
    """When an environment resets itself, and who says so."""

    mode: "AutoresetMode"

    #: Such as "its metadata".
    source: str


def resolve_mode(
    env: "VectorEnv[Any, Any, Any]", override: "None | str | AutoresetMode"
) -> FoundMode:
    """When `env` resets itself: the override, else its attribute, else its metadata.

    Raises:
        AdapterError: Where nothing says it, or what it says is no mode.

    """
    said = [
        (override, "the option `autoreset_mode`"),
        (getattr(env, "autoreset_mode", None), "its attribute"),
        (_declared(env), "its metadata"),
        # Wrappers do not forward attributes.
        (getattr(env.unwrapped, "autoreset_mode", None), "the attribute of what is wrapped"),
        (_declared(env.unwrapped), "the metadata of what is wrapped"),
        ("NEXT_STEP" if _is_functional(env.unwrapped) else None, "its class"),
    ]
    for declared, source in said:
        if declared is not None:
            return FoundMode(parse_mode(declared), source)
    raise AdapterError(f"{env} does not say when it resets itself. {MODES}")


def _declared(env: "VectorEnv[Any, Any, Any]") -> object:
    """The mode in its metadata; `None` where there is none.

    A dictionary that is the base class's own says nothing: an environment that wrote its mode
    there, as ALE's does, wrote it for every class that has no metadata.
    """
    from gymnasium.vector import VectorEnv

    metadata = getattr(env, "metadata", None)
    if metadata is None or metadata is VectorEnv.metadata:
        return None
    return metadata.get("autoreset_mode")


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

    @property
    def in_words(self) -> str:
        """The limit, for `describe`."""
        if not self.is_limited:
            return "only the environment's own"
        return f"{self._limit} env steps, counted by the adapter"

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


#: Where final observations come from in each mode, in words.
FINAL_OBSERVATIONS = {
    "NEXT_STEP": "the observation of the row that is done",
    "SAME_STEP": "the infos; where they hold none, it is lost",
    "DISABLED": "the observation before the adapter resets the row",
}


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

    def __init__(self, env: "VectorEnv[Any, Any, Any]", calls: Calls, clock: EpisodeClock) -> None:
        self.episode_keys = _FLAGS | {DataKeys.VALID}
        if clock.is_limited:
            self.episode_keys |= {DataKeys.FINAL_OBS}
        self._env, self._calls, self._clock = env, calls, clock
        self._pending = np.zeros(env.num_envs, dtype=np.bool_)
        self._survives_reset = pending_survives_reset(env)
        self._is_checked = False

    def start(self) -> None:
        """See `Endings.start`."""
        if not self._survives_reset:
            self._pending.fill(False)

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        # No branch, and few kinds of operations: a slow env step leaves none of their code in the
        # processor's caches, and fetching it is what they cost.
        valid, pending = row.valid, self._pending
        row.first[...] = pending
        np.logical_not(pending, valid)
        # What an environment reports of a reset is not to be trusted: some repeat the last row.
        np.logical_and(row.terminated, valid, row.terminated)
        np.logical_and(row.truncated, valid, row.truncated)
        row.rewards[pending] = 0
        np.logical_or(row.terminated, row.truncated, pending)
        if not self._is_checked and np.count_nonzero(pending):
            check_no_final(self._env, "NEXT_STEP", row, infos)
            self._is_checked = True
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
        _reset_rows(self._calls, row, expired)


class SameStepEndings:
    """The environment resets a row in the env step that ends it."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]", calls: Calls, clock: EpisodeClock) -> None:
        self.episode_keys = _FLAGS | {DataKeys.FINAL_OBS}
        self._calls, self._clock = calls, clock
        self._reuse = ReuseCheck(env)

    def start(self) -> None:
        """See `Endings.start`."""
        self._reuse.start()

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        self._reuse.check()
        np.logical_or(row.terminated, row.truncated, out=row.first)
        row.keep_final()
        if np.count_nonzero(row.first):  # a third of the cost of `any`
            read_final(row, infos, row.first)
        if self._clock.is_limited:
            self._expire(row)

    def _expire(self, row: Row) -> None:
        """Rows whose time is up are reset here; those that are done the environment has reset."""
        expired = self._clock.tick(row.valid)
        remaining = expired & ~row.first
        np.logical_or(row.truncated, expired, out=row.truncated)
        np.logical_or(row.first, expired, out=row.first)
        self._clock.restart(row.first)
        _reset_rows(self._calls, row, remaining)


class DisabledEndings:
    """The environment waits for a reset, which it gets in the env step that ends a row."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]", calls: Calls, clock: EpisodeClock) -> None:
        self.episode_keys = _FLAGS | {DataKeys.FINAL_OBS}
        self._env, self._calls, self._clock = env, calls, clock
        self._mask_is_known = resets_single_rows(env)
        self._is_checked = False

    def start(self) -> None:
        """See `Endings.start`."""

    def end(self, row: Row, infos: dict[str, Any]) -> None:
        """See `Endings.end`."""
        if self._clock.is_limited:
            np.logical_or(row.truncated, self._clock.tick(row.valid), out=row.truncated)
        np.logical_or(row.terminated, row.truncated, out=row.first)
        self._clock.restart(row.first)
        row.keep_final()
        if not self._is_checked and np.count_nonzero(row.first):
            check_no_final(self._env, "DISABLED", row, infos)
            self._is_checked = True
        reset = _reset_rows(self._calls, row, row.first)
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
    env: "VectorEnv[Any, Any, Any]", calls: Calls, mode: "AutoresetMode", clock: EpisodeClock
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
    return families[mode.name](env, calls, clock)


def pending_survives_reset(env: "VectorEnv[Any, Any, Any]") -> bool:
    """True where a row that was done is reset once more in the env step after a reset.

    The workers of an `AsyncVectorEnv` without shared memory keep their flag over a reset, and so
    do Gymnasium's JAX environments (1.1 to 1.4).
    """
    from gymnasium.vector import AsyncVectorEnv

    base = env.unwrapped
    if isinstance(base, AsyncVectorEnv):
        return not base.shared_memory
    return _is_functional(base)


def _is_functional(env: object) -> bool:
    """True for a vector environment of Gymnasium's in JAX; some of them lack metadata."""
    module = sys.modules.get("gymnasium.envs.functional_jax_env")
    return module is not None and isinstance(env, module.FunctionalJaxVectorEnv)


def _reset_rows(calls: Calls, row: Row, rows: BoolArray) -> Any:
    """Reset `rows` and take their observations. What the environment returned; `None` for no rows.

    The options are new each time and the mask is a copy: Gymnasium pops and keeps them.
    """
    if not np.count_nonzero(rows):
        return None
    observation, _ = calls.reset(options={"reset_mask": rows.copy()})
    row.read_obs_rows(observation, rows)
    return observation
