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

#: Name of the file in the directory of a run.
HISTORY = "history.jsonl"

_TRAIN_STEPS = "algorithm/steps"


class History:
    """The stretches of one run, in a file.

    Args:
        path: The file.

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
    """The stretches in a file; none where it is missing or damaged."""
    if not path.exists():
        return []
    found = []
    for line in read_plain(path, within=path.parent).splitlines():
        try:
            stretch = json.loads(line)
        except (ValueError, RecursionError):
            return []
        keys = {"env/steps", _TRAIN_STEPS, "by", "resumed", "restorable", "processes", "settings"}
        if not isinstance(stretch, dict) or not keys <= stretch.keys():
            return []
        if not isinstance(stretch["settings"], dict):
            return []
        found.append(stretch)
    return found
