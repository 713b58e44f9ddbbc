"""`TrainConfig`: environment, hyperparameters, budget and directory of a training run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from torch import nn

from ..algorithms import (
    Algorithm,
    AlgorithmConfig,
    RecurrentAlgorithm,
    RecurrentAlgorithmConfig,
)
from ..conditions import condition_from_config
from ..config import Document, apply_overrides, dotted_name, load, plain
from ..core.hyperparameters import RecurrentHyperparameters
from ..core.ranks import reported
from ..core.shown import call, given_fields
from ..core.validation import FilePath, Problem, explained, unknown_name
from ..env import Env, EnvFactory
from ..env.registry import EnvSource, SpecFactory, is_made, resolve
from ..errors import AdapterError, ConfigError
from ..loggers import TRACKERS, create_run_dir
from ..schedulers import functions_described
from . import _config_checks as checks
from ._evaluations import check_evaluations, eval_seed
from ._idle import idle_arguments, tracker_named
from ._keywords import with_fields
from ._options import SAVING, RunOptions
from ._record import RUNS, check_depth, check_run_dir, choose_seed
from ._trainers import RecurrentTrainer, Trainer

__all__ = ["TrainConfig", "eval_seed"]

AnyAlgorithm = Algorithm | RecurrentAlgorithm

#: Largest number of environments in an evaluation.
EVAL_NUM_ENVS = 16

#: Names of hyperparameters; a field added to a config needs no edit here.
HYPERPARAMETERS = tuple(field.name for field in fields(RecurrentAlgorithmConfig))

# Keys that hold dotted names in a file.
_CLASSES = ("env_cls", *(name for name in HYPERPARAMETERS if name.endswith("_cls")))

# Hyperparameters that None switches off; for the others it means the default.
_SWITCHES = tuple(
    field.name
    for field in fields(RecurrentAlgorithmConfig)
    if field.default is not None
    and type(None) in get_args(get_type_hints(RecurrentAlgorithmConfig)[field.name])
)


@dataclass
class ConfigKeywords(RecurrentHyperparameters, RunOptions):
    """Arguments of `TrainConfig`."""


_OPTIONS = tuple(field.name for field in fields(RunOptions))
_NAMES = tuple(name for name in (*_OPTIONS, *HYPERPARAMETERS) if name != "algorithm_config")


class TrainConfig(RunOptions):
    """Configuration of a training run.

    Takes the fields of `RunOptions` and those of `AlgorithmConfig` (`RecurrentAlgorithmConfig` with
    `recurrent`), the latter by name or together as `algorithm_config`; all are attributes.
    None means that a field was not given, except for hyperparameters that None switches off, such
    as `vf_clip_param`.

    Args:
        env_cls: Environment: a spec, a class, a function that makes one, or an instance.
        algorithm_config: Fields of `AlgorithmConfig`.
        **options: Fields of `RunOptions` and `AlgorithmConfig`.

    Raises:
        ConfigError: Lists every argument that is unknown or breaks a rule.

    """

    _source: Document | None

    @with_fields(ConfigKeywords)
    def __init__(
        self,
        env_cls: EnvSource,
        *,
        algorithm_config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        inner = dict(algorithm_config or {})
        problems = checks.unknown_problems(inner, HYPERPARAMETERS)
        twice = "given twice, by name and in `algorithm_config`"
        problems += [Problem((name,), twice) for name in set(inner) & set(options)]
        inner = {name: value for name, value in inner.items() if name in HYPERPARAMETERS}
        values, more = _check({"env_cls": env_cls, **inner, **options})
        _raise(problems + more)
        self._set(values)

    def _set(self, values: Mapping[str, Any], source: Document | None = None) -> None:
        """Set all fields to checked values."""
        given = {name: values[name] for name in HYPERPARAMETERS if name in values}
        options = {name: values[name] for name in _OPTIONS if name in values}
        if isinstance(env_cls := options["env_cls"], str):
            options["env_cls"] = SpecFactory(env_cls).spec  # an id gets its prefix
        object.__setattr__(self, "_source", source)
        super().__init__(algorithm_config=given, **options)

    def __repr__(self) -> str:
        given = dict(given_fields(self))
        given |= given.pop("algorithm_config", {})
        return call(type(self).__name__, given.pop("env_cls"), **given)

    def __getattr__(self, name: str) -> Any:
        if name in HYPERPARAMETERS:
            return self.algorithm_config.get(name)
        raise AttributeError(_unknown_field(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in HYPERPARAMETERS:
            self.algorithm_config[name] = value
        elif name in _OPTIONS:
            super().__setattr__(name, value)
        else:
            raise AttributeError(_unknown_field(name))

    # ---- files --------------------------------------------------------------------------------

    @classmethod
    @explained(
        "Write `from_file('train.yaml', ['gamma=0.99'])`.", path=FilePath, overrides=Sequence[str]
    )
    def from_file(
        cls, path: str | os.PathLike[str], overrides: Sequence[str] = ()
    ) -> "TrainConfig":
        """The config in a YAML or JSON file.

        Environment, model, distribution and optimizer classes, and functions that are schedules,
        are dotted paths in a file, such as `my_package.envs.MyEnv`; their modules are looked for on
        `sys.path`. Hyperparameters are top-level keys, or keys of `algorithm_config`.

        Args:
            path: The file; its name ends in `.yaml`, `.yml` or `.json`.
            overrides: Assignments such as `"gamma=0.99"` or `"env_kwargs.max_episode_steps=200"`.

        Raises:
            ConfigError: Lists every problem, as `train.yaml:12: gama: unknown key`.

        """
        document = load(path).hoist("algorithm_config", HYPERPARAMETERS)
        bare = [override.removeprefix("algorithm_config.") for override in overrides]
        return cls.from_document(apply_overrides(document, bare))

    @classmethod
    def from_document(cls, document: Document) -> "TrainConfig":
        """The config in a file that was read with `everstep.config.load`.

        Raises:
            ConfigError: Lists every problem, each with its place.

        """
        document = document.hoist("algorithm_config", HYPERPARAMETERS)
        if zoo := checks.zoo_problems(document.values):
            document.check(zoo)
        values, problems = checks.resolve_names(document.values, _CLASSES)
        inner = values.pop("algorithm_config", None)
        if isinstance(inner, dict):
            problems += [
                Problem(("algorithm_config", *problem.path), problem.message)
                for problem in checks.unknown_problems(inner, HYPERPARAMETERS)
            ]
        elif inner is not None:
            message = f"expected a mapping of hyperparameters; got {inner!r}"
            problems.append(Problem(("algorithm_config",), message))
        is_record = _is_record(document)
        unused = list(checks.unused_problems(values, is_record=is_record))
        values, more = _check(values, is_record=is_record)
        for found in (more, unused):
            reported = {problem.path for problem in problems}
            problems += [problem for problem in found if problem.path not in reported]
        document.check(problems)
        config = cls.__new__(cls)
        config._set(values, document)
        return config

    def to_dict(self) -> dict[str, Any]:
        """The given values as a file would hold them; `from_file` makes an equal config of them.

        Environment and model instances, and functions that only exist at run time, are represented
        by name; reading such a name back is an error.
        """
        values = _given(self._values())
        env_cls = values["env_cls"]
        if isinstance(env_cls, SpecFactory):
            values["env_cls"] = env_cls.spec
            values["env_kwargs"] = env_cls.kwargs or None
        elif is_made(env_cls):
            values["env_cls"] = type(env_cls).__name__
        if isinstance(self.model, nn.Module):
            values["model"] = dotted_name(type(self.model))
        values = {k: v for k, v in values.items() if v is not None or k in _SWITCHES}
        values = functions_described(values)
        return {k: plain(v) for k, v in values.items() if (k, v) != ("recurrent", False)}

    # ---- training -----------------------------------------------------------------------------

    @reported()
    def build(self, **trainer_arguments: Any) -> Trainer | RecurrentTrainer:
        """A trainer with an environment and a policy, whose `run` follows this config.

        Args:
            **trainer_arguments: Arguments of `Trainer`, such as `run_dir` and `loggers`.

        Raises:
            ConfigError: Lists every problem, with its place in the file if there is one. Nothing
                has been written then.

        """
        self.validate()
        run_dir = trainer_arguments.get("run_dir", self.run_dir or "auto")
        resume = trainer_arguments.get("resume", False)
        if run_dir is not None:
            check_depth({**_given(self._values()), **(trainer_arguments.get("record") or {})})
        check_run_dir(run_dir, resume=resume)
        seed = choose_seed(self.seed, run_dir, resume=resume)
        algorithm = self.build_algorithm(seed=seed)
        arguments: dict[str, Any] = {
            "experiment_name": self.experiment_name,
            "eval_env": self._make_eval_env(algorithm),
            "record": self._record(),
            "run_arguments": self.run_arguments(),
        }
        given = {name: getattr(self, name) for name in ("eval_episodes", *SAVING)}
        arguments |= {name: value for name, value in given.items() if value is not None}
        if self.video_every is not None and run_dir is not None:
            (videos,) = entry_points(group="everstep.callbacks", name="video_every")
            record = videos.load()
            arguments["callbacks"] = [*arguments.get("callbacks", ()), record(self.video_every)]
        more = trainer_arguments.pop("loggers", ())
        # What the caller switches off is not needed from this config.
        is_off = trainer_arguments.get("track") is False
        off = TRACKERS if run_dir is None else {"mlflow"} if is_off else ()
        own = [x for x in arguments.get("loggers", ()) if tracker_named(x) not in off]
        arguments |= {**trainer_arguments, "loggers": [*own, *more]}
        for name in idle_arguments(arguments).keys() - trainer_arguments.keys() - {"loggers"}:
            del arguments[name]
        self._check_evaluations(algorithm, shared=arguments["eval_env"] is None)
        if arguments.get("run_dir", "auto") == "auto":
            arguments["run_dir"] = self.run_dir or algorithm.reducer.from_first(
                "TrainConfig.build", lambda: create_run_dir(RUNS, self._env_name())
            )
        if isinstance(algorithm, RecurrentAlgorithm):
            return RecurrentTrainer(algorithm, **arguments)
        return Trainer(algorithm, **arguments)

    def _check_evaluations(self, algorithm: AnyAlgorithm, *, shared: bool) -> None:
        try:
            check_evaluations(
                algorithm,
                shared=shared,
                steps_per_eval=self.steps_per_eval,
                eval_env_config=self.eval_env_config,
            )
        except ValueError as error:
            if self._source is not None:
                self._source.check([checks.sentence_problem(str(error))])
            raise ConfigError(str(error)) from None

    def run_arguments(self) -> dict[str, Any]:
        """Arguments of `Trainer.run`: budget, conditions, evaluations, environment config."""
        return {
            "env_config": self.env_config,
            "eval_env_config": self.eval_env_config,
            "steps_per_eval": self.steps_per_eval,
            "stop_conditions": [
                entry if callable(entry) else condition_from_config(entry)
                for entry in self.stop or []
            ],
            "total_env_steps": self.total_env_steps,
        }

    def validate(self) -> None:
        """Check all fields again: attributes may have been set.

        Raises:
            ConfigError: Lists every field that breaks a rule.

        """
        values, problems = _check(self._values(), is_record=_is_record(self._source))
        _raise(problems)
        self._set(values, self._source)

    def make_env_source(self, *, evaluating: bool = False) -> EnvFactory | Env:
        """Environment source for `AlgorithmConfig.build`: `env_cls` with its `env_kwargs`.

        Args:
            evaluating: Whether `eval_env_kwargs` count, too.

        """
        known = self.device not in (None, "auto")
        more = self.eval_env_kwargs if evaluating else None
        kwargs = {**(self.env_kwargs or {}), **more} if more else self.env_kwargs
        return resolve(self.env_cls, kwargs, device=self.device if known else None)

    def _values(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in _OPTIONS if name != "algorithm_config"}
        return options | self.algorithm_config

    def build_algorithm(self, *, seed: None | int = None) -> AnyAlgorithm:
        """The algorithm with its environment and policy, without a trainer.

        Args:
            seed: Seed if this config has none.

        Raises:
            ConfigError: Lists every problem, with its place in the file if there is one.

        """
        config = _config_cls(self.recurrent)(**self.algorithm_config)
        config.seed = seed if config.seed is None else config.seed
        try:
            return config.build(self.make_env_source())
        except (ConfigError, AdapterError, TypeError) as error:
            problems = self._blame(error)
            if problems and self._source is not None:
                self._source.check(problems)
            raise

    def _blame(self, error: Exception) -> list[Problem]:
        """Problems of fields that a failure to build is about; empty if it names none."""
        if isinstance(error, ConfigError):
            return [checks.sentence_problem(sentence) for sentence in error.problems]
        message = str(error).removesuffix(".")
        # The constructor's signature is unknown here, but Python's error quotes the argument.
        named = [
            Problem((key, name), message)
            for key in ("env_kwargs", "model_config")
            for name in getattr(self, key) or {}
            if repr(name) in message
        ]
        is_adapters = not named and isinstance(error, AdapterError)
        return [Problem(("env_cls",), message)] if is_adapters else named

    def _make_eval_env(self, algorithm: AnyAlgorithm) -> Env | None:
        """The evaluation environment, unless evaluations share the training environment."""
        hparams = algorithm.hparams
        given = self.eval_episodes, hparams.test_every
        is_apart = isinstance(self.env_cls, str) or bool(self.eval_env_kwargs)
        wanted = given != (None, None) or (self.steps_per_eval and is_apart)
        if is_made(self.env_cls) or not wanted:
            return None
        env: Any = self.make_env_source(evaluating=True)
        if not is_made(env):
            num_envs = min(hparams.num_envs, EVAL_NUM_ENVS)
            env = env(num_envs, hparams.horizon, device=hparams.device)
        return cast(Env, env)

    def _env_name(self) -> str:
        source = getattr(self.env_cls, "func", self.env_cls)  # of a `functools.partial`
        if isinstance(source, SpecFactory | str):
            return getattr(source, "spec", str(source))
        return str(getattr(source, "__name__", type(source).__name__))

    def _record(self) -> dict[str, Any]:
        """Keys of the run's `config.yaml` beside resolved hyperparameters, to run it again."""
        given = self.to_dict()
        names = {*_OPTIONS, "model", *_SWITCHES} - {"run_dir", *SAVING}
        record = {name: value for name, value in given.items() if name in names}
        return record | {name: given.get(name) for name in _CLASSES}


def _is_record(document: None | Document) -> bool:
    """Whether values come from the file of a run."""
    return document is not None and Path(document.name).with_name("metrics.jsonl").exists()


def _check(
    values: Mapping[str, Any], *, is_record: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """The valid values, converted as fields hold them, and every problem.

    Args:
        values: Values by key.
        is_record: Whether they are of a run, whose program may have had callbacks with statistics.

    """
    given = _given(values)
    problems = checks.unknown_problems(values, _NAMES)
    options, more = checks.field_problems(
        RunOptions, {"env_cls": None} | {k: v for k, v in given.items() if k in _OPTIONS}
    )
    config_cls = _config_cls(options.get("recurrent"))
    names = {field.name for field in fields(config_cls)}
    hyperparameters, most = checks.field_problems(
        config_cls, {k: v for k, v in given.items() if k in names}
    )
    misplaced = "is for recurrent policies: set `recurrent`, or leave it out"
    recurrent_only = [k for k in given if k in HYPERPARAMETERS and k not in names]
    problems += more + most + [Problem((name,), misplaced) for name in recurrent_only]
    problems += checks.env_problems(options["env_cls"], options.get("env_kwargs") or {})
    problems += checks.eval_env_problems(options)
    problems += checks.stop_problems(
        options.get("stop"), {**hyperparameters, "callbacks": options.get("callbacks") or is_record}
    )
    problems += checks.run_dir_problems(options.get("run_dir"))
    problems += checks.saving_problems(options)
    problems += checks.hyperparameter_problems(config_cls(**hyperparameters), given)
    return options | hyperparameters, problems


def _config_cls(recurrent: Any) -> type[AlgorithmConfig] | type[RecurrentAlgorithmConfig]:
    return RecurrentAlgorithmConfig if recurrent else AlgorithmConfig


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if v is not None or k in _SWITCHES}


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError([f"`{'.'.join(map(str, p.path))}`: {p.message}." for p in problems])


def _unknown_field(name: str) -> str:
    return f"`TrainConfig` has no field `{name}`: {unknown_name('field', name, _NAMES)}."
