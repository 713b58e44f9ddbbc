"""Faults made by hand, and whether the tests of their area find them.

    python -m tests.mutants                 # all, one after the other
    python -m tests.mutants device          # those of a device, on the stand-in of `tests/device`
    python -m tests.mutants gae ring        # those whose name contains one of the words

Each fault replaces a piece of source text in a copy of the repository, runs the tests beside it,
and counts as found if they fail. A fault whose text is no longer there is reported as out of date.
Exit status 1: a fault was not found, or is out of date.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.device import DEVICE
from tests.mutants.faults import FAULTS, Fault

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


def outcome(fault: Fault, tree: Path, limit: float) -> str:
    """Found, survived, out of date, or the reason why the tests did not run."""
    path = tree / fault.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    if source.count(fault.before) != 1:
        return "out of date"
    path.write_text(source.replace(fault.before, fault.after), encoding="utf-8")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(tree / x) for x in ("src", "adapters")),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests]
    try:
        code = subprocess.run(command, cwd=tree, env=env, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return "found"  # a test that hangs does not pass
    finally:
        path.write_text(source, encoding="utf-8")
    known = {0: "survived", 1: "found"}
    return known.get(code.returncode, f"tests did not run: {code.stdout[-300:].decode()}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of names; all if there are none")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one fault's tests")
    arguments = parser.parse_args()
    chosen = [
        x
        for x in [*FAULTS, *DEVICE]
        if not arguments.words or any(w in x.name for w in arguments.words)
    ]
    others = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        for fault in chosen:
            start = time.monotonic()
            found = outcome(fault, tree, arguments.limit)
            others += found != "found"
            print(f"{found:<12} {time.monotonic() - start:5.0f} s  {fault.name}", flush=True)
    print(f"{len(chosen) - others} of {len(chosen)} found")
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
