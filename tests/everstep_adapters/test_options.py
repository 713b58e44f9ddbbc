"""A subclass of an adapter has its parent's options."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch

import everstep_adapters
from everstep.env import Env
from everstep.errors import AdapterError, ConfigError
from everstep_adapters.common.options import pop_options


def options(adapter: type) -> dict[str, Any]:
    parameters = inspect.signature(adapter).parameters.values()
    return {x.name: x for x in parameters if x.kind is x.KEYWORD_ONLY}


ADAPTERS = [
    adapter
    for name in everstep_adapters.__all__
    if name.endswith("Env") and isinstance(adapter := getattr(everstep_adapters, name), type)
]
PAIRS = [
    (child, parent)
    for child in ADAPTERS
    for parent in ADAPTERS
    if child is not parent and issubclass(child, parent)
]


def test_there_are_subclasses() -> None:
    children = {child.__name__ for child, _ in PAIRS}
    assert {"ALEEnv", "DMControlEnv", "EnvPoolEnv", "PettingZooEnv"} <= children
    assert all(issubclass(adapter, Env) for adapter in ADAPTERS)


@pytest.mark.parametrize(("child", "parent"), PAIRS, ids=lambda x: x.__name__)
def test_a_subclass_has_every_option_of_its_parent(child: type, parent: type) -> None:
    own, inherited = options(child), options(parent)
    assert set(inherited) <= set(own)
    different = {name for name, x in inherited.items() if own[name].default != x.default}
    assert different <= {"device"}  # libraries without another one
    assert not any(x.kind is x.VAR_KEYWORD for x in inspect.signature(child).parameters.values())
    kwargs = {name: x.default for name, x in inherited.items()} | {"of_the_library": 2}
    assert set(pop_options(child, kwargs)) == set(inherited) - {"device", "num_envs"}
    assert set(kwargs) <= {"device", "num_envs", "of_the_library"}


NAMES = [(adapter, name) for adapter in ADAPTERS for name in options(adapter)]

#: Values that an option takes, and values that it may be given by mistake.
STEPS: Any = [1, np.int64(5), 1e3], ["5", 2.5, 0, -1, True, math.nan, [3], np.float32(2.5)]
SECONDS: Any = [2, 0.5, np.float32(2.5)], ["5", 0, -1.0, math.nan, math.inf, True, [3.0]]
FLAG: Any = [True, np.bool_(0)], ["yes", 1, 0.0, "", [], None]
NAME: Any = ["a"], [3, True, ["a"], b"a", 2.5]
NAMED: Any = [["a"], ("a",), []], ["a", 3, True, {"a": 1}, len]
KEY: Any = ["a", ("a", "b")], [3, True, [3], {"a": 1}]
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "action_bounds": (["auto", "clip", "rescale"], ["clamp", None, True, 1, ["clip"]]),
    "action_key": KEY,
    "agents": KEY,
    "all_agents": FLAG,
    "autoreset_mode": ([], []),  # a type of Gymnasium's, which is not imported for a check
    "categorical_actions": FLAG,
    "device": (["cpu", torch.device("cpu")], ["gpu", "auto", "cpu:1", "cuda:99", "meta", 0, 2.5]),
    "done_is": (["terminated", "truncated"], ["over", True, 1]),
    "done_key": KEY,
    "entry": NAME,
    "final_obs_key": NAME,
    "max_episode_length": ([5, 2.5, math.inf, np.float32(9)], ["5", 0, -1, math.nan, True, [5]]),
    "max_episode_steps": STEPS,
    "metrics": NAMED,
    "num_envs": (STEPS[0], ["5", 2.5, True, [3]]),  # its range is checked beside `horizon`
    "observation_keys": ([["a"], ("a",)], [3, True, {"a": 1}, len, np.float32(1)]),
    "params": ([None, 3], []),  # the environment's
    "python": (["python"], [3, True, ["a"]]),
    "random_phase": FLAG,
    "reset_style": NAME,
    "reward_key": KEY,
    "server": (["a:1", ["a:1"]], [3, True, [3]]),
    "step_timeout": SECONDS,
    "terminated_key": KEY,
    "time_limit": STEPS,
    "time_outs": NAME,
}


def refused(adapter: Any, name: str, value: Any) -> str:
    """Message of a constructor about an option, or else about an environment that is none."""
    with pytest.raises((AdapterError, ConfigError)) as caught:
        adapter(object(), **{name: value})
    return str(caught.value)


@pytest.mark.few(24)
@pytest.mark.parametrize(("adapter", "name"), NAMES, ids=str)
def test_constructors_check_options_before_the_environment(adapter: Any, name: str) -> None:
    """The annotation of a parameter is the rule, for those who call neither `make` nor `wrap`."""
    right, wrong = VALUES[name]
    for value in wrong:
        if value == "cpu:1" and adapter.has_cpus:
            continue  # of an environment of the library, see `test_jax_devices.py`
        message = refused(adapter, name, value)
        assert message.startswith(f"`{name}` "), (value, message)
        assert repr(value) in message or str(value) in message, (value, message)
    for value in right:
        assert f"`{name}`" not in refused(adapter, name, value), value


def test_constructors_name_options_that_they_lack() -> None:
    for adapter in ADAPTERS:
        with pytest.raises(AdapterError, match="`max_episode_step`: unknown option"):
            adapter(object(), max_episode_step=5)


def test_a_subclass_of_a_user_is_checked_as_its_parent() -> None:
    class Own(everstep_adapters.GymnasiumEnv):
        def __init__(self, env: Any, *, limit: Any) -> None:
            super().__init__(env, max_episode_steps=limit)

    own: Any = Own
    with pytest.raises(AdapterError, match="`max_episode_steps` of Own: expected int > 0"):
        own(object(), limit=2.5)
