"""Changing the hyperparameters of an algorithm that trains."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..validation import unknown_name
from . import _bonuses as bonuses
from ._vocabulary import NAMES, OPTIONS, as_fields, size_of_one_in

if TYPE_CHECKING:
    from ._algorithm import OnPolicyAlgorithm

#: Fields that are looked up whenever they are needed; everything else is built in.
_LIVE = frozenset(
    {
        "accumulate_grads",
        "clip_param",
        "dual_clip_param",
        "entropy_coeff",
        "entropy_coeff_schedule",
        "entropy_coeff_schedule_kind",
        "gae_lambda",
        "gamma",
        "lr_schedule",
        "lr_schedule_kind",
        "max_grad_norm",
        "normalize_advantages",
        "num_sgd_iters",
        "num_test_episodes",
        "on_missing_final",
        "sgd_minibatch_size",
        "shuffle_minibatches",
        "target_kl_div",
        "test_every",
        "vf_clip_param",
        "vf_coeff",
        "vf_loss",
    }
)

#: Learning rates: what optimizers take anew.
_RATES = tuple(name for name in OPTIONS if name.startswith("lr"))

#: What sets a value in place of the value itself.
_SCHEDULES = {"entropy_coeff": "entropy_coeff_schedule"} | dict.fromkeys(_RATES, "lr_schedule")


def change(algorithm: "OnPolicyAlgorithm[Any, Any, Any]", name: str, value: Any) -> None:
    """See `WorkerOperations.update_algorithm_parameter`."""
    config = algorithm.config
    meant = as_fields({name: value}, config)
    if "num_mini_batch" in meant:
        meant = {"sgd_minibatch_size": size_of_one_in(value, config)}
    _check(algorithm, name, next(iter(meant)))
    groups = None
    config = replace(config, **meant).validate()
    if name in (*_RATES, "lr_schedule"):
        groups = algorithm._parameter_groups(config)
        if len(groups) != len(algorithm.optimizer.param_groups):
            raise ConfigError(_built_in(name))
    config = algorithm._hold(config)
    for group, new in zip(algorithm.optimizer.param_groups, groups or [], strict=False):
        options, _ = config.optimizer_options()
        group["lr"] = new.get("lr", options.get("lr", algorithm.optimizer.defaults["lr"]))
    algorithm.streams = bonuses.streams_of(config, algorithm.bonuses)
    algorithm.updater.max_grad_norm = config.max_grad_norm
    algorithm._make_objective(config, algorithm.rollout.device)
    algorithm.follow_schedules()


def _check(algorithm: "OnPolicyAlgorithm[Any, Any, Any]", name: str, field: str) -> None:
    """Raise where the hyperparameter is none, or cannot be changed."""
    known = [*(field.name for field in fields(algorithm.config)), *NAMES]
    if name not in known:
        raise ConfigError(f"`{name}`: {unknown_name('hyperparameter', name, known)}.")
    if field not in _LIVE and name not in _RATES:
        raise ConfigError(_built_in(name))
    schedule = _SCHEDULES.get(name if name in _RATES else field)
    if schedule is not None and getattr(algorithm.config, schedule) is not None:
        raise ConfigError(
            f"`{name}` is set by `{schedule}`: change that, or set it to None before."
        )


def _built_in(name: str) -> str:
    return (
        f"`{name}` is part of what the algorithm is built of: set it in the config, and build a "
        "new algorithm."
    )
