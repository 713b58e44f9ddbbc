"""Everstep's own adapters; each is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep_adapters import ALEEnv as ALEEnv
    from everstep_adapters import BraxEnv as BraxEnv
    from everstep_adapters import BridgeEnv as BridgeEnv
    from everstep_adapters import CraftaxEnv as CraftaxEnv
    from everstep_adapters import DMControlEnv as DMControlEnv
    from everstep_adapters import EnvPoolEnv as EnvPoolEnv
    from everstep_adapters import GymnasiumEnv as GymnasiumEnv
    from everstep_adapters import GymnaxEnv as GymnaxEnv
    from everstep_adapters import IsaacGymEnv as IsaacGymEnv
    from everstep_adapters import JaxEnv as JaxEnv
    from everstep_adapters import JumanjiEnv as JumanjiEnv
    from everstep_adapters import PettingZooEnv as PettingZooEnv
    from everstep_adapters import PlaygroundEnv as PlaygroundEnv
    from everstep_adapters import TorchRLEnv as TorchRLEnv
    from everstep_adapters import to_gymnasium as to_gymnasium
    from everstep_adapters import to_sb3 as to_sb3
    from everstep_adapters import to_torchrl as to_torchrl

__all__ = [
    "ALEEnv",
    "BraxEnv",
    "BridgeEnv",
    "CraftaxEnv",
    "DMControlEnv",
    "EnvPoolEnv",
    "GymnasiumEnv",
    "GymnaxEnv",
    "IsaacGymEnv",
    "JaxEnv",
    "JumanjiEnv",
    "PettingZooEnv",
    "PlaygroundEnv",
    "TorchRLEnv",
    "to_gymnasium",
    "to_sb3",
    "to_torchrl",
]


if not TYPE_CHECKING:  # checkers would take every name for an export

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("everstep_adapters"), name)


def __dir__() -> list[str]:
    return __all__
