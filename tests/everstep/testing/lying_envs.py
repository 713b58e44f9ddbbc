"""A small environment that keeps every rule of the protocol, and others that break one each."""

import math
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.data import Bounded, Unbounded

from everstep.env import Env

KEYS = {
    "same step": {"terminated", "truncated", "first", "final_obs"},
    "next step": {"terminated", "truncated", "first", "valid"},
    "lost": {"terminated", "truncated", "first"},
}


class Walk(Env):
    """Points on a line that are pushed about. An episode ends outside of [-2, 2], or by a clock."""

    style = "same step"
    capturable = True
    resets_rows = True

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Bounded(-9.0, 9.0, shape=2, device=torch.device(device))
        self.action_spec = Bounded(-1.0, 1.0, shape=1, device=torch.device(device))
        self.episode_keys = frozenset(KEYS[self.style])
        self.generator = torch.Generator(device)
        self.generator.seed()
        self.limit = 4 + torch.arange(num_envs, device=device).unsqueeze(-1) % 3
        self.position = torch.zeros(num_envs, 1, device=device)
        self.clock = torch.zeros(num_envs, 1, dtype=torch.int64, device=device)
        self.pending = torch.zeros(num_envs, 1, dtype=torch.bool, device=device)
        self.closed = False

    def seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def fresh(self) -> torch.Tensor:
        return torch.empty_like(self.position).uniform_(-1, 1, generator=self.generator)

    def observe(self) -> torch.Tensor:
        return torch.cat([self.position, self.clock / 10], -1)

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        self.position = self.fresh()
        self.clock.zero_()
        self.pending.zero_()
        return self.observe()

    def reset_rows(self, rows: torch.Tensor) -> Any:
        self.position = torch.where(rows, self.fresh(), self.position)
        self.clock = torch.where(rows, 0, self.clock)
        self.pending = self.pending & ~rows
        return self.observe()

    def step(self, action: Any) -> Any:
        ignored = self.pending if self.style == "next step" else torch.zeros_like(self.pending)
        self.position = self.moved(action, ignored)
        self.clock = torch.where(ignored, 0, self.clock + 1)
        truncated = (self.clock >= self.limit) & ~ignored
        terminated = (self.position.abs() > 2) & ~ignored
        done = terminated | truncated
        rewards = torch.where(ignored, 0.0, self.position.sin())
        row = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        if self.style == "next step":
            row |= {"first": ignored, "valid": ~ignored, "obs": self.observe()}
            self.pending = done
        else:
            row |= {"first": done, "final_obs": self.observe()}
            self.position = torch.where(done, self.fresh(), self.position)
            self.clock = torch.where(done, 0, self.clock)
            row["obs"] = self.observe()
        names = self.episode_keys | {"obs", "rewards"}
        return TensorDict({k: row[k] for k in names}, batch_size=[self.num_envs])

    def moved(self, action: torch.Tensor, ignored: torch.Tensor) -> torch.Tensor:
        """Positions after an action; new ones where it is ignored."""
        noise = torch.randn(self.num_envs, 1, generator=self.generator, device=self.device)
        position = self.position + action.clamp(-1, 1) + 0.1 * noise
        return torch.where(ignored, self.fresh(), position)

    def state_dict(self) -> dict[str, Any]:
        names = ("position", "clock", "pending")
        state = {name: getattr(self, name).clone() for name in names}
        return {**state, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("position", "clock", "pending"):
            setattr(self, name, state[name].to(self.device, copy=True))
        self.generator.set_state(state["generator"])

    def describe(self) -> dict[str, str]:
        return {"environment": "points on a line"}


class NextStepWalk(Walk):
    style = "next step"


class ForgetfulWalk(Walk):
    style = "lost"


class HalvedWalk(Walk):
    """Is stepped between `step_async` and `step_wait`, as far as whoever calls can tell."""

    asynchronous = True

    def step_async(self, action: Any) -> None:
        self.row = super().step(action)

    def step_wait(self) -> Any:
        return self.row

    def step(self, action: Any) -> Any:
        self.step_async(action)
        return self.step_wait()


# Each lie, and what tells it.

LIES: dict[str, tuple[type[Env], set[str]]] = {}


def lie(*checks: str) -> Callable[[type[Env]], type[Env]]:
    """Enter an environment into the table, with the checks that fail on it."""

    def enter(cls: type[Env]) -> type[Env]:
        LIES[cls.__name__] = (cls, set(checks))
        return cls

    return enter


@lie("specs")
class CannotBeMade(Walk):
    def __init__(self, *args: Any, **options: Any) -> None:
        raise RuntimeError("no licence")


@lie("specs")
class ScalarSpec(Walk):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.observation_spec = Unbounded(())


@lie("specs", "bootstrap")
class SpecElsewhere(Walk):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        here = self.action_spec.clone()
        self.action_spec.rand = lambda size=(): here.rand(size)
        self.action_spec._device = torch.device("meta")


@lie("specs")
class AnotherSize(Walk):
    def __init__(self, num_envs: int, *args: Any, **options: Any) -> None:
        super().__init__(3, *args, **options)


@lie("specs")
class UnknownKey(Walk):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.episode_keys |= {"done"}

    def step(self, action: Any) -> Any:
        self.episode_keys -= {"done"}
        outcome = super().step(action)
        self.episode_keys |= {"done"}
        return outcome.set("done", outcome["first"])


@lie("specs")
class KeysApart(ForgetfulWalk):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.episode_keys -= {"first", "truncated"}


class Altered(Walk):
    """Changes what an honest walk returns."""

    capturable = False

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        self.alter(outcome)
        return outcome

    def alter(self, outcome: Any) -> None:
        raise NotImplementedError


@lie("rows")
class Raises(Altered):
    def alter(self, outcome: Any) -> None:
        raise ValueError("lost the thread")


@lie("rows")
class ReturnsATuple(Walk):
    def step(self, action: Any) -> Any:
        return tuple(super().step(action).values())


@lie("rows")
class FlatRewards(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["rewards"] = outcome["rewards"].squeeze(-1)


@lie("rows")
class WholeRewards(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["rewards"] = outcome["rewards"].round().long()


@lie("rows")
class RewardsWithGradients(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["rewards"] = outcome["rewards"].requires_grad_()


@lie("rows")
class FlagsOfBytes(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["first"] = outcome["first"].to(torch.uint8)


@lie("rows")
class AnotherPrecision(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["obs"] = outcome["obs"].double()


@lie("rows")
class SometimesFinal(Altered):
    def alter(self, outcome: Any) -> None:
        if not outcome["first"].any():
            del outcome["final_obs"]


@lie("rows")
class Undeclared(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["valid"] = torch.ones_like(outcome["first"])


@lie("rows")
class OutOfBounds(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["obs"] = outcome["obs"] + 20


@lie("rows")
class FinalOutOfBounds(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["final_obs"] = outcome["final_obs"] + 20


@lie("rows", "bootstrap")  # training stops at it, too
class RewardsThatOverflow(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["rewards"][outcome["truncated"]] = math.inf


@lie("rows", "bootstrap")
class NothingToSee(NextStepWalk):
    capturable = False

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        outcome["obs"][outcome["first"].squeeze(-1)] = math.nan
        return outcome


@lie("none_end", "some_end")
class BeginsAtRandom(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["first"] |= self.clock == 2


@lie("none_end", "some_end", "all_end")
class NeverBegins(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["first"].zero_()


@lie("none_end", "some_end", "all_end")
class EveryRowCounts(NextStepWalk):
    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        outcome["valid"].fill_(True)
        return outcome


@lie("none_end", "some_end", "all_end")
class RewardsForNothing(NextStepWalk):
    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        outcome["rewards"] += 1
        return outcome


@lie("some_end", "all_end")
class EndsTwice(NextStepWalk):
    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        outcome["truncated"] |= outcome["first"]
        return outcome


@lie("final_obs")
class NextEpisodesObs(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["final_obs"] = outcome["obs"].clone()


@lie("final_obs")
class ObsBeforeLast(Walk):
    def step(self, action: Any) -> Any:
        last = self.observe()
        return super().step(action).set("final_obs", last)


@lie("final_obs")
class InfiniteFinal(Altered):
    def alter(self, outcome: Any) -> None:
        outcome["final_obs"].div_(torch.where(outcome["terminated"], 0, 1))


@lie("final_obs")
class ResetsTooSoon(NextStepWalk):
    """Returns the next episode's observation where the last one ends, and once more after it."""

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        done = outcome["terminated"] | outcome["truncated"]
        self.position = torch.where(done, self.fresh(), self.position)
        self.clock = torch.where(done, 0, self.clock)
        return outcome.set("obs", self.observe())

    def moved(self, action: torch.Tensor, ignored: torch.Tensor) -> torch.Tensor:
        return torch.where(ignored, self.position, super().moved(action, ignored))


@lie("invalid_rows")
class ActsWhileItResets(NextStepWalk):
    def moved(self, action: torch.Tensor, ignored: torch.Tensor) -> torch.Tensor:
        return super().moved(action, ignored) + torch.where(ignored, 0.1 * action, 0)


@lie("bootstrap")
class DiscoversItsKeys(Walk):
    """Declares no episode keys before there is a row to see them in."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.declared, self.episode_keys = self.episode_keys, frozenset()

    def step(self, action: Any) -> Any:
        self.episode_keys = self.declared
        return super().step(action)


@lie("seed")  # what rests on the seed does not apply: one cause is one finding
class DrawsFromElsewhere(NextStepWalk):
    def seed(self, seed: int) -> None:
        """Seed nothing."""


@lie("seed")
class SameSeedAlways(Walk):
    def seed(self, seed: int) -> None:
        super().seed(7)


@lie("later_resets")
class ResetsToTheSameStates(Walk):
    def seed(self, seed: int) -> None:
        self.last_seed = seed

    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        self.generator.manual_seed(getattr(self, "last_seed", 0))
        return super().reset(config=config)


@lie("reseed")
class ClockThatRunsOn(Walk):
    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        before = self.clock.clone()
        super().reset(config=config)
        self.clock = before
        return self.observe()


@lie("reset")
class EmptiesTheConfig(Walk):
    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        (config or {}).pop("wind", None)
        return super().reset(config=config)


@lie("reset")
class ResetsOnlyAfterSteps(Walk):
    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        if getattr(self, "fresh_start", False):
            raise RuntimeError("reset twice")
        self.fresh_start = True
        return super().reset(config=config)

    def step(self, action: Any) -> Any:
        self.fresh_start = False
        return super().step(action)


@lie("reset_rows")
class ResetsEveryRow(Walk):
    def reset_rows(self, rows: torch.Tensor) -> Any:
        return super().reset_rows(torch.ones_like(rows))


@lie("reset_rows")
class ResetsNoRow(Walk):
    def reset_rows(self, rows: torch.Tensor) -> Any:
        return super().reset_rows(torch.zeros_like(rows))


@lie("reset_rows")
class ResetsRowsButTheirClock(Walk):
    def reset_rows(self, rows: torch.Tensor) -> Any:
        before = self.clock.clone()
        super().reset_rows(rows)
        self.clock = before
        return self.observe()


@lie("reset_rows")
class ResetsRowsTwice(NextStepWalk):
    def reset_rows(self, rows: torch.Tensor) -> Any:
        due = self.pending.clone()
        obs = super().reset_rows(rows)
        self.pending = due
        return obs


@lie("reset_rows")
class ObservesOneRow(Walk):
    def reset_rows(self, rows: torch.Tensor) -> Any:
        return super().reset_rows(rows)[:1, :1]


@lie("reset_rows")
class PushesTheOthers(Walk):
    """Its episodes are not ended by a clock, and begin and go on without chance."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limit = self.limit + 1_000

    def fresh(self) -> torch.Tensor:
        return super().fresh().fill_(0.5)

    def moved(self, action: torch.Tensor, ignored: torch.Tensor) -> torch.Tensor:
        return self.position + 0.1 * action

    def reset_rows(self, rows: torch.Tensor) -> Any:
        super().reset_rows(rows)
        self.position = torch.where(rows, self.position, 0.5)
        return self.observe()


@lie("memory")
class RemembersTheAction(Walk):
    """Its reward is the action's own memory."""

    def step(self, action: Any) -> Any:
        return super().step(action).set("rewards", action.detach())


@lie("independence")
class CopiesThatShareAList(Walk):
    """Its rows are said to be environments of their own."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.envs = [_Copy(self.shared_steps) for _ in range(num_envs)]

    shared_steps: list[int] = []  # noqa: RUF012 - which they share


class _Copy:
    """An environment of a single row, which counts its env steps in a list."""

    action_space = spaces.Discrete(2)

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def reset(self, *, seed: None | int = None) -> Any:
        self.steps.clear()
        return 0, {}

    def step(self, action: int) -> Any:
        self.steps.append(action)
        return len(self.steps), 0.0, False, False, {}


@lie("memory")
class SharesItsMemory(NextStepWalk):
    shared = torch.zeros(5, 2)

    def observe(self) -> torch.Tensor:
        shared = self.shared[: self.num_envs]
        return shared.copy_(super().observe())


@lie("actions_unwritten")
class ClampsInPlace(Walk):
    def step(self, action: Any) -> Any:
        return super().step(action.detach().mul_(0.5))


@lie("action_forms")
class ExportsTheAction(Walk):
    def step(self, action: Any) -> Any:
        return super().step(torch.from_dlpack(action).clone())


@lie("action_forms")
class NeedsOneBlock(Walk):
    def step(self, action: Any) -> Any:
        copied = torch.as_strided(action.detach(), action.shape, (1, 1)).clone()
        return super().step(copied)


@lie("action_forms")
class RefusesWhatIsOutside(Walk):
    capturable = False

    def step(self, action: Any) -> Any:
        if not self.action_spec.is_in(action):
            raise ValueError("action outside of its bounds")
        return super().step(action)


@lie("state")
class ForgetsTheClock(Walk):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "clock": torch.zeros_like(self.clock)})


@lie("state")
class ForgetsTheResetThatIsDue(NextStepWalk):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "pending": torch.zeros_like(self.pending)})


@lie("state")
class StateOfObjects(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "spec": self.action_spec}


@lie("state")
class StateThatMovesOn(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "position": self.memory}

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        self.memory = getattr(self, "memory", self.position.clone())
        self.memory.copy_(self.position)
        return outcome


@lie("capturable")
class LooksAtNumbers(Walk):
    def step(self, action: Any) -> Any:
        if (self.clock > 100).any():
            raise RuntimeError("a clock runs wild")
        return super().step(action)


@lie("capturable")
class IndexesByMask(Altered):
    capturable = True

    def alter(self, outcome: Any) -> None:
        outcome["rewards"][outcome["first"]] = 0.5


@lie("asynchronous")
class HasNoHalves(Walk):
    asynchronous = True


@lie("asynchronous")
class WaitsForAnother(HalvedWalk):
    def step_async(self, action: Any) -> None:
        super().step_async(-action)

    def step(self, action: Any) -> Any:
        super().step_async(action)
        return self.step_wait()


@lie("close")
class ClosesOnce(Walk):
    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


@lie("close")
class ClosesTheOthers(Walk):
    open_envs = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        type(self).open_envs = 1

    def step(self, action: Any) -> Any:
        if not self.open_envs:
            raise RuntimeError("the simulator was closed")
        return super().step(action)

    def close(self) -> None:
        type(self).open_envs = 0


@lie("process")
class ChangesSettings(Walk):
    def reset(self, *, config: None | dict[str, Any] = None) -> Any:
        torch.use_deterministic_algorithms(True)
        return super().reset(config=config)


@lie("description")
class TellsInAList(Walk):
    def describe(self) -> Any:
        return ["points", "a line"]
