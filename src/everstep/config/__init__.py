"""Configuration files: one loader for YAML and JSON that records the line of every key.

YAML is read by the rules of YAML 1.2: `3e-4` is a number, `yes` and `off` are strings. JSON is read
by the same code. Reading a file imports nothing and calls nothing: names in it stay strings, which
`everstep.core.names` turns into objects when something is built.
"""

from ..core.names import dotted_name, import_name
from ._document import COMMAND_LINE, Document, KeyPath, Place
from ._loader import MAX_DEPTH, MAX_VALUES, load, read
from ._overrides import apply_overrides
from ._recipes import PREFIX, recipe_names, recipe_path
from ._writer import dump, holds, plain

__all__ = [
    "COMMAND_LINE",
    "MAX_DEPTH",
    "MAX_VALUES",
    "PREFIX",
    "Document",
    "KeyPath",
    "Place",
    "apply_overrides",
    "dotted_name",
    "dump",
    "holds",
    "import_name",
    "load",
    "plain",
    "read",
    "recipe_names",
    "recipe_path",
]
