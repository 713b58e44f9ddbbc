"""A cart-pole with the interface of an IsaacGym task; see `README.md`."""

from .env import CartPoleTask, cartpole

__all__ = ["CartPoleTask", "cartpole"]
