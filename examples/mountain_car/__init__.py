"""The world MountainCar; see `README.md`."""

from everstep_lab.recipes.envs import MountainCar

__all__ = ["MountainCar"]
