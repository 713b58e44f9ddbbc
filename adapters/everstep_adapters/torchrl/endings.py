"""Ends of episodes in the rows of a TorchRL environment."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from tensordict import TensorDictBase

from everstep.data import DataKeys
from everstep.errors import AdapterError, CheckpointError

from ..common.endings import FLAGS
from .calls import name_of
from .keys import own_episode_keys
from .specs import Key, Layout, NestedKey, as_key, join_keys, leaves_of, value_of, write_key

#: Kind of every end of an episode, for environments whose flags do not distinguish them.
DoneIs = Literal["terminated", "truncated"]


class Ends(NamedTuple):
    """Flags of one level, bool `[N, 1]` each."""

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
    """Keys of the flags at one level of an environment. Each of them ends an episode."""

    #: All flags.
    keys: tuple[Key, ...]

    #: The flag of an end by the task, if there is one.
    terminated: None | Key

    #: The flag of an end by a clock, if there is one.
    truncated: None | Key

    #: The flags by which TorchRL resets.
    reset: tuple[Key, ...]

    def read(self, data: TensorDictBase, layout: Layout) -> Ends:
        """The flags of a vector step as rows.

        An end that is neither `terminated` nor `truncated` is the one that has no flag; if both
        have one it is `truncated`, as the clock of an outer wrapper is.
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
    """Rows with any flag; new memory."""
    return flags[0].clone() if len(flags) == 1 else reduce(torch.logical_or, flags)


class Endings:
    """The episode keys of each vector step, from the environment's flags.

    TorchRL resets by the flags at the root if there are some, whatever those below say, and by each
    group's own flags otherwise.

    Args:
        env: The environment.
        layout: Batch and agents as rows.
        done_key: A flag of the group that ends rows, if there are several groups.
        terminated_key: The flag of an end by the task, if it has another name.
        done_is: Kind of every end, whatever the flags say.
        time_limit: Env steps after which an end is a truncation, and before which it is a
            termination, whatever the flags say.

    Raises:
        AdapterError: If no group says when a row ends, or the options contradict each other.

    """

    #: Episode keys of the rows, without `final_obs`.
    episode_keys: frozenset[str]

    def __init__(
        self,
        env: Any,
        layout: Layout,
        done_key: None | NestedKey,
        terminated_key: None | NestedKey,
        done_is: None | DoneIs,
        time_limit: None | int,
    ) -> None:
        self._layout, self._done_is, self._time_limit = layout, done_is, time_limit
        #: Whether the environment has rows of its own, marked by `valid` and `is_init`.
        self._is_exported = bool(own_episode_keys(env))
        self._check_options(env)
        specs = leaves_of(env.full_done_spec)
        for name, key in (("done_key", done_key), ("terminated_key", terminated_key)):
            if key is not None and as_key(key) not in specs:
                raise AdapterError(
                    f"`{name}` must be one of {join_keys(list(specs))}; got "
                    f"{join_keys([as_key(key)])}."
                )
        groups: dict[Key, list[Key]] = {}
        for flag in specs:
            groups.setdefault(flag[:-1], []).append(flag)
        chosen = _choose(groups, layout) if done_key is None else as_key(done_key)[:-1]
        for flag in groups[chosen]:
            feature = layout.feature(flag, specs[flag])
            if feature.numel() != 1:
                others = [key for key in specs if key[:-1] != chosen]
                another = f"Pass `done_key={write_key(others[0])}`, or add" if others else "Add"
                raise AdapterError(
                    f"`{join_keys([flag])}` has {list(feature)} flags a row, where one has to say "
                    f"that it ended. {another} one at the root in a transform."
                )
        terminated = None if terminated_key is None else as_key(terminated_key)
        self._root = _make_group(groups[chosen], terminated)
        #: Flags of the agents, who may be done before their environment is reset.
        self._own: None | DoneGroup = None
        if chosen != layout.group and layout.group in groups:
            self._own = _make_group(groups[layout.group], terminated)
        has_valid = self._own is not None or self._is_exported
        self.episode_keys = FLAGS | {DataKeys.VALID} if has_valid else FLAGS
        self._absent: None | torch.Tensor = None
        self._elapsed: None | torch.Tensor = None

    def _check_options(self, env: Any) -> None:
        done_is, limit = self._done_is, self._time_limit
        if limit is None:
            return
        if done_is is not None:
            raise AdapterError(
                "`done_is` and `time_limit` both set the kind of an episode's end. Pass one of "
                "them."
            )
        if self._is_exported:
            raise AdapterError(
                f"`time_limit` counts every row, and {name_of(env)} has rows that no action "
                "caused. It says itself which ends are truncations: leave `time_limit` out."
            )

    @property
    def description(self) -> str:
        """The flags that end episodes, and the kind of an end, for `describe`."""
        by = f"by {join_keys(self._root.reset)}"
        if self._own is not None:
            by += f", agents before it by {join_keys(self._own.reset)}"
        if self._is_exported:
            by += ", or in the next one, as the environment's `valid` and `is_init` say"
        if self._done_is is not None:
            return f"{by}; every end is {self._done_is}"
        if self._time_limit is not None:
            return f"{by}; truncated after {self._time_limit} env steps, terminated before"
        return f"{by}; the task's by {join_keys([self._root.terminated or self._root.keys[0]])}"

    def start(self) -> None:
        """Start the episodes of all rows, after a reset."""
        self._absent = self._elapsed = None

    def reset(self, envs: torch.Tensor) -> None:
        """Start the episodes of environments, bool `[B]`, after a reset of them alone."""
        rows = envs.repeat_interleave(self._layout.agents.numel()).unsqueeze(1)
        if self._absent is not None:
            self._absent = self._absent & ~rows
        if self._elapsed is not None:
            self._elapsed = self._elapsed.masked_fill(rows, 0)

    def state_dict(self) -> dict[str, None | torch.Tensor]:
        """Agents that are done, and counts of env steps, where there are some."""
        return {"absent": self._absent, "elapsed": self._elapsed}

    def checked(self, state: dict[str, None | torch.Tensor]) -> Callable[[], None]:
        """Assignment of a state of `state_dict`, which was checked.

        Raises:
            CheckpointError: If it is of another number of rows.

        """
        absent, elapsed = state["absent"], state["elapsed"]
        shapes = [x.shape for x in (absent, elapsed) if x is not None]
        if any(shape != (self._layout.num_rows, 1) for shape in shapes):
            raise CheckpointError(f"flags must be [{self._layout.num_rows}, 1]; got {shapes}")

        def assign() -> None:
            self._absent, self._elapsed = absent, elapsed

        return assign

    def read(self, outcome: TensorDictBase, following: TensorDictBase) -> dict[str, torch.Tensor]:
        """The episode keys `[N, 1]` of a vector step.

        Args:
            outcome: What it returned under `next`.
            following: What is acted on next, after the resets of finished rows.

        """
        ends = self._root.read(outcome, self._layout)
        valid = None
        if self._own is not None:
            ends, valid = self._of_agents(ends, self._own.read(outcome, self._layout))
        first = ends.reset
        if self._is_exported:
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
        """The ends of agents' episodes, and the valid rows.

        An agent that is done waits for its environment's reset, in rows that are not valid; one
        that is not done when the environment is reset ends as the environment does.
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
        """`terminated` and `truncated`, by the options if there are some."""
        if self._time_limit is not None:
            before = 0 if self._elapsed is None else self._elapsed
            elapsed = before + torch.ones_like(ends.done, dtype=torch.int64)
            truncated = ends.done & (elapsed >= self._time_limit)
            self._elapsed = elapsed.masked_fill(ends.reset, 0)
            return ends.done & ~truncated, truncated
        if self._done_is is None:
            return ends.terminated, ends.truncated
        never = torch.zeros_like(ends.done)
        return (ends.done, never) if self._done_is == "terminated" else (never, ends.done)


def _choose(groups: dict[Key, list[Key]], layout: Layout) -> Key:
    """Prefix of the group whose flags say when rows are reset."""
    for prefix in ((), layout.group):
        if prefix in groups:
            return prefix
    if len(groups) == 1:
        return next(iter(groups))
    keys = [key for keys in groups.values() for key in keys]
    if not keys:
        raise AdapterError("The environment has no flag that says that an episode ended: add one.")
    raise AdapterError(
        f"Parts of this environment end at different times ({join_keys(keys)}), and no flag at its "
        f"root says when all of it does. Pass one, such as `done_key={write_key(keys[0])}`, or add "
        "one at the root in a transform."
    )


def _make_group(keys: list[Key], terminated_key: None | Key) -> DoneGroup:
    by_name = {key[-1]: key for key in keys}
    terminated = by_name.get(DataKeys.TERMINATED)
    if terminated_key is not None and terminated_key[:-1] == keys[0][:-1]:
        terminated = terminated_key
    # If the root has both, TorchRL resets by `done` alone; see `EnvBase.any_done`.
    is_simple = ("done",) in keys and (DataKeys.TERMINATED,) in keys
    return DoneGroup(
        keys=tuple(keys),
        terminated=terminated,
        truncated=by_name.get(DataKeys.TRUNCATED),
        reset=(("done",),) if is_simple else tuple(keys),
    )
