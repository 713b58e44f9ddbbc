"""Policies: a model and an action distribution, and all that differs between kinds of policy."""

from ._feedforward import Policy, model_mode

__all__ = ["Policy", "model_mode"]
