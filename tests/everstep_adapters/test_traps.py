"""The page of traps: every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adapters" / "traps.md"


@cache
def names_in(module: str) -> set[str]:
    (path,) = (ROOT / "tests").rglob(f"{module}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


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
