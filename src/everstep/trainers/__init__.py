"""Trainers: an algorithm, its statistics, evaluations, conditions and record."""

from ._base import GenericTrainerBase
from ._feedforward import Trainer
from ._recurrent import RecurrentTrainer
from .config import TrainConfig

__all__ = ["GenericTrainerBase", "RecurrentTrainer", "TrainConfig", "Trainer"]
