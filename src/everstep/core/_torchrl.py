"""TorchRL is imported without its choice of a start method for the process.

Importing torchrl sets the start method of `multiprocessing` to spawn if none was chosen before:
processes that a program starts later would import its script again. TorchRL's own processes are
spawned without that, too.
"""

import multiprocessing
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Loader(Loader):
    """The loader of a package, which leaves the start method as it was."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> None | ModuleType:
        module: None | ModuleType = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        is_chosen = multiprocessing.get_start_method(allow_none=True) is not None
        try:
            self._loader.exec_module(module)
        finally:
            if not is_chosen:
                multiprocessing.set_start_method(None, force=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    """Finds torchrl, once."""

    def find_spec(
        self, fullname: str, path: None | Sequence[str], target: None | ModuleType = None
    ) -> None | ModuleSpec:
        if fullname != "torchrl":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def keep_start_method() -> None:
    """Let the first import of torchrl leave the start method as it is."""
    if "torchrl" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
