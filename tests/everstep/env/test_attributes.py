"""Attributes of environments that are not what Everstep reads: named when training is built."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from everstep import AlgorithmConfig, DiscreteDummyEnv, Trainer
from everstep.env.attributes import RULES
from everstep.errors import EnvError

#: Values that each attribute may have, and values that it may not.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "num_envs": ([np.int64(4)], [None, 0, -1, True, 2.0, "4", [4]]),
    "device": (["cpu", torch.device("cpu")], [None, "gpu", 1.5, ["cpu"]]),
    "horizon": ([None, 4, np.int32(4)], [0, -4, 4.0, "4", True]),
    "default_num_envs": ([4, np.int64(4)], [None, 0, "4", (4, 2)]),
    "max_num_envs": ([None, 64], [0, 2.5, "64"]),
    "max_horizon": ([None, 64], [0, 2.5, "64"]),
    "default_horizon": ([8, (8, 4)], [None, 0, "8", (), (8,), (8, 0), [8, 4]]),
    "max_episode_steps": ([None, 500, np.int64(500)], [0, -1, 1e3, "500", False]),
    "rows_per_env": ([1, np.int64(1)], [None, 0, 1.0, "1"]),
    "episode_keys": (
        [frozenset(), [], ("terminated", "truncated", "first")],
        [None, "terminated", {"done"}, 3, {"terminated": True}, [1]],
    ),
    "agents": ([None, ["one"], ("one",)], ["one", 3]),
    "agent_specs": ([None], [3, ["one"]]),
    "agent_groups": ([None], [3, ["one"], {"one": "agent"}]),
    "capturable": ([True, False], [None, 1, "no"]),
    "asynchronous": ([False], [None, "auto"]),
    "resets_rows": ([False], [None, "auto"]),
    **dict.fromkeys(
        ("seed", "close", "state_dict", "load_state_dict", "reset_rows"), ([], [None, 3])
    ),
}


class Walk(DiscreteDummyEnv):
    """An environment with one attribute that was set."""

    closed, given = False, ("", None)

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        setattr(self, *self.given)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        outcome = super().step(action)
        flags = {key: torch.zeros(self.num_envs, 1, dtype=torch.bool) for key in self.episode_keys}
        return outcome.update(flags)

    def close(self) -> None:
        type(self).closed = True


def walk(name: str, value: Any) -> type[Walk]:
    return type("Walk", (Walk,), {"given": (name, value)})


def test_every_attribute_with_a_rule_is_tried() -> None:
    assert VALUES.keys() == RULES.keys()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (_, bad) in VALUES.items() for value in bad]
)
def test_an_attribute_of_another_kind_is_named_at_once(name: str, value: Any) -> None:
    """They were raw errors, in the first train step or later."""
    cls = walk(name, value)
    for source in (cls, cls(4, 4)):
        with pytest.raises(EnvError) as error:
            AlgorithmConfig(num_envs="auto" if source is not cls else 4, horizon=4).build(source)
        assert str(error.value) == f"`Walk.{name}` must be {RULES[name][0]}; got {value!r}."
    if name != "close":
        assert cls.closed  # what Everstep made


@pytest.mark.parametrize(
    "name", ["default_num_envs", "default_horizon", "max_num_envs", "max_horizon"]
)
def test_sizes_of_what_makes_an_environment_are_read_by_the_same_rules(name: str) -> None:
    """Of a function, and of a class, before it makes one."""
    for value in VALUES[name][1]:
        make = partial(Walk)
        setattr(make, name, value)
        for source in (make, type("Walk", (Walk,), {"given": ("closed", False), name: value})):
            with pytest.raises(EnvError) as error:
                AlgorithmConfig(device="cpu").build(source)
            assert f".{name}` must be {RULES[name][0]}; got {value!r}." in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (good, _) in VALUES.items() for value in good]
)
def test_an_attribute_of_a_kind_that_fits_is_trained_with(name: str, value: Any) -> None:
    with Trainer(walk(name, value), num_envs=4, horizon=4, run_dir=None, progress=False) as trainer:
        trainer.run(total_env_steps=32)
        assert trainer.state["env/steps"] == 32


def test_the_environment_of_evaluations_is_checked_too() -> None:
    with pytest.raises(EnvError, match=r"`Walk.max_episode_steps` must be None or an integer"):
        Trainer(DiscreteDummyEnv(2, 4), eval_env=walk("max_episode_steps", 1.5)(2), run_dir=None)


def test_a_state_that_cannot_be_loaded_is_refused() -> None:
    """Checkpoints were written that no training could continue from."""

    class Half(Walk):
        """It has `state_dict` alone."""

        def __getattribute__(self, name: str) -> Any:
            if name == "load_state_dict":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(EnvError, match="one of `state_dict` and `load_state_dict`"):
        AlgorithmConfig(num_envs=2, horizon=4).build(Half)
