"""Rows and full resets of a task, one class a reset style."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.env.specs import Leaves
from everstep.errors import AdapterError, EnvError

from ..common.endings import FLAGS, align, external, next_step, same_step
from ..common.overwrites import OverwriteCheck
from .source import Outcome, Task, Tree, with_states
from .specs import Observations
from .time_outs import TimeOuts

#: Reset styles, and the name of each.
STYLES = {
    "A": "next_step_after_physics",
    "B": "next_step_before_physics",
    "C": "same_step",
    "D": "external",
}

#: Keys of final observations in `extras`, in the order in which they are looked for.
FINAL_OBS = ("final_obs", "final_observation", "terminal_obs", "terminal_observation")


def parse_style(style: str) -> str:
    """The letter of a reset style, from its letter or name.

    Raises:
        AdapterError: If there is no such style.

    """
    for letter, name in STYLES.items():
        if style.lower() in (letter.lower(), name):
            return letter
    raise AdapterError(f"`reset_style` must be one of {list_styles()}; got {style!r}.")


def list_styles() -> str:
    """All styles, for errors."""
    return ", ".join(f"{letter!r} ({name!r})" for letter, name in STYLES.items())


def describe_style(style: str) -> str:
    """Letter and name of a style."""
    return f"{style} ({STYLES[style]})"


class Endings(ABC):
    """Base: vector steps and resets of a task of one style.

    Args:
        task: The task.
        time_outs: Split of ended episodes.
        observations: Reader of observations.

    """

    #: Episode keys of the rows.
    episode_keys: frozenset[str]

    #: Source of final observations, for `describe`.
    final_obs: str

    #: Rows bool `[N, 1]` that the task resets in the next env step, in styles that have them.
    pending: None | torch.Tensor = None

    #: The task's `extras` of the last vector step.
    extras: Mapping[str, Any]

    def __init__(self, task: Task, time_outs: TimeOuts, observations: Observations) -> None:
        self._task, self._time_outs, self._observations = task, time_outs, observations

    @abstractmethod
    def reset(self) -> Tree:
        """Observations after resetting every environment; no reset is pending afterwards."""

    def step(self, actions: torch.Tensor) -> TensorDict:
        """The row of a vector step.

        Args:
            actions: Actions as the task takes them, `[N, A]`; memory of its own.

        """
        return TensorDict(self._step(actions), batch_size=[self._task.num_envs])

    @abstractmethod
    def _step(self, actions: torch.Tensor) -> dict[str, Any]: ...

    def _outcome(self, actions: torch.Tensor) -> tuple[Outcome, torch.Tensor, torch.Tensor]:
        """The outcome of a vector step, and its ends as `terminated` and `truncated`."""
        self._time_outs.before()
        outcome = self._task.step(actions)
        self.extras = outcome.extras
        return outcome, *self._time_outs.split(outcome, outcome.done)

    def _reset_row(self, actions: torch.Tensor) -> tuple[Outcome, dict[str, Any]]:
        """The outcome of a vector step, and its row if the ends are reset in it.

        Rewards are a copy: the task may use their memory in a reset.
        """
        outcome, terminated, truncated = self._outcome(actions)
        return outcome, {
            DataKeys.REWARDS: outcome.rewards.clone(),
            DataKeys.TERMINATED: terminated,
            DataKeys.TRUNCATED: truncated,
            DataKeys.FIRST: outcome.done,
        }


class NextStep(Endings):
    """Styles A and B: an environment that has ended is reset in the next env step.

    The row that ends returns the final observation. The action of the row after it was chosen from
    that observation, but acts on another state, which A discards and B resets: the task is given 0
    instead, and the row is `first` and not `valid`.
    """

    episode_keys = FLAGS | {DataKeys.VALID}
    final_obs = "what the row that ends returns"

    def __init__(self, task: Task, time_outs: TimeOuts, observations: Observations) -> None:
        super().__init__(task, time_outs, observations)
        self.pending = torch.zeros(task.num_envs, 1, dtype=torch.bool, device=task.device)

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        self._task.env.reset_buf.fill_(1)
        outcome = self._task.step(self._task.zero_actions())
        self.pending = outcome.done  # an environment may fail in its first state
        return outcome.obs

    def _step(self, actions: torch.Tensor) -> dict[str, Any]:
        first = self.pending
        assert first is not None
        actions.masked_fill_(align(first.to(actions.device), actions), 0.0)
        outcome, terminated, truncated = self._outcome(actions)
        self.pending = outcome.done  # of a reset row, too: it may fail in its first state
        row = next_step(first, outcome.rewards, terminated, truncated)
        return row | {DataKeys.OBS: self._observations.read(outcome.obs)}


class SameStep(Endings):
    """Style C: an environment that ends is reset in the same env step.

    The row that ends is `first`: its observation opens the next episode. The final one is lost
    unless the task puts it into `extras`.

    Args:
        task: The task.
        time_outs: Split of ended episodes.
        observations: Reader of observations.
        final_key: Key of final observations in `extras`; None if they are lost.

    """

    def __init__(
        self, task: Task, time_outs: TimeOuts, observations: Observations, final_key: None | str
    ) -> None:
        super().__init__(task, time_outs, observations)
        self._final_key = final_key
        self._overwrites = OverwriteCheck(task.env, task.name)
        self.episode_keys = FLAGS
        self.final_obs = "lost; `on_missing_final` decides"
        if final_key is not None:
            self.episode_keys = FLAGS | {DataKeys.FINAL_OBS}
            self.final_obs = f"`extras[{final_key!r}]`"

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        return reset_same_step(self._task)

    def _step(self, actions: torch.Tensor) -> dict[str, Any]:
        outcome, row = self._reset_row(actions)
        obs = self._observations.leaves(outcome.obs)
        row[DataKeys.OBS] = self._observations.pack(obs)
        if self._final_key is not None:
            final = outcome.extras.get(self._final_key)
            flags = row[DataKeys.TERMINATED], row[DataKeys.TRUNCATED]
            leaves = self._final(final, obs)
            is_there = None if leaves is None else self._kept(final, leaves, obs, outcome)
            leaves = same_step(outcome.done, *flags, obs, leaves, is_there)
            row[DataKeys.FINAL_OBS] = self._observations.pack(leaves)
        return row

    def _final(self, final: Tree, obs: Leaves) -> None | Leaves:
        """Leaves of the final observations; None if they are lost.

        Raises:
            EnvError: If they are, and all observations are integers.

        """
        if final is not None:
            return self._observations.leaves(final)
        if not any(leaf.is_floating_point() for leaf in obs):
            raise EnvError(
                f"{self._task.name} returned no final observations in `extras`, and integers have "
                "no NaN to mark that they are lost. Return them in every vector step, or never."
            )
        return None

    def _kept(self, final: Tree, leaves: Leaves, obs: Leaves, outcome: Outcome) -> torch.Tensor:
        """Rows bool `[N, 1]` that ended and whose final observation the reset has not overwritten.

        Waits for the device only if they lie in memory that the task writes to.

        Raises:
            EnvError: If one was overwritten, or may be and cannot be marked as lost.

        """
        own, ends = self._observations.own_leaves, outcome.done.flatten()
        names = [f"extras[{self._final_key!r}]{name}" for name in self._observations.names]
        found = [[leaf] for leaf in own(final)]
        self._overwrites.infos = outcome.extras
        look = self._overwrites.look
        unsure, _ = look(obs, leaves, ends, names, own(outcome.obs), found)
        if not any(leaf.is_floating_point() for leaf in leaves) and bool(unsure.any()):
            raise self._overwrites.doubt(unsure.nonzero().flatten().tolist())
        is_lost: torch.Tensor = unsure.view(-1, 1)
        return outcome.done & ~is_lost


def reset_same_step(task: Task) -> Tree:
    """Observations after resetting every environment of a task of style C.

    Raises:
        EnvError: If the task has no way to reset all of them.

    """
    if task.interface != "VecTask":
        reset = task.method("reset")
        return _run_out(task) if reset is None else _first_observations(reset())
    reset_idx = task.method("reset_idx")
    if reset_idx is None:
        return _run_out(task)
    # `reset` of a VecTask resets nothing, and its `reset_buf` is overwritten before it is read.
    reset_idx(torch.arange(task.num_envs, device=task.clock.device))
    compute = computes_observations(task)
    if compute is None:
        return task.step(task.zero_actions()).obs
    compute()
    return task.buffers()


def computes_observations(task: Task) -> Any:
    """The method that fills the task's buffer of observations; None if there is none."""
    return task.method("compute_observations", "_compute_observations")


def _first_observations(returned: Any) -> Tree:
    """Observations from the result of `reset`: alone, with those of a critic, or with extras."""
    if not isinstance(returned, tuple):
        return returned
    obs, second = returned[0], returned[1] if len(returned) > 1 else None
    return with_states(obs, second) if second is None or isinstance(second, torch.Tensor) else obs


def _run_out(task: Task) -> Tree:
    """Observations after an env step in which every environment's time was up."""
    if task.max_episode_length is not None:
        longest = torch.as_tensor(task.max_episode_length).max()
        task.set_clock(float(longest))
        outcome = task.step(task.zero_actions())
        if bool(outcome.done.all()):
            return outcome.obs
    raise EnvError(
        f"{task.name} cannot be reset: it has neither `reset` nor `reset_idx`, and its episodes "
        f"do not end when `{task.clock_name}` is at `max_episode_length`. Give it a `reset`."
    )


class External(Endings):
    """Style D: an environment that has ended waits for `reset_done`, which the adapter calls.

    The row that ends is `first`: its observation is that after `reset_done`, and `final_obs` a copy
    of the one before it.
    """

    episode_keys = FLAGS | {DataKeys.FINAL_OBS}
    final_obs = "what `step` returns, before `reset_done`"

    def __init__(self, task: Task, time_outs: TimeOuts, observations: Observations) -> None:
        super().__init__(task, time_outs, observations)
        self._compute = None
        before = _copy(observations.leaves(task.step(task.zero_actions()).obs))
        after = observations.leaves(self.reset())
        if all(map(torch.equal, before, after)):  # `reset_done` returns the old observations
            self._compute = computes_observations(task)

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        self._task.env.reset_buf.fill_(1)
        return self._reset_done()

    def _step(self, actions: torch.Tensor) -> dict[str, Any]:
        outcome, row = self._reset_row(actions)
        # Copied before the reset: the task may have only one buffer for both.
        final = _copy(self._observations.leaves(outcome.obs))
        obs = self._observations.read(self._reset_done())
        return row | {DataKeys.OBS: obs, DataKeys.FINAL_OBS: self._observations.pack(final)}

    def _reset_done(self) -> Tree:
        """Observations after the task has reset the environments that had ended."""
        returned = self._task.method("reset_done")()
        if self._compute is not None:
            self._compute()
            return self._task.buffers()
        return returned[0] if isinstance(returned, tuple) else returned


class Waiting(Endings):
    """Style D of Isaac Lab's interface: ended environments wait for `reset(env_ids=…)`.

    The adapter calls it at the end of the vector step. The rows are those of `External`.
    """

    episode_keys = FLAGS | {DataKeys.FINAL_OBS}
    final_obs = "what `step` returns, before `reset(env_ids=…)`"

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        return reset_same_step(self._task)

    def _step(self, actions: torch.Tensor) -> dict[str, Any]:
        outcome, row = self._reset_row(actions)
        final = _copy(self._observations.leaves(outcome.obs))
        obs: Sequence[torch.Tensor] = final
        ids = outcome.done.flatten().nonzero().flatten()  # one sync, as the environment's own reset
        if len(ids):
            returned = self._task.method("reset")(env_ids=ids.to(self._task.own_device))
            opening = self._observations.leaves(_first_observations(returned))
            obs, _ = external(outcome.done, final, opening)
        pack = self._observations.pack
        return row | {DataKeys.OBS: pack(tuple(obs)), DataKeys.FINAL_OBS: pack(final)}


def _copy(leaves: Sequence[torch.Tensor]) -> Leaves:
    return tuple(leaf.clone() for leaf in leaves)
