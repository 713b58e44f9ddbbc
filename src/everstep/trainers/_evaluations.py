"""Evaluations while training, in an environment of their own or in that of the training."""

from typing import TYPE_CHECKING, Any, cast

import torch

from ..core.ranks import reduce_stats
from ..errors import ConfigError

if TYPE_CHECKING:  # they import TorchRL and TensorDict, which takes two seconds
    from ..algorithms import GenericAlgorithmBase
    from ..env import Env

NEEDS_EVAL_ENV = (
    "plays complete episodes in a separate environment: give the trainer an `eval_env`, or "
    "leave it out."
)

UNUSED_CONFIG = (
    "`eval` shares the environment with training, which is reset only once (negative "
    "`horizons_per_env_reset`), so an evaluation cannot use an environment config. Leave it out, "
    "set `horizons_per_env_reset`, or give the trainer an `eval_env`."
)


def eval_seed(seed: int) -> int:
    """Seed of evaluation environments, far from those that count up from the training seed."""
    return 2**31 - 1 - seed % 2**30


#: Episodes of an evaluation in an environment of its own, unless the trainer is given others.
EVAL_EPISODES = 100


def seed_eval_env(env: "None | Env", algorithm: "GenericAlgorithmBase[Any, Any, Any]") -> None:
    """Seed an evaluation environment, so that evaluations are part of what `seed` repeats.

    Raises:
        ConfigError: If it is the environment of the training.

    """
    if env is not None and env is algorithm.env:
        raise ConfigError(
            "`eval_env` is the environment of the training, whose episodes an evaluation would "
            "break off. Pass another one, or leave it out: evaluations then take turns with it."
        )
    seed = algorithm.hparams.seed
    if seed is not None and hasattr(env, "seed"):
        cast(Any, env).seed(eval_seed(seed))


def check_evaluations(
    algorithm: "GenericAlgorithmBase[Any, Any, Any]",
    *,
    shared: bool,
    steps_per_eval: None | int,
    eval_env_config: None | dict[str, Any],
) -> None:
    """Check that evaluations are possible with the arguments of `run`.

    Args:
        algorithm: The algorithm that is trained.
        shared: Whether evaluations use the training environment.
        steps_per_eval: See `run`.
        eval_env_config: See `run`.

    Raises:
        ValueError: If they are not.

    """
    every = algorithm.horizons_per_env_reset
    if algorithm.hparams.test_every is not None and shared:
        raise ValueError(f"`test_every` {NEEDS_EVAL_ENV}")
    if steps_per_eval is not None and steps_per_eval < 1:
        raise ValueError(f"`steps_per_eval` must be at least 1; got {steps_per_eval}.")
    if not steps_per_eval or not shared:
        return
    if every < 0 and eval_env_config:
        raise ValueError(UNUSED_CONFIG)
    if every > 0 and steps_per_eval % every:
        raise ValueError(
            "`steps_per_eval` must be a multiple of `horizons_per_env_reset` "
            f"({every}) if `eval` shares the environment with training; got {steps_per_eval}. "
            "Change one of them, or give the trainer an `eval_env`."
        )


def check_eval_env(
    algorithm: "GenericAlgorithmBase[Any, Any, Any]", env: Any, episodes: None | int
) -> None:
    """Raise if evaluations cannot use an environment, or have none and are given its episodes."""
    if env is None:
        if episodes is not None:
            raise ConfigError(
                "`eval_episodes` are played in an environment of their own, and there is none; "
                f"got {episodes}. Give the trainer an `eval_env`, or leave it out."
            )
        return
    from ..algorithms.resolve import check_env
    from ..env import Env
    from ..evaluation import check_fit

    if isinstance(env, str) or (callable(env) and not isinstance(env, Env)):
        name = repr(env) if isinstance(env, str) else getattr(env, "__name__", repr(env))
        raise ConfigError(
            f"`eval_env` must be an environment; got {env!r}. Make one, which plays several "
            f"episodes at once: `eval_env=everstep.make({name}, 8)`."
        )
    check_env(env)
    check_fit(algorithm.policy, env)


def evaluate_apart(
    algorithm: "GenericAlgorithmBase[Any, Any, Any]", env: "Env", **options: Any
) -> dict[str, float]:
    """Statistics of complete episodes in an environment of their own, with our random numbers."""
    from ..evaluation import evaluate

    device = algorithm.policy.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return evaluate(algorithm.policy, env, **options)


def evaluate_shared(
    algorithm: "GenericAlgorithmBase[Any, Any, Any]",
    collects: int,
    env_config: None | dict[str, Any],
    *,
    deterministic: bool,
) -> tuple[dict[str, float], int]:
    """Statistics of rollouts in the training environment, and the number of these rollouts.

    Args:
        algorithm: The algorithm.
        collects: Rollouts so far.
        env_config: Passed to the environment's reset.
        deterministic: Whether actions are the distribution's mode.

    """
    every = algorithm.horizons_per_env_reset
    if env_config and every < 0 and collects:
        raise ValueError(UNUSED_CONFIG)
    if every > 0 and collects % every:
        raise RuntimeError(
            "`eval` shares the environment with training and can only start when a reset is "
            f"due, every {every} rollouts (`horizons_per_env_reset`); {collects % every} have "
            "passed since the last. Call it then, or give the trainer an `eval_env`."
        )
    with algorithm.evaluating():
        rollouts = [
            algorithm.collect(env_config=env_config, deterministic=deterministic)
            for _ in range(max(1, every))
        ]
    return reduce_stats([cast(dict[str, float], stats) for stats in rollouts]), len(rollouts)
