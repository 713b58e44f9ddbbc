"""Policies from a config, and trials of them before any environment is touched."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from ..core.hyperparameters import Hyperparameters
from ..core.normalizers import ObservationNormalizer
from ..core.rollouts import Rollout, episode_keys_of
from ..distributions import Normal, SquashedNormal
from ..env import Env
from ..env.formats import format_of
from ..env.registry import describe_env
from ..errors import ConfigError
from ._core import PolicyCore, model_mode
from ._preserving import preserves

P = TypeVar("P", bound=PolicyCore[Any])


def make_policy(
    cls: type[P],
    env: Env,
    config: Hyperparameters,
    device: torch.device,
    num_values: int,
) -> P:
    """The policy of a config, whose model gets `num_values` if it takes that argument.

    Raises:
        ConfigError: If model or distribution do not fit the environment's specs.

    """
    normalizer = None
    if config.normalize_observations:
        normalizer = ObservationNormalizer(env.observation_spec, clip=config.clip_observations)
    dtype = getattr(torch, config.amp_dtype)
    policy = cls(
        env.observation_spec,
        env.action_spec,
        model=config.model,
        model_cls=config.model_cls,
        model_config=_model_config(config, num_values),
        distribution_cls=config.distribution_cls,
        device=device,
        normalizer=normalizer,
        autocast=torch.autocast(device.type, dtype=dtype) if config.enable_amp else None,
        env_format=format_of(env),
    )
    policy.made_for = describe_env(env)
    if config.normalize_values:
        policy.normalize_values(num_values)
    check_means(policy, config)
    if config.preserve_outputs and not preserves(policy):
        raise ConfigError(
            "`preserve_outputs` is for default models with biases, without windows, that see "
            f"normalised numbers and no images; got {type(policy.model).__name__}. Drop it."
        )
    if config.compile:
        policy.model.compile(**({} if config.compile is True else {"backend": config.compile}))
    return policy


def check_means(policy: PolicyCore[Any], config: Hyperparameters) -> None:
    """Check that there are means for `bounds_loss_coeff`, else raise a ConfigError."""
    kind = policy.distribution_cls
    if not config.bounds_loss_coeff:
        return
    if not issubclass(kind, Normal) or issubclass(kind, SquashedNormal):
        raise ConfigError(
            "`bounds_loss_coeff` is for the distribution Normal, whose means may leave the bounds; "
            f"got {kind.__name__}. Drop it."
        )


def _model_config(config: Hyperparameters, num_values: int) -> None | dict[str, Any]:
    """Keyword arguments of the model: `num_values` too, where there are several and it takes it."""
    if num_values == 1 or config.model is not None:
        return config.model_config
    if config.model_cls is not None:
        taken = inspect.signature(config.model_cls).parameters
        if "num_values" not in taken:
            return config.model_config
    return {"num_values": num_values, **(config.model_config or {})}


def check_history(policy: PolicyCore[Any], config: Hyperparameters, env: Env) -> None:
    """Check that windows without padding leave rows to learn from, else raise a ConfigError."""
    drop_size = getattr(policy.model, "drop_size", 0)
    every = cast(int, config.horizons_per_env_reset)
    length = cast(int, config.horizon) * every
    if not episode_keys_of(env) and 0 < length <= drop_size:
        raise ConfigError(
            f"{type(policy.model).__name__} drops the first {drop_size} rows after a reset, and "
            f"environments are reset every {length}: nothing is left to learn from. Raise "
            "`horizon`, or use the view method 'padded_rolling_window'."
        )


@contextmanager
def trying(policy: PolicyCore[Any]) -> Iterator[None]:
    """Run a block in which the policy acts on zeros; its errors become a `ConfigError`."""
    device = policy.device
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    try:
        # With gradients under autocast: some layers run in half precision only without them.
        tracked = torch.set_grad_enabled(policy.is_autocast)
        with forked, tracked, model_mode(policy.model, training=False):
            yield
    except Exception as error:
        distribution = policy.distribution_cls.__name__
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if isinstance(error, KeyError) and "everstep.distributions" in _raised_in(error):
            reason = f"{distribution} needs {error}, which the model's `forward` does not return"
        raise ConfigError(
            f"The policy ({type(policy.model).__name__}, {distribution}) cannot act on an "
            f"observation of zeros: {reason}. {_way_out(policy)}"
        ) from error


def check_policy(policy: PolicyCore[Any], rollout: Rollout, config: Hyperparameters) -> None:
    """Try the policy on an observation of zeros.

    Raises:
        ConfigError: If it fails, or its results do not have the shapes and dtypes of the specs.

    """
    n = rollout.num_envs
    window = [policy.history + 1] if policy.history else []
    obs = rollout.observation.zeros(n, *window, device=rollout.device)
    with trying(policy):
        states = policy.memory.flatten(policy.init_states(n))
        sample = policy.act(obs, states)
    columns = rollout.values.shape[-1]
    expected = [("log-probabilities", sample.logp, (n, 1)), ("values", sample.values, (n, columns))]
    shapes, dtypes = rollout.action.shapes, rollout.action.dtypes
    kinds = (("actions", sample.actions), ("stored actions", sample.latents))
    expected += [
        (name, x, (n, *shape))
        for name, actions in kinds
        for x, shape in zip(actions, shapes, strict=True)
    ]
    states_after = zip(sample.states, policy.memory.shapes, strict=True)
    expected += [("states", x, (n, *shape)) for x, shape in states_after]
    problems = [
        f"The policy's {name} have shape {list(x.shape)}; expected {list(shape)}."
        for name, x, shape in expected
        if x.shape != torch.Size(shape)
    ]
    problems += [
        f"The policy's actions have dtype {x.dtype}; the action spec says {dtype}."
        for x, dtype in zip(sample.actions, dtypes, strict=True)
        if x.dtype != dtype
    ]
    if problems:
        raise ConfigError(problems)


def _raised_in(error: BaseException) -> str:
    """Name of the module whose code raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))


def _way_out(policy: PolicyCore[Any]) -> str:
    """Advice for a policy that cannot act."""
    dtype = getattr(policy._autocast, "fast_dtype", None)
    if dtype is torch.float16 and policy.device.type == "cpu":
        return (
            "Some layers, such as nn.LSTM, have no float16 form on a CPU: set `amp_dtype` to "
            "bfloat16, or leave out `enable_amp`."
        )
    return "Set `model_cls`, `model_config` or `distribution_cls` to what fits the environment."
