"""Setting the state of an environment, all of it or nothing.

An adapter reads its library's state in `state_dict`. In `load_state_dict` it collects `Changes`
while it compares the state with the environment, inside `fitting`, and makes them at the end.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from everstep.errors import CheckpointError

from .hooks import unhooked


class Changes:
    """A state that fits, to be set as a whole."""

    def __init__(self) -> None:
        self._own: list[tuple[Any, Any]] = []
        self._assignments: list[Callable[[], object]] = []

    def load(self, owner: Any, state: Any) -> None:
        """Give an object its state by `load_state_dict`. It may refuse: `make` begins with it."""
        self._own.append((owner, state))

    def assign(self, assignment: Callable[[], object]) -> None:
        """Make an assignment, which cannot fail."""
        self._assignments.append(assignment)

    def make(self) -> None:
        """Make the changes; if an object refuses its state, those before it get theirs back."""
        before = []
        try:
            for owner, state in self._own:
                before.append((owner, copy.deepcopy(own_state(owner))))
                _load(owner, state)
        except BaseException:
            for owner, state in before:
                _load(owner, state)
            raise
        for assignment in self._assignments:
            assignment()


def own_state(owner: Any) -> Any:
    """The result of an object's `state_dict`, which may be all of its attributes."""
    with unhooked(owner):
        return owner.state_dict()


def _load(owner: Any, state: Any) -> None:
    with unhooked(owner):
        owner.load_state_dict(state)


@contextmanager
def fitting(name: object) -> Iterator[None]:
    """Context of comparing a state with an environment; names it in whatever is raised.

    Raises:
        CheckpointError: If anything is raised.

    """
    try:
        yield
    except Exception as error:  # a file may hold anything
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"The state is not of {name}: {reason}.") from error
