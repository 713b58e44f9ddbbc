"""Tasks that cannot be done without remembering."""

from everstep_lab.recipes.envs import RepeatFirst, cartpole_positions

__all__ = ["RepeatFirst", "cartpole_positions"]
