"""The environment of an algorithm, and hyperparameters that say `"auto"`, resolved."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch

from .env import Env, EnvFactory
from .errors import ConfigError, EnvError
from .hyperparameters import Hyperparameters, RecurrentHyperparameters, no_graphs_on
from .objectives import find_objective
from .rollouts import episode_keys_of
from .specs import leaf_specs

C = TypeVar("C", bound=Hyperparameters)

#: Environments and env steps a rollout if neither the config nor the environment says.
DEFAULT_NUM_ENVS, DEFAULT_HORIZON = 8192, 32


def build_env(source: EnvFactory | Env, config: C) -> tuple[Env, C]:
    """The environment, and the config with what depends on it resolved.

    Args:
        source: Environment class, factory, or an environment already made.
        config: Validated config.

    Raises:
        ConfigError: If the config does not fit an environment already made.
        EnvError: If the environment's specs cannot be used.

    """
    if hasattr(source, "step") and not isinstance(source, type):
        env, config = _adopt(cast(Env, source), config)
    else:
        env, config = _make(cast(EnvFactory, source), config)
    _check_env(env)
    if config.horizons_per_env_reset == "auto":
        config = replace(config, horizons_per_env_reset=-1 if episode_keys_of(env) else 1)
    return env, config


@contextmanager
def closed_on_error(env: Env, *, unless: object) -> Iterator[None]:
    """Close `env` if the block raises, unless it is the caller's own."""
    try:
        yield
    except BaseException:
        if env is not unless and hasattr(env, "close"):
            env.close()
        raise


def _adopt(env: Env, config: C) -> tuple[Env, C]:
    """An environment already made determines its sizes; the config may only agree."""
    if not hasattr(env, "observation_spec"):
        raise EnvError(
            f"{type(env).__module__}.{type(env).__name__} is not an Everstep environment: pass "
            "`everstep.wrap(env)`."
        )
    device = torch.device(env.device)
    problems = []
    if config.num_envs not in ("auto", env.num_envs):
        problems.append(
            f"`num_envs` is {config.num_envs}, but the environment has {env.num_envs}: leave it "
            "out, or make the environment with as many."
        )
    if config.device != "auto" and _index(torch.device(config.device)) != _index(device):
        problems.append(
            f"`device` is {config.device}, but the environment lives on {device}: leave it out, "
            "or make the environment there."
        )
    if problems:
        raise ConfigError(problems)
    asked = config.horizon
    horizon = cast(int, env.horizon or getattr(env, "default_horizon", DEFAULT_HORIZON))
    if asked != "auto":
        horizon = asked
    horizon = _clip("horizon", horizon, getattr(env, "max_horizon", None), asked != "auto")
    return env, replace(config, num_envs=env.num_envs, horizon=horizon, device=device)


def _make(factory: EnvFactory, config: C) -> tuple[Env, C]:
    device = torch.device(_default_device() if config.device == "auto" else config.device)
    sizes: dict[str, Any] = {}
    for name, default in (("num_envs", DEFAULT_NUM_ENVS), ("horizon", DEFAULT_HORIZON)):
        asked = getattr(config, name)
        size = getattr(factory, f"default_{name}", default) if asked == "auto" else asked
        sizes[name] = _clip(name, size, getattr(factory, f"max_{name}", None), asked != "auto")
    env = factory(sizes["num_envs"], sizes["horizon"], device=device)
    return env, replace(config, device=device, **sizes)


def _clip(name: str, size: int, maximum: None | int, explicit: bool) -> int:
    if maximum is None or size <= maximum:
        return size
    if explicit:
        warnings.warn(
            f"`{name}` is {size}, but the environment supports at most {maximum}; "
            f"{maximum} is used.",
            stacklevel=5,
        )
    return maximum


def _check_env(env: Env) -> None:
    for name in ("observation_spec", "action_spec"):
        spec: Any = getattr(env, name, None)
        if spec is None:
            raise EnvError(f"{type(env).__name__} has no `{name}`: set it in its constructor.")
        for path, leaf in leaf_specs(spec).items():
            if not leaf.shape:
                where = ".".join((name, *path))
                raise EnvError(
                    f"`{where}` has an empty shape; specs need at least one dimension. "
                    "Use [1] for a scalar."
                )
    declared = episode_keys_of(env)
    together = {"terminated", "truncated", "first"}
    if declared & together and not together <= declared:
        raise EnvError(
            f"`episode_keys` has {sorted(declared)}: terminated, truncated and first go together."
        )


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _index(device: torch.device) -> torch.device:
    """`device` with its index: "cuda" is the current one."""
    return torch.empty(0, device=device).device


# ---- hyperparameters --------------------------------------------------------------------------


def resolve_graphs(config: C, device: torch.device) -> C:
    """The config with `cuda_graphs` resolved.

    Raises:
        ConfigError: If they are requested on another device.

    """
    if config.cuda_graphs == "auto":
        return replace(config, cuda_graphs=device.type == "cuda")
    if config.cuda_graphs and device.type != "cuda":
        raise ConfigError(no_graphs_on(device))
    return config


def resolve_sequences(config: C, env: Env) -> tuple[C, int]:
    """The config with `seqs_per_state_reset` resolved, and env steps a sequence.

    Args:
        config: Config whose horizon is resolved.
        env: The environment.

    Raises:
        ConfigError: If sequences do not fit between resets.

    """
    if not isinstance(config, RecurrentHyperparameters):
        return config, 1
    length, horizon = config.seq_len, cast(int, config.horizon)
    if horizon % length:
        fitting = [s for s in range(1, horizon + 1) if horizon % s == 0]
        near = sorted(sorted(fitting, key=lambda s: abs(s - length))[:2])
        raise ConfigError(
            f"`seq_len` must divide `horizon` ({horizon}); got {length}. "
            f"Try {' or '.join(map(str, near))}."
        )
    between = horizon * cast(int, config.horizons_per_env_reset) // length
    every = config.seqs_per_state_reset
    if every == "auto":
        every = -1 if episode_keys_of(env) else 8 if between % 8 == 0 else between
    elif every > 0 and between > 0 and between % every:
        raise ConfigError(
            f"`seqs_per_state_reset` must divide the {between} sequences between resets of the "
            f"environments (horizon · horizons_per_env_reset / seq_len); got {every}. "
            f"Try {between}, or -1."
        )
    return replace(config, seqs_per_state_reset=every), length


def resolve_update(config: C, *, sequences: int) -> C:
    """The config with `num_sgd_iters` and `sgd_minibatch_size` resolved.

    Args:
        config: Config whose other fields are resolved.
        sequences: Sequences of a rollout.

    Raises:
        ConfigError: If the minibatch size does not divide them, or there is nothing to accumulate.

    """
    size = config.sgd_minibatch_size or sequences
    if sequences % size:
        divisors = [s for s in range(1, sequences + 1) if sequences % s == 0]
        below = max((s for s in divisors if s < size), default=divisors[0])
        above = min((s for s in divisors if s > size), default=divisors[-1])
        raise ConfigError(
            f"`sgd_minibatch_size` must divide the {sequences} sequences of a rollout "
            f"(num_envs · horizon / seq_len); got {size}. Try {below} or {above}."
        )
    if config.accumulate_grads and size == sequences:
        raise ConfigError(
            f"`accumulate_grads` needs more than one minibatch, but `sgd_minibatch_size` is the "
            f"whole rollout ({sequences}): lower it, or drop `accumulate_grads`."
        )
    epochs = config.num_sgd_iters
    if epochs == "auto":
        epochs = getattr(find_objective(config.objective), "default_num_sgd_iters", 4)
    return replace(config, sgd_minibatch_size=size, num_sgd_iters=epochs)
