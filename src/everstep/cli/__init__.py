"""Commands of the `everstep` program, one module each.

A command's module has the texts `HELP` and `DESCRIPTION`, `add_arguments(parser)`, which declares
its arguments, and `run(arguments)`, which returns the exit code; one that only reads files also has
`READS = True`, and finds no modules in the current directory. `everstep --help` imports every
module, so slow imports (PyTorch, pydantic, MLflow, rich) are made by the functions that need them.
Other packages add commands by entry points of the group `everstep.commands`: a name, and a module.
The parser is argparse: Click brings the same commands with a dependency more, and takes neither the
assignments `key=value` of any key nor messages of ours without as much code again.
"""

import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

#: The entry-point group of other packages' commands.
GROUP = "everstep.commands"

#: The order of `everstep --help`; others come after these.
ORDER = tuple(
    "train resume init recipes reproduce tune eval watch plot compare video play report export "  # noqa: SIM905
    "publish check bench doctor".split()
)


def own_commands() -> set[str]:
    """Names of the commands of this package: its modules."""
    return {x.name for x in pkgutil.iter_modules(__path__) if not x.name.startswith("_")}


def commands() -> list[str]:
    """Names of all commands, in the order of `everstep --help`."""
    names = own_commands() | set(_added())
    return [x for x in ORDER if x in names] + sorted(names - set(ORDER))


def load_command(name: str) -> ModuleType:
    """The module of a command; one of this package goes before another's of its name."""
    if name in own_commands():
        return importlib.import_module(f".{name}", __package__)
    module: ModuleType = _added()[name].load()
    return module


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
