"""The page of results: what the data gives, and the page of this repository."""

import json
import math
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.everstep_lab.reproduction.lines import result

from everstep.__main__ import main
from everstep.errors import ConfigError, EverstepError
from everstep_lab.recipes import own_results, read_recipe
from everstep_lab.reproduction import Results, key_of
from everstep_lab.reproduction._pictures import _axis
from everstep_lab.reproduction._report import (
    BEGIN,
    DETAILS_BEGIN,
    END,
    details_text,
    results_text,
    write_own_results,
)
from everstep_lab.reproduction._rows import normalized, rows_of, times_as_long

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "results.md"
DETAILS = ROOT / "docs" / "evidence" / "results.md"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A directory with results of two recipes, one of them also of a peer."""
    results = Results(tmp_path / "out" / "results.jsonl")
    hopper, cartpole = (read_recipe(x) for x in ("mujoco/Hopper-v4", "classic/CartPole-v1"))
    for seed, score in enumerate((2900.0, 2700.0, 3000.0, 2850.0, 2885.0)):
        results.add(result(hopper, "everstep", seed, score))
        results.add(result(hopper, "stable-baselines3", seed, score - 1000, processor_seconds=480))
    results.add(result(cartpole, "everstep", 0, 480.0))
    results.add(result(cartpole, "everstep", 1, 470.0))
    line = {k: result(cartpole, "everstep", 2, 0.0)[k] for k in ("recipe", "digest", "side")}
    results.add({**line, "seed": 2, "error": "the disk is full"})
    return tmp_path / "out"


def test_the_page_has_tables_curves_and_verdicts(out: Path) -> None:
    assert main(["reproduce", "--report", "--out", str(out)]) == 0
    text = (out / "results.md").read_text()
    results, details = text.split(DETAILS_BEGIN)
    row, peer = [cells(x) for x in results.splitlines() if x.startswith("| `mujoco/Hopper-v4`")]
    assert row[1] == "**2,867 ± 109**"
    assert "[2,383 ± 272]" in row[2]
    assert row[3:] == ["above", "1,000,000", "5"]
    assert peer[1:] == ["stable-baselines3", "2,867 ± 109", "1,867 ± 109", "1.00", "4.0"]
    row, peer = [cells(x) for x in details.splitlines() if x.startswith("| `mujoco/Hopper-v4`")]
    assert (row[1], row[4]) == ("training", "2.0 min")
    assert peer[1:] == ["stable-baselines3", "1,732 to 2,002", "5"]
    assert row[2] == "2,732 to 3,002"
    [few] = [x for x in results.splitlines() if x.startswith("| `classic/CartPole-v1`")]
    assert "| too few seeds |" in few
    assert "* classic/CartPole-v1, everstep, seed 2: the disk is full" in text
    assert "Of 2 recipes with a published result: 1 above, 1 too few seeds." in text
    missing = results.partition("## Not measured yet\n")[2].splitlines()
    assert "* `a2c`: Acrobot-v1, CartPole-v1, Pendulum-v1" in missing
    assert (
        "* `isaacgym`, which needs Isaac Gym and its GPU: Ant, Anymal, Cartpole, Humanoid"
        in missing
    )
    [classic] = [line for line in missing if line.startswith("* `classic`")]
    assert "Acrobot-v1" in classic
    assert "CartPole-v1" not in classic
    named = {x.partition(")")[0] for x in text.split("](results/")[1:]}
    assert named == {path.name for path in (out / "results").iterdir()}
    assert {"mujoco_env_steps.svg", "classic_time.svg"} <= named


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.slow
def test_the_page_is_a_function_of_the_data(out: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        main(["reproduce", "--report", str(tmp_path / name / "results.md"), "--out", str(out)])
        files = sorted((tmp_path / name).rglob("*.*"))
        pages.append({x.relative_to(tmp_path / name): x.read_bytes() for x in files})
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_text_around_the_marks_stays(out: Path) -> None:
    page = out / "mine.md"
    page.write_text(f"# Mine\n\nBefore.\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    assert main(["reproduce", "--report", str(page), "--out", str(out)]) == 0
    text = page.read_text()
    assert text.startswith("# Mine\n\nBefore.\n\n")
    assert text.endswith("\n\nAfter.\n")
    assert "old" not in text
    page.write_text("# Mine\n")
    assert main(["reproduce", "--report", str(page), "--out", str(out)]) == 2
    assert page.read_text() == "# Mine\n"


def test_processor_times_are_compared_on_the_same_processor(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    recipe = read_recipe("mujoco/Hopper-v4")
    times = {"everstep": {"A": (10, 20), "B": (5,)}, "cleanrl": {"B": (20,), "A": (30,), "C": (1,)}}
    for side, by_cpu in times.items():
        ran = [(cpu, t) for cpu, seconds in by_cpu.items() for t in seconds]
        for seed, (cpu, seconds) in enumerate(ran):
            more = {"processor_seconds": seconds, "machine": {"cpu": cpu, "cores": 2}}
            results.add(result(recipe, side, seed, 0.0, **more))
    ours, theirs = rows_of(results, [recipe])
    assert times_as_long(theirs, ours) == pytest.approx((30 / 15 + 20 / 5) / 2)
    other = {"processor_seconds": 1, "machine": {"cpu": "D", "cores": 2}}
    results.add(result(recipe, "stable-baselines3", 0, 0.0, **other))
    alone = next(x for x in rows_of(results, [recipe]) if x.side == "stable-baselines3")
    assert times_as_long(alone, ours) is None


def test_results_of_other_keys_are_left_out(out: Path) -> None:
    results = Results(out / "results.jsonl")
    recipe = read_recipe("mujoco/Hopper-v4")
    results.add({**result(recipe, "everstep", 7, 0.0), "digest": "0" * 12})
    row = rows_of(results, [recipe])[0]
    assert [line["seed"] for line in row.lines] == [0, 1, 2, 3, 4]
    assert row.is_current


@pytest.mark.slow
def test_a_row_of_a_recipe_that_has_changed_says_so(out: Path) -> None:
    results = Results(out / "results.jsonl")
    old = read_recipe("classic/Pendulum-v1")
    results.add({**result(old, "everstep", 0, -200.0), "digest": "0" * 12})
    assert main(["reproduce", "--report", "--out", str(out)]) == 0
    text = (out / "results.md").read_text()
    assert "| `classic/Pendulum-v1`, of other keys | evaluation |" in text
    assert "| `classic/Pendulum-v1`, of other keys | **" in text
    assert "| `mujoco/Hopper-v4` | training" in text
    rows = rows_of(results, [old, read_recipe("mujoco/Hopper-v4")])
    write_own_results(rows, out / "own.json")
    assert json.loads((out / "own.json").read_text()).keys() == {"mujoco/Hopper-v4"}


def test_scores_are_shares_of_the_way_to_the_published_one(out: Path) -> None:
    recipe = read_recipe("mujoco/Hopper-v4")
    row = rows_of(Results(out / "results.jsonl"), [recipe])[0]
    assert recipe.header.published is not None
    assert normalized(row)[0] == pytest.approx(2900.0 / recipe.header.published.mean)


def test_no_results_and_strange_recipes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "--report", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "no result in it" in capsys.readouterr().err
    line = result(read_recipe("mujoco/Hopper-v4"), "everstep", 0, 1.0) | {"recipe": "mine/lake"}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert main(words) == 2
    assert "mine/lake, whose recipe cannot be read: recipe:mine/lake" in capsys.readouterr().err


@pytest.mark.slow
def test_recipes_of_ones_own_are_found_by_the_results_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    text = "recipe: {task: CartPole, source: mine}\nenv_cls: gymnasium:CartPole-v1\n"
    for name in ("a", "b"):
        Path(f"mine/{name}.yaml").write_text(f"{text}total_env_steps: 9_000\n")
    results = Results(tmp_path / "results.jsonl")
    short = read_recipe("mine/a.yaml").with_env_steps(2_000)
    for seed in range(2):
        more = {"file": "mine/a.yaml", "total_env_steps": 2_000}
        results.add(result(short, "everstep", seed, 20.0, **more))
    assert main(["reproduce", "--report", "--out", "."]) == 0
    page = Path("results.md").read_text()
    assert "everstep reproduce mine/a.yaml --seeds 2 --steps 2000\n" in page
    assert "| `mine/a` | **21.0 ± 0.0** | 21.0 to 21.0 | 2,000 | 2 |" in page
    whole = read_recipe("mine/a.yaml")
    results.add(result(whole, "everstep", 0, 20.0, file=whole.file, total_env_steps=9_000))
    assert main(["reproduce", "--report", "--out", "."]) == 0
    page = Path("results.md").read_text()
    assert "everstep reproduce mine/a.yaml --seeds 1\n" in page
    assert "| `mine/a` | **21.0** |  | 9,000 | 1 |" in page


def test_short_trainings_have_an_axis_in_seconds() -> None:
    xs = np.asarray([10.0, 90.0])
    assert _axis([[(xs, xs)]], "processor_seconds") == (1.0, "processor time (s)")
    assert _axis([[(xs, xs)], [(2 * xs, xs)]], "processor_seconds")[0] == 60.0
    assert _axis([[(xs, xs)]], "env_steps") == (1.0, "env steps")


# The page of this repository.


@pytest.mark.slow
@pytest.mark.parametrize("source", [PAGE, DETAILS], ids=["results", "details"])
def test_a_page_of_the_repository_is_made_of_its_data(source: Path, tmp_path: Path) -> None:
    """Regenerate: everstep reproduce --report docs/results.md --out docs/results, or the other."""
    page = tmp_path / "results.md"
    shutil.copy(source, page)
    words = ["reproduce", "--report", str(page), "--out", str(PAGE.with_suffix(""))]
    assert main(words) == 0
    assert page.read_text(encoding="utf-8") == source.read_text(encoding="utf-8")
    pictures = {path.name for path in page.with_suffix("").glob("*.svg")}
    assert pictures == {path.name for path in source.with_suffix("").glob("*.svg")}


@pytest.mark.slow
def test_the_results_that_the_package_shows_are_those_of_the_data(tmp_path: Path) -> None:
    data = PAGE.with_suffix("") / "results.jsonl"
    lines = Results(data).lines
    assert len({key_of(line) for line in lines}) == len(lines)
    names = dict.fromkeys(line["recipe"] for line in lines)
    rows = rows_of(Results(data), [read_recipe(name) for name in sorted(names)])
    write_own_results(rows, tmp_path / "own.json")
    assert json.loads((tmp_path / "own.json").read_text()) == own_results()


@pytest.mark.slow
def test_a_page_without_marks_is_refused(out: Path, tmp_path: Path) -> None:
    from everstep_lab.reproduction._report import write_page

    (tmp_path / "page.md").write_text("nothing")
    with pytest.raises(ConfigError, match="Add both lines"):
        write_page(Results(out / "results.jsonl"), tmp_path / "page.md", [])


# Results of somebody else.

#: Values that a line of results may be damaged with.
_STRANGE: list[Any] = [
    *(math.nan, math.inf, 1e308, -1, 10**400, None, True, "", "x" * 5000, "\x1b[31m", "a | <b>"),
    *([], [[]], {}, {"a": 1}, [None], [math.nan] * 6, "\ud800", "../../x", 0, 0.0, 2**63),
]


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else ()
    for key, x in enumerate(value[:2]) if isinstance(value, list) else inner:
        yield from _places(x, (*place, key))


def damaged(line: dict[str, Any], draw: random.Random) -> Any:
    """The line with one value replaced, removed or added."""
    root = {"line": json.loads(json.dumps(line))}
    *folders, last = draw.choice([p for p in _places(root) if p])
    parent: Any = root
    for key in folders:
        parent = parent[key]
    how = draw.choice(("set", "set", "set", "del", "add"))
    if how == "add" and isinstance(parent, dict):
        parent[draw.choice(("error", "file", "total_env_steps", "more"))] = draw.choice(_STRANGE)
    elif how == "del" and folders:
        del parent[last]
    else:
        parent[last] = draw.choice(_STRANGE)
    return root["line"]


@pytest.mark.parametrize("seed", range(12))
def test_damaged_results_are_shown_or_refused_in_one_line(seed: int, tmp_path: Path) -> None:
    recipes = [read_recipe("mujoco/Hopper-v4"), read_recipe("classic/Pendulum-v1")]
    good = [result(recipes[0], side, i, 2900.0) for side in ("everstep", "rl") for i in range(5)]
    draw, path = random.Random(seed), tmp_path / "results.jsonl"
    for _ in range(25):
        more = [damaged(draw.choice(good), draw) for _ in range(draw.choice((1, 3)))]
        text = "".join(f"{json.dumps(x)}\n" for x in draw.sample([*good, *more], 10 + len(more)))
        path.write_bytes(text.encode())
        refusal, results = "", Results(tmp_path / "none.jsonl")
        try:
            results = Results(path)
        except EverstepError as error:
            refusal = str(error)
        if refusal:
            assert re.match(rf"{re.escape(str(path))}:\d+: expected a result", refusal)
            assert refusal.isprintable()
            assert len(refusal) < 2000
            continue
        rows = rows_of(results, recipes)
        page = results_text(rows, tmp_path / "page", []) + details_text(rows, tmp_path / "page")
        assert page.replace("\n", "").isprintable()
        assert "<b>" not in page


@pytest.mark.parametrize("line", ["[" * 100_000, "{" * 2_000_000, "\xff", "null", "[]", "1" * 9999])
def test_lines_that_are_no_json_are_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(EverstepError, match=r"results.jsonl:1: expected a result"):
        Results(path)


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes among files")
@pytest.mark.parametrize("name", ["results.jsonl", "results.md", "results"])
def test_files_of_a_stranger_that_are_no_files_are_refused(
    out: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for make in (
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(tmp_path / "elsewhere"),
    ):
        if (out / name).exists() or name != "results.jsonl":
            (out / name).unlink(missing_ok=True)
        make(out / name)
        assert main(["reproduce", "--report", "--out", str(out)]) == 2
        assert str(out / name) in capsys.readouterr().err
        (out / name).unlink()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_many_lines_are_read_at_once(tmp_path: Path) -> None:
    """Each line once: the time does not grow with the square of their number."""
    path, key = tmp_path / "results.jsonl", '"recipe": "a", "digest": "b", "side": "everstep"'
    path.write_text("".join(f'{{{key}, "seed": {i}, "error": ""}}\n' for i in range(50_000)))
    start = time.process_time()
    assert len(Results(path).lines) == 50_000
    assert time.process_time() - start < 15


def test_times_of_nothing_have_no_ratio(tmp_path: Path) -> None:
    results, recipe = Results(tmp_path / "results.jsonl"), read_recipe("mujoco/Hopper-v4")
    for side in ("everstep", "cleanrl"):
        results.add(result(recipe, side, 0, 1.0, processor_seconds=0.0))
    ours, theirs = rows_of(results, [recipe])
    assert times_as_long(theirs, ours) is None
