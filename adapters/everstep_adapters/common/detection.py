"""Types of libraries that may not be installed, and options taken from signatures."""

import inspect
import sys
from typing import Any


def is_loaded_instance(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class of a module. Imports nothing.

    A module that was never imported has no instances.
    """
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def pop_options(adapter: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove from `kwargs` the options that an adapter's constructor takes, and return them.

    Options are its keyword-only parameters, other than those that `make` itself has.
    """
    parameters = inspect.signature(adapter).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    return {name: kwargs.pop(name) for name in names - {"device", "num_envs"} if name in kwargs}
