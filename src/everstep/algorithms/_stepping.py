"""An env step, and what the learner does beside it."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict

Action: TypeAlias = torch.Tensor | TensorDict

#: Steps an environment with actions `[N, …]`, and calls what can be done before it returns.
Step: TypeAlias = Callable[[Any, Action, Callable[[], None]], TensorDict]


def step_after(env: Any, action: Action, catch_up: Callable[[], None]) -> TensorDict:
    """`catch_up`, then an env step; see `Step`."""
    catch_up()
    outcome: TensorDict = env.step(action)
    return outcome


def step_meanwhile(env: Any, action: Action, catch_up: Callable[[], None]) -> TensorDict:
    """An env step of an environment that is `asynchronous`, with `catch_up` meanwhile."""
    env.step_async(action)
    try:
        catch_up()
    finally:  # whoever resets after an error finds no env step under way
        outcome: TensorDict = env.step_wait()
    return outcome
