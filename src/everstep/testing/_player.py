"""Playing an environment, with copies of what it returns."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from tensordict import TensorDict
from torchrl.data import TensorSpec

from ..data import DataKeys, Device
from ..env import Env
from ..env.specs import Leaves, Structure
from ._results import Unmakeable, Unresettable, Violation
from ._structure import attempt, check_members, check_obs, check_outcome, episode_keys, with_index
from ._subject import Subject

#: Flags of a row.
FLAGS = (DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST, DataKeys.VALID)


@dataclass(frozen=True)
class Row:
    """Copies of the inputs and results of one vector step, on the CPU."""

    #: Observations that actions were chosen from, `[N, …]`.
    obs: Leaves

    #: Observations that are acted on next, `[N, …]`.
    next_obs: Leaves

    #: Rewards, `[N]`.
    rewards: torch.Tensor

    #: The task ended, bool `[N]`; False if not declared, like the next two.
    terminated: torch.Tensor

    #: A clock ended the episode, bool `[N]`.
    truncated: torch.Tensor

    #: `next_obs` opens an episode, bool `[N]`.
    first: torch.Tensor

    #: The action caused the row, bool `[N]`; True if not declared.
    valid: torch.Tensor

    #: Observations before a reset, `[N, …]`; empty if not declared.
    final_obs: Leaves

    @property
    def done(self) -> torch.Tensor:
        """Whether an episode ended, bool `[N]`."""
        return self.terminated | self.truncated

    def tensors(self) -> dict[str, torch.Tensor]:
        """Results of the vector step, by name."""
        groups = {DataKeys.OBS: self.next_obs, DataKeys.FINAL_OBS: self.final_obs}
        leaves = {f"{key} {i}": x for key, xs in groups.items() for i, x in enumerate(xs)}
        flags = {key: cast(torch.Tensor, getattr(self, key)) for key in FLAGS}
        return {DataKeys.REWARDS: self.rewards, **leaves, **flags}


class Player(AbstractContextManager["Player"]):
    """An environment that is made, played, checked against its declarations, and closed.

    Args:
        subject: The environment under test.
        num_envs: Number of parallel environments; None for the largest of `num_envs_choices`.
        seed: Seed of the environment, if it can be seeded; None for no seed.

    Raises:
        Unplayable: If it cannot be made, reset or stepped, or its results do not have the declared
            structure, shapes, dtypes and device.

    """

    #: The environment under test, and how it is played.
    subject: Subject

    #: The environment.
    env: Env

    #: Structure of one observation.
    observation: Structure

    #: Vector steps so far.
    t: int

    #: Observations that the next action is chosen from, as the environment returned them.
    acted_on: Any

    def __init__(
        self, subject: Subject, num_envs: None | int = None, *, seed: None | int = None
    ) -> None:
        self.subject = subject
        num_envs = max(subject.num_envs_choices) if num_envs is None else num_envs
        self.env = attempt(
            "`make_env`",
            lambda: subject.make_env(num_envs, subject.horizon, subject.device),
            Unmakeable,
        )
        try:
            check_members(self.env)
            if seed is not None and hasattr(self.env, "seed"):
                self.seed(seed)
        except BaseException:
            self.__exit__()
            raise
        self.observation = Structure.of(self.env.observation_spec)
        self.t = 0
        self.acted_on = None

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):  # `check_close` reports it
            self.close()

    def close(self) -> None:
        """Close the environment, if it has `close`."""
        if hasattr(self.env, "close"):
            self.env.close()

    def seed(self, seed: int) -> None:
        """Seed the environment."""
        attempt("`seed`", lambda: cast(Any, self.env).seed(seed))

    def reset(self, **options: Any) -> Leaves:
        """Copies of the first observations, `[N, …]`."""
        self.acted_on = attempt("`reset`", lambda: self.env.reset(**options), Unresettable)
        return copies(check_obs(self.env, self.observation, DataKeys.OBS, self.acted_on))

    def reset_rows(self, rows: torch.Tensor) -> Leaves:
        """Copies of the observations `[N, …]` after a reset of `rows`, bool `[N]` on the CPU."""
        given = rows.unsqueeze(1).to(self.env.device)
        obs = attempt("`reset_rows`", lambda: cast(Any, self.env).reset_rows(given), Violation)
        fresh = check_obs(self.env, self.observation, DataKeys.OBS, obs)
        kept = self.observation.flatten(self.acted_on)
        leaves = tuple(
            x.where(given.view(-1, *[1] * (x.ndim - 1)), y)
            for x, y in zip(fresh, kept, strict=True)
        )
        self.acted_on = self.observation.unflatten(leaves, [self.env.num_envs])
        return copies(leaves)

    def choose(self, salt: int = 0) -> torch.Tensor | TensorDict:
        """Actions of the next vector step; the caller's generators stay as they were.

        Args:
            salt: Another number for other actions.

        """
        device = with_index(self.env.device)
        with forked_generators(device):
            seed = self.subject.seed + 1_000_003 * (self.t + 1) + salt
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` costs 50 times as much
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            return self.subject.choose_action(self.env, self.acted_on, self.t)

    def step_as_is(self, action: torch.Tensor | TensorDict) -> Any:
        """Result of a vector step, not copied."""
        outcome = self._call_step(action)
        check_outcome(self.env, self.observation, outcome)
        self.acted_on = outcome[DataKeys.OBS]
        self.t += 1
        return outcome

    def _call_step(self, action: torch.Tensor | TensorDict) -> Any:
        """Result of a vector step, not checked. Subclasses may step in another way."""
        return attempt("`step`", lambda: self.env.step(action))

    def step(self, action: None | torch.Tensor | TensorDict = None) -> Row:
        """Copies of the result of a vector step.

        Args:
            action: Actions, `[N, …]`; None to choose them.

        """
        action = self.choose() if action is None else action
        obs = copies(self.observation.flatten(self.acted_on))
        return self.copy_row(obs, self.step_as_is(action))

    def play(self, num_steps: int) -> list[Row]:
        """Rows of that many vector steps."""
        return [self.step() for _ in range(num_steps)]

    def copy_row(self, obs: Leaves, outcome: Any) -> Row:
        """Copies of the result of a vector step from `obs`, `[N, …]`."""
        declared = episode_keys(self.env)
        flags = {key: torch.zeros(self.env.num_envs, dtype=torch.bool) for key in FLAGS}
        flags[DataKeys.VALID] = ~flags[DataKeys.VALID]
        flags |= {key: copy(outcome[key]).squeeze(-1) for key in declared.intersection(FLAGS)}
        final: Leaves = ()
        if DataKeys.FINAL_OBS in declared:
            final = copies(self.observation.flatten(outcome[DataKeys.FINAL_OBS]))
        return Row(
            obs=obs,
            next_obs=copies(self.observation.flatten(outcome[DataKeys.OBS])),
            rewards=copy(outcome[DataKeys.REWARDS]).squeeze(-1),
            final_obs=final,
            **flags,
        )


def forked_generators(device: Device) -> AbstractContextManager[None]:
    """Restore PyTorch's generators, on the CPU and on `device`, at the end of the block."""
    device = with_index(device)
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def copy(x: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU that shares no memory."""
    return x.detach().cpu().clone()


def copies(leaves: Leaves) -> Leaves:
    """Copies on the CPU that share no memory."""
    return tuple(copy(x) for x in leaves)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have equal values; NaN equals NaN."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def all_same(a: Leaves, b: Leaves) -> bool:
    """Whether all leaves have equal values; NaN equals NaN."""
    return all(same(x, y) for x, y in zip(a, b, strict=True))


def difference(a: Row, b: Row) -> None | str:
    """The first difference of two rows; None if they are equal."""
    others = b.tensors()
    for name, x in a.tensors().items():
        y = others[name]
        if not same(x, y):
            env = int((x != y).reshape(len(x), -1).any(-1).nonzero()[0])
            return f"`{name}` of environment {env} is {_short(x[env])} and {_short(y[env])}"
    return None


def compare(
    expected: Iterable[Row],
    actual: Iterable[Row],
    what: str,
    rule: str,
    fix: str,
    when: str = "at env step {t}",
) -> None:
    """Compare the rows of successive vector steps.

    Args:
        expected: Rows.
        actual: As many rows; may be played while they are compared.
        what: The thing that is wrong if they differ.
        rule: The rule that it breaks.
        fix: How to fix it.
        when: Description of the vector step `t`.

    Raises:
        Violation: If two rows differ.

    """
    for t, (a, b) in enumerate(zip(expected, actual, strict=True)):
        changed = difference(a, b)
        if changed is not None:
            raise Violation(what, rule, f"{changed}, {when.format(t=t)}", fix)


def _short(x: torch.Tensor) -> str:
    numbers = x.flatten()[:8].tolist()
    return f"{numbers[0] if x.ndim == 0 else numbers}{' …' if x.numel() > 8 else ''}"


@dataclass(frozen=True)
class Trace:
    """Rows of one environment after its first reset, and after a second one."""

    #: Number of parallel environments.
    num_envs: int

    #: Episode keys that the environment declares.
    episode_keys: frozenset[str]

    #: Spec of one observation.
    observation_spec: TensorSpec

    #: One list of rows per reset of all environments.
    segments: list[list[Row]]


#: Traces of each subject, shared by checks: making environments can take seconds.
_TRACES: WeakKeyDictionary[Subject, list[Trace]] = WeakKeyDictionary()


def traces(subject: Subject) -> list[Trace]:
    """A trace for each number of parallel environments; played once."""
    if subject not in _TRACES:
        _TRACES[subject] = [_trace(subject, num_envs) for num_envs in subject.num_envs_choices]
    return _TRACES[subject]


def _trace(subject: Subject, num_envs: int) -> Trace:
    with Player(subject, num_envs, seed=subject.seed) as player:
        segments = []
        for num_steps in (subject.num_steps, subject.horizon):
            player.reset()
            segments.append(player.play(num_steps))
        env = player.env
        return Trace(env.num_envs, episode_keys(env), env.observation_spec, segments)
