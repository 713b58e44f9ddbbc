"""Basic requirements: an environment can be played, and returns what it declares."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torchrl.data import TensorSpec

from ..data import EPISODE_KEYS, DataKeys, Device
from ..env import Env
from ..env.specs import Leaves, Structure, leaf_specs
from ._results import NotApplicable, Unmakeable, Unplayable, Violation

_T = TypeVar("_T")

_TOGETHER = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})

_FIX = "Return what the specs and `episode_keys` declare, or change the declaration."


def attempt(
    what: str,
    call: Callable[[], _T],
    kind: type[Violation] = Unplayable,
    *,
    rule: str = "It must not raise.",
    fix: str = "Fix what raises it.",
    error_type: type[Exception] = Exception,
) -> _T:
    """Result of `call`.

    Args:
        what: Description of the call.
        call: The call.
        kind: Class of the violation.
        rule: The rule that an error breaks.
        fix: How to fix it.
        error_type: Class of the errors that are violations; others propagate.

    Raises:
        Violation: Of the given kind, if `call` raises.

    """
    try:
        return call()
    except (Violation, NotApplicable):
        raise
    except error_type as error:  # whatever an environment may raise
        raise kind(what, rule, f"{type(error).__name__}: {error}", fix) from error


def check_members(env: Any) -> None:
    """Check that an environment has the attributes it needs to be played.

    Raises:
        Unmakeable: If one is missing or invalid.

    """
    for name in ("num_envs", "device", "observation_spec", "action_spec", "reset", "step"):
        if getattr(env, name, None) is None:
            raise Unmakeable(
                f"`{name}`",
                "An environment must have it.",
                f"a {type(env).__name__} without it",
                "Subclass `everstep.Env`, call its constructor, and set the specs in your own.",
            )
    for name in ("observation_spec", "action_spec"):
        spec = getattr(env, name)
        if not isinstance(spec, TensorSpec):
            raise Unmakeable(
                f"`{name}`", "It must be a torchrl spec.", type(spec).__name__, "Use one."
            )
        for path, leaf in leaf_specs(spec).items():
            if not leaf.shape:
                where = ".".join((name, *path))
                rule = "Specs must have at least one dimension."
                raise Unmakeable(f"`{where}`", rule, list(leaf.shape), "Use [1] for a scalar.")
    _check_keys(episode_keys(env))


def _check_keys(declared: frozenset[str]) -> None:
    if declared - EPISODE_KEYS:
        raise Unmakeable(
            "`episode_keys`",
            f"It must be a subset of {sorted(EPISODE_KEYS)}.",
            sorted(declared),
            "Leave out other names.",
        )
    if declared and not declared >= _TOGETHER:
        raise Unmakeable(
            "`episode_keys`",
            "terminated, truncated and first go together, and the others need them.",
            sorted(declared),
            "Declare and return all three, False by default.",
        )


def episode_keys(env: Env) -> frozenset[str]:
    """Episode keys that an environment declares."""
    return frozenset(getattr(env, "episode_keys", ()))


def check_outcome(env: Env, observation: Structure, outcome: Any) -> None:
    """Check that the result of `step` is as declared.

    Raises:
        Unplayable: If it is not.

    """
    if not hasattr(outcome, "keys"):
        raise Unplayable("`step`", "It must return a TensorDict.", type(outcome).__name__, _FIX)
    returned, declared = set(outcome.keys()), episode_keys(env)
    expected = {DataKeys.OBS, DataKeys.REWARDS} | declared
    undeclared = (returned & EPISODE_KEYS) - declared
    if expected - returned or undeclared:
        raise Unplayable(
            "`step`",
            f"Every row must have {', '.join(sorted(expected))}, and no other episode key.",
            ", ".join(sorted(map(str, returned))),
            "Return every key of `episode_keys` in every row, and declare every returned key.",
        )
    check_obs(env, observation, DataKeys.OBS, outcome[DataKeys.OBS])
    if DataKeys.FINAL_OBS in declared:
        check_obs(env, observation, DataKeys.FINAL_OBS, outcome[DataKeys.FINAL_OBS])
    column = torch.Size([env.num_envs, 1])
    rewards = outcome[DataKeys.REWARDS]
    floating = isinstance(rewards, torch.Tensor) and rewards.is_floating_point()
    dtype = rewards.dtype if floating else torch.get_default_dtype()
    _check_tensor(env, DataKeys.REWARDS, rewards, column, dtype)
    for key in sorted(declared - {DataKeys.FINAL_OBS}):
        _check_tensor(env, key, outcome[key], column, torch.bool)


def check_obs(env: Env, observation: Structure, key: str, obs: Any) -> Leaves:
    """Leaves of observations `[N, …]`.

    Raises:
        Unplayable: If they do not match the spec.

    """
    if observation.is_plain is not isinstance(obs, torch.Tensor):
        expected = "a tensor" if observation.is_plain else "a TensorDict"
        rule = f"It must be {expected}, as `observation_spec` is."
        raise Unplayable(f"`{key}`", rule, type(obs).__name__, _FIX)
    try:
        leaves = observation.flatten(obs)
    except (KeyError, TypeError) as error:
        rule = "It must have every leaf of `observation_spec`."
        raise Unplayable(f"`{key}`", rule, f"none at {error}", _FIX) from None
    described = zip(observation.paths, observation.shapes, observation.dtypes, strict=True)
    for leaf, (path, shape, dtype) in zip(leaves, described, strict=True):
        name = ".".join((key, *path))
        _check_tensor(env, name, leaf, torch.Size([env.num_envs, *shape]), dtype)
    return leaves


def _check_tensor(env: Env, name: str, x: Any, shape: torch.Size, dtype: torch.dtype) -> None:
    if not isinstance(x, torch.Tensor):
        raise Unplayable(f"`{name}`", "It must be a tensor.", type(x).__name__, _FIX)
    aspects = [
        ("shape", list(shape), list(x.shape)),
        ("dtype", dtype, x.dtype),
        ("device", with_index(env.device), x.device),
        ("requires_grad", False, x.requires_grad),
    ]
    for aspect, expected, received in aspects:
        if received != expected:
            raise Unplayable(f"`{name}`", f"Its {aspect} must be {expected}.", received, _FIX)


def with_index(device: Device) -> torch.device:
    """`device` with its index: "cuda" is the current one."""
    return torch.empty(0, device=device).device
