"""Options of a class, from its signature and docstring."""

import inspect
import re
from typing import Any


def options(cls: type[Any]) -> list[tuple[str, str, str]]:
    """Name, default and meaning of each parameter that has a default.

    Raises:
        ValueError: Names parameters that the section `Args` of the docstring lacks.

    """
    _, _, text = (inspect.getdoc(cls) or "").partition("\nArgs:\n")
    arguments = re.split(r"^(?=\S)", text, maxsplit=1, flags=re.MULTILINE)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE)
    meanings = {name: " ".join(meaning.split()) for name, meaning in entries}
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is not parameter.empty
    }
    if missing := sorted(defaults.keys() - meanings.keys()):
        raise ValueError(f"{cls.__name__}: no word about {', '.join(missing)} under `Args:`.")
    return [(name, repr(default), meanings[name]) for name, default in defaults.items()]
