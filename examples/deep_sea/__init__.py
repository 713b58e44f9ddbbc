"""A task that cannot be done without exploring."""

from .env import DeepSea

__all__ = ["DeepSea"]
