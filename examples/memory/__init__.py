"""Tasks that cannot be done without remembering."""

from everstep.recipes.envs import RepeatFirst, cartpole_positions

__all__ = ["RepeatFirst", "cartpole_positions"]
