"""Optimizer steps of an update: flat gradients, the meter, parameter groups."""

from ._groups import parameter_groups
from ._meter import Meter, total
from ._updater import Updater

__all__ = ["Meter", "Updater", "parameter_groups", "total"]
