"""Values of final observations: which rows need them, and what follows where they are lost."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Composite, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.models import RecurrentModel
from tests.toys import KnownValue, RecordedEnv, flags

pytestmark = pytest.mark.usefixtures("float64")

GAMMA, LAMBDA = 0.9, 0.8
OPTIONS: dict[str, Any] = {
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "normalize_advantages": False,
    "normalize_rewards": False,
}


class FiniteOnly(KnownValue):
    """Refuses observations that are not finite."""

    def forward(self, batch: TensorDict, /) -> TensorDict:
        assert batch["obs"].isfinite().all()
        return super().forward(batch)


class FiniteOnlyMemory(RecurrentModel):
    """The same with a recurrent state; the values are the sums of the episode's observations."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite(sums=Unbounded((1,), dtype=torch.float64))
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, batch: TensorDict, states: TensorDict, /) -> Any:
        assert batch["obs"].isfinite().all()
        sums = states["sums"] + batch["obs"].sum(-1, keepdim=True).cumsum(1)  # [B, L, 1]
        self._value = sums.flatten(0, 1) * self.gain
        logits = torch.cat([self._value, -self._value], -1).unsqueeze(1)
        return {"logits": logits}, TensorDict({"sums": sums[:, -1]}, [len(sums)])

    def value_function(self) -> torch.Tensor:
        return self._value


def recorded(
    *,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    finals: None | dict[tuple[int, int], float] = None,
) -> RecordedEnv:
    """Four env steps in two environments that are reset at once; final observations are NaN
    but where `finals` has something, and not declared where it is None.
    """
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(5, 2, 3, generator=generator)
    rows = {
        "rewards": torch.randn(4, 2, 1, generator=generator),
        "terminated": terminated,
        "truncated": truncated,
        "first": terminated | truncated,
    }
    if finals is not None:
        rows["final_obs"] = torch.full((4, 2, 3), torch.nan)
        for row, value in finals.items():
            rows["final_obs"][row] = value
    return RecordedEnv(obs, 4, **rows)


def advantages(
    env: RecordedEnv, n: int, *, finals: dict[int, float], unknown: tuple[int, ...] = ()
) -> list[float]:
    """Advantages of one environment, row by row from the last one; `finals` has the values of
    final observations.
    """
    values = KnownValue.value_of(env.obs)[:, n, 0].tolist()
    found, following = [], 0.0
    for t in reversed(range(4)):
        is_terminated, is_done = bool(env.rows["terminated"][t, n]), bool(env.rows["first"][t, n])
        beyond = 0.0 if is_terminated else finals.get(t, values[t + 1])
        delta = float(env.rows["rewards"][t, n]) + GAMMA * beyond - values[t]
        delta = 0.0 if t in unknown else delta
        following = delta + (0.0 if is_done else GAMMA * LAMBDA * following)
        found.append(following)
    return found[::-1]


def collected(env: RecordedEnv, **options: Any) -> Any:
    algorithm = AlgorithmConfig(model_cls=FiniteOnly, **OPTIONS | options).build(env)
    algorithm.collect()
    algorithm.step()
    return algorithm


@pytest.mark.parametrize("declared", [True, False], ids=["NaN", "undeclared"])
@pytest.mark.parametrize("policy", ["mask", "approximate", "terminate", "error"])
def test_what_terminated_needs_no_final_observation(policy: str, declared: bool) -> None:
    """Neither where it was truncated at the same time."""
    both = flags(4, 2, (1, 0), (3, 1))
    env = recorded(terminated=both, truncated=both, finals={} if declared else None)
    algorithm = collected(env, on_missing_final=policy)
    assert not algorithm.rollout.final.any()
    assert algorithm.rollout.known.all()
    for n in range(2):
        found = algorithm.buffer["advantages"][n, :-1, 0].tolist()
        assert found == pytest.approx(advantages(env, n, finals={}), abs=1e-12)


@pytest.mark.parametrize("policy", ["mask", "approximate", "terminate"])
def test_rows_whose_final_observation_is_lost(policy: str) -> None:
    """Environment 0 loses its own in the second row; environment 1 has both of its own."""
    truncated = flags(4, 2, (1, 0), (1, 1), (3, 1))
    finals = {(1, 1): 0.4, (3, 1): -1.3}
    env = recorded(terminated=flags(4, 2), truncated=truncated, finals=finals)
    algorithm = collected(env, on_missing_final=policy)
    values = KnownValue.value_of(env.obs)[:, 0, 0].tolist()
    instead = {1: values[1] if policy == "approximate" else 0.0}
    unknown = (1,) if policy == "mask" else ()
    expected = [advantages(env, 0, finals=instead, unknown=unknown)]
    valued = {
        t: float(KnownValue.value_of(torch.full((1, 3), obs))) for (t, _), obs in finals.items()
    }
    expected.append(advantages(env, 1, finals=valued))
    for n in range(2):
        found = algorithm.buffer["advantages"][n, :-1, 0].tolist()
        assert found == pytest.approx(expected[n], abs=1e-12)


def test_a_memory_does_not_see_what_terminated() -> None:
    """Final observations are valued in their env step, but not those that bootstrap nothing."""
    terminated, truncated = flags(4, 2, (1, 0)), flags(4, 2, (1, 0), (2, 1))
    env = recorded(terminated=terminated, truncated=truncated, finals={(2, 1): 0.5})
    config = RecurrentAlgorithmConfig(model_cls=FiniteOnlyMemory, seq_len=2, **OPTIONS)
    algorithm = config.build(env)
    algorithm.collect()
    rollout = algorithm.rollout
    assert torch.equal(rollout.final, flags(4, 2, (2, 1)))
    # The sum of what the second environment has seen: three observations, and the final one.
    expected = float(env.obs[:3, 1].sum()) + 3 * 0.5
    assert float(rollout.final_values[2, 1]) == pytest.approx(expected, abs=1e-12)
    algorithm.step()
    values = rollout.values[:, 0, 0].tolist()
    advantage = float(algorithm.buffer["advantages"][0, 1, 0])
    assert advantage == pytest.approx(float(env.rows["rewards"][1, 0]) - values[1], abs=1e-12)
