"""Recipes and their headers."""

import hashlib
import json
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal

from everstep.config import PREFIX, Document, load, recipe_names, recipe_path
from everstep.core.validation import STRICT, InvalidError, PositiveInt, Problem, validate
from everstep.errors import ConfigError

#: Key of a file that holds the header.
HEADER = "recipe"

#: Folder of the recipes' files.
RECIPES = Path(__file__).parent

#: Results of the recipes of the package; `everstep reproduce --report` writes it.
RESULTS = RECIPES / "results.json"

#: The page of results in the repository.
OWN_PAGE = RECIPES.parents[2] / "docs" / "results.md"


@dataclass(kw_only=True)
class Published:
    """A published result."""

    __pydantic_config__: ClassVar[Any] = STRICT

    mean: float
    """Mean return."""

    std: None | float = None
    """Standard deviation; `of` says over what."""

    of: str
    """How it was measured."""

    env_steps: PositiveInt
    """Env steps of the training."""

    source: str
    """Who published it."""

    link: str
    """Where."""


@dataclass(kw_only=True)
class Header:
    """The header of a recipe, under the key `recipe`."""

    __pydantic_config__: ClassVar[Any] = STRICT

    task: str
    """Environment, with the library that it is of."""

    source: str
    """Where the settings come from."""

    link: None | str = None
    """Address of the source."""

    score: Literal["training", "evaluation"] = "evaluation"
    """Return that is compared: of the last 100 episodes of training, or of 20 episodes of an
    evaluation with deterministic actions."""

    published: None | Published = None
    """Published result; None if there is none."""

    differs: None | str = None
    """Differences from the source."""

    not_run: None | str = None
    """Why the recipe has not been run; None if it can be."""


@dataclass(frozen=True)
class Recipe:
    """A recipe: its header, and the keys of its training file."""

    #: `family/name`; of a file outside the package its folder and its name.
    name: str

    #: What `everstep train -f` takes.
    file: str

    #: The header.
    header: Header

    #: Keys of the file, without the header.
    values: dict[str, Any]

    #: Env steps that replace those of the file; None if they are the file's.
    other_env_steps: None | int = None

    def with_env_steps(self, env_steps: int) -> "Recipe":
        """The recipe with another number of env steps; itself if it is the recipe's."""
        if env_steps == self.env_steps:
            return self
        values = self.values | {"total_env_steps": env_steps}
        return replace(self, values=values, other_env_steps=env_steps)

    @property
    def family(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]

    @property
    def env_steps(self) -> int:
        """Env steps of a training; 0 if the file has no such limit."""
        return int(self.values.get("total_env_steps") or 0)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits, which change with the keys and not with the header."""
        text = json.dumps(self.values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_recipe(name: str) -> Recipe:
    """The recipe of a name, with or without `recipe:`, or of a file.

    Raises:
        ConfigError: If there is none, or its header breaks a rule.

    """
    if name.endswith((".yaml", ".yml", ".json")):
        path = Path(name).absolute()
        file, name = name, f"{path.parent.name}/{path.stem}"
    else:
        name = name.removeprefix(PREFIX)
        recipe_path(name)
        file = f"{PREFIX}{name}"
    document = load(file)
    header = _header(document)
    values = {key: value for key, value in document.values.items() if key != HEADER}
    return Recipe(name, file, header, values)


def _header(document: Document) -> Header:
    given = document.values.get(HEADER)
    if not isinstance(given, dict):
        env = document.values.get("env_cls", "an environment")
        place = document.place((HEADER,)).label
        raise ConfigError(
            f"{place}: {HEADER}: a recipe needs a header. Add, for example, "
            f"`{HEADER}: {{task: {env}, source: our settings}}`."
        )
    published = given.get("published")
    problems: list[Problem] = []
    if isinstance(published, dict):
        published = _checked(Published, published, (HEADER, "published"), problems)
    header = _checked(Header, {**given, "published": published}, (HEADER,), problems)
    document.check(problems)
    assert isinstance(header, Header)
    return header


def _checked(
    cls: type[Any], values: dict[str, Any], path: tuple[str, ...], problems: list[Problem]
) -> Any:
    """The dataclass of the values; None, and their problems, if they break rules."""
    try:
        return validate(cls, values)
    except InvalidError as error:
        problems += [Problem((*path, *p.path), p.message) for p in error.problems]
        return None


def find_recipes(names: list[str], only: None | str = None) -> list[Recipe]:
    """Recipes by their names, by families, by patterns, by files, or all of a folder.

    Args:
        names: Such as `classic`, `classic/CartPole-v1`, `mujoco*/Hopper*`, `all`, `mine/`,
            `mine/lake.yaml`.
        only: Pattern that names must match, with `*` for anything.

    Raises:
        ConfigError: If one of them has no recipe.

    """
    known = recipe_names()
    found: list[Recipe] = []
    for name in names:
        bare = name.removeprefix(PREFIX)
        matching = [x for x in known if _matches(x, bare)]
        if matching:
            found += map(read_recipe, matching)
        elif Path(name).is_dir():
            files = [f for f in sorted(Path(name).iterdir()) if f.suffix in (".yaml", ".yml")]
            if not files:
                raise ConfigError(f"{name}: no .yaml file in it, so no recipe.")
            found += [read_recipe(str(file)) for file in files]
        else:
            found.append(read_recipe(name))
    by_name = {recipe.name: recipe for recipe in found}
    chosen = [r for r in by_name.values() if only is None or _matches(r.name, only)]
    if not chosen:
        raise ConfigError(
            f"--only {only}: matches none of {', '.join(r.name for r in found)}. With *: "
            f"--only '*{found[0].name.partition('/')[2][:4]}*'"
        )
    return chosen


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern is a recipe's name, its part after the slash, its family, or `all`."""
    parts = (name, *name.split("/", 1))
    return pattern == "all" or any(fnmatchcase(part, pattern) for part in parts)


def own_results() -> dict[str, Any]:
    """Our results by recipe, as `everstep reproduce --report` found them."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found
