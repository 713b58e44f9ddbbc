"""Adapters between Everstep's protocol and other libraries, one folder an environment type.

Importing this package imports no adapter, and importing an adapter imports no environment library.
Classes of adapters are found by the entry points of `everstep.adapters`; this file lists them again
for type checkers alone.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridge import BridgeEnv as BridgeEnv
    from .dm_control import DMControlEnv as DMControlEnv
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
    from .pools import ALEEnv as ALEEnv
    from .pools import EnvPoolEnv as EnvPoolEnv
    from .torchrl import TorchRLEnv as TorchRLEnv
else:  # checkers would take every name for an export

    def _modules() -> dict[str, str]:
        """Modules by the names that are public: those of adapters, and what has no prefix."""
        own = (x.value for x in entry_points(group="everstep.adapters"))
        found = dict(reversed(x.split(":")) for x in own if x.startswith(f"{__name__}."))
        more = {"JaxEnv": "jax", "to_gymnasium": "export", "to_sb3": "export"}
        more["to_torchrl"] = "export"
        return found | {name: f"{__name__}.{module}" for name, module in more.items()}

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted(_modules())
        if name.startswith("_") or name not in (modules := _modules()):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    def __dir__() -> list[str]:
        return sorted(_modules())
