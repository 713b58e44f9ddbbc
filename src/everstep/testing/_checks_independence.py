"""The check that environments of single rows share nothing that their steps change."""

import contextlib
import copy
import functools
import random
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ._causes import LIBRARIES, parts_of
from ._player import Player
from ._results import NotApplicable, Violation
from ._subject import Subject

#: Env steps that are compared.
_STEPS = 16

#: Objects of a row that are looked at to name what is shared, how deep, and entries of each.
_OBJECTS, _DEPTH, _ENTRIES = 5_000, 6, 64


def check_independence(subject: Subject) -> None:
    """Steps of one row change no other row."""
    if not subject.deterministic_by_seed:
        raise NotApplicable("a seed does not determine the rows, so none can be compared")
    with Player(subject, seed=subject.seed) as player:
        player.reset()
        one, other = _two_rows(player.env)
        try:
            alone, again = (_play(other, one, moves=False) for _ in range(2))
            together = _play(other, one, moves=True)
        except Exception as error:  # of actions that the environment does not allow, for example
            raise NotApplicable(f"a row alone cannot be played: {error}") from error
        changed = [] if alone == together else _changed(one, other)
    if alone != again:
        raise NotApplicable("a row does not follow its seed; see the check `seed`")
    if alone != together:
        named = f"; both have {', '.join(changed[:3])}, which changes" if changed else ""
        t = [x == y for x, y in zip(alone, together, strict=False)].index(False)
        raise Violation(
            "`step` of one row",
            "It must change no other row.",
            f"row 1 gives other results at env step {t} if row 0 is stepped as well{named}",
            "Make what steps change in the constructor (`self.memory = []`), not in the class, in "
            "a default argument or outside of the function that makes an environment.",
        )


def _two_rows(env: Any) -> Sequence[Any]:
    """Two rows that are environments of their own, in this process."""
    for part in parts_of(env):
        rows = getattr(part, "__dict__", {}).get("envs")
        two = rows[:2] if isinstance(rows, list | tuple) else ()
        if len(two) == 2 and all(hasattr(x, "step") and hasattr(x, "action_space") for x in two):
            return two
    raise NotApplicable("rows are not environments of their own with an `action_space`")


def _play(row: Any, other: Any, *, moves: bool) -> list[bytes]:
    """Results of resets and env steps of a row.

    Args:
        row: The row.
        other: Another one, which is reset before the row is.
        moves: Whether the other one is also stepped, before each env step of the row.

    """
    space = copy.deepcopy(row.action_space)
    space.seed(0)
    actions = [(space.sample(), space.sample()) for _ in range(_STEPS)]
    other.reset(seed=0)
    found = [_bytes(row.reset(seed=1)[0])]
    for own, others in actions:
        if moves:
            with _global_generators():
                *_, terminated, truncated, _ = other.step(others)
                if terminated or truncated:
                    other.reset()
        *result, _ = row.step(own)
        found.append(_bytes(result))
        if result[2] or result[3]:
            found.append(_bytes(row.reset()[0]))
    return found


@contextlib.contextmanager
def _global_generators() -> Iterator[None]:
    """Context after which global generators are as before: rows may draw from them in any order."""
    states = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        yield
    np.random.set_state(states[0])
    random.setstate(states[1])


def _bytes(value: Any) -> bytes:
    """A result of an environment, as bytes that are equal if the values are."""
    if isinstance(value, Mapping):
        return b"".join(str(key).encode() + _bytes(value[key]) for key in sorted(value, key=str))
    if isinstance(value, list | tuple):
        return b"".join(map(_bytes, value))
    array = np.asarray(value)
    return repr(value).encode() if array.dtype.hasobject else array.tobytes()


# ---- what two rows share, to name it -------------------------------------------------------------


def _changed(one: Any, other: Any) -> list[str]:
    """Names of objects that both rows reach and that their steps change, as one of them has it."""
    _play(other, one, moves=False)
    own, its = _reached(one), _reached(other)
    both = [(own[key][0], its[key][1]) for key in own if key in its]
    before = [(name, x, text) for name, x in both if (text := _text(x))]
    _play(other, one, moves=True)
    return [name for name, x, text in before if _text(x) != text]


def _reached(row: Any) -> dict[int, tuple[str, Any]]:
    """Names and objects that a row holds, by identity: its attributes, and what is in them."""
    found: dict[int, tuple[str, Any]] = {}
    level = [(type(row).__name__, row)]
    for _ in range(_DEPTH):
        below: list[tuple[str, Any]] = []
        for name, value in level:
            if id(value) not in found and len(found) < _OBJECTS:
                found[id(value)] = name, value
                below += _inside(name, value)
        level = below
    return found


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Objects that one holds, by name. No code of it is called, as `isinstance` may do."""
    kind = type(value)
    if issubclass(kind, dict | list | tuple):
        items = value.items() if issubclass(kind, dict) else enumerate(value)
        yield from ((f"{name}[…]", x) for _, x in list(items)[:_ENTRIES])
    elif kind is types.FunctionType:
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is not filled
                yield f"a variable of {value.__qualname__}", cell.cell_contents
        yield from ((f"a default of {value.__qualname__}", x) for x in value.__defaults__ or ())
    elif kind is types.MethodType:
        yield name, value.__self__
    elif kind is functools.partial:
        yield from ((name, x) for x in (value.func, *value.args, *value.keywords.values()))
    elif not issubclass(kind, type | types.ModuleType | np.ndarray | torch.Tensor):
        held: dict[str, Any] = {}
        for each in reversed(kind.__mro__):
            if not _is_of_library(each):
                held |= {key: x for key, x in vars(each).items() if not key.startswith("__")}
        with contextlib.suppress(Exception):  # objects that have none, or hide it
            held |= object.__getattribute__(value, "__dict__")
        yield from ((f"`{kind.__name__}.{key}`", x) for key, x in held.items())


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in {*LIBRARIES, *sys.stdlib_module_names}


def _text(value: Any) -> str:
    """Text of all that an object which can change holds now; empty for others."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        return str(hash(value.tobytes())) if not value.dtype.hasobject else ""
    if kind in (list, dict, set, bytearray):
        entries = list(value.items()) if kind is dict else list(value)
        texts = [_plain(x) for x in (*entries[:_ENTRIES], *entries[-1:])]
        return f"{len(entries)}: {texts}"
    with contextlib.suppress(Exception):
        held = object.__getattribute__(value, "__dict__")
        if not _is_of_library(kind):
            return str([(key, _plain(x)) for key, x in held.items()])
    return ""


def _plain(value: Any) -> str:
    """A number or text; of other objects which one it is."""
    kind = type(value)
    if kind is tuple:
        return str([_plain(x) for x in value])
    return repr(value) if kind in (str, int, float, bool, np.float64) else str(id(value))
