"""Entry point of the command line: parses arguments, runs a command of `cli`, reports its errors.

Exit codes: 0; 1 if training failed, or a check; 2 if the command line, a file or a run is invalid;
130, 143 and 129 if Ctrl-C, SIGTERM or SIGHUP interrupted the training, which is saved first.
"""

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ._version import __version__
from .cli import commands, load_command, own_commands
from .core.plain_files import printable
from .errors import ConfigError, EverstepError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default the process's arguments, and return its exit code."""
    _open_streams()
    try:
        arguments = parse(argv)
        with modules_importable(arguments), _short_warnings():
            code = int(arguments.run(arguments))
            sys.stdout.flush()  # at the end of the process its error would be Python's
            return code
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has stopped, as `head` does
        _discard(sys.stdout)
        return 141
    except (EverstepError, OSError) as error:
        try:
            sys.stdout.flush()
        except OSError:  # at the end of the process it would fail again
            _discard(sys.stdout)
        refused = isinstance(error, OSError) and error.filename and error.strerror
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        full = "No space left where output is written. Free some, or write it elsewhere."
        text = _refused(error) if refused else full if is_full else error
        print(f"everstep: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        code = int(getattr(interruption, "exit_code", 130))
        if code == 129:  # the terminal is gone, and flushing what it did not take would fail
            _discard(sys.stdout, sys.stderr)
        return code


def _open_streams() -> None:
    """Open the standard streams that are closed, to nothing: a file would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  for the process
            setattr(sys, name, stream)


def _discard(*streams: Any) -> None:
    """Let what is still to be written to streams go nowhere."""
    for stream in streams:
        with suppress(OSError, ValueError):  # one of a test has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refused(error: Any) -> str:
    """An error of the operating system about a path."""
    return f"{error.filename}: {error.strerror}. Name another path, or change its permissions."


def _advice(arguments: argparse.Namespace, rest: Sequence[str]) -> str:
    """How to write the first unknown flag as a key of the file, if the command takes keys."""
    flags = [word for word in rest if word.startswith("--")]
    if "overrides" not in arguments or not flags:
        return ""
    name, _, value = flags[0].removeprefix("--").partition("=")
    following = rest[rest.index(flags[0]) + 1 :] or arguments.overrides[-1:]
    is_value = bool(following) and not following[0].startswith("-") and "=" not in following[0]
    text = value or (following[0] if is_value else "VALUE")
    return f". Keys of the file are written without dashes: {name.replace('-', '_')}={text}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command line, which exits with its usage if they are wrong."""
    words = sys.argv[1:] if argv is None else list(argv)
    first = words[0] if words else ""
    # Other packages are asked only for a name that is none of ours.
    is_known = first in own_commands() or first in commands()
    parser = _parser([first] if is_known else commands())
    arguments, rest = parser.parse_known_args(words)
    if rest and ("overrides" not in arguments or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}{_advice(arguments, rest)}")
    if rest:  # argparse takes positional arguments in one piece; these stood behind an option
        arguments.overrides = [*arguments.overrides, *rest]
    arguments.words = list(words)
    return arguments


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by its name, in the order of `everstep --help`."""
    [subparsers] = (
        x for x in _parser(commands())._actions if isinstance(x, argparse._SubParsersAction)
    )
    return dict(subparsers.choices)


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of these commands: a command that is named first is the only one imported."""
    parser = argparse.ArgumentParser(
        prog="everstep", description="Fast PPO for batched environments."
    )
    parser.add_argument("--version", action="version", version=f"everstep {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for name in names:
        try:
            command = load_command(name)
        except Exception as error:
            if name in own_commands():
                raise
            if len(names) == 1:
                parser.error(f"the command {name!r} cannot be loaded: {error!r}. Mend its package.")
            # One broken package must not break the others.
            commands.add_parser(name, help=f"cannot be loaded: {error!r}".replace("%", "%%"))
            continue
        added = commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION)
        command.add_arguments(added)
        added.set_defaults(run=command.run, reads=getattr(command, "READS", False))
    return parser


@contextmanager
def modules_importable(arguments: argparse.Namespace) -> Iterator[None]:
    """Let `env_cls: my_env.MyEnv` find `my_env.py` in the current directory, or beside the file.

    Not for commands that only read, without a file: a directory that was downloaded may hold a
    `matplotlib.py`.
    Where one has the name of a library that Everstep lacks, a warning says so.

    Both come after everything that is installed, also under `python -m everstep`: a module
    `mlflow.py` beside a file is not imported in place of the library. A file in a package finds
    modules by their full names: `examples/cartpole/train.yaml` finds `examples.cartpole`.
    """
    here = os.getcwd()
    first = sys.path[:1]
    is_first = first and first[0] in ("", here) and not _is_chosen(first[0])
    if is_first:  # put there by `python -m`
        del sys.path[0]
    file: None | str = getattr(arguments, "file", None)
    folders = [here, *([] if file is None else [_outside_packages(file)])]
    is_safe = (arguments.reads and file is None) or getattr(sys.flags, "safe_path", False)
    added = [] if is_safe else [x for x in dict.fromkeys(folders) if x not in sys.path]
    _warn_of_stand_ins(added)
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)
        if is_first:
            sys.path[:0] = first


def _warn_of_stand_ins(folders: Sequence[str]) -> None:
    """Name the modules in folders that would be imported in place of a library of an extra."""
    modules: dict[str, str] = {}
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                name, suffix = os.path.splitext(entry.name)
                if suffix == ".py" or os.path.isfile(os.path.join(entry.path, "__init__.py")):
                    modules.setdefault(name.lower(), entry.path)
    if not modules:
        return
    from importlib.metadata import PackageNotFoundError, requires
    from importlib.util import find_spec

    with suppress(PackageNotFoundError):
        for text in requires("everstep") or ():
            library = text.partition(">")[0].partition("[")[0].replace("-", "_")
            path = modules.get(library)
            if path is not None and "extra ==" in text and find_spec(library) is None:
                del modules[library]
                print(
                    f"everstep: {printable(path)} has the name of the library {library}, which is "
                    "not installed: where Everstep needs that, it would run your module. Rename "
                    "it, or install the library.",
                    file=sys.stderr,
                )


def _is_chosen(folder: str) -> bool:
    """Whether the user has put a folder on the path by PYTHONPATH."""
    chosen = os.environ.get("PYTHONPATH", "")
    return bool(chosen) and folder in map(os.path.abspath, chosen.split(os.pathsep))


def _outside_packages(file: str) -> str:
    """The folder of a file, or the first one above it that is not a package."""
    folder = os.path.dirname(os.path.abspath(file))
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return folder


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
