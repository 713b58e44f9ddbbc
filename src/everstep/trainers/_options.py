"""`RunOptions`: keys of a training run, beside hyperparameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, SkipValidation

from ..core.validation import STRICT, Count, FilePath, Name, PositiveInt

#: Keys of checkpoints, callbacks and loggers, which are arguments of trainers too.
SAVING = ("checkpoint_every", "keep_last", "best", "callbacks", "loggers")


@dataclass(kw_only=True)
class RunOptions:
    """Options of a training run, beside hyperparameters."""

    __pydantic_config__: ClassVar[Any] = STRICT

    env_cls: Annotated[Any, SkipValidation] = field(kw_only=False)
    """Environment: a spec or an id such as `"CartPole-v1"`, a class, a function, or an instance."""

    env_config: dict[str, Any] | None = None
    """Passed to every reset of the environment."""

    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments of the environment class or factory, or of the spec's adapter."""

    recurrent: bool = False
    """Whether the policy is recurrent; `model_cls` is then a `RecurrentModel`, or None."""

    total_env_steps: PositiveInt | None = None
    """Env steps, of all environments together, after which training stops. None: no such limit."""

    stop: list[Any] | None = None
    """Conditions that stop training; one is enough. Objects, or mappings such as
    `{HitsUpperBound: {key: episodes/return_mean_100, bound: 475}}`."""

    steps_per_eval: PositiveInt | None = None
    """Train steps between evaluations. None: no evaluations."""

    eval_env_config: dict[str, Any] | None = None
    """Passed to resets in evaluations. None: `env_config`."""

    eval_env_kwargs: dict[str, Any] | None = None
    """Keyword arguments of the evaluation environment beside those of `env_kwargs`, which they
    override, such as `{episodic_life: false}`. None: the same."""

    eval_episodes: Count | None = None
    """Complete episodes per evaluation, in a separate environment. None: 100 if `env_cls` is a
    spec; else evaluations share the training environment."""

    run_dir: Name | Path | None = None
    """Directory of the run's record. None: a new one under `runs/`."""

    experiment_name: Name | None = None
    """MLflow experiment, and project of Weights & Biases. None: the environment's name."""

    checkpoint_every: PositiveInt | str | None = None
    """Train steps between checkpoints; seconds, minutes or hours, such as `"30s"`, `"10m"` or
    `"2h"`; or `"end"`, for one at the end only. None: `"1m"`."""

    keep_last: Count | None = None
    """Number of checkpoints to keep. None: 2."""

    best: Name | None = None
    """Statistic, such as `eval/episodes/return_mean`, that saves the policy to `best/` whenever it
    is larger than before. None: no such policy."""

    recipe: dict[str, Any] | None = None
    """Description of a recipe: task, source, published result. Training does not read it; see
    [Reproducing](../reproducing.md)."""

    tune: dict[str, Any] | None = None
    """Search space of `everstep tune`, which training does not read: by key a list of choices, or
    a range such as `{low: 1e-4, high: 1e-2, log: true}`."""

    callbacks: list[Any] | None = None
    """Objects that are called while training runs. In a file, dotted names of their classes, or
    mappings such as `{my_module.EarlyStop: {patience: 10}}`."""

    loggers: Annotated[list[Any], Field(min_length=1)] | None = None
    """Trackers: `mlflow`, `tensorboard`, `wandb`, or mappings of one to its options, such as
    `{wandb: {project: cartpole}}`. None: MLflow."""

    video_every: PositiveInt | None = None
    """Train steps between videos of the policy, in `videos/`. None: no videos."""

    algorithm_config: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters: fields of `AlgorithmConfig`. In a file they may be top-level keys, too."""


@dataclass(kw_only=True)
class TrainerRules:
    """Rules of trainers' own arguments, as far as their types say them."""

    run_dir: FilePath | None = "auto"
    run_name: str | None = None
    experiment_name: Name | None = None
    track: bool = True
    eval_episodes: Count | None = None
    record: Mapping[str, Any] | None = None
    run_arguments: Mapping[str, Any] | None = None
    resume: bool = False
    checkpoint_every: PositiveInt | str = "1m"
    keep_last: Count = 2
    best: Name | None = None
    progress: bool = True
    env_kwargs: Mapping[str, Any] | None = None


#: Their names.
RULED = tuple(rule.name for rule in fields(TrainerRules))
