"""Adapters from families of environments to Everstep's protocol, one module a family.

Importing this package imports no adapter, and importing an adapter imports no environment library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .gymnasium import GymnasiumEnv as GymnasiumEnv

__all__ = ["GymnasiumEnv"]

_MODULES = {"GymnasiumEnv": "gymnasium"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
