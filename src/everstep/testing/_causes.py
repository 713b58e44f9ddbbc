"""Causes of an environment that does not repeat its rows by seed."""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ..env.specs import Leaves
from ._player import Player, Row, all_same, difference
from ._subject import Subject

#: Resets and vector steps that are compared.
RESETS, STEPS = 6, 12

#: Packages whose classes are not the user's.
LIBRARIES = ("everstep", "everstep_adapters", "gymnasium", "torch", "numpy")

_OWN = (
    "Draw from `self.np_random`, which `super().reset(seed=seed)` of Gymnasium seeds, or from a "
    "generator of the environment's own that `seed` seeds"
)


class _Source(NamedTuple):
    """Something outside of an environment that its rows may depend on."""

    name: str

    fix: str

    #: Context in which it is the same each time.
    held: Callable[[], AbstractContextManager[Any]]


@contextmanager
def _numpy_seeded() -> Iterator[None]:
    state = np.random.get_state()
    np.random.seed(0)
    yield
    np.random.set_state(state)


@contextmanager
def _python_seeded() -> Iterator[None]:
    state = random.getstate()
    random.seed(0)
    yield
    random.setstate(state)


@contextmanager
def _torch_seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@contextmanager
def _clock_held() -> Iterator[None]:
    """Context of clocks that advance by 1 ms a call: a loop could wait forever for a fixed one."""
    calls = count(1)
    seconds = {x: lambda: next(calls) * 1e-3 for x in ("time", "monotonic", "perf_counter")}
    ns = {f"{x}_ns": lambda: next(calls) * 1_000_000 for x in seconds}
    clocks: dict[str, Any] = {**seconds, **ns}
    with patch.multiple(time, **clocks):
        yield


_SOURCES = (
    _Source("NumPy's global generator (`np.random`)", _OWN, _numpy_seeded),
    _Source("Python's global generator (`random`)", _OWN, _python_seeded),
    _Source(
        "PyTorch's global generator",
        "Give PyTorch's functions a `torch.Generator` that `seed` seeds",
        _torch_seeded,
    ),
    _Source("the clock", "Count env steps instead of reading `time`", _clock_held),
)

#: Whether each subject repeats its rows; played once.
_REPEATS: WeakKeyDictionary[Subject, bool] = WeakKeyDictionary()


def repeats(subject: Subject) -> bool:
    """Whether two new environments with the same seed give the same rows."""
    if subject not in _REPEATS:
        _REPEATS[subject] = _is_same(subject)
    return _REPEATS[subject]


def follows_seed(player: Player) -> bool:
    """Whether a seed determines the rows; `check_seed` alone reports it if it does not."""
    subject = player.subject
    declared = hasattr(player.env, "seed") and subject.deterministic_by_seed
    return declared and repeats(subject)


def starts(player: Player) -> Leaves:
    """Leaves of the observations of several resets, in one tuple."""
    return tuple(leaf for _ in range(RESETS) for leaf in player.reset())


def cause(subject: Subject) -> tuple[str, str]:
    """Two texts: what the rows depend on beside the seed, and how to fix it.

    All outside sources, such as global generators, are held fixed at once. If the rows then
    repeat, a source is a cause if the rows no longer repeat once it alone is released.
    """
    if _is_same(subject, _SOURCES):
        needed = [x for x in _SOURCES if not _is_same(subject, [y for y in _SOURCES if y is not x])]
        names = " and ".join(x.name for x in needed)
        return f"rows that depend on {names}", ". ".join(dict.fromkeys(x.fix for x in needed)) + "."
    if changed := _changed_attributes(subject):
        return (
            f"rows of a second environment that differ, and {', '.join(changed)} changed, which "
            "all environments of the class share",
            "Set it in the constructor, as an attribute of the instance (`self.name = …`).",
        )
    return (
        "other rows, whatever the global generators and the clock give",
        f"Pass on the seed that `reset` is given. {_OWN}: `if seed is not None: self.rng = "
        "np.random.default_rng(seed)`. Let `reset` restore everything that steps have changed.",
    )


def _is_same(subject: Subject, sources: Sequence[_Source] = ()) -> bool:
    (before, rows), (after, others) = (play(subject, sources) for _ in range(2))
    pairs = zip(rows, others, strict=True)
    return all_same(before, after) and all(difference(a, b) is None for a, b in pairs)


def play(subject: Subject, sources: Sequence[_Source] = ()) -> tuple[Leaves, list[Row]]:
    """Observations of several resets, and the rows of several vector steps after them."""
    with ExitStack() as stack:
        for source in sources:
            stack.enter_context(source.held())
        player = stack.enter_context(Player(subject, seed=subject.seed))
        return starts(player), player.play(STEPS)


def own_classes(env: Any) -> list[type]:
    """Classes of an environment and its parts that are the user's."""
    kinds = {cls for x in parts_of(env) for cls in type(x).__mro__}
    libraries = {*LIBRARIES, *sys.stdlib_module_names}
    return [cls for cls in kinds if cls.__module__.split(".")[0] not in libraries]


def _changed_attributes(subject: Subject) -> list[str]:
    """Attributes of the user's classes that change while an environment is played."""
    with Player(subject, seed=subject.seed) as player:
        own = own_classes(player.env)
        before = [_attributes(cls) for cls in own]
        starts(player)
        player.play(STEPS)
        return [
            f"`{cls.__name__}.{name}`"
            for cls, old in zip(own, before, strict=True)
            for name, text in _attributes(cls).items()
            if old.get(name) != text
        ]


def parts_of(env: Any) -> Iterator[Any]:
    """An environment, those that it wraps, and its single ones in this process."""
    yield env
    wrapped = [vars(env).get("env")] if hasattr(env, "__dict__") else []
    for part in [*wrapped, *(vars(env).get("envs") or () if hasattr(env, "__dict__") else ())]:
        if part is not None:
            yield from parts_of(part)


def _attributes(cls: type) -> dict[str, str]:
    """Texts of the values of a class's own attributes that are data."""
    return {
        name: repr(value)[:10_000]
        for name, value in vars(cls).items()
        if not (callable(value) or hasattr(value, "__get__") or name.startswith("__"))
    }
