"""The world MountainCar; see `README.md`."""

from .env import MountainCar

__all__ = ["MountainCar"]
