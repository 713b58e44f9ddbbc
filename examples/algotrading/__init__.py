"""The world AlgoTrading; see `README.md`."""

from everstep.recipes.envs import AlgoTrading

__all__ = ["AlgoTrading"]
