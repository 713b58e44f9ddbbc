"""Runs from elsewhere: whose code their configuration names, and whether the user trusts it.

Playing a run, or going on with it, imports the modules that its `config.yaml` names. Those of
Everstep and of the environment libraries need no question. Other names do, once, unless the run was
trained here: trainers note each `config.yaml` that they write in a folder of the user's, outside of
all runs, by the run's path and the file's content. A run that was downloaded, moved or edited has
no note.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..config import Document, KeyPath, read
from ..errors import ConfigError
from ..files import write_file
from ..plain_files import read_plain
from ._config_checks import is_dotted

#: Modules whose classes need no question: Everstep's, and those of environment libraries.
_KNOWN = frozenset(
    [
        "everstep",
        "everstep_adapters",
        "everstep_lab",
        "torch",
        "torchrl",
        "gymnasium",
        "gymnasium_robotics",
        "minigrid",
        "ale_py",
        "envpool",
        "dm_control",
        "pettingzoo",
        "supersuit",
        "isaacgymenvs",
        "gymnax",
        "craftax",
        "brax",
        "mujoco_playground",
        "jumanji",
    ]
)

#: Packages of PettingZoo, which its names leave out.
_PETTINGZOO = {"atari", "butterfly", "classic", "mpe", "sisl"}


def check_trust(run_dir: Path, document: Document, *, trust: bool) -> None:
    """Ask once before code that a run from elsewhere names is imported.

    Args:
        run_dir: The run's directory.
        document: Those values of its configuration that are used; what the command line assigned
            is the user's own word.
        trust: Whether the user has said yes; that is noted.

    Raises:
        ConfigError: Lists the names, if nobody has.

    """
    names = foreign_names(document)
    note = _note_of(run_dir, read_plain(run_dir / "config.yaml", within=run_dir))
    if not names or note.exists():
        return
    if not trust:
        listed = [f"  {key}: {name}" for key, name in names]
        raise ConfigError(
            [
                f"{run_dir}: its config.yaml was not written here (or the run was moved, or the "
                "file edited), and names code that is neither Everstep's nor an environment "
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
    return [
        (".".join(map(str, path)), name)
        for path, name in _names(document.values)
        if name.partition(".")[0] not in _KNOWN and not document.place(path).assigned
    ]


def _names(values: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Every name of code in a configuration, and where a tracker is sent to."""
    inner = values.get("algorithm_config")
    for key, value in (*values.items(), *(inner.items() if isinstance(inner, dict) else ())):
        if isinstance(value, str) and (key.endswith("_cls") or key == "objective"):
            if name := _module_of_spec(value) if ":" in value else is_dotted(value) and value:
                yield (key,), name
        elif key in ("env_kwargs", "eval_env_kwargs") and isinstance(value, dict):
            for i, name, _ in _entries(value.get("wrappers")):
                if "." in name or ":" in name:
                    yield (key, "wrappers", i), name.replace(":", ".")
        elif key in ("callbacks", "bonuses"):
            for i, name, options in _entries(value):
                if "." in name:
                    yield (key, i), name
                for option, inner_value in options.items():
                    if option.endswith("_cls") and isinstance(inner_value, str):
                        yield (key, i, name, option), inner_value
        elif key == "loggers":
            for i, name, options in _entries(value):
                if options:
                    yield (key, i), f"{name} {options}"


def _entries(value: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Place, name and options of the entries of a list."""
    for i, entry in enumerate(value if isinstance(value, list) else [value]):
        named = entry if isinstance(entry, dict) else {entry: None}
        for name, options in named.items():
            if isinstance(name, str):
                yield i, name, options if isinstance(options, dict) else {}


def _module_of_spec(spec: str) -> str:
    """The module that a spec such as `gymnasium:my_module:Lake-v0` imports; empty without one."""
    prefix, _, name = spec.partition(":")
    module = re.match(r"(\w+)(?:[.:]|$)", name)
    if module is None or (prefix == "pettingzoo" and module[1] in _PETTINGZOO):
        return ""
    imports = ":" in name or prefix == "pettingzoo" or (prefix == "torchrl" and "." in name)
    return name.replace(":", ".") if imports else ""


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
