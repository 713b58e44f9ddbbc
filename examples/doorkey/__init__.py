"""A task whose reward lies behind a key and a door."""

from .env import DoorKey
from .networks import ThingsInView

__all__ = ["DoorKey", "ThingsInView"]
