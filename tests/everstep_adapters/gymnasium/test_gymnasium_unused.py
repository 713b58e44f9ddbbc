"""Numbers of an observation that nothing uses: the three modes are one law."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from everstep.algorithms import Algorithm, RecurrentAlgorithm
from everstep.core.hyperparameters import Hyperparameters, RecurrentHyperparameters
from everstep.errors import NonFiniteError
from everstep.evaluation import evaluate
from everstep_adapters import GymnasiumEnv
from tests.everstep_adapters.gymnasium.gymnasium_toys import MODES

HORIZON = 16


class Crashing(gymnasium.Env[Any, Any]):
    """Ends each episode after some env steps, where it observes what `end` says."""

    def __init__(self, end: float, kind: str, length: int, is_real: bool, is_nested: bool) -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float32)
        self.observation_space = spaces.Dict(a=box, b=spaces.Discrete(3)) if is_nested else box
        self.action_space = spaces.Box(-1, 1, (1,)) if is_real else spaces.Discrete(2)
        self.end, self.kind, self.length, self.is_nested = end, kind, length, is_nested

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = 0
        return self._observed(0), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        done = self.t == self.length
        flags = done and self.kind != "truncated", done and self.kind != "terminated"
        return self._observed(self.end if done else self.t), 1.0, *flags, {}

    def _observed(self, value: float) -> Any:
        array = np.array([value, self.t], np.float32)
        return {"a": array, "b": 1} if self.is_nested else array


class OnTensors(VectorWrapper):
    """Returns tensors."""

    def reset(self, **options: Any) -> Any:
        obs, infos = super().reset(**options)
        return torch.from_numpy(obs), infos

    def step(self, actions: Any) -> Any:
        obs, *others, infos = super().step(actions.numpy())
        if "final_obs" in infos:
            final = [None if x is None else torch.from_numpy(x) for x in infos["final_obs"]]
            infos["final_obs"] = final
        return torch.from_numpy(obs), *(torch.from_numpy(x) for x in others), infos


def trained(
    mode: str, end: float, *, recurrent: bool = False, tensors: bool = False, **options: Any
) -> Any:
    """An algorithm after an update whose first actions are 0; reward 1 each env step."""
    torch.manual_seed(0)
    given = {"kind": "terminated", "length": 5, "is_real": False, "is_nested": False, **options}
    inner: Any = SyncVectorEnv(
        [partial(Crashing, end, **given)] * 2, autoreset_mode=AutoresetMode[mode]
    )
    env = GymnasiumEnv(OnTensors(inner) if tensors else inner, horizon=HORIZON)
    if recurrent:
        algorithm: Any = RecurrentAlgorithm(env, RecurrentHyperparameters(seq_len=4))
    else:
        algorithm = Algorithm(env, Hyperparameters(normalize_observations=True))
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    return algorithm


@pytest.mark.few(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("end", "options"),
    [
        (np.inf, {}),
        (np.nan, {"is_real": True}),
        (np.nan, {"is_nested": True, "kind": "both"}),
        (np.nan, {"length": 1}),
        (np.nan, {"length": HORIZON}),
        (np.nan, {"recurrent": True, "is_real": True}),
        (np.nan, {"tensors": True}),
    ],
    ids=str,
)
def test_numbers_that_nothing_uses_may_be_anything(
    mode: str, end: float, options: dict[str, Any]
) -> None:
    found, expected = (trained(mode, value, **options) for value in (end, 0.0))
    advantages = [x.rollout.advantages[:-1] * x.rollout.valid for x in (found, expected)]
    torch.testing.assert_close(*advantages, rtol=0, atol=0)
    weights = [x.policy.model.state_dict() for x in (found, expected)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert all(x.isfinite().all() for x in found.rollout.obs)


def test_the_observation_that_is_bootstrapped_from_must_be_finite() -> None:
    with pytest.raises(NonFiniteError, match="`obs` of environment 0 is not finite at env step 4"):
        trained("NEXT_STEP", np.nan, kind="truncated")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("recurrent", [False, True])
def test_evaluations_use_no_last_observation(mode: str, kind: str, recurrent: bool) -> None:
    policy = trained(mode, 0.0, recurrent=recurrent).policy
    make = partial(Crashing, np.nan, kind, 5, False, False)
    inner: Any = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode[mode])
    found = evaluate(policy, GymnasiumEnv(inner, horizon=HORIZON), episodes=4)
    assert (found["episodes/return_mean"], found["episodes/count"]) == (5.0, 4)


def test_an_evaluation_in_the_training_environment_uses_none() -> None:
    make = partial(Crashing, np.nan, "truncated", 5, False, False)
    inner: Any = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    algorithm = Algorithm(GymnasiumEnv(inner, horizon=HORIZON), Hyperparameters())
    with algorithm.evaluating():
        assert algorithm.collect()["episodes/return_mean"] == 5.0
