"""Files of recipes, which come with the package and have names such as `mujoco/Hopper-v4`."""

from pathlib import Path

from ..errors import ConfigError
from ..validation import unknown_name

#: Folder of the recipes' files.
RECIPES = Path(__file__).parents[1] / "recipes"

#: Prefix of a recipe's name where a file is expected.
PREFIX = "recipe:"


def recipe_names() -> list[str]:
    """Names of all recipes, sorted."""
    files = RECIPES.glob("*/*.yaml")
    return sorted(f"{file.parent.name}/{file.stem}" for file in files)


def recipe_path(name: str) -> Path:
    """The file of a recipe, by its name with or without the prefix.

    Raises:
        ConfigError: If there is none of that name; suggests another.

    """
    bare = name.removeprefix(PREFIX)
    names = recipe_names()
    if bare not in names:
        by_task = [other for other in names if other.partition("/")[2] == bare]
        near = f"did you mean {' or '.join(by_task)}?" if by_task else ""
        hint = f"unknown recipe ({near})" if near else unknown_name("recipe", bare, names)
        raise ConfigError(
            f"{PREFIX}{bare}: {hint}; `everstep recipes` lists them; "
            "one of your own is named by its file, mine/lake.yaml, or its folder, mine/"
        )
    return RECIPES / f"{bare}.yaml"
