"""What a configuration file says, where it says it, and how its problems are told."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..validation import Problem

#: Names and indices that lead to a value.
KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """Where a value was written: problems are listed in the order of their places."""

    #: Line of the file; what the command line says comes behind it.
    rank: int

    #: `train.yaml:12` or `command line`.
    label: str


#: Where overrides come from.
COMMAND_LINE = Place(sys.maxsize, "command line")


@dataclass(frozen=True)
class Document:
    """What a configuration file says, and where it says it."""

    #: The file, as the caller wrote its path.
    name: str

    #: The file's keys and values.
    values: dict[str, Any]

    #: Where each key and each element of a list was written.
    places: dict[KeyPath, Place] = field(default_factory=dict)

    #: What is wrong with the file itself, whatever its keys may mean: duplicate keys, NaN.
    problems: tuple[tuple[Place, Problem], ...] = ()

    def place(self, path: KeyPath) -> Place:
        """Where `path` was written, or else the nearest value around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(0, self.name))

    def check(self, problems: Sequence[Problem] = ()) -> None:
        """Raise where anything is wrong with the file or, as `problems` say, with its values.

        Raises:
            ConfigError: Lists every problem as `train.yaml:12: gama: unknown key`, by line.

        """
        found = [(self.place(problem.path), problem) for problem in problems]
        told = {(place, problem.path) for place, problem in found}
        found += [(place, own) for place, own in self.problems if (place, own.path) not in told]
        if found:
            found.sort(key=lambda located: located[0].rank)
            raise ConfigError([f"{place.label}: {problem}" for place, problem in found])

    def hoist(self, name: str, keys: Sequence[str]) -> "Document":
        """A copy with `keys` of the mapping under `name` moved to the top, if it is a mapping.

        A key that is there already becomes one of the copy's problems.
        """
        inner = self.values.get(name)
        if not isinstance(inner, dict):
            return self
        moved = {key: value for key, value in inner.items() if key in keys}
        twice = [
            (
                self.place((name, key)),
                Problem((name, key), f"given twice; also at {self.place((key,)).label}"),
            )
            for key in moved
            if key in self.values
        ]
        rest = {key: value for key, value in inner.items() if key not in moved}
        places = {_hoisted(path, name, moved): place for path, place in self.places.items()}
        places |= {path: place for path, place in self.places.items() if path[0] in self.values}
        values = {**moved, **self.values, name: rest}
        problems = [
            (place, Problem(_hoisted(problem.path, name, moved), problem.message))
            for place, problem in self.problems
        ]
        return Document(self.name, values, places, (*problems, *twice))


def _hoisted(path: KeyPath, name: str, moved: Mapping[str, Any]) -> KeyPath:
    return path[1:] if len(path) > 1 and path[0] == name and path[1] in moved else path
