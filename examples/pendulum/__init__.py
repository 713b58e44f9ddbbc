"""The world Pendulum; see `README.md`."""

from everstep_lab.recipes.envs import Pendulum

__all__ = ["Pendulum"]
