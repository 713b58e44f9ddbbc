"""Checks of a training configuration, made before anything is built."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn, optim

from ..bonuses import Bonus
from ..callbacks import ENTRIES
from ..conditions import (
    best_problem,
    condition_from_config,
    keys_of,
    own_statistics,
    unknown_statistic,
)
from ..config import KeyPath
from ..core.hyperparameters import Hyperparameters
from ..core.names import Kind, import_kind
from ..core.validation import (
    InvalidError,
    Problem,
    check_fields,
    signature_of,
    synonym_of,
    unknown_name,
)
from ..data import REFLECTED
from ..distributions import Distribution
from ..env import Env
from ..env.plugins import maker_of
from ..env.registry import EXPECTED, check_callable, factory, is_made, takes_sizes
from ..errors import AdapterError, ConfigError
from ..loggers import check_logger
from ..loggers.base import impossible_path, writing_problem
from ..objectives import ActorCritic
from ..schedulers import FUNCTIONS
from ._checkpointing import Interval
from ._options import RunOptions

#: Modules searched for a class that was named without its module.
_HOMES = ("torch.optim", "everstep.distributions", "everstep.models", "everstep.env")

_FUNCTION = "a function of a module of your own that makes one"

#: Kinds of objects that keys take by their dotted names.
_KINDS = {
    "env_cls": Kind(
        f"an environment class, with `reset` and `step`, or {_FUNCTION}",
        lambda cls: (
            issubclass(cls, Env)
            or (callable(getattr(cls, "reset", None)) and callable(getattr(cls, "step", None)))
            or maker_of(cls) is not None
        ),
        functions=True,
    ),
    "model_cls": Kind(
        f"a subclass of torch.nn.Module, or {_FUNCTION}",
        lambda cls: issubclass(cls, nn.Module),
        functions=True,
    ),
    "optimizer_cls": Kind(
        "a subclass of torch.optim.Optimizer", lambda cls: issubclass(cls, optim.Optimizer)
    ),
    "distribution_cls": Kind(
        "a subclass of everstep.distributions.Distribution",
        lambda cls: issubclass(cls, Distribution),
    ),
    "objective": Kind(
        f"a subclass of everstep.objectives.ActorCritic, or a class or {_FUNCTION}",
        lambda cls: issubclass(cls, ActorCritic),
        functions=True,
        own_classes=lambda cls: callable(getattr(cls, "__call__", None)),  # noqa: B004
    ),
    "bonuses": Kind(
        "the name of a bonus, or a subclass of everstep.bonuses.Bonus",
        lambda cls: issubclass(cls, Bonus),
    ),
}

#: Kind of a schedule that is a function.
_SCHEDULE = Kind(
    "a function, of a module of your own, of the fraction of the budget that is left",
    lambda cls: False,
    functions=True,
)

#: Kind of a symmetry's part that is a function.
_REFLECTION = Kind(
    "a function, of a module of your own, from observations or actions to mirrored ones",
    lambda cls: False,
    functions=True,
)

#: Kind of a bonus's option that is named `…_cls`: a part of a network.
_PART = Kind(
    f"a subclass of torch.nn.Module, torch.optim.Optimizer or Distribution, or {_FUNCTION}",
    lambda cls: issubclass(cls, nn.Module | optim.Optimizer | Distribution),
    functions=True,
)

_SPEC = "gymnasium:CartPole-v1"

#: Keys of a training run, beside hyperparameters.
_OPTION_NAMES = tuple(field.name for field in fields(RunOptions))


def resolve_names(
    values: Mapping[str, Any], keys: Sequence[str]
) -> tuple[dict[str, Any], list[Problem]]:
    """A file's values with objects in place of the dotted names under `keys`.

    Names that cannot be imported are left out and reported as problems.
    """
    resolved, problems = dict(values), []
    for key in (*keys, "objective"):
        name = values.get(key)
        is_spec = (
            key == "env_cls" and isinstance(name, str) and not (is_dotted(name) or _homes(name))
        )
        is_word = key == "objective" and not (isinstance(name, str) and "." in name)  # or options
        if name is None or is_spec or is_word:
            continue
        try:
            resolved[key] = _resolve(name, _KINDS[key])
        except ConfigError as error:
            del resolved[key]
            problems.append(Problem((key,), str(error)))
    bonuses = values.get("bonuses")
    if isinstance(bonuses, list):
        resolved["bonuses"] = made = []
        for i, entry in enumerate(bonuses):
            try:
                made.append(_resolve_bonus(entry) if isinstance(entry, dict) else entry)
            except ConfigError as error:
                problems.append(Problem(("bonuses", i), str(error)))
    symmetry = values.get("symmetry")
    reflected = symmetry if isinstance(symmetry, dict) else {}
    for part in REFLECTED:
        if isinstance(name := reflected.get(part), str):
            try:
                made_of = _resolve_function(name, _REFLECTION)
                resolved["symmetry"] = {**resolved["symmetry"], part: made_of}
            except ConfigError as error:
                problems.append(Problem(("symmetry", part), str(error)))
    for key in FUNCTIONS:
        if isinstance(name := values.get(key), str) and ("." in name or "<" in name):
            try:
                resolved[key] = _resolve_function(name, _SCHEDULE)
            except ConfigError as error:
                del resolved[key]
                problems.append(Problem((key,), str(error)))
    add_ons = values.get("policy_loss_addons")
    listed = add_ons if isinstance(add_ons, list | tuple) else [] if add_ons is None else [add_ons]
    for i, entry in enumerate(listed):
        if not callable(entry):
            message = f"a file cannot hold functions; give them in Python. Got {entry!r}"
            problems.append(Problem(("policy_loss_addons", i), message))
    if (model := values.get("model")) is not None:
        message = f"a file cannot hold a model; name its class in model_cls. Got {model!r}"
        problems.append(Problem(("model",), message))
    return resolved, problems


def _resolve_function(name: str, kind: Kind) -> Any:
    """The function of a schedule or a symmetry, by its dotted name."""
    if "<" in name:
        raise ConfigError(
            f"the function {name} existed in the program only: give a module a function of this "
            "kind and name it, my_module.my_function, or run the program again"
        )
    return import_kind(name, kind)


def _resolve_bonus(named: dict[str, Any]) -> dict[Any, Any]:
    """A bonus with classes in place of its dotted name, and of those of its options `…_cls`."""
    found: dict[Any, Any] = {}
    for name, options in named.items():
        made = options
        if isinstance(options, dict):
            made = {
                key: _resolve(value, _PART)
                if key.endswith("_cls") and isinstance(value, str)
                else value
                for key, value in options.items()
            }
        found[_resolve(name, _KINDS["bonuses"]) if "." in name else name] = made
    return found


def _resolve(name: Any, kind: Kind) -> Any:
    try:
        return import_kind(name, kind)
    except ConfigError as error:
        homes = _homes(str(name))
        hint = f" (did you mean {homes[0]}.{name}?)" if homes else ""
        raise ConfigError(f"{error}{hint}") from None


def _homes(name: str) -> list[str]:
    return [home for home in _HOMES if hasattr(importlib.import_module(home), name)]


def field_problems(
    cls: type[Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Problem]]:
    """The values that fit the fields of a dataclass, converted, and a problem for each other."""
    try:
        return check_fields(cls, values), []
    except InvalidError as error:
        bad = {problem.path[0] for problem in error.problems}
        good = {name: value for name, value in values.items() if name not in bad}
        return check_fields(cls, good), error.problems


def unknown_problems(values: Mapping[str, Any], known: tuple[str, ...]) -> list[Problem]:
    """A problem for every name that is not known."""
    return [Problem((k,), unknown_name("key", k, known)) for k in values if k not in known]


def zoo_problems(values: Mapping[str, Any]) -> list[Problem]:
    """A problem if this is a file of rl-zoo, which has the settings of an environment by its id."""
    known = (*_OPTION_NAMES, *(field.name for field in fields(Hyperparameters)))
    for name, keys in values.items():
        is_section = isinstance(keys, dict) and bool({"policy", "n_timesteps"} & {*keys})
        if name in known or not is_section:
            continue
        named = {key: synonym_of(key, known) for key in keys if key not in known}
        ours = ", ".join(f"{key} is {text}" for key, text in named.items() if text)
        return [
            Problem(
                (name,),
                "a section of a file of rl-zoo; files of Everstep have one environment, "
                f"`env_cls: {name if '-v' in name else 'ale:pong'}`, and keys beside it: {ours}",
            )
        ]
    return []


def sentence_problem(sentence: str) -> Problem:
    """An error message about fields as a problem of the first field that it names."""
    name = re.search(r"`(\w+|(?:(?:model|optimizer)_config|symmetry)\.[^`]+)`", sentence)
    rest = sentence.removesuffix(".")
    if name is None:
        return Problem(("algorithm_config",), rest)
    if rest.startswith((f"{name[0]} ", f"{name[0]}: ")) and not rest.startswith(f"{name[0]} and "):
        rest = rest.removeprefix(name[0]).lstrip(": ")
    return Problem(tuple(name[1].split(".")), rest)


def env_problems(env_cls: Any, env_kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of `env_cls` and `env_kwargs`."""
    expected = f"expected {EXPECTED}"
    if env_cls is None:
        yield Problem(("env_cls",), f"required, and missing; {expected}")
    elif isinstance(env_cls, str):
        yield from _spec_problems(env_cls, env_kwargs)
    elif is_made(env_cls):
        yield from _made_problems(env_cls, env_kwargs)
    elif not callable(env_cls):
        yield Problem(("env_cls",), f"{expected}; got {env_cls!r}")
    else:
        try:
            if takes_sizes(env_cls, dict(env_kwargs)):
                yield from option_problems("env_kwargs", env_cls, env_kwargs)
            else:
                check_callable(env_cls, dict(env_kwargs))
        except AdapterError as error:
            yield Problem(("env_cls",), str(error).removesuffix("."))


def eval_env_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of `eval_env_kwargs`, where `env_kwargs` alone have none."""
    own, more = options.get("env_kwargs") or {}, options.get("eval_env_kwargs")
    if not more or any(env_problems(options["env_cls"], own)):
        return
    for problem in env_problems(options["env_cls"], {**own, **more}):
        key, *rest = problem.path
        yield Problem(
            ("eval_env_kwargs", *rest) if key == "env_kwargs" else problem.path, problem.message
        )


def _spec_problems(spec: str, env_kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    if is_dotted(spec):
        wrong = f"a name in Python code; import the class, or write a spec such as {_SPEC}"
        yield Problem(("env_cls",), f"{wrong}. Got {spec!r}")
        return
    try:
        factory(spec, **env_kwargs)
    except AdapterError as error:
        yield Problem(("env_cls",), str(error).removesuffix("."))


def _made_problems(env: Any, env_kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    if env_kwargs:
        message = "the environment exists already; give them to its constructor instead"
        yield Problem(("env_kwargs",), message)


def is_dotted(name: str) -> bool:
    """Whether this is the dotted path of a class or function, rather than a spec or an id."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name) is not None


def option_problems(
    key: str, function: Callable[..., Any], options: Mapping[str, Any]
) -> list[Problem]:
    """A problem for every option under `key` that `function` has no parameter for."""
    parameters = signature_of(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return []
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    name = getattr(function, "__name__", repr(function))
    return [
        Problem((key, option), f"{unknown_name('option', option, known)} of {name}")
        for option in options
        if option not in known
    ]


def unused_problems(values: Mapping[str, Any], *, is_record: bool = False) -> Iterator[Problem]:
    """Keys of a file that nothing reads, because others are missing.

    Args:
        values: Values by key.
        is_record: Whether this is the file of a run. It has what the program gave, which may have
            evaluated by itself, and had callbacks with statistics. `eval_env_kwargs` and
            `eval_env_config` are read by `everstep eval`, too, so they need no evaluations in the
            training.

    """
    recipe = values.get("recipe")
    is_scored = isinstance(recipe, dict) and recipe.get("score") == "evaluation"
    evaluates = is_scored or any(values.get(key) for key in ("steps_per_eval", "test_every"))
    way_out = "there are no evaluations; set steps_per_eval or test_every"
    if values.get("eval_episodes") and not (evaluates or is_record):
        got = values["eval_episodes"]
        yield Problem(("eval_episodes",), f"{way_out}, or leave it out. Got {got!r}")
    best = values.get("best")
    if isinstance(best, str) and best.startswith("eval/") and not evaluates:
        yield Problem(("best",), f"{way_out}. Got {best!r}")
    elif not is_record and (message := best_problem(best, values)):
        yield Problem(("best",), message)


def stop_problems(stop: Any, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of the conditions in `stop` that are mappings.

    Args:
        stop: The list.
        values: Hyperparameters, and `callbacks`, by key.

    """
    for i, entry in enumerate(stop if isinstance(stop, list) else []):
        if callable(entry):
            continue
        try:
            keys = keys_of(condition_from_config(entry))
        except ConfigError as error:
            yield from (Problem(("stop", i), text.removesuffix(".")) for text in error.problems)
            continue
        for key in () if values.get("callbacks") else keys:  # it would never be met
            if message := unknown_statistic(key, own=own_statistics(values)):
                yield Problem(("stop", i), message)


def hyperparameter_problems(config: Hyperparameters, given: Mapping[str, Any]) -> list[Problem]:
    """Problems between hyperparameters, and options that a class does not take.

    Args:
        config: The hyperparameters.
        given: Those that were given: a function under `lr` is the config's `lr_schedule`.

    """
    options, _ = config.optimizer_options()
    problems = option_problems("optimizer_config", config.optimizer_cls, options)
    if config.model_cls is not None:
        problems += option_problems("model_config", config.model_cls, config.model_config or {})
    reported = {problem.path[0] for problem in problems}
    others = [sentence_problem(sentence) for sentence in config.problems()]
    others = [replace(problem, path=_as_given(problem.path, given)) for problem in others]
    return problems + [problem for problem in others if problem.path[0] not in reported]


def _as_given(path: KeyPath, given: Mapping[str, Any]) -> KeyPath:
    """The path of a schedule, or of the value that is a function instead."""
    name = str(path[0]).removesuffix("_schedule")
    return (name,) if path[0] not in given and callable(given.get(name)) else path


def run_dir_problems(run_dir: Any) -> Iterator[Problem]:
    """Problems of `run_dir`: it holds a run already, is a file, or cannot be written."""
    if not isinstance(run_dir, str | Path):
        return
    path = Path(run_dir)
    if problem := impossible_path(path):
        message = f"{str(run_dir)[:99]!r} cannot be a directory: {problem}"
        yield Problem(("run_dir",), message)
    elif (path / "metrics.jsonl").exists():
        yield Problem(("run_dir",), f"{run_dir} holds a run already; name another directory")
    elif path.exists() and not path.is_dir():
        yield Problem(("run_dir",), f"{run_dir} is not a directory")
    elif problem := writing_problem(path):
        message = f"{run_dir} cannot be written: {problem}; name another directory"
        yield Problem(("run_dir",), message)


def saving_problems(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of the interval of checkpoints, of callbacks and of loggers."""
    try:
        Interval(options.get("checkpoint_every") or "end")
    except ConfigError as error:
        yield sentence_problem(str(error))
    for key, check in (("callbacks", ENTRIES.check), ("loggers", check_logger)):
        for i, entry in enumerate(options.get(key) or []):
            try:
                check(entry)
            except ConfigError as error:
                message = str(error).removeprefix(f"`{key}`: ").removesuffix(".")
                yield Problem((key, i), message)
