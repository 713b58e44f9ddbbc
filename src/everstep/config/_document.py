"""Documents: the values of a configuration file, their places, and its problems.

PyYAML gives each node its line, and MLflow depends on it anyway. ruamel.yaml would also keep
comments, but a file that was read is never written back.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.validation import Problem
from ..errors import ConfigError

#: Names and indices that lead to a value.
KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """Place of a value; problems are listed in the order of their places."""

    #: Line of the file; the command line comes last.
    rank: int

    #: `train.yaml:12` or `command line: gamma=2`.
    label: str

    #: Key that an assignment of the command line sets; empty for places of a file.
    assigned: KeyPath = ()

    def describe(self, problem: Problem) -> str:
        """The place and the problem; the key is named once."""
        is_named = problem.path and problem.path == self.assigned[: len(problem.path)]
        return f"{self.label}: {problem.message if is_named else problem}"


#: Place of overrides.
COMMAND_LINE = Place(sys.maxsize, "command line")


@dataclass(frozen=True)
class Document:
    """Values of a configuration file, and their places."""

    #: The file, as the caller wrote its path.
    name: str

    #: The file's keys and values.
    values: dict[str, Any]

    #: Place of each key and of each element of a list.
    places: dict[KeyPath, Place] = field(default_factory=dict)

    #: Problems of the file itself, independent of its keys' meaning: duplicate keys, NaN.
    problems: tuple[tuple[Place, Problem], ...] = ()

    def place(self, path: KeyPath) -> Place:
        """Place of `path`, or else of the nearest value around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(0, self.name))

    def check(self, problems: Sequence[Problem] = ()) -> None:
        """Raise if the file has problems, or if `problems` of its values are given.

        Raises:
            ConfigError: Lists every problem as `train.yaml:12: gama: unknown key`, by line.

        """
        located = [(self._blame(problem), problem) for problem in problems]
        known = {(place, problem.path) for place, problem in located}
        located += [(place, own) for place, own in self.problems if (place, own.path) not in known]
        if located:
            located.sort(key=lambda pair: pair[0].rank)
            raise ConfigError([place.describe(problem) for place, problem in located])

    def _blame(self, problem: Problem) -> Place:
        """Place of a problem: the assignment that set the value which the message names, if any.

        For example, a problem of `optimizer_config` as a whole may be about its `lr` alone.
        """
        place = self.place(problem.path)
        if place.assigned or not problem.path:
            return place
        names = set(re.findall(r"\w+", problem.message))
        assigned = [other for other in self.places.values() if other.assigned]
        inside = [x for x in assigned if x.assigned[: len(problem.path)] == problem.path]
        named = [x for x in assigned if x.assigned[-1] in names]
        if problem.path not in self.places:  # the file does not have it: a default, or an override
            return (inside + named + [place])[0]
        return next((x for x in named if x in inside), place)

    def hoist(self, name: str, keys: Sequence[str]) -> "Document":
        """A copy with `keys` of the mapping under `name` moved to the top level.

        A key that the top level has already becomes one of the copy's problems.
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
