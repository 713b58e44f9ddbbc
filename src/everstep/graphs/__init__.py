"""Work that is recorded once and replayed: CUDA graphs, and their likeness on any device.

What is recorded is operations and addresses. Python values, shapes and decisions of the host stay
what they were then, so whatever changes lives in tensors that are filled in place.
"""

from ._base import CaptureError, Graph, is_static, static_shapes, waits
from ._cuda import CUDAGraph
from ._replayed import Key, Replayed, Same, random_state
from ._tape import Tape

__all__ = [
    "CUDAGraph",
    "CaptureError",
    "Graph",
    "Key",
    "Replayed",
    "Same",
    "Tape",
    "is_static",
    "random_state",
    "static_shapes",
    "waits",
]
