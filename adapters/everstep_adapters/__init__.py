"""Adapters between Everstep's protocol and other libraries, one folder an environment type.

Importing this package imports no adapter, and importing an adapter imports no environment library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ale import ALEEnv as ALEEnv
    from .bridge import BridgeEnv as BridgeEnv
    from .dm_control import DMControlEnv as DMControlEnv
    from .envpool import EnvPoolEnv as EnvPoolEnv
    from .export import to_gymnasium as to_gymnasium
    from .export import to_sb3 as to_sb3
    from .export import to_torchrl as to_torchrl
    from .gymnasium import GymnasiumEnv as GymnasiumEnv
    from .isaacgym import IsaacGymEnv as IsaacGymEnv
    from .jax import BraxEnv as BraxEnv
    from .jax import CraftaxEnv as CraftaxEnv
    from .jax import GymnaxEnv as GymnaxEnv
    from .jax import JaxEnv as JaxEnv
    from .jax import JumanjiEnv as JumanjiEnv
    from .jax import PlaygroundEnv as PlaygroundEnv
    from .pettingzoo import PettingZooEnv as PettingZooEnv
    from .torchrl import TorchRLEnv as TorchRLEnv

_MODULES = {
    "ALEEnv": "ale",
    "BraxEnv": "jax",
    "BridgeEnv": "bridge",
    "CraftaxEnv": "jax",
    "DMControlEnv": "dm_control",
    "EnvPoolEnv": "envpool",
    "GymnasiumEnv": "gymnasium",
    "GymnaxEnv": "jax",
    "IsaacGymEnv": "isaacgym",
    "JaxEnv": "jax",
    "JumanjiEnv": "jax",
    "PettingZooEnv": "pettingzoo",
    "PlaygroundEnv": "jax",
    "TorchRLEnv": "torchrl",
    "to_gymnasium": "export",
    "to_sb3": "export",
    "to_torchrl": "export",
}

__all__ = list(_MODULES)


if not TYPE_CHECKING:  # checkers would take every name for an export

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
