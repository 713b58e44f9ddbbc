"""Specs that TorchRL fails to compute are refused by the name of the layer, with the reason."""

from collections.abc import Callable
from typing import Any

import pytest
from torchrl.envs import (
    CatTensors,
    Compose,
    DoubleToFloat,
    GymEnv,
    ObservationNorm,
    SerialEnv,
    TransformedEnv,
)

import everstep
from everstep.errors import AdapterError
from tests.everstep_adapters.torchrl.torchrl_toys import ScriptedEnv


def pendulum() -> Any:
    return SerialEnv(2, lambda: GymEnv("Pendulum-v1"))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: DoubleToFloat(in_keys_inv=["action"]), r"dtype.\. Leave it out: float64"),
        (lambda: DoubleToFloat(in_keys=["observation"]), r"dtype is not torch\.float64\. Leave"),
        (lambda: DoubleToFloat(in_keys_inv=["nope"]), "Key nope not found"),
        (lambda: CatTensors(["nope", "observation"], "x"), "keys that does not match"),
        (lambda: ObservationNorm(in_keys=["observation"]), "Loc/Scale have not been initialized"),
        (lambda: Compose(CatTensors(["nope"], "x")), "keys that does not match"),
    ],
    ids=["action", "observation", "key", "cat", "norm", "compose"],
)
def test_transforms_that_fail_are_named(make: Callable[[], Any], reason: str) -> None:
    base = pendulum()
    env = TransformedEnv(base, make())
    pattern = rf"(?s)The specs of the transform .*cannot be read: .*{reason}"
    with pytest.raises(AdapterError, match=pattern):
        everstep.wrap(env)
    # One layer further out, too.
    with pytest.raises(AdapterError, match=pattern):
        everstep.wrap(TransformedEnv(env, Compose(), auto_unwrap=False))


def test_an_environment_that_fails_is_named() -> None:
    class Broken(ScriptedEnv):
        @property
        def full_reward_spec(self) -> Any:
            raise ZeroDivisionError("half a reward")

    env = object.__new__(Broken)
    env.__dict__.update(vars(ScriptedEnv([[(3, "terminated")]])))
    with pytest.raises(AdapterError, match=r"specs of Broken cannot be read.*half a reward"):
        everstep.wrap(env)
