"""The world Pendulum; see `README.md`."""

from .env import Pendulum

__all__ = ["Pendulum"]
