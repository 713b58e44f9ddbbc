"""The world CartPole; see `README.md`."""

from everstep_lab.recipes.envs import CartPole

__all__ = ["CartPole"]
