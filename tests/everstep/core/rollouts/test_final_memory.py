"""Final observations of environments of one's own that lie in the memory of observations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from everstep import Algorithm, AlgorithmConfig, Env
from everstep.errors import EnvError


class Counting(Env):
    """Counts its env steps, in memory that it resets in the env step that ends an episode."""

    episode_keys = frozenset({"terminated", "truncated", "first", "final_obs"})

    def __init__(self, length: int, ends: str, final: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(3)
        self.observation_spec = Composite(a=Unbounded((2,)), goal=Unbounded((1,)))
        self.action_spec = Categorical(2, shape=torch.Size([1]))
        self.a, self.goal, self.t = torch.zeros(3, 2), torch.ones(3, 1), torch.zeros(3, 1)
        self.length, self.ends, self.final = length, ends, final

    def reset(self, *, config: Any = None) -> Any:
        self.a.zero_()
        self.t.zero_()
        return TensorDict({"a": self.a, "goal": self.goal}, [3])

    def step(self, action: Any) -> Any:
        self.t += 1
        self.a += 1
        final = {"a": self.final(self.a), "goal": self.goal}  # a goal never changes
        done = self.t == self.length
        for x in (self.a, self.t):
            x.masked_fill_(done, 0)
        flags = dict.fromkeys(("terminated", "truncated"), torch.zeros_like(done))
        flags |= {self.ends: done, "first": done}
        observed = {"obs": {"a": self.a, "goal": self.goal}, "final_obs": final}
        return TensorDict({**observed, "rewards": torch.ones(3, 1), **flags}, [3])


def train(*of: Any) -> None:
    algorithm = Algorithm(
        Counting(*of), config=AlgorithmConfig(horizon=4, horizons_per_env_reset=-1)
    )
    for _ in range(4):
        algorithm.collect()
        algorithm.step()


@pytest.mark.parametrize("length", [3, 10], ids=["the first rollout", "a later one"])
def test_memory_that_shows_the_next_episode_is_refused(length: int) -> None:
    with pytest.raises(EnvError, match=r"`final_obs.a` lies in the memory of `obs`.*obs.clone"):
        train(length, "truncated", lambda x: x)


@pytest.mark.parametrize(
    ("ends", "final"),
    [("truncated", torch.clone), ("terminated", lambda x: x)],
    ids=["a copy, and a leaf that never changes", "terminated, whose value is not used"],
)
def test_memory_that_is_right_or_not_used_is_not(ends: str, final: Any) -> None:
    train(3, ends, final)
