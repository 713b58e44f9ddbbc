"""The world CartPole; see `README.md`."""

from everstep.recipes.envs import CartPole

__all__ = ["CartPole"]
