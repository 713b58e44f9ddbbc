"""The world MountainCar; see `README.md`."""

from everstep.recipes.envs import MountainCar

__all__ = ["MountainCar"]
