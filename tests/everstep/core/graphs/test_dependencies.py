"""Dependencies of recorded work: every object is read once, however often it is reached."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from everstep.core.graphs import key_of, snapshot_of
from everstep.core.graphs._dependencies import _attributes


class Parent:
    """Has children that know it and each other."""

    near: Any
    generator: torch.Generator
    model: nn.Linear

    def __init__(self, count: int) -> None:
        self.children = [Child(self, i) for i in range(count)]
        for child in self.children:
            child.siblings = self.children


class Child:
    """Knows its parent and its siblings."""

    siblings: Any

    def __init__(self, parent: Parent, number: int) -> None:
        self.parent, self.number, self.weight = parent, number, torch.zeros(1)


def test_children_that_know_their_parent_are_read_once() -> None:
    count = 200
    env = Parent(count)
    members: list[Any] = [env, env.children, *env.children]
    key = key_of(env, "env")
    assert set(key) == {
        f"env.children.{i}.{name}" for i in range(count) for name in ("number", "weight")
    }
    assert key["env.children.7.number"] == 7
    assert key["env.children.7.weight"] == env.children[7].weight.data_ptr()
    # Each owner's members, and no other's, are listed once.
    owners = [id(owner) for owner, *_ in _attributes(env, "env")]
    assert len(owners) == 1 + count + count * 4
    assert set(owners) == {id(x) for x in members}


def test_objects_in_a_circle_are_put_back() -> None:
    env = Parent(3)
    snapshot = snapshot_of(env)
    for child in env.children:
        child.number += 10
        child.weight += 1
    env.children[0].weight = torch.ones(1)
    snapshot.restore()
    assert [child.number for child in env.children] == [0, 1, 2]
    assert not any(float(child.weight) for child in env.children)


def test_paths_are_the_shortest() -> None:
    """An object that is reached in two ways has the name of the shorter path."""
    env = Parent(1)
    env.near = env.children[0]
    assert set(key_of(env, "env")) == {"env.near.number", "env.near.weight"}


def test_generators_are_put_back() -> None:
    env = Parent(1)
    env.generator = torch.Generator().manual_seed(3)
    snapshot = snapshot_of(env)
    first = torch.rand(2, generator=env.generator)
    snapshot.restore()
    assert torch.equal(torch.rand(2, generator=env.generator), first)


def test_modules_are_read_although_they_are_callable() -> None:
    env = Parent(0)
    env.model = nn.Linear(2, 1)
    key = key_of(env, "env")
    assert key["env.model._parameters.weight"] == env.model.weight.data_ptr()


class Holding:
    """Has an attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.float32(1), np.float32(2)),
        (np.bool_(True), np.bool_(False)),
        (np.arange(3), np.arange(3) + 1),
        (np.float64("nan"), np.float64(0)),
        (1 + 2j, 1 + 3j),
    ],
)
def test_numbers_that_are_not_python_s_own_are_read(before: Any, after: Any) -> None:
    owner = Holding(before)
    key = key_of(owner, "env")
    assert key_of(Holding(copy.deepcopy(before)), "env") == key
    snapshot = snapshot_of(owner)
    owner.value = after
    assert key_of(owner, "env") != key
    snapshot.restore()
    assert key_of(owner, "env") == key


def test_arrays_that_are_written_in_place_are_put_back() -> None:
    owner = Holding(np.zeros(3))
    key, snapshot = key_of(owner, "env"), snapshot_of(owner)
    owner.value += 1
    assert key_of(owner, "env") != key
    snapshot.restore()
    assert key_of(owner, "env") == key
