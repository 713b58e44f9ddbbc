"""`everstep reproduce`: train recipes over seeds, and report beside published results."""

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.cli._arguments import add_number, env_steps
from everstep.errors import ConfigError

if TYPE_CHECKING:
    from ..recipes import Recipe
    from ..reproduction import Results

HELP = "train recipes over seeds, beside published results"
DESCRIPTION = (
    "Train recipes over several seeds, each training in a process of its own. A training that has "
    "its line in results.jsonl is not run again, and one that was interrupted goes on from its "
    "checkpoint."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="family of recipes, such as classic; `all`; a recipe's name, a file, or a folder of "
        "files (none: with --report, results that are there)",
    )
    add_number(parser, "--seeds", "trainings of each recipe (default: %(default)s)", default=5)
    add_number(parser, "--jobs", "trainings at once (default: the number of cores)")
    parser.add_argument(
        "--only", metavar="PATTERN", help="recipes whose names match, such as 'Hopper*'"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="reproduced",
        help="directory of results.jsonl and of the runs (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=env_steps, metavar="N", help="env steps, instead of each recipe's"
    )
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument(
        "--compare", nargs="+", default=[], metavar="PEER", help="train with these libraries, too"
    )
    parser.add_argument(
        "--peer-python",
        nargs="+",
        action="extend",
        default=[],
        metavar="PEER=PYTHON",
        help="interpreter that has a peer (default: this one)",
    )
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        metavar="FILE",
        help="write tables and curves to a page (default: DIR/results.md)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing, and report; the exit code is 1 if a training failed.

    Raises:
        ConfigError: If there is no such recipe or peer.
        KeyboardInterrupt: If it was interrupted, after the runs have been saved.

    """
    from ..recipes import find_recipes
    from ..reproduction import Results

    if not arguments.suites and arguments.report is None:
        raise ConfigError(
            "command line: no suite. Name one, such as classic: everstep reproduce classic "
            "--seeds 3; or report results that are there with --report."
        )
    out = Path(arguments.out)
    recipes = find_recipes(arguments.suites, arguments.only) if arguments.suites else []
    if arguments.steps is not None:
        recipes = [recipe.with_env_steps(arguments.steps) for recipe in recipes]
    results = Results(out / "results.jsonl")
    failed = _train(arguments, recipes, results, out) if recipes else 0
    if arguments.report is not None:
        from ..reproduction._report import write_page

        page = Path(arguments.report) if arguments.report else out / "results.md"
        write_page(results, page, recipes)
        print(f"Page    {page}")
    return 1 if failed else 0


def _train(
    arguments: argparse.Namespace, recipes: "Sequence[Recipe]", results: "Results", out: Path
) -> int:
    """Run the jobs that have no line, and return the number of jobs whose line is a failure."""
    from ..benchmarks import cores
    from ..reproduction import jobs_of, key_of, run_jobs
    from ..reproduction._view import view_of

    for recipe in recipes:
        if recipe.header.not_run is not None:
            print(f"{recipe.name}: left out: {recipe.header.not_run}")
    jobs = jobs_of(recipes, arguments.seeds, sides=_sides(arguments, recipes))
    missing = results.missing(jobs, retry=arguments.retry)
    _check_own({job.recipe.file for job in missing})
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} of {len(jobs)} trainings are in {results.path}")
    with view_of(len(missing)) as view:
        run_jobs(missing, out, results, at_once=arguments.jobs or cores(), view=view)
    keys = {job.key for job in jobs}
    failures = [x for x in results.lines if key_of(x) in keys and "error" in x]
    print(f"Results {results.path}")
    for line in failures:
        print(f"{line['recipe']} seed {line['seed']}: failed: {line['error']} (again: --retry)")
    return len(failures)


def _check_own(files: Collection[str]) -> None:
    """Raise a `ConfigError` for the first file, outside the package, with a mistake in its keys."""
    from everstep.config import PREFIX

    own = sorted(file for file in files if not file.startswith(PREFIX))
    if own:
        from everstep.trainers import TrainConfig

        for file in own:
            TrainConfig.from_file(file)


def _sides(arguments: argparse.Namespace, recipes: "Sequence[Recipe]") -> dict[str, str]:
    """Interpreters by side: ours, and those of the peers.

    Raises:
        ConfigError: If a peer is unknown, or cannot train one of the recipes.

    """
    import sys

    from ..reproduction import OURS, PEERS, check_peer

    pythons = dict(word.partition("=")[::2] for word in arguments.peer_python)
    if unknown := [name for name in (*arguments.compare, *pythons) if name not in PEERS]:
        raise ConfigError(
            f"--compare and --peer-python take the peers {', '.join(PEERS)}; got {unknown[0]!r}. "
            "Write --peer-python stable-baselines3=/path/to/python."
        )
    for peer in arguments.compare:
        for recipe in recipes:
            check_peer(recipe, peer)
    return {OURS: ""} | {peer: pythons.get(peer) or sys.executable for peer in arguments.compare}
