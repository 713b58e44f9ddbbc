"""A task that cannot be done without exploring."""

from everstep_lab.recipes.envs import DeepSea

__all__ = ["DeepSea"]
