"""Tasks that cannot be done without remembering."""

from .env import RepeatFirst, cartpole_positions

__all__ = ["RepeatFirst", "cartpole_positions"]
