"""Runs from elsewhere: whose code their configuration names, and whether the user trusts it.

Playing a run, or going on with it, imports the modules that its `config.yaml` names. Those of
Everstep and of the environment libraries need no question. Other names do, once, unless the run was
trained here: trainers note each `config.yaml` that they write in a folder of the user's, outside of
all runs, by the run's path and the file's content. A run that was downloaded, moved or edited has
no note.
"""

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config import Document, KeyPath, read
from ..core.files import write_file
from ..core.names import origin_of
from ..core.plain_files import open_plain, read_plain
from ..env.plugins import own_adapters
from ..errors import ConfigError
from ..schedulers import FUNCTIONS
from ._config_checks import is_dotted

#: Modules whose classes need no question, with those of `libraries` of our adapters.
_KNOWN = {"everstep", "everstep_adapters", "everstep_lab", "torch"}


def check_trust(run_dir: Path, document: Document, *, trust: bool) -> None:
    """Ask once before code that a run from elsewhere names is imported.

    Args:
        run_dir: The run's directory, or a policy's file.
        document: Those values of its configuration that are used; what the command line assigned
            is the user's own word.
        trust: Whether the user has said yes; that is noted.

    Raises:
        ConfigError: Lists the names, if nobody has.

    """
    names = foreign_names(document)
    if not names:
        return
    if run_dir.is_file():
        digest = hashlib.sha256()
        with open_plain(run_dir) as file:
            while piece := file.read(2**20):
                digest.update(piece)
        note = _note_of(run_dir, digest.digest())
    else:
        note = _note_of(run_dir, read_plain(run_dir / "config.yaml", within=run_dir))
    if note.exists():
        return
    if not trust:
        listed = [f"  {key}: {name}" for key, name in names]
        whose = "the file"
        if not run_dir.is_file():
            whose = "its config.yaml was not written here (or the run was moved, or the file "
            whose += "edited), and"
        raise ConfigError(
            [
                f"{run_dir}: {whose} names code that is neither Everstep's nor an environment "
                "library's:",
                *listed,
                "Look at it first: it will be run. To go on, repeat the command with --trust, once "
                "(in Python `trust=True`).",
            ]
        )
    _write(note, run_dir)


def remember(run_dir: Path, text: str) -> None:
    """Note that a run's `config.yaml` of this text is the user's own, if that is ever asked."""
    with contextlib.suppress(ConfigError):
        if foreign_names(read(text, "config.yaml")):
            _write(_note_of(run_dir, text.encode()), run_dir)


def foreign_names(document: Document) -> list[tuple[str, str]]:
    """Keys and names of code that is neither ours nor of an environment library."""
    found = [*_programs(document.values)]
    found += [(path, name) for path, name in _names(document.values) if not _is_known(name)]
    return [
        (".".join(map(str, path)), name)
        for path, name in found
        if not document.place(path).assigned
    ]


def _programs(values: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Programs that the environment starts, and machines to which it connects."""
    for path, own in _env_options(values):
        for option in _program_options(values):
            if own.get(option) is not None:
                yield (*path, option), str(own[option])


def _program_options(values: dict[str, Any]) -> tuple[str, ...]:
    spec = values.get("env_cls")
    adapter: Any = own_adapters(spec.partition(":")[0]) if isinstance(spec, str) else ()
    return getattr(adapter[0], "programs", ()) if adapter else ()


def without_programs(values: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments, but for the programs that it starts and their machines."""
    options = _program_options(values)
    return {x: value for x, value in (values.get("env_kwargs") or {}).items() if x not in options}


def _env_options(values: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Options of the environment, and where they stand: also under an inner `env_kwargs`."""
    for key in ("env_kwargs", "eval_env_kwargs"):
        path: KeyPath = (key,)
        own = values.get(key)
        while isinstance(own, dict):
            yield path, own
            path, own = (*path, "env_kwargs"), own.get("env_kwargs")


def _names(values: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Every name of code in a configuration, and where a tracker is sent to."""
    for path, own in _env_options(values):
        for i, wrapper, _ in _entries(own.get("wrappers")):
            if "." in wrapper or ":" in wrapper:
                yield (*path, "wrappers", i), wrapper.replace(":", ".")
    inner = values.get("algorithm_config")
    for key, value in (*values.items(), *(inner.items() if isinstance(inner, dict) else ())):
        if isinstance(value, str) and (key.endswith("_cls") or key == "objective"):
            if name := _module_of_spec(value) if ":" in value else is_dotted(value) and value:
                yield (key,), name
        elif isinstance(value, str) and key in FUNCTIONS:
            if is_dotted(value):
                yield (key,), value
        elif key == "symmetry" and isinstance(value, dict):
            for part, name in value.items():
                if isinstance(name, str) and is_dotted(name):
                    yield (key, part), name
        elif key in ("callbacks", "bonuses"):
            for i, name, options in _entries(value):
                if "." in name:
                    yield (key, i), name
                for option, inner_value in options.items():
                    if option.endswith("_cls") and isinstance(inner_value, str):
                        yield (key, i, name, option), inner_value
        elif key == "loggers":
            for i, name, options in _entries(value):
                if "." in name:
                    yield (key, i), name
                elif options:
                    yield (key, i), f"{name} {options}"


def _entries(value: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Place, name and options of the entries of a list."""
    for i, entry in enumerate(value if isinstance(value, list) else [value]):
        named = entry if isinstance(entry, dict) else {entry: None}
        for name, options in named.items():
            if isinstance(name, str):
                yield i, name, options if isinstance(options, dict) else {}


def _is_known(name: str) -> bool:
    """Whether a name is of a library that needs no question, and not of a file with its name."""
    root = name.partition(".")[0]
    if root not in _KNOWN and not any(root in getattr(x, "libraries", ()) for x in own_adapters()):
        return False
    return origin_of(root) != "own" or importlib.util.find_spec(root) is None


def _module_of_spec(spec: str) -> str:
    """The module that a spec such as `gymnasium:my_module:Lake-v0` imports; empty without one."""
    prefix, _, name = spec.partition(":")
    adapter: Any = own_adapters(prefix)
    if adapter and hasattr(adapter[0], "module_of"):
        return str(adapter[0].module_of(name))
    return name.replace(":", ".") if ":" in name else ""


def _note_of(run_dir: Path, content: bytes) -> Path:
    """The note on a run's configuration, in the user's state folder."""
    if (chosen := os.environ.get("LOCALAPPDATA")) and os.name == "nt":
        root = Path(chosen)
    else:
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = os.path.realpath(run_dir).encode(errors="surrogateescape")
    return root / "everstep" / "trusted" / hashlib.sha256(path + b"\0" + content).hexdigest()


def _write(note: Path, run_dir: Path) -> None:
    with contextlib.suppress(OSError):  # without a note, the user is asked again
        note.parent.mkdir(parents=True, exist_ok=True)
        write_file(note, os.fsencode(os.path.realpath(run_dir)) + b"\n")
