"""Jobs, which are trainings of recipes with a seed, and the file of their results."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from everstep.core.files import MAX_LINE, append_line
from everstep.core.plain_files import printable, read_plain
from everstep.errors import EverstepError

from ..recipes import Recipe

#: Name of our own side.
OURS = "everstep"

#: Bytes of a file of results that is read: those of some ten thousand trainings.
_MAX_FILE = 30_000_000

# What a line holds. Squares and sums of numbers beyond 1e100 would leave float64.
_Text = Annotated[str, Field(max_length=1000)]
_Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
_Numbers = Annotated[list[_Number], Field(max_length=10_000)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Key(TypedDict):
    recipe: _Text
    digest: _Text
    side: _Text
    seed: _Count


class _Failure(TypedDict):
    error: _Text


class _Evaluation(TypedDict):
    mean: _Number


class _Machine(TypedDict):
    cpu: _Text
    cores: _Count


_Curve = TypedDict(
    "_Curve",
    {
        "return": Annotated[_Numbers, Field(min_length=1)],
        "env_steps": _Numbers,
        "processor_seconds": NotRequired[_Numbers],  # not of older results
    },
)


class _Result(TypedDict):
    training: _Number
    evaluation: _Evaluation
    curve: _Curve
    processor_seconds: Annotated[_Number, Field(ge=0)]
    machine: _Machine
    versions: Annotated[dict[_Text, _Text], Field(max_length=100)]
    file: NotRequired[_Text]
    total_env_steps: NotRequired[_Count]


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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_key: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        if not path.exists():
            return
        content = read_plain(path, within=path.parent, limit=_MAX_FILE)
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            self._take(_parsed(line, f"{path}:{number}"))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The line of each training, oldest first."""
        return list(self._by_key.values())

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
        key = key_of(line)
        self._by_key.pop(key, None)  # the last line of a training stands where it was added
        self._by_key[key] = line


def key_of(line: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Identity of a line's training."""
    return line["recipe"], line["digest"], line["side"], line["seed"]


def _parsed(content: bytes, place: str) -> dict[str, Any]:
    problem = "it is too long" if len(content) > MAX_LINE else ""
    line: Any = None
    try:
        line = None if problem else json.loads(content)
    except (ValueError, RecursionError):
        problem = "it is no JSON"
    if problem := problem or problem_of(line):
        raise EverstepError(
            f"{place}: expected a result, a JSON object with recipe, digest, side and seed, and "
            "either the error or what was measured, as `everstep reproduce` writes it; "
            f"{problem}; got {printable(content[:80].decode(errors='replace'))!r}. Remove the line."
        )
    found: dict[str, Any] = line
    return found


def problem_of(line: Any) -> str:
    """The first rule of lines of results that a value breaks; empty if it breaks none."""
    kinds = (_Key, _Failure if isinstance(line, dict) and "error" in line else _Result)
    try:
        for kind in kinds:
            _checker(kind).validate_python(line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        return printable(f"{where}: {first['msg']}" if where else first["msg"])
    curve = line.get("curve", {}) if kinds[1] is _Result else {}
    lengths = {len(x) for name, x in curve.items() if name in _Curve.__annotations__}
    return "" if len(lengths) < 2 else "curve: its lists differ in length"


@cache
def _checker(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
