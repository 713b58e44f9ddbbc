"""The adapters that come with Everstep, under one name; each is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep_adapters import GymnasiumEnv as GymnasiumEnv

__all__ = ["GymnasiumEnv"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("everstep_adapters"), name)


def __dir__() -> list[str]:
    return __all__
