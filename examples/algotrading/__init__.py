"""The world AlgoTrading; see `README.md`."""

from .env import AlgoTrading

__all__ = ["AlgoTrading"]
