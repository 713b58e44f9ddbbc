"""Environments of recipes that no library has, in PyTorch or around those of a library."""

from .algotrading import AlgoTrading, ViewsModel
from .cartpole import CartPole
from .deep_sea import DeepSea
from .memory import RepeatFirst, cartpole_positions, pendulum_positions
from .minigrid import MiniGrid
from .mountain_car import MountainCar
from .pendulum import Pendulum
from .tracking import Tracking

__all__ = [
    "AlgoTrading",
    "CartPole",
    "DeepSea",
    "MiniGrid",
    "MountainCar",
    "Pendulum",
    "RepeatFirst",
    "Tracking",
    "ViewsModel",
    "cartpole_positions",
    "pendulum_positions",
]
