"""Dotted names of Python objects in files, whose code they are, and what may be imported.

A file may come from somebody else, so a name in it is imported only if it can be what its key
takes: nothing of Python's standard library, and a class or a function of the `Kind` that the key
declares. That is decided before anything is called. See `docs/reference/security.md`.
"""

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from types import ModuleType
from typing import Any, Literal

from ..errors import ConfigError
from .validation import unknown_name

#: Whose code a module is: Python's, of a library that is installed, or the user's own.
Origin = Literal["standard", "installed", "own"]

#: Folders of installed libraries. An editable installation is elsewhere: it is the user's own.
_INSTALLED = {"site-packages", "dist-packages"}

_NOT_OF_PYTHON = (
    "a file cannot name what is in Python's standard library: it makes no environments, models or "
    "callbacks; got {!r}"
)


def dotted_name(value: Any) -> str:
    """`package.module.Name` of a class or function, which `import_name` imports."""
    return f"{value.__module__}.{value.__qualname__}"


def origin_of(module: str) -> Origin:
    """Whose code a module is, by where it lies. Imports nothing."""
    first = module.partition(".")[0]
    if first in sys.stdlib_module_names:
        return "standard"
    if first in ("everstep", "everstep_adapters", "everstep_lab"):
        return "installed"
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):  # `__main__` has no spec
        return "own"
    if spec is None:
        return "own"
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    parts = {part for place in places if place for part in PurePath(place).parts}
    return "installed" if parts & _INSTALLED else "own"


def check_module(name: str) -> None:
    """Refuse to import a module that no file has a reason to name. Imports nothing.

    Raises:
        ConfigError: If it is one of Python's, or a program, such as `pip.__main__`.

    """
    first, *rest = name.split(".")
    if first in sys.stdlib_module_names:
        raise ConfigError(_NOT_OF_PYTHON.format(name))
    if any(part.startswith("__") for part in rest):
        raise ConfigError(f"a file cannot name what begins with two underscores; got {name!r}")


@dataclass(frozen=True)
class Kind:
    """Kind of object that a key of a file takes by its dotted name."""

    #: Description for error messages, such as "a subclass of torch.optim.Optimizer".
    expected: str

    #: Whether a class is one.
    fits: Callable[[type], bool]

    #: Whether functions are, too: those of the user's own modules, and those of a library whose
    #: annotation says that they return one.
    functions: bool = False

    #: Whether any class of the user's own modules is one that `fits` its origin's rule.
    own_classes: Callable[[type], bool] = lambda cls: False

    def check(self, found: Any, name: str) -> Any:
        """`found`, which was imported by this name.

        Raises:
            ConfigError: If it is of another kind.

        """
        module = getattr(found, "__module__", None) if hasattr(found, "__qualname__") else None
        origin = origin_of(module if isinstance(module, str) else name)
        if isinstance(found, type):
            is_own = origin == "own" and self.own_classes(found)
            if origin != "standard" and (self.fits(found) or is_own):
                return found
        elif self.functions and callable(found):
            if origin == "own" or (origin == "installed" and self._is_made_by(found)):
                return found
        elif origin == "own" and self.functions and hasattr(found, "step"):
            return found  # an environment that a module made
        whose = {
            "standard": ", of Python's standard library",
            "installed": f", of the library {str(module or name).partition('.')[0]}",
            "own": "",
        }[origin]
        raise ConfigError(f"expected {self.expected}; got {name}{whose}")

    def _is_made_by(self, function: Any) -> bool:
        """Whether a function's annotation says that it returns an object of this kind."""
        try:
            made = typing.get_type_hints(function).get("return")
        except Exception:  # an annotation that cannot be evaluated
            return False
        made = typing.get_origin(made) or made
        return isinstance(made, type) and inspect.isroutine(function) and self.fits(made)


def import_kind(name: Any, kind: Kind) -> Any:
    """The object of a kind at a dotted path. It is not called.

    Raises:
        ConfigError: If it cannot be imported, or is of another kind.

    """
    if not isinstance(name, str):
        raise ConfigError(f"expected a dotted path such as my_package.envs.MyEnv; got {name!r}")
    return kind.check(import_name(name), name)


def import_name(name: str) -> Any:
    """The object at a dotted path such as `my_package.envs.MyEnv`; its modules are imported.

    Modules are installed packages, or on `sys.path`.

    Raises:
        ConfigError: Names the part that was not found and the nearest name, or the import's error;
            or says that a file cannot name it, before it is imported.

    """
    first, *rest = name.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        raise ConfigError(f"expected a dotted path such as my_package.envs.MyEnv; got {name!r}")
    check_module(name)
    found: Any = _import_module(first)
    if found is None:
        modules = {m.name for m in pkgutil.iter_modules()}
        near = difflib.get_close_matches(first, modules, n=1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else "is it installed, in the current directory, or on PYTHONPATH?"
        )
        raise ConfigError(f"no module named {first!r} ({hint})")
    reached = first
    for part in rest:
        found = _member(found, reached, part)
        reached = f"{reached}.{part}"
    return found


def _member(owner: Any, reached: str, part: str) -> Any:
    if not isinstance(owner, ModuleType | type):
        raise ConfigError(f"{reached!r} is neither a module nor a class, so it has no {part!r}")
    try:
        return getattr(owner, part)
    except AttributeError:
        pass
    except Exception as error:  # a module may import its names lazily
        raise _failed(f"{reached}.{part}", error) from error
    module = _import_module(f"{reached}.{part}") if hasattr(owner, "__path__") else None
    if module is None:
        if reached == "__main__":
            raise ConfigError(
                f"{part!r} was defined in a script that was run: override this key on the command "
                f"line with my_script.{part}, where my_script.py is that script; what it runs "
                "belongs under `if __name__ == '__main__':`"
            )
        kind = "module" if isinstance(owner, ModuleType) else "class"
        modules = [m.name for m in pkgutil.iter_modules(getattr(owner, "__path__", []))]
        hint = unknown_name("", part, dir(owner) + modules).removeprefix("unknown ")
        place = ""
        if isinstance(owner, ModuleType) and origin_of(reached) == "installed":
            place = f"; {reached} is the installed {_place_of(owner)}, before a module of your own"
        raise ConfigError(f"the {kind} {reached!r} has no {part!r}{hint}{place}")
    return module


def _place_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or module.__name__)


def _import_module(name: str) -> ModuleType | None:
    """The module; None if there is none of that name."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing a module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> ConfigError:
    return ConfigError(f"importing {name!r} failed: {type(error).__name__}: {error}")
