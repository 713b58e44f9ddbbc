"""The page of traps: every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "traps.md"


@cache
def names_in(module: str) -> set[str]:
    """Functions of the files of that name, in whichever folder of the tests."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "tests").rglob(f"{module}.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def rows() -> list[tuple[str, list[tuple[str, str]]]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "::" in line]
    return [(line.split("|")[1].strip(), re.findall(r"`(\w+)::(\w+)`", line)) for line in lines]


def test_every_trap_has_tests_that_exist() -> None:
    found = rows()
    assert len(found) == 20
    for trap, named in found:
        assert named, trap
        missing = [f"{module}::{name}" for module, name in named if name not in names_in(module)]
        assert missing == [], trap
