"""The shape of the code: what may import what, what is public, and what is imported when."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import everstep

SOURCE = Path(everstep.__file__).parent

#: Floors, lowest first. A module imports from lower floors, and on its own from those to its left.
FLOORS = [
    "data errors",
    "validation specs checkpoints advantages losses schedulers views episodes",
    "nn env distributions normalizers hyperparameters",
    "graphs models rollouts policies objectives bonuses optimizers updates",
    "algorithms evaluation",
    "conditions config loggers progress registry trainers adapters",
    "testing benchmarks",
    "cli __main__",
]
ORDER = {
    name: (floor, place)
    for floor, names in enumerate(FLOORS)
    for place, name in enumerate(names.split())
}


def module_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_for_types(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while node in parents:
        node = parents[node]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return True
    return False


def imports_of(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    depth = len(path.relative_to(SOURCE).parts)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not is_for_types(node, parents):
            if node.level == depth:
                names = [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
                found |= set(names)
            elif node.level == 0 and (node.module or "").startswith("everstep"):
                found.add((node.module or "").removeprefix("everstep").strip(".").split(".")[0])
    return found - {"", "__version__"}


def test_every_module_has_a_floor() -> None:
    modules = {module_of(p) for p in SOURCE.rglob("*.py")} - {"__init__"}
    assert modules == set(ORDER)


def test_modules_import_from_below() -> None:
    upwards = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = module_of(path)
        if module == "__init__":
            continue
        for imported in imports_of(path) - {module}:
            if not ORDER[imported] < ORDER[module]:
                upwards.append(f"{path.relative_to(SOURCE)} imports {imported}")
    assert not upwards


@pytest.mark.slow
def test_the_core_never_imports_an_adapter_or_an_environment_library() -> None:
    """Except lazily: importing everything public leaves them unloaded."""
    code = (
        "import sys, everstep; [getattr(everstep, name) for name in everstep.__all__]; "
        "print([m for m in ('gymnasium', 'everstep_adapters.gymnasium', 'mlflow') "
        "if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_the_package_is_free() -> None:
    code = "import sys, everstep; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_public_names() -> None:
    """A name added or lost here is a change of the public interface."""
    assert set(everstep.__all__) == {
        "Algorithm",
        "AlgorithmConfig",
        "ContinuousDummyEnv",
        "DiscreteDummyEnv",
        "Env",
        "Policy",
        "RecurrentAlgorithm",
        "RecurrentAlgorithmConfig",
        "RecurrentPolicy",
        "RecurrentTrainer",
        "TrainConfig",
        "Trainer",
        "evaluate",
        "factory",
        "make",
        "wrap",
    }
    assert set(everstep.__all__) <= set(dir(everstep))
    for name in everstep.__all__:
        assert getattr(everstep, name).__doc__


def test_no_file_outgrows_a_readers_memory() -> None:
    lines = {
        str(p.relative_to(SOURCE.parent)): p.read_text(encoding="utf-8").count("\n")
        for p in SOURCE.rglob("*.py")
    }
    assert {name: n for name, n in lines.items() if n > 420} == {}


def functions() -> list[tuple[str, ast.FunctionDef]]:
    found = []
    for root in (SOURCE, SOURCE.parents[1] / "adapters"):
        for path in sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    found.append((f"{path.name}:{node.name}", node))
    return found


def body_of(function: ast.FunctionDef) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def test_no_two_functions_share_a_body() -> None:
    """Of more than one statement: what is said twice is changed once."""
    seen: dict[str, list[str]] = {}
    for name, function in functions():
        body = body_of(function)
        if len(body) > 1:
            seen.setdefault("\n".join(map(ast.dump, body)), []).append(name)
    assert [names for names in seen.values() if len(names) > 1] == []


def test_every_function_fits_a_screen() -> None:
    """60 lines, the docstring aside."""
    long = {}
    for name, function in functions():
        body = body_of(function) or function.body
        lines = (function.end_lineno or 0) - body[0].lineno + 1
        if lines > 60:
            long[name] = lines
    assert long == {}


ADAPTERS = SOURCE.parents[1] / "adapters" / "everstep_adapters"

#: May import the other folder's public name: pools are Gymnasium vector environments.
SUBCLASSES = {("envpool", "gymnasium"), ("ale", "gymnasium")}


def adapter_imports(path: Path) -> set[tuple[str, ...]]:
    """Modules of the adapters' package that a file imports, as paths; TYPE_CHECKING included."""
    here = path.relative_to(ADAPTERS).with_suffix("").parts
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            name = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                found.add((*here[: len(here) - node.level], *name))
            elif name[:1] == ("everstep_adapters",):
                found.add(name[1:])
        elif isinstance(node, ast.Import):
            names = (tuple(alias.name.split(".")) for alias in node.names)
            found |= {name[1:] for name in names if name[0] == "everstep_adapters"}
    return found


def test_adapters_import_only_common_and_their_own_folder() -> None:
    wrong = []
    for path in sorted(ADAPTERS.glob("*/*.py")):
        folder = path.parent.name
        for imported in adapter_imports(path):
            is_subclass = len(imported) == 1 and (folder, imported[0]) in SUBCLASSES
            if imported[0] not in {"common", folder} and not is_subclass:
                wrong.append(f"{folder}/{path.name} imports {'.'.join(imported)}")
    assert wrong == []


def test_adapters_have_no_import_circles() -> None:
    below = {
        path.relative_to(ADAPTERS).with_suffix("").parts: adapter_imports(path)
        for path in ADAPTERS.glob("*/*.py")
    }
    while leaves := [name for name, imported in below.items() if not imported & below.keys()]:
        for name in leaves:
            del below[name]
    assert below == {}
