"""The documentation: every example runs and prints what it shows, and no table is out of date."""

import ast
import configparser
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import gymnasium as gym
import numpy as np
import pytest
import torch
from examples.defaults.compare import report
from examples.defaults.tasks import SETS
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import everstep
from everstep import AlgorithmConfig, TrainConfig, conditions, data
from everstep.__main__ import command_parsers, parse
from everstep.algorithms.resolve import DEFAULT_LR, DEFAULTS
from everstep.cli import commands
from everstep.core.hyperparameters import Hyperparameters
from everstep.errors import ConfigError
from everstep.loggers import read_metrics
from everstep.trainers._options import RunOptions
from everstep_lab.benchmarks import load_case
from tests.test_architecture import FLOOR, SOURCE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FRONT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [*FRONT, *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("[!_]*/*.md"))]

#: Pages whose examples start processes or train for some seconds.
SLOW = (
    "docs/adapters/gymnasium.md",
    "docs/start/first_run.md",
    "docs/start/look_at_it.md",
    "docs/start/your_own_environment.md",
    "docs/guides/deployment.md",
)

#: Transitions that an example may train on: enough to run it, not to learn anything.
BUDGET = 1_000


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    caption: str
    text: str
    #: The comment right above it, which says why it is not run or not read.
    mark: str
    #: What it has to print: the `text` block right below it.
    output: None | str


FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*) -->\n)?"
    r"^```(?:\{code-block\} )?(?P<language>\w+)\n"
    r"(?::caption: (?P<caption>\S+)\n)?\n*"
    r"(?P<text>.*?)^```\n(?:\n*```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: Path) -> list[Block]:
    return [
        Block(m["language"], m["caption"] or "", m["text"], m["mark"] or "", m["output"])
        for m in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


# Examples.


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Iterator[Path]:
    """A current directory whose modules can be imported, with the default tracker's store."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    shutil.copy(empty_store, "runs")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    known = set(sys.modules)
    with torch.random.fork_rng(devices=[]):
        yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if name in SLOW else (), id=name)
        for page in PAGES
        for name in [str(page.relative_to(ROOT))]
    ],
)
def test_examples_do_what_the_page_says(page: Path, directory: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        if block.caption:
            (directory / block.caption).parent.mkdir(exist_ok=True)
            (directory / block.caption).write_text(block.text, encoding="utf-8")
            importlib.invalidate_caches()
        check = CHECKS.get(block.language)
        if check is not None and not block.mark:
            check(block, namespace)
    for value in namespace.values():  # what Python does at the end of a script
        if isinstance(value, everstep.Trainer | everstep.RecurrentTrainer):
            value.close()
    assert "mlflow" not in sys.modules or sys.modules["mlflow"].active_run() is None


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    code = re.sub(r"(?<=total_env_steps=)[\d_]+", within_budget, block.text)
    if "__main__" in code:
        assert printed_by_script(block.caption) == block.output
    elif not block.caption:  # captioned ones are modules that later blocks import
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"<example>\n{code}", "exec"), namespace)
        assert block.output is None or printed.getvalue() == block.output


def within_budget(number: re.Match[str]) -> str:
    return str(min(int(number[0]), BUDGET))


def printed_by_script(name: str) -> str:
    done = subprocess.run([sys.executable, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_config(block: Block, namespace: dict[str, Any]) -> None:
    """The block is a config, or what stands in one; or it is a benchmark."""
    text = block.text
    if re.search(r"^work:", text, re.MULTILINE):
        Path("block.yaml").write_text(text, encoding="utf-8")
        assert load_case("block.yaml").rows
        return
    if not re.search(r"^env_cls:", text, re.MULTILINE):
        text = f"env_cls: gymnasium:CartPole-v1\n{text}"
    Path("block.yaml").write_text(text, encoding="utf-8")
    TrainConfig.from_file("block.yaml")


def read_json(block: Block, namespace: dict[str, Any]) -> None:
    for line in block.text.splitlines():
        json.loads(line)


def parse_commands(block: Block, namespace: dict[str, Any]) -> None:
    """Commands have the flags that they are given, and files of this page the keys."""
    for command in re.findall(
        rf"(?:^|[ /])everstep ((?:{'|'.join(commands())})[^&\n]*)",
        re.sub(r"\\\n\s*", "", block.text),
    ):
        arguments = parse(shlex.split(command.partition(" > ")[0], comments=True))
        file = Path(getattr(arguments, "file", None) or "")
        if file.parts[:1] == ("examples",):
            TrainConfig.from_file(ROOT / file, arguments.overrides)
        elif file.is_file():
            TrainConfig.from_file(file, arguments.overrides)


def install(block: Block, namespace: dict[str, Any]) -> None:
    """Make the entry points of a `pyproject.toml` known, as installing its package would."""
    project = configparser.ConfigParser()
    project.read_string(block.text)
    name, version = (project["project"][key].strip('"') for key in ("name", "version"))
    points = project['project.entry-points."everstep.adapters"'].items()
    info = Path(f"{name.replace('-', '_')}-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{key} = {value.strip(chr(34))}" for key, value in points]
    (info / "entry_points.txt").write_text("\n".join(["[everstep.adapters]", *lines, ""]))
    importlib.invalidate_caches()


CHECKS = {
    "python": run_python,
    "yaml": read_config,
    "json": read_json,
    "sh": parse_commands,
    "toml": install,
}


def test_every_fence_is_seen() -> None:
    """A fence that the pattern misses would go unchecked."""
    kinds = (
        "toctree",
        "field-table",
        "option-table",
        "statistics-table",
        "include",
        "command-reference",
    )
    directives = tuple(f"```{{{kind}}}" for kind in kinds)
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        opened = [line for line in lines if line.startswith("```")][::2]
        named = [line for line in opened if line != "```" and not line.startswith(directives)]
        found = blocks(page)
        assert len(named) == len(found) + sum(block.output is not None for block in found), page


def test_marked_blocks_are_rare(directory: Path) -> None:
    found = [block for page in PAGES for block in blocks(page) if block.mark]
    marked = [block for block in found if not block.mark.startswith("runs with ")]
    assert [block.caption for block in marked] == ["broken.yaml"]
    with pytest.raises(ConfigError):
        read_config(marked[0], {})


# The architecture page.


#: The pages with changes of the source tree, in the order in which a reader tries them.
CHANGES = [DOCS / "contributors" / name for name in ("architecture.md", "core.md")]


def changes() -> Iterator[tuple[str, str, str]]:
    """File, text before and text after each hunk of the page's changes of the source tree."""
    for block in chain.from_iterable(map(blocks, CHANGES)):
        if block.language == "diff":
            for part in re.split(r"^--- .*\n\+\+\+ b/", block.text, flags=re.MULTILINE)[1:]:
                file, *hunks = re.split(r"\n@@(?:\n|$)", part.rstrip("\n"))
                for hunk in hunks:
                    lines = hunk.split("\n")
                    before, after = (
                        "".join(f"{line[1:]}\n" for line in lines if not line.startswith(sign))
                        for sign in "+-"
                    )
                    yield file, before, after


def change(root: Path) -> dict[str, str]:
    """The files of the tree at `root` that the page changes, with its changes."""
    texts: dict[str, str] = {}
    for file, before, after in changes():
        if file not in texts:
            path = root / file
            texts[file] = path.read_text(encoding="utf-8") if path.is_file() else ""
        if before:
            assert f"\n{texts[file]}".count(f"\n{before}") == 1, (file, before)
        texts[file] = texts[file].replace(before, after, 1)
    return texts


def test_changes_that_the_page_shows_fit_the_source() -> None:
    texts = change(ROOT)
    assert len(texts) == 7
    for file, text in texts.items():
        if file.endswith(".py"):
            compile(text, file, "exec")


@pytest.mark.slow
def test_changes_that_the_page_shows_work(tmp_path: Path) -> None:
    for folder in ("src", "adapters"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for file, text in change(ROOT).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    shown = [
        block.text
        for block in chain.from_iterable(map(blocks, CHANGES))
        if block.language == "pycon"
    ]
    assert len(shown) == 5
    (tmp_path / "shown.txt").write_text("\n".join(shown), encoding="utf-8")
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("src", "adapters"))
    done = subprocess.run(
        [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", "shown.txt"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_map_has_the_floors() -> None:
    """Each row is above what it may be imported by; a package stands where its lowest module is."""
    drawn = section("contributors/architecture.md", "Map").split("```")[1]
    rows = [re.split(" {3,}", line)[0].split() for line in drawn.splitlines()[1:]]
    rows = rows[: rows.index([])]
    lowest = {
        name: min(floor for x, floor in FLOOR.items() if x == name or x.startswith(f"{name}."))
        for name in chain.from_iterable(rows)
    }
    assert {name.split(".")[0] for name in lowest} == {x.split(".")[0] for x in FLOOR} - {
        "_version"
    }
    for upper, lower in pairwise(rows):
        assert min(lowest[x] for x in upper) >= max(lowest[x] for x in lower), (upper, lower)


def test_stations_of_an_observation_exist() -> None:
    [rows] = tables(section("contributors/architecture.md", "The way of one observation"))
    assert len(rows) == 17
    for _, files, functions in rows[1:]:  # the first one is the environment's own
        texts = [(SOURCE / file).read_text(encoding="utf-8") for file in names([files])]
        defined = [{*re.findall(r"^ *(?:def|class) (\w+)", text, re.MULTILINE)} for text in texts]
        parts = [name.split(".") for name in names([functions])]
        assert all(any(found.issuperset(part) for found in defined) for part in parts), functions
        assert all(any(found.issuperset(part) for part in parts) for found in defined), files


# Tables.


def section(page: str, title: str) -> str:
    """Text under a heading, up to the next one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.split(r"^#+ ", text.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def tables(text: str) -> list[list[list[str]]]:
    """The rows of each table, without its head, as lists of cells."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        for table in found
    ]


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture
def dataclass_fields(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The function that makes the tables of fields."""
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    return importlib.import_module("dataclass_fields").dataclass_fields


def test_every_hyperparameter_has_a_row(dataclass_fields: Any) -> None:
    rows = dataclass_fields(Hyperparameters)
    assert [row.name for row in rows] == [f.name for f in dataclasses.fields(AlgorithmConfig)]
    assert all(row.description.endswith((".", ")")) and row.allowed for row in rows)
    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert "```{field-table} everstep.core.hyperparameters.Hyperparameters\n```" in text


def test_every_key_of_a_file_has_a_row(dataclass_fields: Any) -> None:
    assert [row.name for row in dataclass_fields(RunOptions)] == [
        field.name for field in dataclasses.fields(RunOptions)
    ]
    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert (
        "```{field-table} everstep.trainers._options.RunOptions\n:except: algorithm_config" in text
    )


def test_a_field_without_a_docstring_is_found(dataclass_fields: Any) -> None:
    @dataclasses.dataclass
    class Config:
        told: int = 1
        """A number."""
        untold: int = 2

    with pytest.raises(ValueError, match="untold"):
        dataclass_fields(Config)


def test_an_option_without_a_word_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told:
        """A class.

        Args:
            env: What is wrapped.
            horizon: Vector steps,
                in a line that goes on.

        """

        def __init__(self, env: Any, /, horizon: None | int = None) -> None: ...

    class Untold(Told):
        __doc__ = Told.__doc__

        def __init__(self, env: Any, /, horizon: None | int = None, *, device: str = "cpu") -> None:
            super().__init__(env, horizon)

    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    options = importlib.import_module("option_rows").options
    assert options(Told) == [("horizon", "None", "Vector steps, in a line that goes on.")]
    with pytest.raises(ValueError, match="Untold: no word about device"):
        options(Untold)


def explained() -> list[str]:
    """Statistics that the page has."""
    rows = importlib.import_module("statistics_rows").statistics()
    return [name for names in rows.values() for name in names]


def test_every_statistic_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    assert sorted(explained()) == sorted(get_type_hints(data.TrainStats))
    text = (DOCS / "reference" / "statistics.md").read_text(encoding="utf-8")
    assert "```{statistics-table}\n```" in text


def test_every_statistic_of_a_train_step_is_declared() -> None:
    env = everstep.make("gymnasium:CartPole-v1", 4, horizon=64)
    stats = everstep.Trainer(env, run_dir=None).step()
    assert set(stats) == set(get_type_hints(data.TrainStats))


def test_every_statistic_that_a_run_logs_has_a_row(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    rows = {*explained()}
    env = everstep.make("gymnasium:CartPole-v1", 4, horizon=64)
    bonus = everstep.bonuses.RandomNetworkDistillation(pre_normalization_steps=1)
    rnd = {"bonuses": [bonus], "test_every": 1, "num_test_episodes": 4}
    for arguments, added in (
        ({}, set()),
        (rnd | {"eval_env": everstep.make("gymnasium:CartPole-v1", 2)}, {"rnd"}),
    ):
        run_dir = f"runs/{len(arguments)}"
        with everstep.Trainer(env, run_dir=run_dir, track=False, **arguments) as trainer:
            trainer.run(total_env_steps=1_000)
        found = {
            key.removeprefix("eval/")
            for record in read_metrics(f"{run_dir}/metrics.jsonl")
            for key in record
        } - {"step", "time"}
        of_bonuses = {key for name in added for key in (f"bonuses/{name}_mean", f"losses/{name}")}
        assert of_bonuses <= found
        assert found - of_bonuses <= rows
        assert rows - found == set()


def test_diagrams_are_those_that_the_script_draws() -> None:
    images = DOCS / "images"
    before = {path: path.read_bytes() for path in images.glob("*.svg")}
    subprocess.run([sys.executable, str(images / "diagrams.py")], check=True)
    assert {path: path.read_bytes() for path in before} == before


def test_every_guide_has_a_picture() -> None:
    guides = [*DOCS.glob("guides/*.md"), *DOCS.glob("start/*.md"), DOCS / "examples.md"]
    without = [page.name for page in guides if "![" not in page.read_text(encoding="utf-8")]
    assert without == ["install.md"]


def test_every_condition_has_a_row() -> None:
    public = {
        name
        for name, value in inspect.getmembers(conditions, inspect.isclass)
        if value.__module__ == conditions.__name__ and not name.startswith("_")
    }
    [rows] = tables(section("reference/configuration.md", "Stop conditions"))
    assert set(names([row[0] for row in rows])) == public - {"Condition"}


def test_every_answer_to_a_lost_final_observation_has_a_row() -> None:
    [rows] = tables(section("guides/concepts.md", "Lost final observations"))
    allowed = get_args(get_type_hints(Hyperparameters)["on_missing_final"])
    assert [name.strip('"') for name in names([row[0] for row in rows])] == list(allowed)


def test_the_reference_of_commands_has_what_their_help_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    section = importlib.import_module("command_sections").section
    parsers = command_parsers()
    assert list(parsers) == commands()
    for name, parser in parsers.items():
        with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
            parse([name, "--help"])
        arguments = [line for line in section(parser) if line.startswith("* ")]
        flags = set(re.findall(r"--[a-z-]+", printed.getvalue())) - {"--help"}
        assert flags == {x for line in arguments for x in re.findall(r"--[a-z-]+", line)}, name
        described = [line.partition("`: ")[2] for line in arguments]
        assert all(text and not text.startswith("(") for text in described), described


def test_every_exported_name_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "api" / "index.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text or f"{name}`" in text for name in everstep.__all__)
    pages = {path.stem for path in (DOCS / "reference" / "api").glob("*.md")} - {"index"}
    assert set(re.findall(r"^(\w+)$", text, re.MULTILINE)) == pages


# The worked tables of resets.


class Counter(gym.Env):
    """The observation counts the env steps since the reset; a clock ends episodes after two."""

    observation_space = gym.spaces.Box(0, 2, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.array([self.count], np.float32), 1.0, False, self.count == 2, {}


def bootstrap(row: dict[str, Any]) -> str:
    """The rule of the page, read aloud."""
    if not row.get("valid", True):
        return "left out"
    if row["truncated"] and row["first"]:
        return f"V({row['final_obs']:.0f})"
    return f"V({row['obs']:.0f})"


def worked_rows(mode: AutoresetMode, count: int) -> list[list[str]]:
    """Rows of the adapter, as the page shows them."""
    env = everstep.wrap(SyncVectorEnv([Counter], autoreset_mode=mode))
    acted_on = env.reset().item()
    shown = []
    for t in range(count):
        outcome = env.step(torch.zeros(1, 1, dtype=torch.int64))
        row = {key: outcome[key].item() for key in outcome.keys()}  # noqa: SIM118  a TensorDict
        numbers = [acted_on, row["obs"], *([row["final_obs"]] if "final_obs" in row else [])]
        flags = [row[key] for key in ("truncated", "first", "valid") if key in row]
        shown.append(
            [str(t), *(f"{number:.0f}" for number in [*numbers, row["rewards"]])]
            + ["yes" if flag else "no" for flag in flags]
            + [bootstrap(row)]
        )
        acted_on = row["obs"]
    return shown


@pytest.mark.parametrize("mode", AutoresetMode)
def test_worked_tables_are_what_the_adapter_returns(mode: AutoresetMode) -> None:
    next_step, others = tables(section("guides/concepts.md", "The three autoreset modes"))
    expected = next_step if mode is AutoresetMode.NEXT_STEP else others
    assert worked_rows(mode, len(expected)) == expected


def test_the_comparison_of_defaults_is_that_of_its_results() -> None:
    assert report() in (DOCS / "guides" / "defaults.md").read_text(encoding="utf-8")
    evidence = (DOCS / "evidence" / "defaults.md").read_text(encoding="utf-8")
    for tasks in SETS:
        assert report(tasks, seeds=True) in evidence
    assert report("held-out") in evidence


def test_the_defaults_are_what_the_page_says() -> None:
    """The columns of values, where they are values."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|",
        (DOCS / "guides" / "defaults.md").read_text(encoding="utf-8"),
        re.M,
    )
    shown = {name: [cell.strip(" `") for cell in cells] for name, *cells in rows}
    expected = {**DEFAULTS, "lr": DEFAULT_LR}
    assert set(expected) <= set(shown)
    for name, values in expected.items():
        for cell, value in zip(shown[name], values, strict=True):
            assert ast.literal_eval(cell.split("`,")[0]) == value, name
