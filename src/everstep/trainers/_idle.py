"""Arguments of trainers, and of `run`, that others leave without effect."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..loggers import chosen, tracker_of
from ..schedulers import MOST

#: What a directory of a run is for, and a tracker's run.
_OF_RUN_DIR = ("run_name", "experiment_name", "checkpoint_every", "keep_last", "best")
_OF_TRACKERS = ("experiment_name", "run_name")


def tracker_named(entry: Any) -> None | str:
    """The tracker that an entry of `loggers` names; None for a logger, or the class of one."""
    name = next(iter(entry)) if isinstance(entry, Mapping) and len(entry) == 1 else entry
    return tracker_of(entry)[0] if isinstance(name, str) and "." not in name else None


def idle_arguments(given: Mapping[str, Any]) -> dict[str, str]:
    """Arguments of a trainer without effect, each with a message.

    Args:
        given: Arguments that were given, by name.

    Raises:
        ConfigError: If `loggers` is no list of loggers and trackers.

    """
    loggers, track = given.get("loggers", ()), given.get("track")
    tracked = chosen(loggers, track=track is not False)
    named = {name for entry in loggers if (name := tracker_named(entry)) is not None}
    drop = "Drop one of the two."
    if given.get("run_dir", "auto") is None:
        idle = {name: given[name] for name in _OF_RUN_DIR if given.get(name) is not None}
        idle |= {"track": True} if track else {}
        idle |= {"loggers": ", ".join(sorted(named))} if named else {}
        why = "`run_dir=None` writes no record of the run anywhere"
        return {
            name: f"`{name}` has no effect: {why}; got {value!r}. {drop}"
            for name, value in idle.items()
        }
    idle = {}
    if track is False and "mlflow" in named:
        idle["loggers"] = f"`loggers` names mlflow, and `track=False` leaves it out. {drop}"
    if not {"mlflow", "wandb"} & tracked.keys():
        names_directory = given.get("run_dir", "auto") == "auto"
        for name in _OF_TRACKERS[: 1 if names_directory else 2]:
            if given.get(name) is not None:
                idle[name] = (
                    f"`{name}` has no effect: it names what MLflow or Weights & Biases track, and "
                    f"neither is among the trackers; got {given[name]!r}. Drop it, or add one."
                )
    return idle


def idle_in_run(algorithm: Any, env_steps: int, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Messages for what the budget of `run` leaves without effect.

    Args:
        algorithm: The algorithm.
        env_steps: Env steps so far.
        arguments: Arguments of `run`.

    """
    budget = arguments.get("total_env_steps") or math.inf
    if not env_steps < budget < math.inf:
        return
    config, hparams = algorithm.config, algorithm.hparams
    if (config.critic_warmup or 0) >= budget:
        yield (
            f"`critic_warmup`: the first {config.critic_warmup:,} env steps train the values "
            f"alone, and the run ends at {int(budget):,}, so the policy is never trained. Lower it."
        )
    for name in MOST:
        schedule, kind = f"{name}_schedule", getattr(config, f"{name}_schedule_kind")
        points = getattr(config, schedule)
        if not isinstance(points, list | tuple):
            continue
        late = [point for point in points if point[0] >= budget]
        if late := late[kind == "interp" :]:  # values are interpolated towards the first of them
            yield (
                f"`{schedule}`: the run ends at {int(budget):,} env steps, before {late}, which "
                "have no effect. Schedules count env steps of all environments."
            )
    rows = hparams.num_envs * hparams.horizon
    if "valid" in getattr(algorithm.env, "episode_keys", ()):
        rows = -(-rows // 2)  # at the least
    left = math.ceil((budget - env_steps) / rows)
    done = env_steps // (hparams.num_envs * hparams.horizon)
    for name, every in (
        ("steps_per_eval", arguments.get("steps_per_eval")),
        ("test_every", hparams.test_every),
    ):
        if every and (done + left - 1) // every == 0:
            yield (
                f"`{name}`: an evaluation follows every {every:,} train steps, and the run ends "
                f"after about {done + left:,}, so it makes none. Lower it, or call `eval`."
            )
