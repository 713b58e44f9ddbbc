"""Default perceptrons, LSTMs and GRUs in native code on a CPU, and when that code is used."""

from .acting import NativeActor
from .adam import AdamStep
from .eligible import actor, eligible, learner, recurrence
from .learning import Learner
from .library import LEVEL, SWITCH, library, unavailable

__all__ = [
    "LEVEL",
    "SWITCH",
    "AdamStep",
    "Learner",
    "NativeActor",
    "actor",
    "eligible",
    "learner",
    "library",
    "recurrence",
    "unavailable",
]
