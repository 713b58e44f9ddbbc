"""Recording and replaying work: CUDA graphs, and a tape with the same rules on any device.

A recording holds operations and addresses. Python values, shapes and decisions of the host are
those of the recording, so everything that changes is in tensors that are written in place.
"""

from ._base import CaptureError, Graph, is_static, static_shapes, waits
from ._cuda import CUDAGraph
from ._dependencies import (
    detach_tensors,
    generators_of,
    is_compiled,
    key_of,
    snapshot_of,
)
from ._replayed import Key, Replayed, Same
from ._tape import Tape

__all__ = [
    "CUDAGraph",
    "CaptureError",
    "Graph",
    "Key",
    "Replayed",
    "Same",
    "Tape",
    "detach_tensors",
    "generators_of",
    "is_compiled",
    "is_static",
    "key_of",
    "snapshot_of",
    "static_shapes",
    "waits",
]
