"""The state of an algorithm: what collecting changes, checkpoints, other processes.

A state is compared with the algorithm's own as a whole before anything is written.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.normalizers import RunningMoments
from ..data import AlgorithmState
from ..env.formats import are_rescaled
from ..env.specs import Leaves
from ..errors import CheckpointError
from ..policies import Follower
from .build import Parts

#: Gradients, weights or moments, also of another process.
Numbers = torch.Tensor | np.ndarray[Any, Any]


def running_statistics(parts: Parts) -> dict[str, torch.Tensor]:
    """The tensors, besides the rollout, that collecting changes: statistics and model buffers."""
    modules: dict[str, None | nn.Module] = {
        "model": parts.policy.model,
        "normalizer": parts.policy.normalizer,
        "discounted_returns": parts.discounted_returns,
        **{f"bonuses.{bonus.name}": bonus for bonus in parts.bonuses},
    }
    found = {f"episodes.{name}": x for name, x in parts.episodes.state_dict().items()}
    for owner, module in modules.items():
        if module is not None:
            found |= {f"{owner}.{name}": x for name, x in module.named_buffers()}
    return found


# ---- checkpoints ------------------------------------------------------------------------------


def state_of(parts: Parts, counters: AlgorithmState, states: None | Leaves) -> dict[str, Any]:
    """Everything that training continues from, as nested mappings of tensors and numbers.

    Args:
        parts: The algorithm's parts.
        counters: Its counters.
        states: Recurrent states after the last rollout; None if the environment is not where it
            ended.

    """
    env = parts.env.state_dict() if hasattr(parts.env, "state_dict") else None
    continues = states is not None
    state = {**_own_state(parts, counters, states), "continues": continues, "env": env}
    state["rescaled"] = are_rescaled(parts.policy.env_format)  # absent in older checkpoints
    if following := followers_of(parts):  # absent otherwise, as in older checkpoints
        state["following"] = [x.states and list(x.states) for x in following]
    return state


def followers_of(parts: Parts) -> list[Follower]:
    """Recurrent or windowed policies that also see each rollout: teachers and mirrored policies."""
    owners = (parts.objective, parts.mirror)
    return [x for owner in owners for x in getattr(owner, "followers", ()) if x.has_states]


def _own_state(parts: Parts, counters: AlgorithmState, states: None | Leaves) -> dict[str, Any]:
    rollout, device = parts.rollout, parts.rollout.device
    normalizer = parts.policy.normalizer
    return {
        "model": dict(parts.policy.model.state_dict()),
        "optimizer": parts.updater.state_dict(),
        "grad_scaler": parts.grad_scaler.state_dict(),
        "counters": asdict(counters),
        "episodes": parts.episodes.state_dict(),
        "last_obs": list(rollout.last_obs()),
        "last_done": rollout.done[-1],
        "reversed_returns": rollout.reversed_returns[-1],
        "discounted_returns": dict(parts.discounted_returns.state_dict()),
        "bonuses": {bonus.name: dict(bonus.state_dict()) for bonus in parts.bonuses},
        "normalizer": None if normalizer is None else dict(normalizer.state_dict()),
        "memory": None if states is None else list(states),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def check_state(parts: Parts, counters: AlgorithmState, state: Mapping[str, Any]) -> None:
    """Check that `load_state` can load a state; nothing is changed.

    Raises:
        CheckpointError: If anything is missing, or of another model, optimizer, normaliser, bonus
            or number of environments.

    """
    own = _own_state(parts, counters, None)
    missing = {*own, "continues", "env"} - state.keys()
    if missing:
        raise CheckpointError(f"The checkpoint has no {', '.join(sorted(missing))}.")
    shapes = [[list(x.shape) for x in each["last_obs"]] for each in (state, own)]
    if shapes[0] != shapes[1]:
        raise CheckpointError(
            "The checkpoint's observations [history + 1, num_envs, …] have shapes "
            f"{shapes[0]}; this algorithm's have {shapes[1]}."
        )
    if state["bonuses"].keys() != own["bonuses"].keys():
        raise CheckpointError(
            f"The checkpoint's bonuses are {sorted(state['bonuses'])}; this algorithm's are "
            f"{sorted(own['bonuses'])}."
        )
    if (state["normalizer"] is None) is not (own["normalizer"] is None):
        raise CheckpointError(
            "The checkpoint and this algorithm differ in `normalize_observations`: set it as it "
            "was in the training that wrote the checkpoint."
        )
    if state["env"] is not None and not hasattr(parts.env, "load_state_dict"):
        raise CheckpointError(
            f"The checkpoint holds the environment's state, and {type(parts.env).__name__} has no "
            "`load_state_dict`: train with the environment that wrote it."
        )
    rescaled = are_rescaled(parts.policy.env_format)
    if state.get("rescaled", [False] * len(rescaled)) != rescaled:
        raise CheckpointError(
            "The checkpoint's actions have another unit than this environment's: give it the "
            "option of the training, `env_kwargs.action_bounds="
            f"{['rescale', 'clip'][any(rescaled)]}` of a run."
        )
    check_fit(own["model"], state["model"], "The checkpoint's weights do not fit the model")
    for name in own["bonuses"]:
        what = f"The checkpoint's state does not fit the bonus {name}"
        check_fit(own["bonuses"][name], state["bonuses"][name], what)
    memory = parts.policy.memory.zeros(parts.rollout.num_envs, device="cpu")
    pairs = [(f"`{key}`", own[key], state[key]) for key in ("episodes", "discounted_returns")]
    pairs += [
        ("`normalizer`", own["normalizer"] or {}, state["normalizer"] or {}),
        ("`counters`", own["counters"], counters_in(state)),
        ("recurrent states", _numbered(memory), _numbered(state["memory"] or memory)),
        *((f"`{key}`", {key: own[key]}, state) for key in ("last_done", "reversed_returns", "rng")),
    ]
    followed = _followed(parts, state)
    for i, (follower, given) in enumerate(zip(followers_of(parts), followed, strict=True)):
        opened = follower.opened(parts.rollout.num_envs)
        pairs.append((f"states of follower {i}", _numbered(opened), _numbered(given or opened)))
    for what, ours, given in pairs:
        given = {name: given[name] for name in ours} if given is state else given
        check_fit(ours, given, f"The checkpoint's {what} do not fit this algorithm's")
    _check_numbers(parts, own, state)
    parts.updater.check_state(state["optimizer"])


def counters_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """The counters in a state, with those that older ones do not have."""
    return {"rewarded": True, "ended": True, "opened": 0, **state["counters"]}


def _check_numbers(parts: Parts, own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Check numbers that a training of this algorithm can have.

    Raises:
        CheckpointError: Names the number, and what it may be.

    """
    for name, before in own["counters"].items():
        value = counters_in(state).get(name, before)
        is_count = type(value) is int and value >= 0
        is_scale = isinstance(value, int | float) and 0 < value < math.inf
        rules = {bool: ("a flag", type(value) is bool), int: ("a whole number from 0", is_count)}
        rule, fits = rules.get(type(before), ("a positive number", is_scale))
        if not fits:
            raise CheckpointError(f"The checkpoint's `{name}` must be {rule}; got {value!r}.")
    owners: list[tuple[None | nn.Module, Any]] = [
        (parts.policy.model, state["model"]),
        (parts.policy.normalizer, state["normalizer"]),
        (parts.discounted_returns, state["discounted_returns"]),
        *((bonus, state["bonuses"][bonus.name]) for bonus in parts.bonuses),
    ]
    for owner, given in owners:
        for prefix, module in () if owner is None else owner.named_modules():
            if not isinstance(module, RunningMoments):
                continue
            for name in ("count", "mean", "var"):
                key = f"{prefix}.{name}".lstrip(".")
                x = given[key]
                if not bool((x.isfinite() & ((x >= 0) | (name == "mean"))).all()):
                    least = "finite" if name == "mean" else "finite and not negative"
                    raise CheckpointError(f"The checkpoint's moments `{key}` must be {least}.")
    scaler, given = own["grad_scaler"], state["grad_scaler"]
    for name, before in scaler.items():  # empty unless gradients are scaled
        value = given.get(name) if isinstance(given, Mapping) else None
        changes = name in ("scale", "_growth_tracker")
        is_number = isinstance(value, int | float) and 0 <= value < math.inf
        if not (is_number if changes else value == before) or (name == "scale" and not value):
            raise CheckpointError(
                f"The checkpoint's `grad_scaler` has {name}={value!r}; this algorithm's has "
                f"{before!r}. Set `enable_amp` and `amp_dtype` as they were in that training."
            )


def _followed(parts: Parts, state: Mapping[str, Any]) -> list[Any]:
    """The states of policies that follow, as a checkpoint has them; None at starts of episodes."""
    count = len(followers_of(parts))
    followed: list[Any] = state.get("following") or [None] * count
    if len(followed) != count:
        raise CheckpointError(
            f"The checkpoint has states of {len(followed)} teachers and mirrored policies; this "
            f"algorithm has {count} of them. Set `objective` and `symmetry` as they were."
        )
    return followed


def _numbered(leaves: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(i): x for i, x in enumerate(leaves)}


def load_state(parts: Parts, state: Mapping[str, Any]) -> None:
    """Write a state that `check_state` accepted; the environment, which may refuse, is first."""
    rollout = parts.rollout
    if state["env"] is not None:
        load_env(parts.env, state["env"])
    parts.policy.model.load_state_dict(state["model"])
    if parts.policy.normalizer is not None:
        parts.policy.normalizer.load_state_dict(state["normalizer"])
    for bonus in parts.bonuses:
        bonus.load_state_dict(state["bonuses"][bonus.name])
    parts.updater.load_state_dict(state["optimizer"])
    parts.grad_scaler.load_state_dict(state["grad_scaler"])
    parts.discounted_returns.load_state_dict(state["discounted_returns"])
    parts.episodes.load_state_dict(state["episodes"])
    rollout.put_last_obs(tuple(state["last_obs"]))
    rollout.truncated[-1].copy_(state["last_done"])
    rollout.terminated[-1].zero_()
    rollout.reversed_returns[-1].copy_(state["reversed_returns"])
    for follower, states in zip(followers_of(parts), _followed(parts, state), strict=True):
        follower.states = states and tuple(x.to(rollout.device) for x in states)
    torch.set_rng_state(state["rng"].cpu())
    if state["cuda_rng"] is not None and rollout.device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng"].cpu(), rollout.device)


def load_env(env: Any, state: Any) -> None:
    """Let an environment continue from its state.

    Raises:
        CheckpointError: If it refuses.

    """
    try:
        env.load_state_dict(state)
    except Exception as error:
        raise CheckpointError(f"{type(env).__name__} refused its state: {error}") from error


# ---- other processes --------------------------------------------------------------------------


def as_tensor(numbers: Numbers) -> torch.Tensor:
    """A tensor of these numbers; a copy of an array, which may be read-only."""
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers)


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU, by name."""
    return {name: x.detach().cpu().clone() for name, x in tensors.items()}


def check_fit(own: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    """Check that two mappings have the same names, and the same shapes under each name.

    Args:
        own: Values to be replaced, by name: tensors or others.
        given: Values to replace them with, by name.
        what: Beginning of the error message.

    Raises:
        CheckpointError: If names or shapes differ.

    """
    unmatched = sorted(own.keys() ^ given.keys())
    shapes = {name: getattr(x, "shape", None) for name, x in own.items()}
    wrong = unmatched or [
        name for name, shape in shapes.items() if shape != getattr(given[name], "shape", None)
    ]
    if wrong:
        how = "are in one of them only" if unmatched else "have another shape"
        raise CheckpointError(
            f"{what}: {', '.join(wrong)} {how}. Build both algorithms with the same config, and "
            "with the same version of Everstep: default models may differ."
        )


@torch.no_grad()
def replace_numbers(
    own: Mapping[str, torch.Tensor], given: Mapping[str, Numbers], what: str
) -> None:
    """Copy `given` numbers into the tensors `own` of the same names, in place.

    Raises:
        CheckpointError: If names or shapes differ; nothing is changed then.

    """
    check_fit(own, given, what)
    for name, x in own.items():
        x.copy_(as_tensor(given[name]))


def moments_of(parts: Parts) -> dict[str, RunningMoments]:
    """Running moments that observations, rewards and bonuses are normalised by, by name."""
    owners: dict[str, None | nn.Module] = {
        "observations": parts.policy.normalizer,
        "values": parts.policy.value_normalizer,
        "rewards": parts.discounted_returns,
        **{f"bonuses.{bonus.name}": bonus for bonus in parts.bonuses},
    }
    return {
        f"{prefix}.{name}".rstrip("."): module
        for prefix, owner in owners.items()
        if owner is not None
        for name, module in owner.named_modules()
        if isinstance(module, RunningMoments)
    }


def buffers_of(moments: Mapping[str, RunningMoments]) -> dict[str, torch.Tensor]:
    """Counts, means and variances of moments, by name."""
    return {
        f"{prefix}.{name}": x
        for prefix, each in moments.items()
        for name, x in each.named_buffers()
    }


def merge(moments: Mapping[str, RunningMoments], given: Sequence[Mapping[str, Numbers]]) -> None:
    """Merge the moments of workers that began with these into them.

    Raises:
        CheckpointError: If names or shapes differ, or a worker has fewer rows than these moments;
            nothing is changed then.

    """
    workers = [copy.deepcopy(dict(moments)) for _ in given]
    for worker, numbers in zip(workers, given, strict=True):
        replace_numbers(buffers_of(worker), numbers, "The moments do not fit this algorithm's")
        for name, own in moments.items():
            before, after = int(own.count), int(worker[name].count)
            if after < before:
                raise CheckpointError(
                    f"The moments {name} are of {after} rows, fewer than the {before} that are to "
                    "be added to. Give workers `get_moments()` with `set_moments` before they "
                    "collect."
                )
    for name, own in moments.items():
        own.merge([worker[name] for worker in workers])
