"""The world AlgoTrading; see `README.md`."""

from everstep_lab.recipes.envs import AlgoTrading

__all__ = ["AlgoTrading"]
