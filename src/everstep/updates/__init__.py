"""Optimizer steps of an update: flat gradients, KL controls, parameter groups."""

from ._device_control import DeviceControl
from ._groups import parameter_groups
from ._updater import Control, HostControl, Updater, sum_of

__all__ = ["Control", "DeviceControl", "HostControl", "Updater", "parameter_groups", "sum_of"]
