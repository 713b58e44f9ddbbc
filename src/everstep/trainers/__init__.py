"""Trainers: run an algorithm, evaluate it, stop it, and record its statistics."""

from typing import TYPE_CHECKING, Any

from ._base import GenericTrainerBase
from ._trainers import RecurrentTrainer, Trainer

if TYPE_CHECKING:
    from .config import TrainConfig

__all__ = ["GenericTrainerBase", "RecurrentTrainer", "TrainConfig", "Trainer"]


if not TYPE_CHECKING:  # checkers would take every name for an export

    def __getattr__(name: str) -> Any:
        if name == "TrainConfig":
            from .config import TrainConfig  # imports algorithms, with TorchRL and TensorDict

            return TrainConfig
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
