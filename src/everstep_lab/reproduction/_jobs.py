"""Jobs, which are trainings of recipes with a seed, and the file of their results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.core.files import append_line
from everstep.errors import EverstepError

from ..recipes import Recipe

#: Name of our own side.
OURS = "everstep"


@dataclass(frozen=True)
class Job:
    """One training: a recipe, a seed, and the library that trains."""

    #: The recipe.
    recipe: Recipe

    #: Seed of policy and environment.
    seed: int

    #: `everstep`, or the name of a peer.
    side: str = OURS

    #: Interpreter that has the side's packages.
    python: str = ""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Identity of the training among results."""
        return self.recipe.name, self.recipe.digest, self.side, self.seed

    def directory(self, out: Path) -> Path:
        """Directory of the training's files."""
        folder = f"{self.recipe.name}-{self.recipe.digest}"
        return out / "runs" / folder / f"{self.side}-{self.seed}"


def jobs_of(
    recipes: Sequence[Recipe],
    seeds: int,
    *,
    sides: Mapping[str, str] = {OURS: ""},
) -> list[Job]:
    """A job for each seed of each recipe on each side, the first seeds first.

    Args:
        recipes: The recipes; those that cannot be run here are left out.
        seeds: Number of seeds, which count up from 0.
        sides: Interpreters by side.

    """
    chosen = [recipe for recipe in recipes if recipe.header.not_run is None]
    return [
        Job(recipe, seed, side, python)
        for seed in range(seeds)
        for recipe in chosen
        for side, python in sides.items()
    ]


class Results:
    """The file `results.jsonl`: a line for each training that has ended.

    Lines are only ever appended: the last one of a training counts. A last line that was not
    written to its end, by a process that was killed, is left out, and removed by the next one.

    Args:
        path: The file; it is made when the first line is added.

    Raises:
        EverstepError: If a line is not a result.

    """

    #: The file.
    path: Path

    #: The line of each training, oldest first.
    lines: list[dict[str, Any]]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = []
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            self._take(_parsed(line, f"{path}:{number}"))

    def missing(self, jobs: Iterable[Job], *, retry: bool = False) -> list[Job]:
        """Jobs without a line; with `retry`, those that failed are among them."""
        there = {key_of(line) for line in self.lines if not (retry and "error" in line)}
        return [job for job in jobs if job.key not in there]

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, which is on the disk when this returns; it replaces that of a failure.

        Several processes may do that at once.
        """
        append_line(self.path, json.dumps(line))
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        self.lines = [*(x for x in self.lines if key_of(x) != key_of(line)), line]


def key_of(line: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Identity of a line's training."""
    return line["recipe"], line["digest"], line["side"], line["seed"]


def _parsed(text: str, place: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
        key_of(line)
    except (ValueError, TypeError, KeyError):
        raise EverstepError(
            f"{place}: expected a result, a JSON object with recipe, digest, side and seed; got "
            f"{text[:80]!r}. Remove the line."
        ) from None
    found: dict[str, Any] = line
    return found
