"""From a config and an environment to the frozen parts of an algorithm, every `"auto"` resolved."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

import torch
from tensordict import TensorDict
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torchrl.data import Composite, Unbounded

from ..bonuses import Bonus, Stream, add_critics, make_bonuses, streams_of
from ..core.episodes import EpisodeTracker
from ..core.hyperparameters import Hyperparameters, RecurrentHyperparameters, Resolved
from ..core.names import dotted_name
from ..core.normalizers import RunningMoments
from ..core.ranks import Reducer, current_reducer
from ..core.rollouts import Rollout, episode_keys_of
from ..data import AlgorithmHparams, DataKeys
from ..env import Env
from ..env.limits import action_limits_of, limits_of
from ..env.specs import Structure, described
from ..errors import ConfigError
from ..objectives import Objective, find_objective
from ..policies import GenericPolicyBase, check_history, check_means, make_policy
from ..schedulers import FUNCTIONS, ClipScheduler, EntropyScheduler, LRScheduler, value_of
from ..symmetry import Mirror, make_symmetry
from .resolve import resolve_graphs, resolve_sequences, resolve_update
from .updates import Updater, parameter_groups

#: Rows of a forward pass in an update on a CPU: the layers' outputs then stay in the cache.
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Parts:
    """The parts of an algorithm; a change of hyperparameters replaces them."""

    #: Hyperparameters, resolved.
    config: Resolved
    #: Read-only view of the hyperparameters.
    hparams: Any
    #: Environment that experience is collected from.
    env: Env
    #: Policy that acts in `collect` and learns in `step`.
    policy: Any
    #: Intrinsic rewards.
    bonuses: tuple[Bonus, ...]
    #: Columns of rewards, values and advantages: the environment's, and one for each bonus.
    streams: tuple[Stream, ...]
    #: Storage of the rollout.
    rollout: Rollout
    #: Zero-copy view of the rollout, `[num_envs, horizon + 1]`; it holds it after `step`, too.
    buffer: TensorDict
    #: Spec of the buffer's elements, without the batch dimensions.
    buffer_spec: Composite
    #: Gradients, clipping and optimizer steps.
    updater: Updater
    #: Optimizer of the policy's model and of the bonuses.
    optimizer: optim.Optimizer
    #: Gradient scaling of float16 training; disabled otherwise.
    grad_scaler: GradScaler
    #: Loss that an update minimises.
    objective: Objective
    #: What mirrors minibatches; None without `symmetry`.
    mirror: None | Mirror
    #: Learning rate, over env steps learned from.
    lr_scheduler: LRScheduler
    #: Weight of the entropy bonus, over env steps learned from.
    entropy_scheduler: EntropyScheduler
    #: `clip_param`, over env steps learned from.
    clip_scheduler: ClipScheduler
    #: Sequences of a forward pass in an update; None for a whole minibatch.
    chunk_size: None | int
    #: Sequences a minibatch.
    minibatch_size: int
    #: Sequences a rollout.
    sequences_per_rollout: int
    #: The processes that train together.
    reducer: Reducer
    #: Returns and lengths of episodes.
    episodes: EpisodeTracker
    #: Moments of discounted sums of rewards, for `normalize_rewards="running"`.
    discounted_returns: RunningMoments


def build_parts(
    env: Env,
    config: Hyperparameters,
    *,
    policy_cls: type[GenericPolicyBase[Any]],
    hparams_cls: type[AlgorithmHparams],
) -> Parts:
    """The parts of an algorithm, for an environment and a config that `build_env` resolved.

    Raises:
        ConfigError: If the config does not fit the environment or the model.

    """
    reducer = _seeded(env, config.seed)
    if reducer.size > 1:  # it calls schedules that are functions
        reducer.check_alike("Algorithm", _shared(env, config))
    device = torch.device(config.device)
    config, seq_len = resolve_sequences(resolve_graphs(config, device), env)
    num_envs, horizon = env.num_envs, cast(int, config.horizon)
    sequences = num_envs * horizon // seq_len
    is_asked = config.recompute_advantages is True
    config = resolve_update(config, env, sequences=sequences * reducer.size)
    size = reducer.share("sgd_minibatch_size", cast(int, config.sgd_minibatch_size))
    bonuses, symmetry = make_bonuses(config.bonuses), make_symmetry(config.symmetry)
    config = replace(config, symmetry=symmetry)
    streams = streams_of(config, bonuses)
    policy = make_policy(policy_cls, env, config, device, len(streams))
    policy.seq_len = seq_len
    check_history(policy, config, env)
    config = _check_recomputed(config, policy, is_asked=is_asked)
    for bonus in bonuses:
        bonus.build(env.observation_spec, env.num_envs, device)
    add_critics(policy, bonuses, env.observation_spec)
    rollout = Rollout(
        num_envs,
        horizon,
        observation=Structure.of(env.observation_spec),
        action=Structure.of(env.action_spec),
        memory=policy.memory,
        episode_keys=episode_keys_of(env),
        seq_len=seq_len,
        history=policy.history,
        num_streams=len(streams),
        observation_limits=limits_of(env.observation_spec, device, policy.env_format.observation),
        action_limits=action_limits_of(env.action_spec, device),
        dtype=policy.dtype,
        device=device,
    )
    updater = _make_updater(policy, rollout, config, bonuses)
    for add_on in config.policy_loss_addons:
        if hasattr(add_on, "setup"):
            add_on.setup(policy)
    discounted_returns = RunningMoments().to(device)
    reducer.begin(policy.model, policy.normalizer, policy.critic, discounted_returns, *bonuses)
    lr_scheduler, entropy_scheduler, clip_scheduler = make_schedules(config, updater.optimizer)
    objective = make_objective(config, device, entropy_scheduler.coeff, clip_scheduler.coeff)
    if hasattr(objective, "setup"):
        objective.setup(policy, None)
    policy.is_wired = True
    return Parts(
        config=config.built_in(),
        hparams=hparams_cls(config, num_minibatches=sequences // size),
        env=env,
        policy=policy,
        bonuses=bonuses,
        streams=streams,
        rollout=rollout,
        buffer=rollout.view(),
        buffer_spec=_buffer_spec(rollout, env),
        updater=updater,
        optimizer=updater.optimizer,
        grad_scaler=updater.grad_scaler,
        objective=objective,
        mirror=None if symmetry is None else Mirror(symmetry, policy, rollout),
        lr_scheduler=lr_scheduler,
        entropy_scheduler=entropy_scheduler,
        clip_scheduler=clip_scheduler,
        chunk_size=_chunk_size(config, policy, objective, bonuses, device),
        minibatch_size=size,
        sequences_per_rollout=sequences,
        reducer=reducer,
        episodes=EpisodeTracker(num_envs, device=device, processes=reducer.size),
        discounted_returns=discounted_returns,
    )


def _shared(env: Env, config: Any) -> dict[str, str]:
    """Values that all ranks must have alike, by name: else they train different things, or hang."""
    values = {x.name: getattr(config, x.name) for x in fields(config)}
    return {
        **compared(values),
        "device": torch.device(config.device).type,
        "observation_spec": described(env.observation_spec),
        "action_spec": described(env.action_spec),
        "episode_keys": ", ".join(sorted(episode_keys_of(env))),
    }


def compared(values: Mapping[str, Any]) -> dict[str, str]:
    """Hyperparameters as texts that are equal in two processes if the values are."""
    return {name: _text(value, name) for name, value in values.items()}


def _text(value: Any, name: str = "", depth: int = 32) -> str:
    if depth == 0:  # the record refuses what is nested so deeply
        return "…"
    below = partial(_text, depth=depth - 1)
    if name in FUNCTIONS and callable(value):  # a lambda's name says nothing
        of = name.removesuffix("_schedule")
        points = [f"{value_of(of, value, i / 4):g}" for i in range(4, -1, -1)]
        return f"{dotted_name(value)} ({', '.join(points)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{x}: {below(y)}' for x, y in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(below, value))}]"
    if isinstance(value, nn.Module):  # whose weights rank 0 sends to the others
        return dotted_name(type(value))
    if hasattr(value, "__qualname__"):
        return dotted_name(value)
    if hasattr(value, "as_config"):
        return below(value.as_config())
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def _seeded(env: Env, seed: None | int) -> Reducer:
    """The processes, whose environments are seeded as those of one process would be."""
    reducer = current_reducer()
    if seed is not None and hasattr(env, "seed"):
        env.seed(seed + reducer.rank * env.num_envs)
    return reducer


def _make_updater(
    policy: GenericPolicyBase[Any],
    rollout: Rollout,
    config: Resolved,
    bonuses: tuple[Bonus, ...],
) -> Updater:
    is_scaled = config.enable_amp and config.amp_dtype == "float16"
    return Updater(
        parameter_groups(policy, rollout, config, bonuses),
        optimizer_cls=config.optimizer_cls,
        optimizer_config=config.optimizer_options()[0],
        max_grad_norm=config.max_grad_norm,
        grad_scaler=GradScaler(rollout.device.type, enabled=is_scaled),
    )


def _check_recomputed(
    config: Resolved, policy: GenericPolicyBase[Any], *, is_asked: bool
) -> Resolved:
    """The config without `recompute_advantages` where the policy cannot have it.

    Raises:
        ConfigError: If that was asked for.

    """
    has_states = isinstance(config, RecurrentHyperparameters) or bool(policy.memory.paths)
    if not config.recompute_advantages or not (has_states or mixes_rows(policy.model)):
        return config
    if is_asked:
        raise ConfigError(
            "`recompute_advantages` is for feedforward models without windows and without layers "
            f"that mix rows; got {type(policy.model).__name__}. Drop it."
        )
    return replace(config, recompute_advantages=False)


def changed_parts(parts: Parts, config: Resolved, *, rates: bool) -> Parts:
    """The parts with other values of hyperparameters that need no new model or storage.

    Args:
        parts: The parts; they are not changed if this raises.
        config: Validated config.
        rates: Whether learning rates are set anew.

    Raises:
        ConfigError: If the config does not fit the parts.

    """
    updater, rollout = parts.updater, parts.rollout
    sequences = parts.sequences_per_rollout
    config = resolve_update(config, parts.env, sequences=sequences * parts.reducer.size)
    for name, value in vars(config).items():
        if isinstance(value, str) and value == "auto":
            raise ConfigError(
                f"`{name}`: 'auto' is resolved when an algorithm is built; here it became "
                f"{getattr(parts.config, name)!r}. Give a value."
            )
    check_means(parts.policy, config)
    config = _check_recomputed(config, parts.policy, is_asked=True)
    groups: list[dict[str, Any]] = []
    if rates:
        groups = parameter_groups(parts.policy, rollout, config, parts.bonuses)
        if len(groups) != len(updater.optimizer.param_groups):
            raise ConfigError(
                "`lr_pi` and `lr_v` are parameter groups of the optimizer: set them in the config, "
                "and build a new algorithm."
            )
    options, _ = config.optimizer_options()
    for group, new in zip(updater.optimizer.param_groups, groups, strict=False):
        group["lr"] = new.get("lr", options.get("lr", updater.optimizer.defaults["lr"]))
    updater.max_grad_norm = config.max_grad_norm
    lr_scheduler, entropy_scheduler, clip_scheduler = make_schedules(config, updater.optimizer)
    lr_scheduler.continue_from(parts.lr_scheduler, keep_rate=not rates)
    entropy_scheduler.continue_from(parts.entropy_scheduler)
    clip_scheduler.continue_from(parts.clip_scheduler)
    coefficients = entropy_scheduler.coeff, clip_scheduler.coeff
    objective = make_objective(config, rollout.device, *coefficients)
    if hasattr(objective, "setup"):
        objective.setup(parts.policy, parts.objective)
    size = parts.reducer.share("sgd_minibatch_size", cast(int, config.sgd_minibatch_size))
    return replace(
        parts,
        config=config.built_in(),
        hparams=type(parts.hparams)(config, num_minibatches=sequences // size),
        minibatch_size=size,
        streams=streams_of(config, parts.bonuses),
        objective=objective,
        lr_scheduler=lr_scheduler,
        entropy_scheduler=entropy_scheduler,
        clip_scheduler=clip_scheduler,
    )


def make_objective(
    config: Resolved, device: torch.device, entropy_coeff: float, clip_param: float
) -> Objective:
    """The loss; schedules fill its coefficients, which begin with these."""
    coeff = torch.tensor(entropy_coeff, device=device)
    objective: Any = find_objective(config.objective)(config, entropy_coeff=coeff)
    if config.clip_param_schedule is not None:
        if not isinstance(getattr(objective, "clip_param", None), torch.Tensor):
            raise ConfigError(
                "`clip_param_schedule` is for objectives derived from "
                f"`everstep.objectives.ActorCritic`; got {type(objective).__name__}. Drop one."
            )
        objective.clip_param.fill_(clip_param)
    return cast(Objective, objective)


def make_schedules(
    config: Resolved, optimizer: optim.Optimizer
) -> tuple[LRScheduler, EntropyScheduler, ClipScheduler]:
    """The schedules of learning rate, entropy weight and `clip_param`."""
    lr_scheduler = LRScheduler(optimizer, schedule=config.lr_schedule, kind=config.lr_schedule_kind)
    entropy_scheduler = EntropyScheduler(
        config.entropy_coeff,
        schedule=config.entropy_coeff_schedule,
        kind=config.entropy_coeff_schedule_kind,
    )
    clip_scheduler = ClipScheduler(
        config.clip_param, schedule=config.clip_param_schedule, kind=config.clip_param_schedule_kind
    )
    return lr_scheduler, entropy_scheduler, clip_scheduler


def _buffer_spec(rollout: Rollout, env: Env) -> Composite:
    """Spec of the buffer's elements, without the batch dimensions."""
    one = Unbounded(1, device=rollout.device)
    spec = {DataKeys.OBS: env.observation_spec, DataKeys.ACTIONS: env.action_spec}
    names = sorted(rollout.view().keys())
    return Composite({name: spec.get(name, one) for name in names}, device=one.device)


def _chunk_size(
    config: Resolved,
    policy: GenericPolicyBase[Any],
    objective: Objective,
    bonuses: tuple[Bonus, ...],
    device: torch.device,
) -> None | int:
    """Sequences of a forward pass in an update; None for a whole minibatch.

    The gradients of chunks add up exactly if each row's share of the loss depends on that row
    alone.
    """
    terms = [objective, *bonuses, *config.policy_loss_addons]
    sums_rows = all(getattr(term, "sums_rows", False) for term in terms)
    if device.type != "cpu" or mixes_rows(policy.model, *bonuses) or not sums_rows:
        return None
    return max(1, CHUNK_ROWS // policy.seq_len)


def mixes_rows(*models: nn.Module) -> bool:
    """Whether a model's output for a row depends on other rows, as with BatchNorm."""
    modules = [module for model in models for module in model.modules()]
    return any(isinstance(m, _BatchNorm) or getattr(m, "mixes_rows", False) for m in modules)
