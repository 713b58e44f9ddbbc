"""Trainers: run an algorithm, evaluate it, stop it, and record its statistics."""

from ._base import GenericTrainerBase
from ._trainers import RecurrentTrainer, Trainer
from .config import TrainConfig

__all__ = ["GenericTrainerBase", "RecurrentTrainer", "TrainConfig", "Trainer"]
