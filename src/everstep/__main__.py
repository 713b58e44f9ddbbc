"""Entry point of the command line: parses arguments, runs a command of `cli`, reports its errors.

Exit codes: 0; 1 if training failed, or a check; 2 if the command line, a file or a run is invalid;
130 and 143 if Ctrl-C or SIGTERM interrupted the training, which is saved first.
"""

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ._version import __version__
from .cli import COMMANDS
from .errors import ConfigError, EverstepError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default the process's arguments, and return its exit code."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and ("overrides" not in arguments or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # argparse takes positional arguments in one piece; these stood behind an option
        arguments.overrides = [*arguments.overrides, *rest]
    try:
        with _current_directory_importable(), _short_warnings():
            return int(arguments.run(arguments))
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has stopped, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (EverstepError, OSError) as error:
        print(f"everstep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        return int(getattr(interruption, "exit_code", 130))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="everstep", description="Fast PPO for batched environments."
    )
    parser.add_argument("--version", action="version", version=f"everstep {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for name in COMMANDS:
        command = importlib.import_module(f".cli.{name}", __package__)
        added = commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION)
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    return parser


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Let `env_cls: my_env.MyEnv` find `./my_env.py`, as it would under `python -m everstep`."""
    here = os.getcwd()
    is_safe = getattr(sys.flags, "safe_path", False)
    added = [] if is_safe or {here, ""} & set(sys.path) else [here]
    sys.path[:0] = added
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Show warnings as one line, without the line of code that raised them."""

    def show(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        print(f"{category.__name__}: {message}", file=sys.stderr)

    before, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = before


if __name__ == "__main__":
    sys.exit(main())
