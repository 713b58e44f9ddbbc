"""Fast ways for default perceptrons, and the one decision when they are taken: `eligible`."""

from .adam import AdamStep
from .eligible import actor, eligible, gradients
from .gradients import MinibatchGradients
from .rollout import BlockActor

__all__ = ["AdamStep", "BlockActor", "MinibatchGradients", "actor", "eligible", "gradients"]
