"""Dotted names of Python objects in configuration files."""

import difflib
import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

from ..errors import ConfigError
from ..validation import unknown_name


def dotted_name(value: Any) -> str:
    """`package.module.Name` of a class or function, which `import_name` imports."""
    return f"{value.__module__}.{value.__qualname__}"


def import_name(name: str) -> Any:
    """The object at a dotted path such as `my_package.envs.MyEnv`; its modules are imported.

    Modules are installed packages, or on `sys.path`.

    Raises:
        ConfigError: Names the part that was not found and the nearest name, or the import's error.

    """
    first, *rest = name.split(".")
    if not rest or not all(part.isidentifier() for part in (first, *rest)):
        raise ConfigError(f"expected a dotted path such as my_package.envs.MyEnv; got {name!r}")
    found: Any = _import_module(first)
    if found is None:
        modules = {*sys.stdlib_module_names, *(m.name for m in pkgutil.iter_modules())}
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
        raise ConfigError(f"the {kind} {reached!r} has no {part!r}{hint}")
    return module


def _import_module(name: str) -> ModuleType | None:
    """The module; None if there is none of that name."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing a module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"importing {name!r} failed: {type(error).__name__}: {error}")
