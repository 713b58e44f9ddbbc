"""The environment of an algorithm, and hyperparameters that say `"auto"`, resolved."""

import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import optim
from torchrl.data import Bounded, TensorSpec, Unbounded

from ..core.hyperparameters import Hyperparameters, RecurrentHyperparameters
from ..core.memory import check_room
from ..core.ranks import current_reducer
from ..core.rollouts import episode_keys_of
from ..core.rules import no_graphs_on
from ..env import Env, EnvFactory
from ..env.attributes import check_attributes, read
from ..env.images import is_image, measured_leaves
from ..env.registry import EnvSource, is_made, resolve
from ..env.specs import described, leaf_specs
from ..errors import ConfigError, EnvError
from ..objectives import ActorCritic, find_objective

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=Hyperparameters)

#: Bytes of an environment and of a transition of it at the least: one number observed and one acted
#: with, reward, value, log-probability, advantage, return and flags.
_ENV_BYTES, _STEP_BYTES = 64, 32

#: Environments and vector steps a rollout if neither the config nor the environment says.
DEFAULT_NUM_ENVS, DEFAULT_HORIZON = 8192, 32

#: Environments of a class whose episodes end, on a CPU and on other devices.
EPISODIC_NUM_ENVS = (64, 4096)


def build_env(source: EnvSource, config: C) -> tuple[Env, C]:
    """The environment, and the config with what depends on it resolved.

    Args:
        source: What `everstep.env.registry.resolve` takes.
        config: Validated config.

    Raises:
        AdapterError: If the source is no environment, and nothing that makes one.
        ConfigError: If the config does not fit an environment already made.
        EnvError: If the environment's specs cannot be used.

    """
    resolved = resolve(source, device=None if config.device == "auto" else config.device)
    env: Env = cast(Env, resolved)
    asked = config.horizon
    if not is_made(resolved):
        env, config = _make(cast(EnvFactory, resolved), config)
    with closed_on_error(env, source):
        check_env(env)
        env, config = _adopt(env, config) if is_made(resolved) else _fitted(env, config, asked)
        if config.policies == "shared":
            _check_agents(env)
        _check_rollout(env, config)
        resolved_config = _resolve_defaults(config, env)
    given = replace(config, normalize_observations=resolved_config.normalize_observations)
    for text in given.without_effect(getattr(find_objective(config.objective), "ignores", {})):
        _log.warning("%s", text)
    return env, resolved_config


def _check_agents(env: Any) -> None:
    """Raise if agents, which share a policy, observe or do different things."""
    if (specs := getattr(env, "agent_specs", None)) is None:
        return
    (one, first), *others = specs.items()
    name, other = next(((x, y) for x, y in others if y[:2] != first[:2]), ("", first))
    if not name:
        raise ConfigError(
            "`policies`: rows are wider than what the agents observe or do, and one policy acts "
            "in whole rows. Set `policies` to 'group' or 'agent', or leave out `agent_specs` where "
            "agents do not differ."
        )
    kinds = [f"{described(x[0])} and {described(x[1])}" for x in (first, other)]
    raise ConfigError(
        f"`policies`: agents have different spaces, and one policy cannot act for all: {one} has "
        f"{kinds[0]}, {name} has {kinds[1]} (observations, then actions). Set `policies` to "
        "'group' or 'agent', or choose agents with equal spaces, as by `env_kwargs.agents`."
    )


def _check_rollout(env: Env, config: Hyperparameters) -> None:
    """Raise if a rollout's observations and actions need more memory than there is."""
    leaves = [leaf_specs(spec).values() for spec in (env.observation_spec, env.action_spec)]
    row = sum(x.shape.numel() * x.dtype.itemsize for spec in leaves for x in spec)
    steps = cast(int, config.horizon) * env.num_envs
    check_room(
        steps * (row + _STEP_BYTES),
        torch.device(env.device),
        f"A rollout of {config.horizon:,} env steps in {env.num_envs:,} environments, of {row:,} "
        "bytes of observations and actions each,",
        "Lower `num_envs` or `horizon`.",
    )


@contextmanager
def closed_on_error(env: Env, source: EnvSource) -> Iterator[None]:
    """Close `env` if the block raises, unless its source is an environment: the caller's own."""
    try:
        yield
    except BaseException:
        if not is_made(source):
            with suppress(Exception):  # the error is the one to raise
                getattr(env, "close", lambda: None)()
        raise


def _adopt(env: Env, config: C) -> tuple[Env, C]:
    """An environment already made determines its sizes; the config may only agree."""
    device = torch.device(env.device)
    problems = []
    num_envs = env.num_envs * current_reducer().size
    if config.num_envs not in ("auto", num_envs):
        problems.append(
            f"`num_envs` is {config.num_envs}, but the environment has {num_envs}: leave it "
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
    own = read(env, "horizon")
    horizon = cast(int, own or _default_horizon(env))
    if asked != "auto":
        horizon = asked
    horizon = _clip("horizon", horizon, read(env, "max_horizon"), asked != "auto")
    return env, replace(config, num_envs=num_envs, horizon=horizon, device=device)


def _make(factory: EnvFactory, config: C) -> tuple[Env, C]:
    device = torch.device(_default_device() if config.device == "auto" else config.device)
    is_episodic = bool(getattr(factory, "episode_keys", ()))
    many = EPISODIC_NUM_ENVS[device.type != "cpu"] if is_episodic else DEFAULT_NUM_ENVS
    sizes: dict[str, Any] = {}
    for name, default in (("num_envs", many), ("horizon", DEFAULT_HORIZON)):
        asked = getattr(config, name)
        size = read(factory, f"default_{name}", default) if asked == "auto" else asked
        size = max(size) if isinstance(size, tuple) else size
        sizes[name] = _clip(name, size, read(factory, f"max_{name}"), asked != "auto")
    check_room(
        sizes["num_envs"] * (_ENV_BYTES + sizes["horizon"] * _STEP_BYTES),
        device,
        f"A rollout of {sizes['horizon']:,} env steps in `num_envs` {sizes['num_envs']:,}",
        "Lower `num_envs` or `horizon`.",
    )
    num_envs = current_reducer().share("num_envs", sizes["num_envs"])
    env = factory(num_envs, sizes["horizon"], device=device)
    return env, replace(config, device=device, **sizes)


def _fitted(env: Env, config: C, asked: int | str) -> tuple[Env, C]:
    """The config of an environment that `_make` has made.

    It may have rounded its rows up, and tells whether there is a limit of episodes.

    Args:
        env: The environment.
        config: Config with the sizes that it was made with.
        asked: Its `horizon` before.

    """
    if asked == "auto" and isinstance(read(env, "default_horizon"), tuple):
        most = read(env, "max_horizon")
        env.horizon = _clip("horizon", _default_horizon(env), most, explicit=False)
        config = replace(config, horizon=env.horizon)
    size = current_reducer().size
    more = env.num_envs * size - cast(int, config.num_envs)
    if 0 < more < getattr(env, "rows_per_env", 1) * size:
        return env, replace(config, num_envs=env.num_envs * size)
    return env, config


def _default_horizon(env: Env) -> int:
    """The environment's default; of a pair the first if a limit of episodes is known."""
    horizon: int | tuple[int, int] = read(env, "default_horizon", DEFAULT_HORIZON)
    if isinstance(horizon, tuple):
        return horizon[getattr(env, "max_episode_steps", None) is None]
    return horizon


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


def check_env(env: Any) -> None:
    """Check what can be known of an environment before it is reset.

    Raises:
        EnvError: If it is none, its specs or another attribute cannot be used, or its `reset` takes
            no `config`.

    """
    kind = type(env).__name__
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        raise EnvError(f"{kind} is not an environment: it has no `reset` and `step`; got {env!r}.")
    if hasattr(env, "observation_space") and not hasattr(env, "observation_spec"):
        raise EnvError(
            f"{kind} is not an Everstep environment, but one of Gymnasium: wrap a vector "
            "environment with `everstep.wrap`, or name it, as in `everstep.make(id, num_envs)`."
        )
    for name in ("observation_spec", "action_spec"):
        spec: Any = getattr(env, name, None)
        if spec is None:
            raise EnvError(f"{kind} has no `{name}`: set it in its constructor.")
        if not isinstance(spec, TensorSpec):
            raise EnvError(
                f"{kind}.{name} must be a spec of `torchrl.data`, such as Unbounded(4) or "
                f"Categorical(2, shape=[1]); got {spec!r}."
            )
        leaves = leaf_specs(spec)
        if not leaves:
            raise EnvError(f"{kind}.{name} is a Composite without entries; give it at least one.")
        for path, leaf in leaves.items():
            where = ".".join((name, *path))
            if not leaf.shape:
                raise EnvError(
                    f"`{where}` has an empty shape; specs need at least one dimension. "
                    "Use [1] for a scalar."
                )
            if not leaf.shape.numel():
                raise EnvError(
                    f"`{where}` of {kind} holds no numbers: its shape is {list(leaf.shape)}. Give "
                    "it at least one; adapters leave an observation out by `observation_keys`."
                )
    check_attributes(env)
    reset = inspect.signature(env.reset)
    try:
        reset.bind(config=None)
    except TypeError:
        raise EnvError(
            f"{kind}.reset must take `config`, as in `def reset(self, *, config=None)`, and return "
            f"the observations; got `def reset{_with_self(reset)}`."
        ) from None
    declared = episode_keys_of(env)
    together = {"terminated", "truncated", "first"}
    if declared & together and not together <= declared:
        raise EnvError(
            f"`episode_keys` has {sorted(declared)}: terminated, truncated and first go together."
        )


def device_problem(policy: torch.device, env: Any) -> str:
    """The error of a policy and an environment on two devices; empty if they are on one.

    Args:
        policy: The policy's device.
        env: The environment.

    """
    device = torch.device(env.device)
    if policy == device or _index(policy) == _index(device):
        return ""
    return (
        f"The policy is on the device {policy}, and {type(env).__name__} on {device}: each step "
        f"would mix them. Move the policy (`policy.to('{device}')`, or `Policy.load(path, "
        f"device='{device}')`), or make the environment with `device='{policy}'`."
    )


def _with_self(signature: inspect.Signature) -> str:
    return str(signature).replace("(", "(self, " if signature.parameters else "(self", 1)


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _index(device: torch.device) -> torch.device:
    """`device` with its index: "cuda" is the current one."""
    return torch.empty(0, device=device).device


# ---- hyperparameters --------------------------------------------------------------------------

#: Values of `"auto"` for environments without episode keys, the defaults that rl8 documents, and
#: for environments whose episodes end, which `docs/guides/defaults.md` chooses by measurement.
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "gamma": (0.95, 0.99),
    "horizons_per_env_reset": (1, -1),
    "lr_schedule": (None, "constant_then_linear"),
    "max_grad_norm": (5.0, 0.5),
    "normalize_observations": (False, True),
    "normalize_rewards": (True, "running"),
    "vf_clip_param": (5.0, None),
    "vf_loss": ("smooth_l1", "mse"),
}

#: Largest normalised reward: the first reward of a sparse task is many deviations.
CLIP_REWARDS = 10.0

#: The same for `lr`.
DEFAULT_LR = (1e-3, 3e-4)

#: Adam's epsilon if episodes end; PyTorch's own is 1e-8.
DEFAULT_EPS = 1e-5

#: Options of default feedforward models of vectors, for environments whose episodes end.
DEFAULT_MODEL_CONFIG = {"hiddens": [64, 64], "activation_fn": "tanh"}

#: Env steps a sequence of a recurrent policy: as in rl8, and at most if episodes end.
DEFAULT_SEQ_LEN, MAX_SEQ_LEN = 4, 16

#: Minibatches an epoch and transitions a minibatch, at most and at least, if episodes end.
MAX_MINIBATCHES, MIN_ROWS = 32, 64

#: Rollouts of at most so many env steps have more epochs with smaller budgets: how many times (but
#: see images below), and below how many env steps.
SMALL_ROLLOUT, MORE_EPOCHS, SMALL_BUDGET = 8192, 2, 100_000

#: Minibatches an epoch, epochs at most, and the budget below which there are more, where images
#: are observed and episodes end. They are usual for Atari: convolutions take most of the time.
IMAGE_MINIBATCHES, IMAGE_EPOCHS, IMAGE_BUDGET = 8, 4, 50_000


def _resolve_defaults(config: C, env: Env) -> C:
    """The config with the values of `DEFAULTS`, for an environment with or without episodes."""
    is_episodic = bool(episode_keys_of(env))
    values = {
        name: pair[is_episodic]
        for name, pair in DEFAULTS.items()
        if getattr(config, name) == "auto"
    }
    knows_limit = getattr(env, "max_episode_steps", None) is not None
    if "horizons_per_env_reset" in values and is_episodic and not knows_limit:
        values["horizons_per_env_reset"] = "restarts"
    if config.horizons_per_env_reset == "restarts" and not is_episodic:
        raise ConfigError(
            "`horizons_per_env_reset` 'restarts' needs an environment whose episodes end by "
            f"themselves, if they do: {type(env).__name__} declares no episode keys. "
            "Use a number."
        )
    every = values.get("horizons_per_env_reset", config.horizons_per_env_reset)
    values["staggered_resets"] = _is_staggered(env, replace(config, horizons_per_env_reset=every))
    options = config.optimizer_config or {}
    if not {"lr", "lr_pi", "lr_v"} & options.keys():
        # Other options of the optimizer change the default only where rl8 has no say.
        if config.lr is None and not callable(config.lr_schedule):
            values["lr"] = DEFAULT_LR[is_episodic] if is_episodic or not options else None
        if is_episodic and config.optimizer_cls in (optim.Adam, optim.AdamW):
            values["optimizer_config"] = {"eps": DEFAULT_EPS, **options}
    if {"lr_pi", "lr_v"} & options.keys() or config.lr_schedule_kind == "adaptive":
        values["lr_schedule"] = None if config.lr_schedule == "auto" else config.lr_schedule
    if config.clip_rewards == "auto":
        is_scaled = values.get("normalize_rewards", config.normalize_rewards)
        values["clip_rewards"] = CLIP_REWARDS * config.reward_scale if is_scaled else None
    numbers = measured_leaves(env.observation_spec)
    if values.get("normalize_observations"):
        # Images alone are not worth the moments of each pixel.
        values["normalize_observations"] = not all(map(is_image, numbers.values()))
    elif config.normalize_observations is True and not numbers:
        raise ConfigError(
            "`normalize_observations` has nothing to normalise: choices are encoded, and images "
            f"scaled by their bounds; got {_kinds(env.observation_spec)}. Use 'auto' or False."
        )
    is_default = config.model is None and config.model_cls is None
    is_feedforward = not isinstance(config, RecurrentHyperparameters)
    if is_episodic and is_default and is_feedforward and not _has_images(env):
        given = config.model_config or {}
        values["model_config"] = {**DEFAULT_MODEL_CONFIG, **_noise(env.action_spec, given), **given}
    return replace(config, **values)


def _is_staggered(env: Env, config: Hyperparameters) -> bool:
    """Whether resets are staggered, which they need not be within a rollout.

    Raises:
        ConfigError: If they cannot be, and the config says so.

    """
    kind, limit = type(env).__name__, getattr(env, "max_episode_steps", None)
    every: Any = config.horizons_per_env_reset
    restarts = every == "restarts"
    can_reset = getattr(env, "resets_rows", False) and hasattr(env, "reset_rows")
    reasons = {
        f"{kind} has no `max_episode_steps`": limit is None and not restarts,
        f"{kind} cannot reset single rows": not can_reset,
        f"`horizons_per_env_reset` is {every!r}": not restarts and every > 0,
        f"`policies` is {config.policies!r}": config.policies != "shared",
    }
    reason = next((text for text, holds in reasons.items() if holds), None)
    if config.staggered_resets is True and reason is not None:
        raise ConfigError(f"`staggered_resets` has no effect: {reason}. Use 'auto' or False.")
    is_needed = restarts or (limit or 0) > cast(int, config.horizon)
    return bool(config.staggered_resets and reason is None and is_needed)


def _noise(spec: TensorSpec, given: Mapping[str, Any]) -> dict[str, float]:
    """`log_std_init` of actions of several real numbers: the noise of all of them together is as
    long as that of one. Not with `use_sde`, which multiplies it by features.
    """
    is_real = isinstance(spec, Bounded | Unbounded) and spec.dtype.is_floating_point
    if not is_real or spec.shape.numel() == 1 or given.get("use_sde"):
        return {}
    return {"log_std_init": -math.log(spec.shape.numel()) / 2}


def _kinds(spec: TensorSpec) -> str:
    leaves = leaf_specs(spec).values()
    return ", ".join(f"{type(leaf).__name__} {list(leaf.shape)}" for leaf in leaves)


def _has_images(env: Env) -> bool:
    return any(map(is_image, leaf_specs(env.observation_spec).values()))


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
    horizon = cast(int, config.horizon)
    longest = max(x for x in range(1, MAX_SEQ_LEN + 1) if horizon % x == 0)
    default = longest if episode_keys_of(env) else DEFAULT_SEQ_LEN
    length = default if config.seq_len == "auto" else config.seq_len
    if horizon % length:
        fitting = [s for s in range(1, horizon + 1) if horizon % s == 0]
        near = sorted(sorted(fitting, key=lambda s: abs(s - length))[:2])
        raise ConfigError(
            f"`seq_len` must divide `horizon` ({horizon}); got {length}. "
            f"Try {' or '.join(map(str, near))}."
        )
    between = horizon * rollouts_per_reset(config) // length
    every = config.seqs_per_state_reset
    if every == "auto":
        every = -1 if episode_keys_of(env) else 8 if between % 8 == 0 else between
    elif every > 0 and between > 0 and between % every:
        raise ConfigError(
            f"`seqs_per_state_reset` must divide the {between} sequences between resets of the "
            f"environments (horizon · horizons_per_env_reset / seq_len); got {every}. "
            f"Try {between}, or -1."
        )
    return replace(config, seq_len=length, seqs_per_state_reset=every), length


def rollouts_per_reset(config: Hyperparameters) -> int:
    """Rollouts between resets of all environments; negative: no such number."""
    every = config.horizons_per_env_reset
    return every if isinstance(every, int) else -1


def divisors_of(number: int) -> list[int]:
    """The divisors of a positive number, ascending."""
    below = [x for x in range(1, math.isqrt(number) + 1) if number % x == 0]
    return sorted({*below, *(number // x for x in below)})


def resolve_update(config: C, env: Env, *, sequences: int) -> C:
    """The config with the number, order and size of optimizer steps resolved.

    Args:
        config: Config whose other fields are resolved.
        env: The environment.
        sequences: Sequences of a rollout.

    Raises:
        ConfigError: If the minibatch size does not divide them, or there is nothing to accumulate.

    """
    objective, is_episodic = find_objective(config.objective), bool(episode_keys_of(env))
    own_epochs = getattr(objective, "default_num_sgd_iters", 4)
    size: int = sequences
    if config.sgd_minibatch_size not in (None, "auto"):
        size = cast(int, config.sgd_minibatch_size)
    elif config.sgd_minibatch_size == "auto" and is_episodic and own_epochs > 1:
        most = IMAGE_MINIBATCHES if _has_images(env) else MAX_MINIBATCHES
        least = max(sequences // most, MIN_ROWS // getattr(config, "seq_len", 1))
        shared = [x for x in divisors_of(sequences) if x % current_reducer().size == 0]
        size = min(x for x in shared if x >= min(least, sequences))
    if sequences % size:
        divisors = divisors_of(sequences)
        below = max((s for s in divisors if s < size), default=divisors[0])
        above = min((s for s in divisors if s > size), default=divisors[-1])
        raise ConfigError(
            f"`sgd_minibatch_size` must divide {sequences_of(config, sequences)}; got {size}. "
            f"Try {' or '.join(map(str, sorted({below, above})))}."
        )
    if config.accumulate_grads and size == sequences:
        raise ConfigError(
            f"`accumulate_grads` needs more than one minibatch, but `sgd_minibatch_size` is the "
            f"whole rollout ({sequences}): lower it, or drop `accumulate_grads`."
        )
    epochs, recomputes = config.num_sgd_iters, config.recompute_advantages
    if recomputes == "auto":
        is_usual = isinstance(objective, type) and issubclass(objective, ActorCritic)
        recomputes = epochs == "auto" and is_episodic and is_usual and own_epochs > 1
    if epochs == "auto":
        epochs = _epochs(config, env, objective, own_epochs) if is_episodic else own_epochs
    if recomputes and epochs in (1, [(0, 1)]):
        _log.warning("`recompute_advantages` has no effect: there is a single epoch. Drop it.")
    return replace(
        config, sgd_minibatch_size=size, num_sgd_iters=epochs, recompute_advantages=recomputes
    )


def _epochs(
    config: Hyperparameters, env: Env, objective: Any, own: int
) -> int | list[tuple[int, int]]:
    """Default epochs of an update where episodes end.

    Args:
        config: Config whose number of environments and horizon are resolved.
        env: The environment.
        objective: The objective's class.
        own: Its epochs where episodes do not end.

    """
    epochs: int = getattr(objective, "episodic_num_sgd_iters", own)
    more, usual, budget = MORE_EPOCHS * epochs, epochs, SMALL_BUDGET
    if _has_images(env):
        more, usual, budget = epochs, min(epochs, IMAGE_EPOCHS), IMAGE_BUDGET
    rows = cast(int, config.num_envs) * cast(int, config.horizon)
    if epochs <= own or rows > SMALL_ROLLOUT:
        return usual
    return [(0, more), (budget, usual)]


def sequences_of(config: Hyperparameters, sequences: int) -> str:
    """Text for errors: a rollout's sequences, called transitions if the policy is feedforward."""
    recurrent = isinstance(config, RecurrentHyperparameters)
    rows, count = ("sequences", " / seq_len") if recurrent else ("transitions", "")
    return f"the {sequences} {rows} of a rollout (num_envs · horizon{count})"
