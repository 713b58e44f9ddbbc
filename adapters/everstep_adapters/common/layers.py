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
        if any(layer is x for x in found) or asked(layer, "step") is None:
            continue
        found.append(layer)
        own = attributes(layer)
        waiting += [own.get(name) for name in INNER[:-1]]
        waiting.append(asked(layer, "unwrapped"))
    return found


def asked(layer: Any, name: str) -> Any:
    """An attribute, perhaps from an object's own code; None if there is none, or that fails."""
    with suppress(Exception):
        return getattr(layer, name, None)
    return None


def attributes(layer: Any) -> dict[str, Any]:
    """Attributes of an object; none where it has none, or its own code is in the way."""
    with suppress(Exception):
        return dict(object.__getattribute__(layer, "__dict__"))
    return {}
