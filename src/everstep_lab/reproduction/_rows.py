"""Rows of the page of results: the trainings of one recipe on one side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..recipes import Recipe
from ._jobs import OURS, Results
from ._statistics import Summary, margin_of, summarize, verdict


@dataclass(frozen=True)
class Row:
    """The trainings of one recipe on one side."""

    #: The recipe.
    recipe: Recipe

    #: `everstep` or a peer.
    side: str

    #: Lines that have a result.
    lines: tuple[dict[str, Any], ...]

    #: Errors of the others.
    errors: tuple[str, ...]

    @property
    def is_current(self) -> bool:
        """Whether the recipe's keys are those that were trained."""
        return all(line["digest"] == self.recipe.digest for line in self.lines)

    @property
    def scores(self) -> list[float]:
        """The score of each training."""
        return [score_of(line, self.recipe) for line in self.lines]

    @property
    def summary(self) -> Summary:
        """Statistics of the scores."""
        return summarize(self.scores)

    @property
    def verdict(self) -> str:
        """The verdict beside the published result; empty without one."""
        published = self.recipe.header.published
        if published is None:
            return ""
        margin = margin_of(published.mean, published.std, self.first)
        return verdict(self.summary, published.mean, margin)

    @property
    def first(self) -> float:
        """Mean of the trainings' first returns."""
        return math.fsum(line["curve"]["return"][0] for line in self.lines) / len(self.lines)

    @property
    def minutes(self) -> float:
        """Mean processor time of a training, in minutes."""
        return float(sum(x["processor_seconds"] for x in self.lines) / len(self.lines) / 60)

    @property
    def seconds(self) -> dict[str, float]:
        """Mean processor time of a training in seconds, by processor."""
        found: dict[str, list[float]] = {}
        for line in self.lines:
            found.setdefault(line["machine"]["cpu"], []).append(line["processor_seconds"])
        return {cpu: sum(times) / len(times) for cpu, times in found.items()}


def score_of(line: dict[str, Any], recipe: Recipe) -> float:
    """The return that the recipe compares."""
    found = line["training"] if recipe.header.score == "training" else line["evaluation"]["mean"]
    return float(found)


def times_as_long(row: Row, own: Row) -> None | float:
    """Processor time of a training of `row` over that of `own`; None without a common processor.

    The times of one processor are not those of another: the mean of the ratios on each that both
    sides were trained on.
    """
    theirs, ours = row.seconds, own.seconds
    common = sorted(cpu for cpu in theirs.keys() & ours if ours[cpu])  # 0.0: it took no time
    ratios = [theirs[cpu] / ours[cpu] for cpu in common]
    return sum(ratios) / len(ratios) if ratios else None


def rows_of(results: Results, recipes: Sequence[Recipe]) -> list[Row]:
    """Rows of the recipes, ours first; those without a line are left out.

    A recipe that has no line of its present keys has those of the keys that were trained last.
    """
    rows = []
    by_name: dict[str, list[dict[str, Any]]] = {}
    for line in results.lines:
        by_name.setdefault(line["recipe"], []).append(line)
    for recipe in recipes:
        own = by_name.get(recipe.name, [])
        digests = {x["digest"] for x in own}
        digest = recipe.digest if recipe.digest in digests else _latest(own)
        lines = [x for x in own if x["digest"] == digest]
        shown = _as_trained(recipe, lines)
        for side in sorted({x["side"] for x in lines}, key=lambda side: (side != OURS, side)):
            mine = [x for x in lines if x["side"] == side]
            done = sorted((x for x in mine if "error" not in x), key=lambda x: x["seed"])
            errors = tuple(f"seed {x['seed']}: {x['error']}" for x in mine if "error" in x)
            rows.append(Row(shown, side, tuple(done), errors))
    return rows


def _as_trained(recipe: Recipe, lines: Sequence[dict[str, Any]]) -> Recipe:
    """The recipe, with the lines' number of env steps if nothing else differs."""
    if not lines or lines[-1]["digest"] == recipe.digest:
        return recipe
    other = recipe.with_env_steps(lines[-1].get("total_env_steps", recipe.env_steps))
    return other if other.digest == lines[-1]["digest"] else recipe


def _latest(lines: Sequence[dict[str, Any]]) -> str:
    return str(lines[-1]["digest"]) if lines else ""


def families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows with results, by family."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.lines:
            found.setdefault(row.recipe.family, []).append(row)
    return found


def normalized(row: Row) -> list[float]:
    """Scores of a row: 0 is the mean first return of training, 1 the published mean."""
    published = row.recipe.header.published
    if published is None or not row.lines:
        return []
    zero = row.first
    if published.mean <= zero:
        return []
    return [(score - zero) / (published.mean - zero) for score in row.scores]
