"""Resolving `"auto"`: from what was asked for and what the environment is, to what is built."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchrl.data import Composite, Unbounded

from ..data import DataKeys
from ..env import Env, EnvFactory
from ..errors import ConfigError, EnvError
from ..hyperparameters import Hyperparameters, RecurrentHyperparameters, no_graphs_on
from ..normalizers import ObservationNormalizer
from ..policies import GenericPolicyBase, model_mode
from ..rollouts import Rollout, episode_keys_of
from ..specs import leaf_specs

C = TypeVar("C", bound=Hyperparameters)
P = TypeVar("P", bound=GenericPolicyBase[Any])

#: Environments and env steps a rollout where neither the config nor the environment says.
DEFAULT_NUM_ENVS, DEFAULT_HORIZON = 8192, 32


#: Rows that models see at once on a CPU.
CHUNK_ROWS = 4096


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
        config = replace(config, horizons_per_env_reset=-1 if episode_keys_of(env) else 1)
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


def check_kind(config: Hyperparameters, expected: type[Hyperparameters]) -> None:
    """Check that a config is of the kind that an algorithm takes.

    Raises:
        ConfigError: Where one is for recurrent policies and the other is not.

    """
    kinds = (type(config), expected)
    given, wanted = (issubclass(kind, RecurrentHyperparameters) for kind in kinds)
    if given is not wanted:
        raise ConfigError(
            f"{type(config).__name__} is for {'recurrent' if given else 'feedforward'} policies: "
            f"pass {'RecurrentAlgorithmConfig' if wanted else 'AlgorithmConfig'}, or call `build`."
        )


def resolve_sequences(config: C, env: Env) -> tuple[C, int]:
    """The config with `seqs_per_state_reset` resolved, and env steps a sequence.

    Args:
        config: Config whose horizon is resolved.
        env: The environment.

    Raises:
        ConfigError: Where sequences do not fit between resets.

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


def make_policy(
    cls: type[P], env: Env, config: Hyperparameters, device: torch.device, num_values: int = 1
) -> P:
    """The policy that a config describes.

    Args:
        cls: Kind of policy.
        env: The environment.
        config: Hyperparameters.
        device: Where it lives.
        num_values: Reward streams; told to models that take `num_values`.

    Raises:
        ConfigError: Where model or distribution do not fit the environment's specs.

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
    )
    if config.compile:
        policy.model.compile(**({} if config.compile is True else {"backend": config.compile}))
    return policy


def _model_config(config: Hyperparameters, num_values: int) -> None | dict[str, Any]:
    """Keyword arguments of the model: `num_values` too, where there are several and it takes it."""
    if num_values == 1 or config.model is not None:
        return config.model_config
    if config.model_cls is not None:
        taken = inspect.signature(config.model_cls).parameters
        if "num_values" not in taken:
            return config.model_config
    return {"num_values": num_values, **(config.model_config or {})}


def resolve_epochs(config: C, objective: Any) -> C:
    """The config with `num_sgd_iters` resolved: what the objective says, else 4."""
    if config.num_sgd_iters != "auto":
        return config
    return replace(config, num_sgd_iters=getattr(objective, "default_num_sgd_iters", 4))


def resolve_graphs(config: C, device: torch.device) -> C:
    """The config with `cuda_graphs` resolved.

    Raises:
        ConfigError: Where they are asked for, and the device is no CUDA device.

    """
    if config.cuda_graphs == "auto":
        return replace(config, cuda_graphs=device.type == "cuda")
    if config.cuda_graphs and device.type != "cuda":
        raise ConfigError(no_graphs_on(device))
    return config


def buffer_spec(rollout: Rollout, env: Env) -> Composite:
    """Spec of the buffer's elements, without the batch dimensions."""
    one = Unbounded(1, device=rollout.device)
    spec = {DataKeys.OBS: env.observation_spec, DataKeys.ACTIONS: env.action_spec}
    keys = sorted(rollout.view().keys())
    return Composite({key: spec.get(key, one) for key in keys}, device=rollout.device)


def check_history(policy: GenericPolicyBase[Any], config: Hyperparameters, env: Env) -> None:
    """Check that windows without padding leave rows to learn from.

    Raises:
        ConfigError: Where every episode is over before its first full window.

    """
    drop_size = getattr(policy.model, "drop_size", 0)
    every = cast(int, config.horizons_per_env_reset)
    length = cast(int, config.horizon) * every
    if not episode_keys_of(env) and 0 < length <= drop_size:
        raise ConfigError(
            f"{type(policy.model).__name__} drops the first {drop_size} rows after a reset, and "
            f"environments are reset every {length}: nothing is left to learn from. Raise "
            "`horizon`, or use the view method 'padded_rolling_window'."
        )


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


def chunk_size(
    models: list[nn.Module], terms: list[Any], *, seq_len: int, device: torch.device
) -> None | int:
    """Sequences that models see at once in an update; None for a minibatch at once.

    On a CPU what one layer hands to the next then stays in the cache. Gradients add up exactly
    where each row's share of the loss depends on that row alone.

    Args:
        models: What is trained.
        terms: Objective, bonuses and add-ons: what the loss consists of.
        seq_len: Env steps a sequence.
        device: Where the models live.

    """
    sums_rows = all(getattr(t, "sums_rows", False) for t in terms)
    if device.type != "cpu" or mixes_rows(models) or not sums_rows:
        return None
    return max(1, CHUNK_ROWS // seq_len)


def mixes_rows(models: list[nn.Module]) -> bool:
    """Whether what a model makes of a row depends on the others."""
    modules = [module for model in models for module in model.modules()]
    return any(isinstance(m, _BatchNorm) or getattr(m, "mixes_rows", False) for m in modules)


def check_policy(policy: GenericPolicyBase[Any], rollout: Rollout, config: Hyperparameters) -> None:
    """Try the policy on an observation of zeros.

    Raises:
        ConfigError: Where it fails, or what it returns does not have the shapes and dtypes that
            the specs ask for.

    """
    n, device = rollout.num_envs, rollout.device
    window = [policy.history + 1] if policy.history else []
    obs = rollout.observation.zeros(n, *window, device=device)
    forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
    try:
        with forked, torch.no_grad(), model_mode(policy.model, training=False):
            states = policy.memory.flatten(policy.init_states(n))
            sample = policy.act(obs, states)
    except Exception as error:
        raise ConfigError(
            f"The policy ({type(policy.model).__name__}, {policy.distribution_cls.__name__}) "
            f"cannot act on an observation of zeros: {type(error).__name__}: {error}. "
            f"{_way_out(config, device)}"
        ) from error
    columns = rollout.values.shape[-1]
    expected = [("log-probabilities", sample.logp, (n, 1)), ("values", sample.values, (n, columns))]
    shapes, dtypes = rollout.action.shapes, rollout.action.dtypes
    kinds = (("actions", sample.actions), ("stored actions", sample.latents))
    expected += [
        (name, x, (n, *shape))
        for name, actions in kinds
        for x, shape in zip(actions, shapes, strict=True)
    ]
    remembered = zip(sample.states, policy.memory.shapes, strict=True)
    expected += [("states", x, (n, *shape)) for x, shape in remembered]
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


def _way_out(config: Hyperparameters, device: torch.device) -> str:
    """What to change where the policy cannot act."""
    if config.enable_amp and config.amp_dtype == "float16" and device.type == "cpu":
        return (
            "Some layers, such as nn.LSTM, have no float16 form on a CPU: set `amp_dtype` to "
            "bfloat16, or leave out `enable_amp`."
        )
    return "Set `model_cls`, `model_config` or `distribution_cls` to what fits the environment."
