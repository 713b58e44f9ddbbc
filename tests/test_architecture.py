"""The shape of the code: what may import what, what is public, and what is imported when."""

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import everstep

SOURCE = Path(everstep.__file__).parent

#: Measures Everstep, which imports nothing of it.
LAB = SOURCE.parent / "everstep_lab"

#: Floors, lowest first: a module imports from lower ones. Modules of `core` and `env` have floors
#: of their own.
FLOORS = [
    "_version data core.files core.installation core.interrupts core.intervals "
    "core.plain_files core.shown core.synonyms core._torchrl",
    "errors views",
    "schedulers core.checkpoints core.losses core.memory core.ranks core.restoring "
    "core.validation env.specs",
    "core.advantages core.graphs core.names core.rules env.formats env.images",
    "core.entries core.triton",
    "distributions loggers env.attributes",
    "callbacks config nn core.episodes core.hyperparameters core.normalizers env env.agents "
    "env.limits",
    "conditions env.plugins models",
    "core.rollouts env.registry",
    "objectives policies env.calls",
    "bonuses core.fast",
    "distillation symmetry",
    "algorithms",
    "testing evaluation",
    "trainers",
    "visualization adapters",
    "cli",
    "__main__",
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}

#: Of no floor: they import names when these are asked for.
LAZY = {"__init__", "core"}


def module_of(parts: Sequence[str]) -> str:
    """The module with a floor that a path below the package, without suffix, belongs to."""
    if parts[0] in ("core", "env") and len(parts) > 1 and parts[1] != "__init__":
        inner = SOURCE.joinpath(*parts[:2])
        if inner.is_dir() or inner.with_suffix(".py").is_file():
            return ".".join(parts[:2])
    return parts[0]


def imports_of(source: str, package: Sequence[str]) -> set[str]:
    """Modules of Everstep that a file imports: anywhere in it, for types too, and by a string.

    Args:
        source: The file's text.
        package: Names of the packages that the file is in, from `everstep`.

    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        paths: list[list[str]] = []
        if isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            paths = [[*base, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            texts = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
            paths = [re.split("[.:]", text) for text in texts if isinstance(text, str)]
        found |= {module_of(path[1:]) for path in paths if path[0] == "everstep" and path[1:]}
    return found & FLOOR.keys()


def upward(source: str, package: Sequence[str], module: str) -> set[str]:
    """Modules that a file of a module imports from its own floor or from above."""
    imported = imports_of(source, package) - {module}
    return {name for name in imported if not FLOOR[name] < FLOOR[module]}


def test_every_module_has_a_floor() -> None:
    paths = [p.relative_to(SOURCE).with_suffix("").parts for p in SOURCE.rglob("*.py")]
    assert {module_of(parts) for parts in paths} - LAZY == FLOOR.keys()


def test_modules_import_from_below() -> None:
    wrong = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        module = module_of(parts)
        if module not in LAZY:
            source = path.read_text(encoding="utf-8")
            if found := upward(source, ["everstep", *parts[:-1]], module):
                wrong["/".join(parts)] = found
    assert wrong == {}


@pytest.mark.parametrize(
    "line",
    [
        "from ..trainers import Trainer",
        "from .. import trainers",
        "import everstep.trainers",
        "from everstep.trainers.config import TrainConfig",
        "if TYPE_CHECKING:\n    from ..trainers import Trainer",
        "def load():\n    from ..trainers import Trainer",
        "import_name('everstep.trainers._resuming.resume')",
        "importlib.import_module('everstep.trainers')",
    ],
)
def test_imports_upward_are_seen_wherever_they_are(line: str) -> None:
    assert upward(line, ["everstep", "core"], "core.files") == {"trainers"}
    assert upward(line, ["everstep", "cli"], "cli") == set()


def test_the_core_never_imports_an_adapter_or_an_environment_library() -> None:
    """Except lazily: importing everything public leaves them unloaded."""
    code = (
        "import sys, everstep; [getattr(everstep, name) for name in everstep.__all__]; "
        "print([m for m in ('gymnasium', 'everstep_adapters.gymnasium', 'mlflow') "
        "if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["everstep", "everstep.visualization"])
def test_importing_it_leaves_pytorch_alone(module: str) -> None:
    """TorchRL imports MuJoCo, which reads `MUJOCO_GL` as it is imported: videos set it before."""
    code = f"import sys, {module}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_importing_the_trainer_imports_what_a_script_needs_before_it_trains() -> None:
    """Workers of environments import the script again: it costs little more than PyTorch."""
    code = (
        "import multiprocessing, sys; from everstep import RecurrentTrainer, Trainer; "
        "slow = ('torch._dynamo', 'sympy', 'tensordict', 'torchrl', 'gymnasium', 'mlflow', "
        "'pandas', 'rich'); print([m for m in slow if m in sys.modules], "
        "multiprocessing.get_start_method(allow_none=True))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] None"


def test_the_help_imports_no_library() -> None:
    code = (
        "import sys; from everstep.__main__ import _parser, commands\n"
        "_parser(commands()).format_help(); "
        "print([m for m in ('torch', 'numpy', 'pydantic', 'yaml', 'rich') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


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


def functions() -> list[tuple[str, ast.FunctionDef]]:
    found = []
    for root in (SOURCE, LAB, SOURCE.parents[1] / "adapters"):
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


def test_docstrings_begin_with_the_thing() -> None:
    """And not with "What": also those of tests, examples and the documentation's scripts."""
    root, wrong = Path(__file__).parents[1], []
    for folder in ("src", "adapters", "tests", "examples", "docs"):
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            lines = enumerate(source.splitlines(), start=1)
            wrong += [f"{path}:{i}" for i, line in lines if re.match(r'\s*r?"""\s*What\b', line)]
    assert wrong == []


ADAPTERS = SOURCE.parents[1] / "adapters" / "everstep_adapters"

#: Every file of the three packages, by the name that it is imported by.
FILES = {
    ".".join((root.name, *path.relative_to(root).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for root in (SOURCE, LAB, ADAPTERS)
    for path in root.rglob("*.py")
}


def files_imported_by(name: str) -> set[str]:
    """Files that a file imports, anywhere in it, for types too."""
    path, found = FILES[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = (f"{module}.{alias.name}" for alias in node.names)
            found |= {each if each in FILES else module for each in names}
    return found & FILES.keys() - {name}


#: The one import against the order: `Trainer.load` builds the trainer of a configuration.
EXCEPTION = ("everstep.trainers._trainers", "everstep.trainers._resuming")


def test_no_files_import_each_other() -> None:
    """Not through others, not inside of functions, and not for types either."""
    left = {name: files_imported_by(name) for name in FILES}
    left[EXCEPTION[0]].remove(EXCEPTION[1])
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    # What is left is in a circle, or imports one.
    assert {name: sorted(imported & left.keys()) for name, imported in left.items()} == {}


def test_nothing_imports_the_laboratory() -> None:
    """Its commands and recipes are entry points."""
    wrong = [
        name
        for name in FILES
        if not name.startswith(LAB.name)
        and any(imported.startswith(LAB.name) for imported in files_imported_by(name))
    ]
    assert wrong == []


#: May import the other folder's public name: they make Gymnasium vector environments.
def test_adapters_import_only_common_and_their_own_folder() -> None:
    """Of another family only its public class, to derive from."""
    wrong = []
    for name in FILES:
        package, _, rest = name.partition(".")
        folder, _, file = rest.partition(".")
        if package != ADAPTERS.name or not file:
            continue
        for imported in files_imported_by(name):
            _, _, path = imported.partition(".")
            other = path.partition(".")[0]
            is_public = path == other
            if imported.startswith(package) and other not in ("common", folder) and not is_public:
                wrong.append(f"{name} imports {imported}")
    assert wrong == []
