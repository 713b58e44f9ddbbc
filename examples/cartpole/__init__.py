"""The world CartPole; see `README.md`."""

from .env import CartPole

__all__ = ["CartPole"]
