"""Environments in other processes are not copied with Python's objects."""

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep.errors import AdapterError
from tests.everstep_adapters.isaacgym.isaacgym_tasks import SCRIPTS

TASKS = "tests.everstep_adapters.bridge.numpy_tasks"

TASK = {"style": "A", "scripts": SCRIPTS["both"][:2]}

COPYING: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "deepcopy of a list": lambda env: copy.deepcopy([env]),
}

BRIDGE, PROCESSES, POOL = "a process of another Python", "processes, one", "a pool of threads"


@pytest.mark.few(3)
@pytest.mark.parametrize("how", COPYING)
@pytest.mark.parametrize(
    ("name", "options", "module", "what"),
    [
        ("bridge:gymnasium:CartPole-v1", {"python": sys.executable}, "", BRIDGE),
        (f"bridge:{TASKS}:vec_task", {"python": sys.executable, "kwargs": TASK}, "", BRIDGE),
        ("gymnasium:CartPole-v1", {"vectorization_mode": "async"}, "", PROCESSES),
        ("torchrl:CartPole-v1", {"parallel": True}, "", PROCESSES),
        ("envpool:CartPole-v1", {}, "envpool", POOL),
        ("ale:pong", {}, "ale_py", POOL),
    ],
)
def test_a_handle_is_not_copied_and_goes_on(
    name: str, options: dict[str, Any], module: str, what: str, how: str
) -> None:
    if module:
        pytest.importorskip(module)
    env: Any = everstep.make(name, 2, **options)
    try:
        inner = (env.task if "vec_task" in name else env.env) if what is BRIDGE else env
        env.reset()
        for handle in (env, inner):
            with pytest.raises(AdapterError) as refused:
                COPYING[how](handle)
            message = str(refused.value)
            assert message.startswith(f"A {type(handle).__name__} cannot be copied or pickled: ")
            assert f"the handle of {what}" in message
            assert "Make another environment" in message
        env.step(env.action_spec.rand([2]))
    finally:
        env.close()


@pytest.mark.parametrize("how", ["copy", "deepcopy"])
def test_what_is_in_memory_is_copied(how: str) -> None:
    env: Any = everstep.make("gymnasium:Pendulum-v1", 2)
    env.reset()
    try:
        COPYING[how](env.env)
    except TypeError as refused:  # Gymnasium 1.1 keeps generators
        with pytest.raises(TypeError, match=str(refused)):
            COPYING[how](env)
    else:
        assert COPYING[how](env)
