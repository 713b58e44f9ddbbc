"""How a run was trained: its stretches, each with its budget and settings.

A stretch begins where `run` is called, a process continues the run, or the program changes
hyperparameters. `history.jsonl` has a line for each, in order; those whose train steps were lost
with a process that was killed are removed, as their lines in `metrics.jsonl` are.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.files import write_file
from ..core.plain_files import read_plain
from ..errors import ConfigError

#: Name of the file in the directory of a run.
HISTORY = "history.jsonl"

_TRAIN_STEPS = "algorithm/steps"


class History:
    """The stretches of one run, in a file.

    Args:
        path: The file.

    Raises:
        ConfigError: If it has a line that is none of ours: it would be lost.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.stretches = read_history(path)

    def begin(self, stretch: Mapping[str, Any], *, goes_on: bool) -> None:
        """Add a stretch, or let the last one go on if nothing has changed.

        Args:
            stretch: Totals where it begins, who trains, and the settings.
            goes_on: Whether training goes on as it would have done without an interruption.

        """
        begun = [x for x in self.stretches if x[_TRAIN_STEPS] < stretch[_TRAIN_STEPS]]
        same = ("by", "processes", "settings")
        last = begun[-1] if goes_on and begun else None
        if last is not None and last["by"] == stretch["by"] == "program":
            last["settings"] = stretch["settings"]  # a change in every train step is one stretch
            return
        if last is not None and all(last[key] == stretch[key] for key in same):
            last["status"] = None
        else:
            begun.append({**stretch, "status": None})
        self.stretches = begun
        self._write()

    def end(self, status: str) -> None:
        """Note how the last stretch ended; `"FINISHED"`: at a limit such as the budget."""
        if self.stretches:
            self.stretches[-1]["status"] = status
            self._write()

    def _write(self) -> None:
        lines = [json.dumps(x, allow_nan=True) for x in self.stretches]
        write_file(self._path, "".join(f"{line}\n" for line in lines))


def read_history(path: Path) -> list[dict[str, Any]]:
    """The stretches in a file; none where it is missing.

    Raises:
        ConfigError: Names the first line that is none.
        OSError: If the file cannot be read, or is not a plain one of its directory.

    """
    if not path.exists():
        return []
    lines = read_plain(path, within=path.parent).splitlines()
    return [_stretch_of(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


#: Types of what a stretch says.
_TYPES: dict[str, Any] = {
    "env/steps": int,
    _TRAIN_STEPS: int,
    "by": str,
    "resumed": bool,
    "restorable": bool,
    "processes": int,
    "settings": dict,
    "status": str | None,
}


def _stretch_of(line: bytes, where: str) -> dict[str, Any]:
    try:
        stretch = json.loads(line)
    except (ValueError, RecursionError):
        stretch = None
    wrong = [
        key
        for key, kind in _TYPES.items()
        if not isinstance(stretch, dict)
        or not isinstance(value := stretch.get(key), kind)
        or (kind is int and isinstance(value, bool))
    ]
    if wrong:
        raise ConfigError(
            f"{where}: expected one JSON object about a stretch of the training; got "
            f"{line[:80]!r}, which has no valid {wrong[0]!r}. Mend the line, or move the file "
            "away: a page then cannot say how to repeat the run."
        )
    found: dict[str, Any] = stretch
    return found
