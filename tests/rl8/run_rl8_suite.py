"""Run rl8's own tests, or its own examples, with `everstep` in place of `rl8`.

    python tests/rl8/run_rl8_suite.py                 # rl8's test suite
    python tests/rl8/run_rl8_suite.py --examples      # rl8's example programs
    python tests/rl8/run_rl8_suite.py --source DIR    # an rl8 source distribution already unpacked
    python tests/rl8/run_rl8_suite.py -- -k views -x  # what follows `--` goes to pytest

Without `--source`, pip downloads the source distribution (it builds rl8's metadata for that, and
may download what the build needs). Everything is copied to a temporary directory and thrown away
afterwards; nothing of rl8 is installed, imported or kept. Tests and examples run in a process of
their own, in an empty working directory, with an MLflow store of their own.

In every file, `import rl8` and `from rl8…` become `import everstep` and `from everstep…`. The
examples are also made small, by the substitutions in `SMALLER`: 64 environments, two horizons a
reset where there were four, an evaluation after two train steps, and an end after three. Each must
then end by itself, with three train steps and an evaluation in its record.

Exits with 0 where everything passed but the tests in `DEFECTS`, and with 1 otherwise.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

RELEASE = "rl8==1.0.0"
SOURCES = Path(__file__).parents[2]

#: Tests that assert what is wrong in rl8, by id, and the reason why they may fail.
DEFECTS: dict[str, str] = {}

#: Example programs: module, and command line arguments.
EXAMPLES: tuple[tuple[str, ...], ...] = (
    ("cartpole",),
    ("mountain_car",),
    ("pendulum",),
    ("algotrading", "--model", "mlp"),
    ("algotrading", "--model", "lstm"),
    ("algotrading", "--model", "transformer"),
)

IMPORTS = (re.compile(r"^(\s*(?:from|import)\s+)rl8\b", re.MULTILINE), r"\1everstep")

#: What makes an example's main program small.
SMALLER = (
    (re.compile(r"AlgorithmConfig\(\n"), "AlgorithmConfig(\n    num_envs=64,\n"),
    (re.compile(r"algorithm_config=\{\n"), 'algorithm_config={\n        "num_envs": 64,\n'),
    (re.compile(r"horizons_per_env_reset=\d+"), "horizons_per_env_reset=2"),
    (
        re.compile(r"trainer\.run\(.*\)\n", re.DOTALL),
        "from everstep.conditions import HitsUpperBound\n"
        'trainer.run(steps_per_eval=2, stop_conditions=[HitsUpperBound("algorithm/steps", 3)])\n',
    ),
)


def download(directory: Path) -> Path:
    """The unpacked source distribution."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--quiet", "--dest", str(directory), RELEASE], check=True)
    [archive] = directory.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def copy_translated(source: Path, target: Path) -> Path:
    """A copy of a directory of Python files whose imports name everstep."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    pattern, replacement = IMPORTS
    for file in target.rglob("*.py"):
        file.write_text(pattern.sub(replacement, file.read_text()))
    return target


def shrink(main: Path) -> None:
    """Make an example's main program small, by `SMALLER`."""
    text = main.read_text()
    for pattern, replacement in SMALLER:
        text = pattern.sub(replacement, text)
    if "num_envs" not in text or "steps_per_eval=2" not in text:
        raise SystemExit(f"{main.parent.name}: the substitutions found nothing to replace.")
    main.write_text(text)


def environment(directory: Path) -> dict[str, str]:
    """Environment variables of the processes: an MLflow store of their own, one thread."""
    paths = [str(SOURCES / "src"), str(SOURCES / "adapters"), os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory / 'mlflow.db'}",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def outcomes(report: Path) -> Iterator[tuple[str, str, str]]:
    """Id, outcome (`passed`, `skipped`, `failed`) and message of each test in a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        outcome, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome = "skipped" if child.tag == "skipped" else "failed"
                message = child.get("message", "")
        yield name, outcome, message


def run_tests(source: Path, directory: Path, arguments: Sequence[str]) -> bool:
    """Whether rl8's tests pass, but for `DEFECTS`."""
    copy_translated(source / "tests", directory / "tests")
    report = directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(directory), f"--junitxml={report}", *arguments]
    subprocess.run(command, cwd=directory, env=environment(directory), check=False)
    found = list(outcomes(report))
    failed = {name: message for name, outcome, message in found if outcome == "failed"}
    unexpected = sorted(failed.keys() - DEFECTS.keys())
    for name in sorted(failed.keys() & DEFECTS.keys()):
        print(f"fails, as it should: {name}: {DEFECTS[name]}")
    for name in unexpected:
        print(f"FAILED {name}: {failed[name].splitlines()[0] if failed[name] else ''}")
    passed = sum(outcome == "passed" for _, outcome, _ in found)
    print(f"rl8's tests: {passed} of {len(found)} passed, {len(unexpected)} failed unexpectedly.")
    return bool(found) and not unexpected


def problem_of_example(directory: Path, name: str, arguments: Sequence[str]) -> str:
    """Why an example did not do what it should; empty where it did."""
    workplace = directory / "-".join([name, *arguments]).replace("--", "")
    copy_translated(directory / "examples", workplace / "examples")
    command = [sys.executable, "-m", f"examples.{name}", *arguments]
    done = subprocess.run(
        command, cwd=workplace, env=environment(workplace), capture_output=True, text=True
    )
    if done.returncode:
        return done.stderr or f"exit status {done.returncode}"
    records = list(workplace.glob("runs/*/metrics.jsonl"))
    if len(records) != 1:
        return f"{len(records)} records of runs where one was expected"
    rows = [json.loads(line) for line in records[0].read_text().splitlines()]
    steps = [row["algorithm/steps"] for row in rows if "algorithm/steps" in row]
    evaluations = sum("eval/returns/mean" in row for row in rows)
    if steps != [1, 2, 3] or evaluations != 1:
        return f"train steps {steps} and {evaluations} evaluations; expected [1, 2, 3] and 1"
    return ""


def run_examples(source: Path, directory: Path) -> bool:
    """Whether each of rl8's examples starts, trains three steps, evaluates and ends."""
    copy_translated(source / "examples", directory / "examples")
    for main in (directory / "examples").glob("*/__main__.py"):
        shrink(main)
    failures = 0
    for name, *arguments in EXAMPLES:
        problem = problem_of_example(directory, name, arguments)
        failures += bool(problem)
        print(" ".join([name, *arguments]) + (": FAILED\n" + problem if problem else ": passed"))
    print(f"rl8's examples: {len(EXAMPLES) - failures} of {len(EXAMPLES)} passed.")
    return not failures


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", action="store_true", help="the examples, not the tests")
    parser.add_argument("--source", type=Path, help="an unpacked source distribution of rl8")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after `--`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = options.source or download(directory / "download")
        work = directory / "work"
        work.mkdir()
        if options.examples:
            return 0 if run_examples(source, work) else 1
        return 0 if run_tests(source, work, options.pytest) else 1


if __name__ == "__main__":
    sys.exit(main())
