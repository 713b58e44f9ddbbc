"""Files of recipes, which installed packages bring and have names such as `mujoco/Hopper-v4`."""

from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from ..core.validation import unknown_name
from ..errors import ConfigError

#: The entry-point group of packages with recipes, whose files are `FAMILY/NAME.yaml` in them.
GROUP = "everstep.recipes"

#: Prefix of a recipe's name where a file is expected.
PREFIX = "recipe:"


def _files() -> dict[str, Path]:
    """Files of all recipes by their names, sorted. The package is found, and not imported."""
    files: dict[str, Path] = {}
    for package in sorted({point.module for point in entry_points(group=GROUP)}):
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in Path(folder).glob("*/*.yaml"):
                files.setdefault(f"{file.parent.name}/{file.stem}", file)
    return dict(sorted(files.items()))


def recipe_names() -> list[str]:
    """Names of all recipes, sorted."""
    return list(_files())


def recipe_path(name: str) -> Path:
    """The file of a recipe, by its name with or without the prefix.

    Raises:
        ConfigError: If there is none of that name; suggests another.

    """
    bare = name.removeprefix(PREFIX)
    files = _files()
    if bare not in files:
        by_task = [other for other in files if other.partition("/")[2] == bare]
        near = f"did you mean {' or '.join(by_task)}?" if by_task else ""
        hint = f"unknown recipe ({near})" if near else unknown_name("recipe", bare, list(files))
        raise ConfigError(
            f"{PREFIX}{bare}: {hint}; `everstep recipes` lists them; "
            "one of your own is named by its file, mine/lake.yaml, or its folder, mine/"
        )
    return files[bare]
