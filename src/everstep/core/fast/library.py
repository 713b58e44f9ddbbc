"""The native library: found beside this file, its processor level chosen, its structures.

It is built from `kernel.cpp` when the package is installed. Where it is missing, does not fit or is
switched off, `unavailable` says why, and training takes the general way.
"""

import ctypes
import functools
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .build import FILE, REASON, digest, is_switched_off

#: Environment variable that switches the native way off: 0.
SWITCH = "EVERSTEP_NATIVE"

#: Environment variable that forces a processor level: one of `LEVELS`.
LEVEL = "EVERSTEP_NATIVE_LEVEL"

#: Processor levels of x86-64 by their numbers; elsewhere there is one.
LEVELS = {0: "plain", 2: "v2", 3: "v3", 4: "v4"}

_int, _double, _address = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


def _structure(name: str, **fields: Any) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


# The structures of `kernel.cpp`, where they are described.
Layer = _structure(
    "Layer",
    **dict.fromkeys(("weight", "bias", "weight_grad", "bias_grad"), _address),
    **dict.fromkeys(("inputs", "outputs", "activation"), _int),
)
Leaf = _structure(
    "Leaf",
    **dict.fromkeys(("size", "column"), _int),
    options=ctypes.POINTER(_int),
    constants=_address,
)
Model = _structure(
    "Model",
    **dict.fromkeys(("is_double", "kind", "threads"), _int),
    counts=_int * 3,
    layers=ctypes.POINTER(Layer),
    leaf_count=_int,
    leaves=ctypes.POINTER(Leaf),
    **dict.fromkeys(("critic_column", "choices"), _int),
    options=ctypes.POINTER(_int),
    **dict.fromkeys(
        (
            *("log_std", "log_std_grad", "side", "log_half"),
            *("low", "high", "half", "value_mean", "value_scale"),
        ),
        _address,
    ),
)
Batch = _structure(
    "Batch",
    rows=_int,
    **dict.fromkeys(
        (
            *("index", "obs", "allowed", "actions", "noise", "logp"),
            *("advantages", "returns", "values", "weight", "mask"),
        ),
        _address,
    ),
    standardized=_int,
)
Loss = _structure(
    "Loss",
    **dict.fromkeys(("is_ppo", "uses_entropy", "is_mse"), _int),
    **dict.fromkeys(
        ("clip", "dual_clip", "vf_coeff", "vf_clip", "entropy_coeff", "bounds_coeff"), _double
    ),
)
Parameter = _structure(
    "Parameter",
    **dict.fromkeys(("value", "grad", "mean", "square", "step"), _address),
    size=_int,
    **dict.fromkeys(("lr", "beta1", "beta2", "eps", "decay"), _double),
    **dict.fromkeys(("is_decoupled", "maximizes"), _int),
)
Optimizer = _structure(
    "Optimizer",
    count=_int,
    parameters=ctypes.POINTER(Parameter),
    max_norm=_double,
    target_kl=_double,
)

Acting = _structure(
    "Acting",
    engine=_address,
    **dict.fromkeys(("is_double", "rows"), _int),
    obs=_address,
    is_whole=_int,
    **dict.fromkeys(("allowed", "noise", "outputs", "values", "actions", "logp"), _address),
)

Cells = _structure(
    "Cells",
    **dict.fromkeys(("is_double", "is_gru", "threads", "steps", "rows", "size"), _int),
    **dict.fromkeys(
        (
            *("gates", "inner", "hidden", "cell", "kept", "latents", "first"),
            *("d_latents", "d_gates", "d_inner", "d_hidden", "d_cell"),
        ),
        _address,
    ),
)

#: What `learn` writes: sums over the rows of a minibatch, and the norm of the gradients.
RESULTS = ("policy", "vf", "entropy", "kl_div", "clip_fraction", "bounds", "norm")

#: What `learn` returns.
STEPPED, SKIPPED, REFUSED = range(3)

#: Arguments of the functions.
_ARGUMENTS: dict[str, list[Any]] = {
    "open": [_address],
    "close": [_address, _int],
    "learn": [_address, _int, _address, _address, _address, _address],
    "pack": [_address, _int],
    "respond": [_address, _int, _int, _address, _address, _address],
    "act": [_address, _int, _address],
    "cells_forward": [_address, _int],
    "cells_backward": [_address, _int],
    "bootstrap": [*[_int] * 3, *[_address] * 5],
    "advantages": [*[_int] * 4, *[_address] * 7, _double, _address],
    "discount": [*[_int] * 3, *[_address] * 3, _double, _address],
    "measure": [_int, _int, *[_address] * 3],
    "standardize": [_int, _int, *[_address] * 7],
    "extremes": [*[_int] * 3, *[_address] * 3],
    "clean": [*[_int] * 3, *[_address] * 2],
    "measure_columns": [*[_int] * 3, *[_address] * 3],
    "constants": [*[_int] * 2, *[_address] * 3, *[_double] * 3, _address],
    "sum_rewards": [*[_int] * 3, *[_address] * 4],
    "finish_episodes": [*[_int] * 3, *[_address] * 5, _int, *[_address] * 2],
    "apply": [_int, _int, _address],
}


class Library:
    """The functions of one processor level.

    Args:
        path: The library.
        level: Name of the level; None for the highest that this processor has.

    Raises:
        OSError: If it cannot be loaded, was built from another source, or the processor does not
            have that level.

    """

    open: Any
    close: Any
    learn: Any
    pack: Any
    respond: Any
    act: Any
    cells_forward: Any
    cells_backward: Any
    bootstrap: Any
    advantages: Any
    discount: Any
    measure: Any
    standardize: Any
    extremes: Any
    clean: Any
    measure_columns: Any
    constants: Any
    sum_rewards: Any
    finish_episodes: Any
    apply: Any

    def __init__(self, path: Path, level: None | str = None) -> None:
        loaded = ctypes.CDLL(str(path))
        loaded.everstep_source.restype = ctypes.c_char_p
        loaded.everstep_level.restype = ctypes.c_int64
        if loaded.everstep_source().decode() != digest():
            raise OSError(
                "it was built from another version of `kernel.cpp`: install Everstep again"
            )
        highest = int(loaded.everstep_level())
        known = {name: number for number, name in LEVELS.items() if bool(number) == bool(highest)}
        name = level or LEVELS[highest]
        if name not in known or known[name] > highest:
            within = ", ".join(name for name, number in known.items() if number <= highest)
            raise OSError(f"`{LEVEL}` must be one of {within} on this processor; got {name!r}")
        #: Name of the level.
        self.level = name
        for function, arguments in _ARGUMENTS.items():
            found = getattr(loaded, f"everstep_{function}_{name}")
            found.argtypes, found.restype = arguments, ctypes.c_int64
            setattr(self, function, found)


class Engine:
    """Storage of the library for one model, whose tensors must stay where they are.

    Args:
        library: The library.
        model: A `Model`.
        *kept: What that points to.

    """

    def __init__(self, library: Library, model: Any, *kept: Any) -> None:
        self._kept = model, *kept
        #: Whether numbers are float64.
        self.is_double = int(model.is_double)
        #: Address of the engine.
        self.address = library.open(ctypes.addressof(model))
        if not self.address:
            raise MemoryError("There is no memory for the native way; use smaller networks.")
        weakref.finalize(self, library.close, self.address, self.is_double)


@functools.cache
def _load(level: None | str) -> Library | str:
    path = Path(__file__).with_name(FILE)
    if not path.exists():
        reason = path.with_name(REASON)
        why = f": {reason.read_text(encoding='utf-8')}" if reason.exists() else ""
        return f"the native library was not built when Everstep was installed{why}"
    try:
        return Library(path, level)
    except (OSError, AttributeError) as error:
        return f"the native library cannot be used: {error}"


def addresses(tensors: Iterable[torch.Tensor]) -> Any:
    """Array of the addresses of tensors, which must stay."""
    found = [x.data_ptr() for x in tensors]
    return (_address * len(found))(*found)


def library() -> Library | str:
    """The library, or the reason why there is none.

    The environment variables are read anew, as each rollout and update does when it begins.
    """
    _found[:] = [f"`{SWITCH}` is 0" if is_switched_off() else _load(os.environ.get(LEVEL) or None)]
    return _found[0]


def present_library() -> Library | str:
    """Last result of `library`: reading the environment takes as long as a small function."""
    return _found[0] if _found else library()


#: Last result of `library`.
_found: list[Library | str] = []


def unavailable() -> None | str:
    """The reason why there is no library; None if there is one."""
    found = library()
    return found if isinstance(found, str) else None
