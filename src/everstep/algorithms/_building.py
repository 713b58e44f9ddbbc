"""Resolving `"auto"`: from what was asked for and what the environment is, to what is built."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch

from ..env import Env, EnvFactory
from ..errors import ConfigError, EnvError
from ..hyperparameters import Hyperparameters
from ..policies import Policy, model_mode
from ..rollouts import Rollout
from ..specs import leaf_specs

C = TypeVar("C", bound=Hyperparameters)

#: Environments and env steps a rollout where neither the config nor the environment says.
DEFAULT_NUM_ENVS, DEFAULT_HORIZON = 8192, 32


def build_env(source: EnvFactory | Env, config: C) -> tuple[Env, C]:
    """The environment, and the config with every `"auto"` resolved.

    Args:
        source: Environment class, factory, or an environment already made.
        config: Validated config.

    Raises:
        ConfigError: Where the config does not fit an environment already made.
        EnvError: Where the environment's specs are not usable.

    """
    if hasattr(source, "step") and not isinstance(source, type):
        env, config = _adopt(cast(Env, source), config)
    else:
        env, config = _make(cast(EnvFactory, source), config)
    _check_env(env)
    if config.horizons_per_env_reset == "auto":
        config = replace(config, horizons_per_env_reset=-1 if env.episode_keys else 1)
    return env, config


@contextmanager
def closed_on_error(env: Env, *, unless: object) -> Iterator[None]:
    """Close `env` where what is done in here fails; unless it is the caller's own."""
    try:
        yield
    except BaseException:
        if env is not unless and hasattr(env, "close"):
            env.close()
        raise


def _adopt(env: Env, config: C) -> tuple[Env, C]:
    """An environment already made decides; the config may only agree."""
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
    declared = set(getattr(env, "episode_keys", ()))
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


def resolve_minibatch(config: C, *, sequences: int) -> C:
    """The config with `sgd_minibatch_size` resolved.

    Args:
        config: Config whose other fields are resolved.
        sequences: Sequences in a rollout.

    Raises:
        ConfigError: Where the minibatch size does not divide them, or there is nothing to
            accumulate.

    """
    size = config.sgd_minibatch_size or sequences
    if sequences % size:
        near = [s for s in range(1, sequences + 1) if sequences % s == 0]
        below = max((s for s in near if s < size), default=near[0])
        above = min((s for s in near if s > size), default=near[-1])
        raise ConfigError(
            f"`sgd_minibatch_size` must divide the {sequences} sequences of a rollout "
            f"(num_envs · horizon / seq_len); got {size}. Try {below} or {above}."
        )
    if config.accumulate_grads and size == sequences:
        raise ConfigError(
            f"`accumulate_grads` needs more than one minibatch, but `sgd_minibatch_size` is the "
            f"whole rollout ({sequences}): lower it, or drop `accumulate_grads`."
        )
    return replace(config, sgd_minibatch_size=size)


def check_policy(policy: Policy, rollout: Rollout) -> None:
    """Try the policy on an observation of zeros.

    Raises:
        ConfigError: Where it fails, or what it returns does not have the shapes and dtypes that
            the specs ask for.

    """
    n, device = rollout.num_envs, rollout.device
    obs = rollout.observation.zeros(n, device=device)
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    try:
        with forked, torch.no_grad(), model_mode(policy.model, training=False):
            actions, logp, values, _ = policy.act(obs, policy.init_states(n))
    except Exception as error:
        raise ConfigError(
            f"The policy ({type(policy.model).__name__}, {policy.distribution_cls.__name__}) "
            f"cannot act on an observation of zeros: {type(error).__name__}: {error}. Set "
            "`model_cls`, `model_config` or `distribution_cls` to what fits the environment."
        ) from error
    expected = [("log-probabilities", logp, (n, 1)), ("values", values, (n, 1))]
    shapes, dtypes = rollout.action.shapes, rollout.action.dtypes
    expected += [("actions", x, (n, *shape)) for x, shape in zip(actions, shapes, strict=True)]
    problems = [
        f"The policy's {name} have shape {list(x.shape)}; expected {list(shape)}."
        for name, x, shape in expected
        if x.shape != torch.Size(shape)
    ]
    problems += [
        f"The policy's actions have dtype {x.dtype}; the action spec says {dtype}."
        for x, dtype in zip(actions, dtypes, strict=True)
        if x.dtype != dtype
    ]
    if problems:
        raise ConfigError(problems)
