"""Rules of the attributes that Everstep reads of an environment, checked before it does."""

from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from typing import Any

import torch

from ..data import EPISODE_KEYS
from ..errors import EnvError


def _is_size(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def _is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (RuntimeError, TypeError):
        return False
    return True


def _are_keys(value: Any) -> bool:
    return (
        isinstance(value, Collection)
        and not isinstance(value, str | bytes | Mapping)
        and all(isinstance(key, str) and key in EPISODE_KEYS for key in value)
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


_SIZE = ("an integer of at least 1", _is_size)
_LIMIT = ("None or an integer of at least 1", lambda value: value is None or _is_size(value))
_FLAG = ("True or False", lambda value: isinstance(value, bool))
_METHOD = ("a method; leave it out if there is none", callable)

#: Rule of each attribute that Everstep reads, and whether a value keeps it. Those that every
#: environment has are `REQUIRED`; specs have checks of their own.
RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "num_envs": _SIZE,
    "device": ("a device of PyTorch, such as 'cpu' or 'cuda:0'", _is_device),
    "horizon": _LIMIT,
    "default_num_envs": _SIZE,
    "max_num_envs": _LIMIT,
    "max_horizon": _LIMIT,
    "default_horizon": (
        "an integer of at least 1, or a tuple of two: with a limit of episodes and without",
        lambda x: len(x) == 2 and all(map(_is_size, x)) if isinstance(x, tuple) else _is_size(x),
    ),
    "max_episode_steps": _LIMIT,
    "rows_per_env": _SIZE,
    "episode_keys": (
        f"a set of some of {', '.join(sorted(EPISODE_KEYS))}; empty if episodes do not end",
        _are_keys,
    ),
    "agents": ("None or names of agents", lambda value: value is None or _are_names(value)),
    "agent_specs": (
        "None or a mapping of agents to specs",
        lambda value: value is None or isinstance(value, Mapping),
    ),
    "agent_groups": (
        "None or a mapping of groups to lists of agents",
        lambda value: (
            value is None or (isinstance(value, Mapping) and all(map(_are_names, value.values())))
        ),
    ),
    "capturable": _FLAG,
    "asynchronous": _FLAG,
    "resets_rows": _FLAG,
    **dict.fromkeys(("seed", "close", "state_dict", "load_state_dict", "reset_rows"), _METHOD),
}

REQUIRED = ("num_envs", "device")


def read(source: Any, name: str, default: Any = None) -> Any:
    """An attribute with a rule, of an environment or of what makes one; `default` without it.

    Raises:
        EnvError: If it is not what it may be; names the rule and the value.

    """
    if not hasattr(source, name):
        return default
    rule, is_kept = RULES[name]
    if not is_kept(value := getattr(source, name)):
        owner = getattr(source, "__name__", type(source).__name__)
        raise EnvError(f"`{owner}.{name}` must be {rule}; got {value!r}.")
    return value


def check_attributes(env: Any) -> None:
    """Check the attributes of an environment that is not in use yet.

    Raises:
        EnvError: Names an attribute that is missing or not what it may be, the rule and the value.

    """
    kind = type(env).__name__
    for name in REQUIRED:
        if not hasattr(env, name):
            raise EnvError(
                f"{kind} has no `{name}`: call `super().__init__(num_envs, horizon, "
                "device=device)` in its constructor."
            )
    for name in RULES:
        read(env, name)
    halves = [hasattr(env, name) for name in ("state_dict", "load_state_dict")]
    if any(halves) and not all(halves):
        raise EnvError(
            f"{kind} has one of `state_dict` and `load_state_dict`: training could not go on from "
            "a checkpoint. Give it both, or neither."
        )
