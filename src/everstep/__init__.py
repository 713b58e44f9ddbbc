"""Fast PPO for batched environments, correct at every episode boundary."""

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .core._torchrl import keep_start_method

keep_start_method()

if TYPE_CHECKING:
    from .algorithms import (
        Algorithm,
        AlgorithmConfig,
        RecurrentAlgorithm,
        RecurrentAlgorithmConfig,
    )
    from .env import ContinuousDummyEnv, DiscreteDummyEnv, Env
    from .env.registry import factory, make, wrap
    from .evaluation import evaluate
    from .policies import Policy, RecurrentPolicy
    from .trainers import RecurrentTrainer, TrainConfig, Trainer

#: Where each public name lives; importing the package itself imports none of them.
_MODULES = {
    "Algorithm": "algorithms",
    "AlgorithmConfig": "algorithms",
    "ContinuousDummyEnv": "env",
    "DiscreteDummyEnv": "env",
    "Env": "env",
    "Policy": "policies",
    "RecurrentAlgorithm": "algorithms",
    "RecurrentAlgorithmConfig": "algorithms",
    "RecurrentPolicy": "policies",
    "RecurrentTrainer": "trainers",
    "TrainConfig": "trainers",
    "Trainer": "trainers",
    "evaluate": "evaluation",
    "factory": "env.registry",
    "make": "env.registry",
    "wrap": "env.registry",
}

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "ContinuousDummyEnv",
    "DiscreteDummyEnv",
    "Env",
    "Policy",
    "RecurrentAlgorithm",
    "RecurrentAlgorithmConfig",
    "RecurrentPolicy",
    "RecurrentTrainer",
    "TrainConfig",
    "Trainer",
    "evaluate",
    "factory",
    "make",
    "wrap",
]


if not TYPE_CHECKING:  # checkers would take every name for an export

    def __getattr__(name: str) -> Any:
        if name not in _MODULES and find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")  # as `torch.nn`
        if name not in _MODULES:
            from .core.synonyms import CLASSES

            ours = f": here {CLASSES[name]}" if name in CLASSES else ""
            message = f"module {__name__!r} has no attribute {name!r}{ours}"
            # `from everstep import PPO` asks with `hasattr`, and would drop the message.
            if ours and sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
                raise ImportError(message, name=name)
            raise AttributeError(message, name=name)
        value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
