"""Rules of evaluations that share the training environment."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imports TorchRL and TensorDict, which takes two seconds
    from ..algorithms import GenericAlgorithmBase

NEEDS_EVAL_ENV = (
    "plays complete episodes in a separate environment: give the trainer an `eval_env`, or "
    "leave it out."
)

UNUSED_CONFIG = (
    "`eval` shares the environment with training, which is reset only once (negative "
    "`horizons_per_env_reset`), so an evaluation cannot use an environment config. Leave it out, "
    "set `horizons_per_env_reset`, or give the trainer an `eval_env`."
)


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
