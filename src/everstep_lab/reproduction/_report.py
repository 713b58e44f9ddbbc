"""The page of results: tables and learning curves, from `results.jsonl` alone."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from everstep.config import PREFIX, recipe_names
from everstep.core.files import write_file
from everstep.core.plain_files import path_within, printable, read_plain
from everstep.errors import ConfigError, EverstepError

from ..recipes import Recipe, read_recipe
from ..recipes._recipes import OWN_PAGE, RESULTS
from ._jobs import OURS, Results
from ._pictures import draw_family, draw_profile
from ._rows import Row, families, normalized, rows_of, times_as_long
from ._statistics import (
    LEAST_SEEDS,
    Summary,
    Verdict,
    improvement,
    iqm,
    performance_profile,
    stratified_interval,
)

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

DETAILS_BEGIN, DETAILS_END = "<!-- details: begin -->", "<!-- details: end -->"

#: A page that has none of the marks above yet.
_NEW_PAGE = f"# Results\n\n{BEGIN}\n{END}\n\n{DETAILS_BEGIN}\n{DETAILS_END}\n"

_PUBLISHED_HEAD = (
    "| recipe | ours | published | verdict | env steps | seeds |",
    "|---|---|---|---|---|---|",
)

_OTHER_HEAD = (
    "| recipe | ours | 95 % of the mean | env steps | seeds |",
    "|---|---|---|---|---|",
)

_PEER_HEAD = (
    "| recipe | peer | ours | theirs | probability of improvement | processor time ÷ ours |",
    "|---|---|---|---|---|---|",
)

_DETAILS_HEAD = (
    "| recipe | score | 95 % of the mean | interquartile mean | processor time |",
    "|---|---|---|---|---|",
)

_PEER_DETAILS_HEAD = (
    "| recipe | peer | 95 % of the mean | seeds |",
    "|---|---|---|---|",
)

#: Levels of a performance profile, as shares of the way from the first return to the published.
LEVELS = tuple(i / 20 for i in range(41))


def write_page(results: Results, page: Path, recipes: Sequence[Recipe]) -> None:
    """Write the parts that the page has marks for, and their pictures; other text stays.

    `results` marks hold the tables and verdicts, `details` marks each family's statistics, curves
    and sources. A new page has both. The results of the package's own page are also written to the
    file that `everstep recipes` reads.

    Args:
        results: The results.
        page: The page; pictures are in the folder beside it that has its name without `.md`.
        recipes: Recipes whose keys say which results are theirs; of none, those of the results.

    Raises:
        EverstepError: If there is no result, or a library is missing.

    """
    chosen = list(recipes) or _recipes_of(results)
    rows = rows_of(results, chosen)
    if not any(row.lines for row in rows):
        errors = [error for row in rows for error in row.errors]
        why = f"all trainings failed, {errors[0]}" if errors else "no result in it"
        again = "Mend it, and add --retry" if errors else "Train first: everstep reproduce …"
        raise EverstepError(f"{results.path}: {why}. {again}")
    text = _text_of(page) if page.exists() else _NEW_PAGE
    pictures = path_within(page.with_suffix(""), page.parent)
    measured = {row.recipe.name for row in rows if row.lines}
    expected = list(recipes) or [read_recipe(name) for name in recipe_names()]
    parts = {
        (BEGIN, END): results_text(rows, pictures, [x for x in expected if x.name not in measured]),
        (DETAILS_BEGIN, DETAILS_END): details_text(rows, pictures),
    }
    present = [marks for marks in parts if all(mark in text for mark in marks)]
    if not present:
        raise ConfigError(f"--report {page}: the page has no {BEGIN} and {END}. Add both lines.")
    for begin, end in present:
        head, tail = text.split(begin)[0], text.split(end)[1]
        text = f"{head}{begin}\n\n{parts[begin, end]}\n{end}{tail}"
    pictures.mkdir(parents=True, exist_ok=True)
    write_file(page, text)
    for name, kind in (("env_steps", "env_steps"), ("time", "processor_seconds")):
        for family, members in families(rows).items():
            if f"/{family}_{name}.svg" in text:
                draw_family(members, kind, pictures / f"{family}_{name}.svg")
    if "/profile.svg" in text:
        draw_profile(LEVELS, profiles(rows), pictures / "profile.svg")
    if page.absolute() == OWN_PAGE:
        write_own_results(rows)


def _text_of(page: Path) -> str:
    """The text of a page that is there, which must be a plain file."""
    try:
        return read_plain(page).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"--report {page}: it is no text in UTF-8. Name another page.") from None


def _recipes_of(results: Results) -> list[Recipe]:
    """Recipes that the results name."""
    files = {line["recipe"]: line.get("file", line["recipe"]) for line in results.lines}
    found = []
    for name, file in files.items():
        try:
            found.append(read_recipe(file))
        except ConfigError as error:
            raise ConfigError(
                f"--report: {results.path} has results of {name}, whose recipe cannot be read: "
                f"{error} Name its file or folder, too, such as everstep reproduce mine --report"
            ) from None
    return sorted(found, key=lambda recipe: recipe.name)


def results_text(rows: Sequence[Row], pictures: Path, missing: Sequence[Recipe]) -> str:
    """The tables and verdicts of a page; `missing` are the recipes that have no result."""
    ours = [row for row in rows if row.side == OURS and row.lines]
    published = [row for row in ours if row.recipe.header.published is not None]
    others = [row for row in ours if row.recipe.header.published is None]
    peers = [_peer_text(row, ours) for row in rows if row.side != OURS and row.lines]
    parts = [_counts(rows), _aggregate(rows, pictures)]
    if published:
        parts.append("\n".join([*_PUBLISHED_HEAD, *map(_published_text, published)]))
    if others:
        parts += ["Without a published result:"] if published else []
        parts.append("\n".join([*_OTHER_HEAD, *map(_other_text, others)]))
    if peers:
        parts += ["## Beside other libraries", "\n".join([*_PEER_HEAD, *peers])]
    failures = [
        f"* {row.recipe.name}, {_shown(row.side)}, {_shown(error)}"
        for row in rows
        for error in row.errors
    ]
    if failures:
        parts.append("\n".join(["Trainings that failed:", "", *failures]))
    parts += [_made_with(rows), _missing(missing)]
    return "\n\n".join(part for part in parts if part) + "\n"


def details_text(rows: Sequence[Row], pictures: Path) -> str:
    """Each family's command, statistics, curves and sources."""
    parts = []
    for family, members in families(rows).items():
        parts.append(f"## {family}\n\n```sh\n{_command(members)}\n```")
        ours = [row for row in members if row.side == OURS]
        parts.append("\n".join([*_DETAILS_HEAD, *map(_details_text, ours)]))
        peers = [_peer_details_text(row) for row in members if row.side != OURS]
        if peers:
            parts.append("\n".join([*_PEER_DETAILS_HEAD, *peers]))
        parts += [
            f"![Returns of {family} over {over}: mean of the seeds, and its 95 % interval]"
            f"({pictures.name}/{family}_{name}.svg)"
            for name, over in (("env_steps", "env steps"), ("time", "processor time"))
        ]
        notes = [_note(row.recipe) for row in ours if row.recipe.header.published is not None]
        parts.append("\n".join(notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _command(rows: Sequence[Row]) -> str:
    """The command that trains the rows of a family."""
    recipes = [row.recipe for row in rows]
    is_own = not recipes[0].file.startswith(PREFIX)
    what = dict.fromkeys(x.file for x in recipes) if is_own else [recipes[0].family]
    seeds = max(len(row.lines) for row in rows)
    budgets = {recipe.other_env_steps for recipe in recipes}
    steps = "".join(f" --steps {n}" for n in budgets if n is not None and len(budgets) == 1)
    return f"everstep reproduce {' '.join(what)} --seeds {seeds}{steps}"


def _counts(rows: Sequence[Row]) -> str:
    given = [row.verdict for row in rows if row.side == OURS and row.lines and row.verdict]
    if not given:
        return ""
    names = get_args(Verdict)
    parts = [f"{given.count(name)} {name}" for name in names if name in given]
    recipes = "recipe" if len(given) == 1 else "recipes"
    return (
        f"Of {len(given)} {recipes} with a published result: {', '.join(parts)}. *Above*: the 95 % "
        "interval of our mean lies above the published mean + margin. *Below*: it lies below the "
        "published mean − margin. *Within*: it lies between these two. *Undecided*: it contains "
        "one of them, or both. The margin is the published standard deviation, or 5 % of the way "
        "from the first return of training to the published mean if that is more. A verdict needs "
        f"{LEAST_SEEDS} seeds."
    )


def _aggregate(rows: Sequence[Row], pictures: Path) -> str:
    """The interquartile mean of all normalised scores, and their profile."""
    ours = [normalized(row) for row in rows if row.side == OURS and len(row.lines) >= LEAST_SEEDS]
    strata = [scores for scores in ours if scores]
    if len(strata) < 2:
        return ""
    low, high = stratified_interval(strata, iqm)
    pooled = [score for scores in strata for score in scores]
    return (
        f"On a scale from 0, the first return of training, to 1, the published one, the "
        f"interquartile mean of {len(pooled)} trainings of {len(strata)} recipes with at least "
        f"{LEAST_SEEDS} seeds is {float(iqm(pooled)):.2f} ({low:.2f} to {high:.2f}, stratified "
        "bootstrap).\n\n"
        f"![Share of trainings above a score, over the score]({pictures.name}/profile.svg)"
    )


def profiles(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Performance profile of each side, over the recipes that it has."""
    found = {}
    for side in dict.fromkeys(row.side for row in rows):
        scores = [x for row in rows if row.side == side for x in normalized(row)]
        if scores:
            found[side] = performance_profile(scores, LEVELS)
    return found


def _published_text(row: Row) -> str:
    summary, published = row.summary, row.recipe.header.published
    assert published is not None
    return _line(
        _name(row),
        f"**{spread(summary.mean, _std(summary))}**",
        f"[{spread(published.mean, published.std)}]({published.link})",
        row.verdict,
        f"{row.recipe.env_steps:,}",
        str(summary.count),
    )


def _other_text(row: Row) -> str:
    summary = row.summary
    return _line(
        _name(row),
        f"**{spread(summary.mean, _std(summary))}**",
        between(summary.interval),
        f"{row.recipe.env_steps:,}",
        str(summary.count),
    )


def _details_text(row: Row) -> str:
    summary = row.summary
    return _line(
        _name(row),
        row.recipe.header.score,
        between(summary.interval),
        rounded(summary.iqm),
        f"{row.minutes:.1f} min" if row.minutes >= 1 else f"{60 * row.minutes:.0f} s",
    )


def _peer_text(row: Row, ours: Sequence[Row]) -> str:
    own = next((other for other in ours if other.recipe.name == row.recipe.name), None)
    ratio = None if own is None else times_as_long(row, own)
    return _line(
        f"`{row.recipe.name}`",
        _shown(row.side),
        "" if own is None else spread(own.summary.mean, _std(own.summary)),
        spread(row.summary.mean, _std(row.summary)),
        "" if own is None else f"{improvement(own.scores, row.scores):.2f}",
        "" if ratio is None else f"{ratio:.1f}",
    )


def _peer_details_text(row: Row) -> str:
    summary = row.summary
    return _line(
        f"`{row.recipe.name}`", _shown(row.side), between(summary.interval), str(summary.count)
    )


def _name(row: Row) -> str:
    return f"`{row.recipe.name}`" + ("" if row.is_current else ", of other keys")


def _line(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def _shown(text: str) -> str:
    """A text of `results.jsonl` in a line of Markdown: no HTML, no link, no end of a cell."""
    line = " ".join(printable(text).split())
    return re.sub(r"[<>\[\]|`]", lambda found: f"&#{ord(found[0])};", line)


def _std(summary: Summary) -> None | float:
    """The standard deviation; None for a single seed, which has none."""
    return summary.std if summary.count > 1 else None


def _note(recipe: Recipe) -> str:
    """Source of the published result, and differences."""
    published = recipe.header.published
    assert published is not None
    differs = f" Differences: {recipe.header.differs}." if recipe.header.differs else ""
    return (
        f"* `{recipe.name}`: {published.source}, {published.of}, after "
        f"{published.env_steps:,} env steps.{differs}"
    )


def _missing(recipes: Sequence[Recipe]) -> str:
    """Recipes without a result, by family, and those that cannot be run here."""
    found: dict[str, list[str]] = {}
    for recipe in recipes:
        family, _, name = recipe.name.partition("/")
        reason = recipe.header.not_run
        heading = f"`{family}`" if reason is None else f"`{family}`, which {reason}"
        found.setdefault(heading, []).append(name)
    if not found:
        return ""
    lines = [f"* {heading}: {', '.join(names)}" for heading, names in found.items()]
    return "\n".join(["## Not measured yet", "", *lines])


def _made_with(rows: Sequence[Row]) -> str:
    lines = [line for row in rows for line in row.lines]
    cpus = {(_shown(x["machine"]["cpu"]), x["machine"]["cores"]) for x in lines}
    machines = sorted(f"{cpu}, {cores} core(s)" for cpu, cores in cpus)
    versions: dict[str, set[str]] = {}
    for line in lines:
        for name, version in line["versions"].items():
            if name != "commit":
                versions.setdefault(_shown(name), set()).add(_shown(version))
    texts = [f"{name} {', '.join(sorted(found))}" for name, found in sorted(versions.items())]
    return (
        f"Measured on {'; '.join(machines)}, one thread a training, with {'; '.join(texts)}. "
        "Processor time is that of a training, its mean over seeds."
    )


def write_own_results(rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Write the results that `everstep recipes` shows, which are of the recipes' present keys."""
    own = {
        row.recipe.name: {
            "mean": float(f"{row.summary.mean:.5g}"),
            "std": None if row.summary.count < 2 else float(f"{row.summary.std:.5g}"),
            "seeds": row.summary.count,
            "verdict": row.verdict,
        }
        for row in rows
        if row.side == OURS and row.lines and row.is_current
    }
    write_file(path, json.dumps(own, indent=1) + "\n")


def rounded(x: float) -> str:
    """A return with three or four digits."""
    form = ",.0f" if abs(x) >= 1000 else ".1f" if abs(x) >= 10 else ".3f"
    return format(x, form).replace("-", "−")


def spread(mean: float, std: None | float) -> str:
    """Mean and standard deviation, with the mean's digits."""
    form = ",.0f" if abs(mean) >= 1000 else ".1f" if abs(mean) >= 10 else ".3f"
    return rounded(mean) + ("" if std is None else f" ± {format(std, form)}")


def between(interval: None | tuple[float, float]) -> str:
    """An interval as text; empty for none."""
    return "" if interval is None else f"{rounded(interval[0])} to {rounded(interval[1])}"
