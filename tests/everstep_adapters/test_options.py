"""A subclass of an adapter has its parent's options."""

import inspect
from typing import Any

import pytest

import everstep_adapters
from everstep.env import Env
from everstep_adapters.common.libraries import pop_options


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
