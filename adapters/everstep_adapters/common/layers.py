"""An environment and what it wraps. Processes import this module, so it imports little."""

from contextlib import suppress
from typing import Any

#: Attributes that hold what a layer wraps: Gymnasium's, PettingZoo's, dm_env's and TorchRL's.
INNER = ("env", "_env", "dm_env", "aec_env", "base_env", "par_env", "unwrapped")


def layers(env: Any) -> list[Any]:
    """An environment, and what it wraps, outermost first."""
    found: list[Any] = []
    waiting = [env]
    while waiting:
        layer = waiting.pop(0)
        if layer is None or any(layer is x for x in found) or not hasattr(layer, "step"):
            continue
        found.append(layer)
        own = attributes(layer)
        waiting += [own.get(name) for name in INNER[:-1]]
        waiting.append(getattr(layer, "unwrapped", None))
    return found


def attributes(layer: Any) -> dict[str, Any]:
    """Attributes of an object; none where it has none, or its own code is in the way."""
    with suppress(Exception):
        return dict(object.__getattribute__(layer, "__dict__"))
    return {}
