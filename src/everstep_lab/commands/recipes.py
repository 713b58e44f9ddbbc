"""`everstep recipes`: list the recipes of the package, or print one."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from everstep.errors import ConfigError

if TYPE_CHECKING:
    from ..recipes import Recipe

HELP = "list training files with published results"
DESCRIPTION = (
    "List training files that come with the package, with published results and ours, or print "
    "one: everstep recipes show mujoco/Hopper-v4 > mine.yaml. To train: "
    "everstep train recipe:mujoco/Hopper-v4"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "everstep recipes [NAME ...] [--json]\n       everstep recipes show NAME"
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a recipe, a family such as mujoco, or a pattern such as '*/Hopper*' (default: all); "
        "after `show`, the recipe whose file is printed",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the list or a file; the exit code is 0.

    Raises:
        ConfigError: If there is no such recipe.

    """
    from everstep.config import recipe_path

    from ..recipes import find_recipes, own_results

    names = arguments.names
    if names[:1] == ["show"]:
        if len(names) != 2:
            raise ConfigError(
                f"command line: `show` prints one recipe; got {len(names) - 1}. Name one: everstep "
                "recipes show classic/CartPole-v1"
            )
        sys.stdout.write(recipe_path(names[1]).read_text(encoding="utf-8"))
        return 0
    recipes = find_recipes(names or ["all"])
    rows = [_row(recipe, own_results().get(recipe.name)) for recipe in recipes]
    print(json.dumps(rows, indent=2) if arguments.json else _table(rows))
    return 0


def _row(recipe: "Recipe", ours: Any) -> dict[str, Any]:
    header = recipe.header
    published = header.published
    return {
        "recipe": recipe.name,
        "task": header.task,
        "source": header.source,
        "env_steps": recipe.env_steps,
        "published": None if published is None else [published.mean, published.std],
        "ours": None if ours is None else [ours["mean"], ours["std"]],
        "seeds": 0 if ours is None else ours["seeds"],
        "not_run": header.not_run,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    """Columns as wide as their longest text."""
    heads = ("recipe", "task", "source", "env steps", "published", "ours")
    texts = [
        (
            *(row["recipe"], row["task"], row["source"], f"{row['env_steps']:,}"),
            spread(row["published"]),
            row["not_run"] if row["ours"] is None and row["not_run"] else spread(row["ours"]),
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [heads, *texts]) for i in range(len(heads))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in [heads, *texts]
    ]
    return "\n".join(lines)


def spread(pair: None | list[float]) -> str:
    """Mean and standard deviation as text, such as `2,383 ± 272`; `-` for none."""
    if pair is None:
        return "-"
    mean, std = pair
    form = ",.0f" if abs(mean) >= 1000 else ".1f" if abs(mean) >= 10 else ".3f"
    return format(mean, form) + ("" if std is None else f" ± {format(std, form)}")
