"""Limits of episodes are hints: code of the environment's own that fails only hides its own."""

from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from everstep_adapters.common.limits import limit_of


class Refusing:
    """A wrapper that raises where it is asked for anything that it has not."""

    def __init__(self, env: Any, error: type[Exception]) -> None:
        self.env, self.error = env, error

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, KeyError, NotImplementedError])
@pytest.mark.parametrize("outside", [False, True])
def test_an_environment_that_refuses_hides_no_other_limit(
    error: type[Exception], outside: bool
) -> None:
    inner: Any = gymnasium.make("Pendulum-v1").unwrapped
    limited: Any = Refusing(TimeLimit(inner, 7), error) if outside else None
    if not outside:
        limited = TimeLimit(inner, 7)
        limited.env = Refusing(inner, error)
    assert limit_of(limited) == 7
    assert limit_of(Refusing(inner, error)) is None
