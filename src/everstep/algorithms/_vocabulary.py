"""pytorchrl's names of hyperparameters, in terms of the config's fields, and its defaults."""

from collections.abc import Mapping
from typing import Any, cast

from ..errors import ConfigError
from ..hyperparameters import Hyperparameters

#: What only has another name.
_FIELDS = {
    "num_epochs": "num_sgd_iters",
    "entropy_coef": "entropy_coeff",
    "value_loss_coef": "vf_coeff",
}

#: What is an option of the optimizer.
OPTIONS = ("lr", "lr_pi", "lr_v", "eps")

#: All names that are not fields.
NAMES = (*_FIELDS, *OPTIONS, "num_mini_batch", "use_clipped_value_loss")

# What its code does besides, and no parameter of it says.
_TOO: dict[str, Any] = {"vf_loss": "mse", "normalize_rewards": False}

_PPO: dict[str, Any] = {
    "optimizer_config": {"lr": 1e-4},
    "gamma": 0.99,
    "num_sgd_iters": 4,
    "clip_param": 0.2,
    "test_every": 1000,
    "max_grad_norm": 0.5,
    "entropy_coeff": 0.01,
    "vf_coeff": 0.5,
    "num_test_episodes": 5,
    "use_clipped_value_loss": True,
    **_TOO,
}

#: Defaults of its constructors, by what its factories call the algorithm.
DEFAULTS: dict[str, dict[str, Any]] = {
    "PPO": _PPO,
    "RND_PPO": {**_PPO, "max_grad_norm": 2.0, "use_clipped_value_loss": False},
    "A2C": {
        "optimizer_config": {"lr_pi": 1e-4, "lr_v": 1e-4},
        "gamma": 0.99,
        "test_every": 5000,
        "max_grad_norm": 0.5,
        "num_test_episodes": 5,
        "vf_coeff": 2.0,  # of half the squared error
        "vf_clip_param": None,
        **_TOO,
    },
}


def renamed(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same, where something only has another name by that of the field."""
    return {_FIELDS.get(name, name): value for name, value in hyperparameters.items()}


def as_fields(hyperparameters: Mapping[str, Any], config: Hyperparameters) -> dict[str, Any]:
    """Fields of a config; and `num_mini_batch`, where it is given.

    Args:
        hyperparameters: By the names of fields, and `NAMES`.
        config: What else is set.

    """
    fields = renamed(hyperparameters)
    options = {name: fields.pop(name) for name in OPTIONS if name in fields}
    if options:
        before = fields.get("optimizer_config", config.optimizer_config)
        fields["optimizer_config"] = {**({"lr": 1e-3} if before is None else before), **options}
    if "use_clipped_value_loss" in fields:
        near = fields.get("clip_param", config.clip_param)
        fields.setdefault("vf_clip_param", near if fields["use_clipped_value_loss"] else None)
        del fields["use_clipped_value_loss"]
    return fields


def size_of_one_in(num_mini_batch: int, config: Hyperparameters) -> int:
    """Sequences a minibatch, where a rollout is split into that many.

    Args:
        num_mini_batch: How many.
        config: Config whose `num_envs` and `horizon` are resolved.

    Raises:
        ConfigError: Where they cannot be equally large.

    """
    steps = cast(int, config.num_envs) * cast(int, config.horizon)
    sequences = steps // getattr(config, "seq_len", 1)
    if not isinstance(num_mini_batch, int) or num_mini_batch < 1 or sequences % num_mini_batch:
        raise ConfigError(
            f"`num_mini_batch` must divide the {sequences} sequences of a rollout "
            f"(num_envs · horizon / seq_len); got {num_mini_batch!r}."
        )
    return sequences // num_mini_batch
