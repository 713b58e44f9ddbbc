"""When a task resets what has ended, and the rows and the full resets that follow from it."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.errors import AdapterError, EnvError

from .tasks import Observations, Outcome, Task, Tree, with_states
from .time_outs import TimeOuts

#: Reset styles, and the word for each.
STYLES = {
    "A": "next_step_after_physics",
    "B": "next_step_before_physics",
    "C": "same_step",
    "D": "external",
}

#: Where final observations may be in `extras`, in the order in which they are looked for.
FINAL_OBS = ("final_obs", "final_observation", "terminal_obs", "terminal_observation")

_FLAGS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})


def parse_style(style: str) -> str:
    """The letter of a reset style, from the letter or the word.

    Raises:
        AdapterError: Where it is neither.

    """
    for letter, word in STYLES.items():
        if style.lower() in (letter.lower(), word):
            return letter
    known = ", ".join(f"{letter!r} ({word!r})" for letter, word in STYLES.items())
    raise AdapterError(f"`reset_style` must be one of {known}; got {style!r}.")


def told(style: str) -> str:
    """A style as messages have it, letter and word."""
    return f"{style} ({STYLES[style]})"


class Endings(Protocol):
    """How episodes end in a task of one style."""

    #: Episode keys of its rows.
    episode_keys: frozenset[str]

    #: What `describe` says about final observations.
    final_obs: str

    def reset(self) -> Tree:
        """Observations after resetting every environment; nothing waits for a reset after it."""
        ...

    def step(self, actions: torch.Tensor) -> TensorDict:
        """The row of an env step.

        Args:
            actions: Actions as the task takes them, `[N, A]`; memory of its own.

        """
        ...


class NextStep:
    """Styles A and B: an environment that has ended is reset in the next env step.

    The row that ends returns the final observation. The action of the row after it was chosen from
    that, but meets another state, in A one that is thrown away, in B that of the reset: the task
    is given 0 instead, and the row is `first` and not `valid`.
    """

    episode_keys = _FLAGS | {DataKeys.VALID}
    final_obs = "what the row that ends returns"

    def __init__(self, task: Task, time_outs: TimeOuts, observations: Observations) -> None:
        self._task, self._time_outs, self._observations = task, time_outs, observations
        self._pending = torch.zeros(task.num_envs, 1, dtype=torch.bool, device=task.device)

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        outcome = flagged_step(self._task)
        self._pending = outcome.done  # an environment may fail where it was put
        return outcome.obs

    def step(self, actions: torch.Tensor) -> TensorDict:
        """See `Endings.step`."""
        first = self._pending
        # What was chosen from a final observation is nothing to open an episode with.
        actions.masked_fill_(beside(first.to(actions.device), actions), 0.0)
        self._time_outs.before()
        outcome = self._task.step(actions)
        valid = ~first
        terminated, truncated = self._time_outs.split(outcome, outcome.done & valid)
        self._pending = outcome.done
        return TensorDict(
            {
                DataKeys.OBS: self._observations.read(outcome.obs),
                DataKeys.REWARDS: outcome.rewards.masked_fill(first, 0.0),
                DataKeys.TERMINATED: terminated,
                DataKeys.TRUNCATED: truncated,
                DataKeys.FIRST: first,
                DataKeys.VALID: valid,
            },
            batch_size=[self._task.num_envs],
        )


def flagged_step(task: Task) -> Outcome:
    """What an env step returns in which a task of style A or B resets every environment."""
    task.env.reset_buf.fill_(1)
    return task.step(task.zero_actions())


class SameStep:
    """Style C: an environment that ends is reset in the same env step.

    The row that ends is `first`: its observation opens the next episode. The final one is lost
    where the task does not put it into `extras`.

    Args:
        task: The task.
        time_outs: What tells time-outs.
        observations: How observations are read.
        final_key: Where final observations are in `extras`; None where they are lost.

    """

    def __init__(
        self,
        task: Task,
        time_outs: TimeOuts,
        observations: Observations,
        final_key: None | str,
    ) -> None:
        self._task, self._time_outs, self._observations = task, time_outs, observations
        self._final_key = final_key
        self.episode_keys = _FLAGS
        self.final_obs = "lost; `on_missing_final` decides"
        if final_key is not None:
            self.episode_keys = _FLAGS | {DataKeys.FINAL_OBS}
            self.final_obs = f"`extras[{final_key!r}]`"

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        return reset_same_step(self._task)

    def step(self, actions: torch.Tensor) -> TensorDict:
        """See `Endings.step`."""
        self._time_outs.before()
        outcome = self._task.step(actions)
        terminated, truncated = self._time_outs.split(outcome, outcome.done)
        row: dict[str, Any] = {
            DataKeys.OBS: self._observations.read(outcome.obs),
            DataKeys.REWARDS: outcome.rewards.clone(),
            DataKeys.TERMINATED: terminated,
            DataKeys.TRUNCATED: truncated,
            DataKeys.FIRST: outcome.done,
        }
        if self._final_key is not None:
            obs, given = row[DataKeys.OBS], outcome.extras.get(self._final_key)
            row[DataKeys.FINAL_OBS] = (
                _lost(obs, truncated & ~terminated, self._task.name)
                if given is None
                else _where(outcome.done, self._observations.read(given), obs)
            )
        return TensorDict(row, batch_size=[self._task.num_envs])


def reset_same_step(task: Task) -> Tree:
    """Observations after resetting every environment of a task of style C.

    Raises:
        EnvError: Where the task has no way to reset all of them.

    """
    if task.interface != "VecTask":
        reset = task.method("reset")
        return _run_out(task) if reset is None else _read_reset(reset())
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
    """The method that fills the task's buffer of observations; None where there is none."""
    return task.method("compute_observations", "_compute_observations")


def _read_reset(returned: Any) -> Tree:
    """Observations of what `reset` returned: alone, with those of a critic, or with extras."""
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
        f"do not end where `{task.clock_name}` is at `max_episode_length`. Give it a `reset`."
    )


class External:
    """Style D: an environment that has ended waits for `reset_done`, which the adapter calls.

    The row that ends is `first`: its observation is that after `reset_done`, and `final_obs` the
    one before it, copied.

    Args:
        task: The task.
        time_outs: What tells time-outs.
        observations: How observations are read.

    """

    episode_keys = _FLAGS | {DataKeys.FINAL_OBS}
    final_obs = "what `step` returns, before `reset_done`"

    def __init__(self, task: Task, time_outs: TimeOuts, observations: Observations) -> None:
        self._task, self._time_outs, self._observations = task, time_outs, observations
        self._compute = self._missing_computation()

    def reset(self) -> Tree:
        """See `Endings.reset`."""
        return self._computed(reset_external(self._task))

    def step(self, actions: torch.Tensor) -> TensorDict:
        """See `Endings.step`."""
        self._time_outs.before()
        outcome = self._task.step(actions)
        terminated, truncated = self._time_outs.split(outcome, outcome.done)
        # Copied before the reset: the task may have only one buffer for both.
        rewards = outcome.rewards.clone()
        final = map_leaves(self._observations.read(outcome.obs), torch.clone)
        obs = self._computed(reset_done(self._task))
        return TensorDict(
            {
                DataKeys.OBS: self._observations.read(obs),
                DataKeys.REWARDS: rewards,
                DataKeys.TERMINATED: terminated,
                DataKeys.TRUNCATED: truncated,
                DataKeys.FIRST: outcome.done,
                DataKeys.FINAL_OBS: final,
            },
            batch_size=[self._task.num_envs],
        )

    def _computed(self, obs: Tree) -> Tree:
        """Observations after a reset, computed where `reset_done` leaves that out."""
        if self._compute is None:
            return obs
        self._compute()
        return self._task.buffers()

    def _missing_computation(self) -> Any:
        """What computes observations, where `reset_done` returns those of before the reset."""
        read = self._observations.read
        before = map_leaves(read(self._task.step(self._task.zero_actions()).obs), torch.clone)
        after = read(reset_external(self._task))
        is_stale = bool(torch.as_tensor((before == after).all()))
        return computes_observations(self._task) if is_stale else None


def reset_external(task: Task) -> Tree:
    """Observations after resetting every environment of a task of style D."""
    task.env.reset_buf.fill_(1)
    return reset_done(task)


def reset_done(task: Task) -> Tree:
    """Observations after the task has reset what had ended."""
    returned = task.env.reset_done()
    return returned[0] if isinstance(returned, tuple) else returned


# ---- observations, plain or nested ------------------------------------------------------------


def map_leaves(obs: Any, call: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Observations whose tensors are what `call` makes of them."""
    return call(obs) if isinstance(obs, torch.Tensor) else obs.apply(call)


def _where(rows: torch.Tensor, there: Any, elsewhere: Any) -> Any:
    """`there` in the rows `[N, 1]` that are True, and `elsewhere` in the others; new memory."""
    if isinstance(there, torch.Tensor):
        return torch.where(beside(rows, there), there, elsewhere)
    return there.apply(lambda x, y: torch.where(beside(rows, x), x, y), elsewhere)


def _lost(obs: Any, rows: torch.Tensor, name: str) -> Any:
    """Observations that are NaN, where they can be, in the rows `[N, 1]` that are True.

    Raises:
        EnvError: Where they cannot be, since all are integers.

    """
    leaves = [obs] if isinstance(obs, torch.Tensor) else list(obs.values(True, True))
    if not any(leaf.is_floating_point() for leaf in leaves):
        raise EnvError(
            f"{name} returned no final observations in `extras`, and integers have no NaN to say "
            "that they are lost. Return them in every env step, or none at all."
        )
    return map_leaves(
        obs,
        lambda leaf: (
            leaf.masked_fill(beside(rows, leaf), torch.nan) if leaf.is_floating_point() else leaf
        ),
    )


def beside(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """A column `[N, 1]` with as many dimensions as `leaf` has."""
    return rows.view(-1, *(1 for _ in leaf.shape[1:]))
