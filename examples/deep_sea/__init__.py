"""A task that cannot be done without exploring."""

from everstep.recipes.envs import DeepSea

__all__ = ["DeepSea"]
