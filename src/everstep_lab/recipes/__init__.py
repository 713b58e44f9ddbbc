"""Recipes: training files that come with the package, and what was published of their tasks.

A recipe is a file that `everstep train` takes, with a header under the key `recipe`. Those of the
package are found by name, `family/name`; files of one's own are recipes, too. Environments that
recipes need and no library has are in `envs`, which is imported by those recipes only.
"""

from ._recipes import Header, Published, Recipe, find_recipes, own_results, read_recipe

__all__ = ["Header", "Published", "Recipe", "find_recipes", "own_results", "read_recipe"]
