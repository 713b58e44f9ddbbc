"""Arguments that several commands share."""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config import Document

#: Env steps if neither the command line nor a file says when to stop.
DEFAULT_ENV_STEPS = 100_000


def add_overrides(parser: argparse.ArgumentParser, example: str, *, env: bool = False) -> None:
    """Add the positional arguments `key=value …`, which override keys of a file.

    Args:
        parser: The command's parser.
        example: Overrides that this command takes.
        env: Whether a word without "=" is the environment; see `take_env`.

    """
    about_env = "environment, such as CartPole-v1; and " if env else ""
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="ENV, key=value" if env else "key=value",
        help=f"{about_env}keys of a file to set, such as {example}",
    )


def add_number(
    parser: argparse.ArgumentParser, flag: str, help: str, *, least: int = 1, **options: Any
) -> None:
    """Add an option with an integer of at least `least`; `options` are those of `add_argument`."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}; got {text}")
        return int(text)

    parser.add_argument(flag, type=integer, metavar="N", help=help, **options)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="trust the code that the configuration of a run from elsewhere names; needed once",
    )


def check_run_dir(run_dir: Path) -> None:
    """Raise if this is not the directory of a run that has saved a policy."""
    if not (run_dir / "config.yaml").is_file():
        runs = sorted(path.parent for path in run_dir.glob("*/config.yaml"))
        hint = (
            f"It contains runs, such as {runs[-1]}."
            if runs
            else "Name the one that `everstep train` prints."
        )
        raise ConfigError(f"{run_dir}: not the directory of a run: no config.yaml in it. {hint}")
    if not (run_dir / "policy").exists():
        raise ConfigError(
            f"{run_dir}: no policy in it: the run ended before its first one was saved."
        )


def add_env_steps(
    parser: argparse.ArgumentParser,
    default: str = f"{DEFAULT_ENV_STEPS:,} if nothing else says when to stop",
) -> None:
    """Add `--steps`, the budget; `default` says what it is without the flag."""
    parser.add_argument(
        "--steps",
        type=env_steps,
        metavar="N",
        help="stop after N env steps since the run began, such as 50_000, 50k, 1M or 1e6: "
        f"total_env_steps (default: {default})",
    )


def add_additional_steps(parser: argparse.ArgumentParser) -> None:
    """Add `--additional-steps`, the budget of a run that goes on."""
    parser.add_argument(
        "--additional-steps",
        type=env_steps,
        metavar="N",
        help="stop after N more env steps than the run has",
    )


def env_steps(text: str) -> int:
    """A number of env steps, written as `50_000`, `50k`, `1.5M` or `1e6`."""
    number = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d+)?)([kKmM]?)", text)
    if number is not None:
        count = float(number[1]) * {"": 1, "k": 1e3, "m": 1e6}[number[2].lower()]
        if count >= 1 and count.is_integer():
            return int(count)
    raise argparse.ArgumentTypeError(
        f"expected a number of env steps, such as 50_000, 50k, 1M or 1e6; got {text!r}"
    )


def flag_overrides(arguments: argparse.Namespace, keys: dict[str, str]) -> list[str]:
    """Assignments of the command line, then those of flags that set keys of a file.

    Args:
        arguments: The command line.
        keys: Keys by the names of the flags.

    """
    flags = {key: getattr(arguments, flag) for flag, key in keys.items()}
    assigned = {x.partition("=")[0].strip() for x in arguments.overrides}
    for flag, key in keys.items():
        if flags[key] is not None and key in assigned:
            raise ConfigError(
                f"command line: {key}: given by --{flag.replace('_', '-')}, too. Drop one of them."
            )
    given = [f"{key}={json.dumps(flag)}" for key, flag in flags.items() if flag is not None]
    return [*arguments.overrides, *given]


def env_document(env: str, overrides: Sequence[str]) -> "Document":
    """The document of an environment without a file."""
    from ..config import Document, Place, apply_overrides

    place = Place(0, f"command line: {env}", ("env_cls",))
    document = Document("command line", {"env_cls": env}, {("env_cls",): place})
    bare = [override.removeprefix("algorithm_config.") for override in overrides]
    return apply_overrides(document, bare)


def check_env_named(arguments: argparse.Namespace) -> None:
    """Raise if the command line names neither an environment nor a file."""
    named = any("=" not in word for word in arguments.overrides)
    if named or getattr(arguments, "file", None) is not None:
        return
    command = arguments.command
    or_file = f", or a file: everstep {command} -f train.yaml" if command == "train" else ""
    raise ConfigError(
        f"command line: no environment. Name one: everstep {command} CartPole-v1{or_file}."
    )


def take_env(arguments: argparse.Namespace) -> None | str:
    """Remove the environment, the word without "=", from the assignments, and return it.

    The name of a recipe, such as `recipe:mujoco/Ant-v4`, becomes `file`.

    Raises:
        ConfigError: If there are several, or a file as well, or neither.

    """
    words = [word for word in arguments.overrides if "=" not in word]
    if words and words[0].startswith("recipe:") and getattr(arguments, "file", None) is None:
        arguments.file = words.pop(0)
        arguments.overrides = [word for word in arguments.overrides if word != arguments.file]
    file = getattr(arguments, "file", None)
    if file is not None and words:
        raise ConfigError(
            f"command line: {words[0]}: expected key=value, such as gamma=0.99, because -f {file} "
            f"names the environment. Drop `-f {file}` to train {words[0]} without the file, or "
            f"drop {words[0]}."
        )
    if len(words) > 1:
        raise ConfigError(
            f"command line: {words[1]}: expected key=value, such as gamma=0.99; the environment is "
            f"{words[0]}. Drop one of the two."
        )
    check_env_named(arguments)
    arguments.overrides = [word for word in arguments.overrides if "=" in word]
    return words[0] if words else None
