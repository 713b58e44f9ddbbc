"""Where episodes end in the rows of a TorchRL environment."""

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from tensordict import TensorDictBase

from everstep.data import DataKeys
from everstep.errors import AdapterError

from .calls import called
from .keys import told_keys
from .layout import Key, Layout, NestedKey, as_key, leaves_of, spelled, value_of

#: What every end of an episode is, where the environment's own words are not to be believed.
DoneIs = Literal["terminated", "truncated"]

_FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})


class Ends(NamedTuple):
    """What the flags of one level say, bool `[N, 1]` each."""

    #: The episode ended.
    done: torch.Tensor

    #: It ended because of the task.
    terminated: torch.Tensor

    #: It ended because of a clock.
    truncated: torch.Tensor

    #: The environment was reset.
    reset: torch.Tensor


@dataclass(frozen=True)
class DoneGroup:
    """The flags at one level of an environment: all say that an episode ended, two say why."""

    #: All flags, the two among them.
    keys: tuple[Key, ...]

    #: The flag that says that the task ended, where there is one.
    terminated: None | Key

    #: The flag that says that a clock ended the episode, where there is one.
    truncated: None | Key

    #: The flags that TorchRL resets by.
    reset: tuple[Key, ...]

    def read(self, data: TensorDictBase, layout: Layout) -> Ends:
        """The flags of an env step as rows.

        An end that is neither `terminated` nor `truncated` is the one that has no flag; where
        both have one it is `truncated`, as a clock of an outer wrapper is.
        """
        flags = {key: _read_flag(data, key, layout) for key in self.keys}
        done = _any([flags[key] for key in self.keys])
        reset = _any([flags[key] for key in self.reset])
        truncated = None if self.truncated is None else flags[self.truncated]
        if self.terminated is not None:
            terminated = flags[self.terminated].clone()  # the environment's memory
        else:
            terminated = done.clone() if truncated is None else done & ~truncated
        clocked = done ^ terminated
        return Ends(done, terminated, clocked if truncated is None else truncated | clocked, reset)


def _read_flag(data: TensorDictBase, key: Key, layout: Layout) -> torch.Tensor:
    flag = layout.flatten(key, value_of(data, key), torch.Size([1]))
    return flag if flag.dtype is torch.bool else flag.bool()


def _any(flags: list[torch.Tensor]) -> torch.Tensor:
    """Where any flag is True; new memory."""
    return flags[0].clone() if len(flags) == 1 else reduce(torch.logical_or, flags)


class Endings:
    """The episode keys of each env step, from the environment's flags.

    Args:
        layout: How batch and agents become rows.
        root: Flags that decide when an environment is reset.
        own: Flags of the agents, who may be done before their environment is reset.
        is_told: The environment says itself which rows are `valid`, and where episodes open.
        done_is: What every end is, whatever the flags say.
        time_limit: Env steps after which an end is a truncation, and before which it is a
            termination, whatever the flags say.

    """

    #: Episode keys of its rows, without `final_obs`.
    episode_keys: frozenset[str]

    def __init__(
        self,
        layout: Layout,
        root: DoneGroup,
        own: None | DoneGroup,
        *,
        is_told: bool,
        done_is: None | DoneIs,
        time_limit: None | int,
    ) -> None:
        _check_options(done_is, time_limit)
        has_valid = own is not None or is_told
        self.episode_keys = _FLAGS | {DataKeys.VALID} if has_valid else _FLAGS
        self._layout, self._root, self._own, self._is_told = layout, root, own, is_told
        self._done_is, self._time_limit = done_is, time_limit
        self._absent: None | torch.Tensor = None
        self._elapsed: None | torch.Tensor = None

    @property
    def told(self) -> str:
        """What ends episodes and what an end is, in words."""
        by = f"by {spelled(self._root.reset)}"
        if self._own is not None:
            by += f", agents before it by {spelled(self._own.reset)}"
        if self._is_told:
            by += ", or in the next one, as the environment's `valid` and `is_init` say"
        if self._done_is is not None:
            return f"{by}; every end is {self._done_is}"
        if self._time_limit is not None:
            return f"{by}; truncated after {self._time_limit} env steps, terminated before"
        return f"{by}; the task's by {spelled([self._root.terminated or self._root.keys[0]])}"

    def start(self) -> None:
        """Every row was reset."""
        self._absent = self._elapsed = None

    def read(self, outcome: TensorDictBase, following: TensorDictBase) -> dict[str, torch.Tensor]:
        """The episode keys `[N, 1]` of an env step.

        Args:
            outcome: What it returned under `next`.
            following: What is acted on next, behind the resets of what is done.

        """
        ends = self._root.read(outcome, self._layout)
        valid = None
        if self._own is not None:
            ends, valid = self._of_agents(ends, self._own.read(outcome, self._layout))
        first = ends.reset
        if self._is_told:
            valid = _read_flag(outcome, (DataKeys.VALID,), self._layout).clone()
            first = _read_flag(following, ("is_init",), self._layout).clone()
        terminated, truncated = self._split(ends)
        row = {
            DataKeys.TERMINATED: terminated,
            DataKeys.TRUNCATED: truncated,
            DataKeys.FIRST: first,
        }
        return row if valid is None else {**row, DataKeys.VALID: valid}

    def _of_agents(self, env: Ends, own: Ends) -> tuple[Ends, torch.Tensor]:
        """The ends of agents' episodes, and who was there to act.

        An agent that is done waits for its environment's reset, and its rows are none of the
        policy's; one that is not done when the environment is reset ends as the environment does.
        """
        absent = torch.zeros_like(own.done) if self._absent is None else self._absent
        valid = ~absent
        others = env.reset & ~own.done
        ends = Ends(
            (own.done | env.reset) & valid,
            (own.terminated | (others & env.terminated)) & valid,
            (own.truncated | (others & ~env.terminated)) & valid,
            env.reset,
        )
        self._absent = (absent | own.done) & ~env.reset
        return ends, valid

    def _split(self, ends: Ends) -> tuple[torch.Tensor, torch.Tensor]:
        if self._time_limit is not None:
            return self._split_by_length(ends, self._time_limit)
        if self._done_is is None:
            return ends.terminated, ends.truncated
        never = torch.zeros_like(ends.done)
        return (ends.done, never) if self._done_is == "terminated" else (never, ends.done)

    def _split_by_length(self, ends: Ends, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
        before = 0 if self._elapsed is None else self._elapsed
        elapsed = before + torch.ones_like(ends.done, dtype=torch.int64)
        truncated = ends.done & (elapsed >= limit)
        self._elapsed = elapsed.masked_fill(ends.reset, 0)
        return ends.done & ~truncated, truncated


def _check_options(done_is: object, time_limit: None | int) -> None:
    if done_is not in (None, "terminated", "truncated"):
        raise AdapterError(f"`done_is` must be 'terminated' or 'truncated'; got {done_is!r}.")
    if time_limit is not None and time_limit < 1:
        raise AdapterError(f"`time_limit` must be at least 1; got {time_limit}.")
    if done_is is not None and time_limit is not None:
        raise AdapterError(
            "`done_is` and `time_limit` both say what the end of an episode is. Pass one of them."
        )


def make_endings(
    env: Any,
    layout: Layout,
    done_key: None | NestedKey,
    terminated_key: None | NestedKey,
    done_is: None | DoneIs,
    time_limit: None | int,
) -> Endings:
    """How episodes of `env` end.

    TorchRL resets by the flags at the root where there are some, whatever those below say, and
    by each group's own flags elsewhere.

    Args:
        env: The environment.
        layout: How batch and agents become rows.
        done_key: A flag of the group to go by, where it is not clear.
        terminated_key: The flag that says that the task ended, where it has another name.
        done_is: What every end is.
        time_limit: Env steps after which an end is a truncation.

    Raises:
        AdapterError: Where no group says when a row ends.

    """
    specs = leaves_of(env.full_done_spec)
    for name, key in (("done_key", done_key), ("terminated_key", terminated_key)):
        if key is not None and as_key(key) not in specs:
            raise AdapterError(
                f"`{name}` must be one of {spelled(list(specs))}; got {spelled([as_key(key)])}."
            )
    groups: dict[Key, list[Key]] = {}
    for key in specs:
        groups.setdefault(key[:-1], []).append(key)
    chosen = _choose(groups, layout) if done_key is None else as_key(done_key)[:-1]
    for key in groups[chosen]:
        if layout.feature(key, specs[key]).numel() != 1:
            raise AdapterError(
                f"`{spelled([key])}` has {list(layout.feature(key, specs[key]))} flags a row, "
                "where one has to say that it ended. Pass another as `done_key`, or add one in a "
                "transform."
            )
    terminated = None if terminated_key is None else as_key(terminated_key)
    own = None
    if layout.agents and chosen != layout.group and layout.group in groups:
        own = _make_group(groups[layout.group], terminated)
    root = _make_group(groups[chosen], terminated)
    is_told = bool(told_keys(env))
    if is_told and time_limit is not None:
        raise AdapterError(
            f"`time_limit` counts every row, and {called(env)} has rows that no action caused. It "
            "says itself which ends are truncations: leave `time_limit` out."
        )
    return Endings(layout, root, own, is_told=is_told, done_is=done_is, time_limit=time_limit)


def _choose(groups: dict[Key, list[Key]], layout: Layout) -> Key:
    """Prefix of the group whose flags say when rows are reset."""
    for prefix in ((), layout.group):
        if prefix in groups:
            return prefix
    if len(groups) == 1:
        return next(iter(groups))
    keys = spelled([key for keys in groups.values() for key in keys])
    if not keys:
        raise AdapterError("The environment has no flag that says that an episode ended: add one.")
    raise AdapterError(
        f"Parts of this environment end at different times ({keys}), and no flag at its root says "
        "when all of it does. Pass one as `done_key`, or add a flag in a transform."
    )


def _make_group(keys: list[Key], terminated_key: None | Key) -> DoneGroup:
    by_name = {key[-1]: key for key in keys}
    terminated = by_name.get(DataKeys.TERMINATED)
    if terminated_key is not None and terminated_key[:-1] == keys[0][:-1]:
        terminated = terminated_key
    # Where the root has both, TorchRL resets by `done` alone; see `EnvBase.any_done`.
    is_simple = ("done",) in keys and (DataKeys.TERMINATED,) in keys
    return DoneGroup(
        keys=tuple(keys),
        terminated=terminated,
        truncated=by_name.get(DataKeys.TRUNCATED),
        reset=(("done",),) if is_simple else tuple(keys),
    )
