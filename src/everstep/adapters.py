"""Everstep's own adapters; each is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep_adapters import *  # noqa: F403
else:  # checkers would take every name for an export

    def __getattr__(name: str) -> Any:
        try:
            return getattr(import_module("everstep_adapters"), name)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return dir(import_module("everstep_adapters"))
