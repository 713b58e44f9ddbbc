"""The world Pendulum; see `README.md`."""

from everstep.recipes.envs import Pendulum

__all__ = ["Pendulum"]
