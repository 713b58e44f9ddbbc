"""`everstep init`: print a configuration file with the values that training would have."""

import argparse
import shlex
import textwrap
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ._arguments import (
    DEFAULT_ENV_STEPS,
    add_env_steps,
    add_number,
    add_overrides,
    env_document,
    flag_overrides,
    take_env,
)

if TYPE_CHECKING:
    from ..config import Document
    from ..trainers import TrainConfig

HELP = "print a configuration file"
DESCRIPTION = (
    "Print a configuration file for an environment, with the values that `everstep train ENV` "
    "would have and what each of them is: everstep init CartPole-v1 > train.yaml"
)

#: Depend on the machine, not on the environment: resolved where the file is used.
_OF_THE_MACHINE = ("device", "cuda_graphs")

#: Keys of a file that flags set.
_KEYS = {"seed": "seed", "steps": "total_env_steps", "recurrent": "recurrent"}

#: Columns of a comment.
_WIDTH = 88


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "everstep init ENV [--recurrent] [--steps N] [key=value ...]"
    add_overrides(parser, "gamma=0.99 env_kwargs.max_episode_steps=200", env=True)
    parser.add_argument(
        "--recurrent", action="store_const", const=True, help="for a recurrent policy"
    )
    add_env_steps(parser)
    add_number(parser, "--seed", "seed of policy and environment", least=0)


def run(arguments: argparse.Namespace) -> int:
    """Print the file; the exit code is 0.

    Raises:
        ConfigError: If the command line names no environment, or a value breaks its rule.

    """
    from ..trainers import TrainConfig

    arguments.file = None
    env = take_env(arguments) or arguments.file
    overrides = flag_overrides(arguments, _KEYS)
    document = _document(env, overrides)
    if not document.values.keys() & {"total_env_steps", "stop"}:
        document.values["total_env_steps"] = DEFAULT_ENV_STEPS
    config = TrainConfig.from_document(document)
    command = shlex.join(["everstep", "init", env, *overrides])
    print(f"# Everstep {__version__}: {command}")
    print("# To train: everstep train -f train.yaml")
    print(render(config), end="")
    return 0


def _document(env: str, overrides: list[str]) -> "Document":
    """The document of an environment, or of a recipe."""
    from ..config import PREFIX, apply_overrides, load

    if env.startswith(PREFIX):
        return apply_overrides(load(env), overrides)
    return env_document(env, overrides)


def render(config: "TrainConfig") -> str:
    """The file: keys with values, then the keys that are off, each below a comment."""
    from ..core.hyperparameters import Hyperparameters, RecurrentHyperparameters
    from ..core.validation import field_docstrings
    from ..trainers._options import RunOptions

    algorithm = config.build_algorithm()
    algorithm.env.close()
    given = config.to_dict()
    resolved = dict(algorithm.hparams)
    options, rates = algorithm.config.optimizer_options()
    if not (rates or "lr" in (resolved["optimizer_config"] or {})):
        resolved["lr"] = options["lr"]
    machine = {name: given.get(name, "auto") for name in _OF_THE_MACHINE}
    declared = RecurrentHyperparameters if config.recurrent else Hyperparameters
    written: list[str] = []
    off: list[str] = []
    for cls, values in (
        (RunOptions, {"env_cls": given["env_cls"]}),
        (declared, {**resolved, **machine}),
    ):
        comments = field_docstrings(cls)
        for field in fields(cls):
            name = field.name
            if name in ("model", "algorithm_config"):
                continue
            value = given.get(name, values.get(name))
            value = _default(field) if value is None and cls is RunOptions else value
            is_set = bool(value) or value != _default(field) or type(value) is float
            (written if is_set else off).append(_entry(name, value, comments[name], is_set))
    heading = "# Further keys, with values that leave them off:"
    return "\n".join(["", *written, heading, "", *off])


def _entry(name: str, value: Any, description: str, is_set: bool) -> str:
    """A comment of one sentence, the key and its value; all of it a comment if it is not set."""
    from ..config import dump

    sentence = description.split(". ")[0].removesuffix(".") + "."
    comment = textwrap.wrap(sentence, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    lines = dump({name: value}).splitlines()
    return "\n".join([*comment, *(lines if is_set else [f"#{x}" for x in lines]), ""])


def _default(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()
