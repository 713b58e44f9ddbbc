"""Callables in the place of an environment's own methods, which leave no trace in its state.

Processes of vector environments import this module, so it imports little.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Hook:
    """A callable that stands in the place of an object's method, as its attribute.

    It is set past the object's `__setattr__`. In a copy of the object it calls the copy's method.

    Args:
        owner: The object.
        name: Name of the method.

    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        #: The attribute that it replaces, if the method was one of the object alone.
        self.before = {name: vars(owner)[name]} if name in vars(owner) else {}
        self.original = getattr(owner, name)
        vars(owner)[name] = self

    def remove(self) -> None:
        """Put back what was there before, unless it has been replaced since."""
        own = vars(self._owner)
        if own.get(self._name) is self:
            del own[self._name]
            own.update(self.before)


@contextmanager
def unhooked(owner: Any) -> Iterator[None]:
    """Context in which an object's attributes are those that it would have without hooks."""
    own = getattr(owner, "__dict__", {})
    hooks = {name: x for name, x in own.items() if isinstance(x, Hook)}
    for name, hook in hooks.items():
        attribute: Any = {name: hook}
        while isinstance(attribute.get(name), Hook):
            attribute = attribute[name].before
        del own[name]
        own.update(attribute)
    try:
        yield
    finally:
        if hooks:
            vars(owner).update(hooks)
