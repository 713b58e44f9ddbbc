"""Faults made by hand, and whether the tests of their area find them.

    python -m tests.mutants                 # all, one after the other
    python -m tests.mutants device          # those of a device, on the stand-in of `tests/device`
    python -m tests.mutants gae ring        # those whose name contains one of the words

Each fault replaces a piece of source text in a copy of the repository, runs the tests beside it,
and counts as found if they fail. A fault whose text is no longer there is reported as out of date.
Of faults that the stand-in has to tell, the failure has to name the place as closely as the fault's
`told` says. Exit status 1: a fault was not found, is named less closely, or is out of date.
"""

import argparse
import ast
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.bridge import BRIDGE
from tests.mutants.device import DEVICE
from tests.mutants.faults import FAULTS, TOLD, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("src", "adapters", "tests", "examples", "docs", "pyproject.toml", "README.md")


def copy_tree(target: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "_build", "runs")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)


def told_by(fault: Fault, source: str, faulty: str, text: str) -> str:
    """How closely a failure names the place of a fault, one of `TOLD`.

    A place is `file:line (function)`, as messages of the stand-in have it; tracebacks write lines
    in another way, and do not count.
    """
    matcher = difflib.SequenceMatcher(None, source.splitlines(), faulty.splitlines(), False)
    changes = [(start + 1, end) for tag, *_, start, end in matcher.get_opcodes() if tag != "equal"]
    first, last = changes[0][0], changes[-1][1]
    line = range(first, last + 1)  # empty where lines are only taken out: no message names them
    start = min(first, last)
    function = range(start, last + 1)
    for node in ast.walk(ast.parse(faulty)):  # outer ones come first
        own = range(getattr(node, "lineno", 1), getattr(node, "end_lineno", 0) + 1)
        if start not in own or last not in own:
            continue
        if isinstance(node, ast.FunctionDef):
            function = own
        elif isinstance(node, ast.stmt) and not hasattr(node, "body") and line:
            line = own
    named = {int(x) for x in re.findall(rf"{re.escape(fault.file)}:(\d+) \(", text)}
    if not named.isdisjoint(line):
        return "line"
    if not named.isdisjoint(function):
        return "function"
    return "use" if re.search(r"\.py:\d+ \(", text) else "numbers"


def outcome(fault: Fault, tree: Path, limit: float, texts: None | Path) -> str:
    """How it is told, found, survived, out of date, or the reason why the tests did not run."""
    path = tree / fault.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    if source.count(fault.before) != 1:
        return "out of date"
    faulty = source.replace(fault.before, fault.after)
    path.write_text(faulty, encoding="utf-8")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(tree / x) for x in ("src", "adapters")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not long and not learning", *fault.tests]
    try:
        done = subprocess.run(
            [*command, "--tb=short"], cwd=tree, env=env, capture_output=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return "found"  # a test that hangs does not pass
    finally:
        path.write_text(source, encoding="utf-8")
    text = done.stdout.decode()
    if texts is not None:
        (texts / f"{re.sub('[^a-z]+', '-', fault.name.lower())}.txt").write_text(text)
    if done.returncode == 1:
        return "found" if fault.told is None else told_by(fault, source, faulty, text)
    return {0: "survived"}.get(done.returncode, f"tests did not run: {text[-300:]}")


def is_found(fault: Fault, how: str) -> bool:
    """Whether a fault was told as closely as it says."""
    if fault.told is None:
        return how == "found"
    return how in TOLD[: TOLD.index(fault.told) + 1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of names; all if there are none")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one fault's tests")
    parser.add_argument("--texts", type=Path, help="folder for what the tests say of each fault")
    arguments = parser.parse_args()
    chosen = [
        x
        for x in [*FAULTS, *DEVICE, *BRIDGE]
        if not arguments.words or any(w in x.name for w in arguments.words)
    ]
    if arguments.texts is not None:
        arguments.texts.mkdir(parents=True, exist_ok=True)
    found: Counter[str] = Counter()
    others = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        for fault in chosen:
            start = time.monotonic()
            how = outcome(fault, tree, arguments.limit, arguments.texts)
            found[how] += 1
            others += not is_found(fault, how)
            text = f"by {how}" if how in TOLD else how
            if fault.told and not is_found(fault, how):
                text += f", not by {fault.told}"
            print(f"{text:<12} {time.monotonic() - start:5.0f} s  {fault.name}", flush=True)
    print(f"{len(chosen) - others} of {len(chosen)} found")
    if any(x.told for x in chosen):
        print("told by " + ", ".join(f"{kind}: {found[kind]}" for kind in TOLD))
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
