"""Records that are read of a run's directory, also of a damaged one."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from everstep.errors import ConfigError, EverstepError
from everstep.loggers import read_metrics
from everstep.objectives import OBJECTIVES
from everstep.visualization import find_runs, read_run
from everstep.visualization._records import RunRecord

pytestmark = pytest.mark.slow


def test_a_curve_has_the_values_of_the_record(seeds: Path) -> None:
    records = read_metrics(seeds / "seed-0" / "metrics.jsonl")
    x, y = read_run(seeds / "seed-0").curve("losses/vf")
    assert x.tolist() == [r["step"] for r in records if "losses/vf" in r]
    assert y.tolist() == [r["losses/vf"] for r in records if "losses/vf" in r]


def test_time_begins_with_the_first_rollout(seeds: Path) -> None:
    first, *_, last = read_metrics(seeds / "seed-0" / "metrics.jsonl")
    run = read_run(seeds / "seed-0")
    x, _ = run.curve("losses/vf", "time")
    took = (first["profiling/collect_ms"] + first["profiling/step_ms"]) / 1000
    assert x[0] == pytest.approx(took, abs=1e-5)
    assert run.seconds == pytest.approx(last["time"] - first["time"] + took, abs=1e-5)


def test_evaluations_have_no_prefix(seeds: Path) -> None:
    records = read_metrics(seeds / "seed-0" / "metrics.jsonl")
    expected = [r["eval/episodes/return_mean"] for r in records if "eval/episodes/count" in r]
    found = [each["episodes/return_mean"] for each in read_run(seeds / "seed-0").evaluations()]
    assert found == expected != []


@pytest.fixture
def copy(seeds: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seeds / "seed-0", tmp_path / "copy"))


def test_a_half_written_line_is_left_out(copy: Path) -> None:
    file = copy / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    assert len(read_run(copy).records) == whole.count(b"\n") - 1
    assert read_run(copy).notes == ()  # that is how a file looks while it is written


def test_lines_that_are_no_records_are_left_out_and_said(copy: Path) -> None:
    file = copy / "metrics.jsonl"
    good = len(read_run(copy).records)
    lines = file.read_bytes().splitlines(keepends=True)
    bad = [b"\xff\x00\n", b"[1, 2]\n", b'{"loss": 1}\n', b'{"step": "NaN", "time": 1}\n']
    file.write_bytes(b"".join([lines[0], *bad, *lines[1:]]))
    run = read_run(copy)
    assert len(run.records) == good
    assert run.notes == (f"{file}:2: not a record of a run; 4 lines are left out",)


def test_values_that_are_not_finite_are_left_out_and_said(copy: Path) -> None:
    file = copy / "metrics.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    trained = [record for record in records if "losses/vf" in record]
    trained[0]["losses/vf"], trained[1]["losses/vf"] = "NaN", "Infinity"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run(copy)
    x, y = run.curve("losses/vf")
    assert len(x) == len(trained) - 2
    assert np.isfinite(y).all()
    what = "losses/vf: 2 values are not finite or beyond 1e300, and are left out"
    assert run.notes == (f"{file}: {what}",)


def test_records_that_a_resumed_run_repeats_count_once(copy: Path) -> None:
    file = copy / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, *lines[3:]]))
    assert [r["step"] for r in read_run(copy).records] == [json.loads(x)["step"] for x in lines]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no record in it"),
        (b"\n", "none of its 1 lines"),
        (b"step,loss\n1,2\n", "none of its 2 lines"),
        (b'{"epoch": 1}\n{"epoch": 2}\n', "none of its 2 lines"),
        (bytes(range(256)), "none of its"),
        (None, "no such file"),
    ],
)
def test_a_file_without_records_is_refused(copy: Path, content: None | bytes, words: str) -> None:
    file = copy / "metrics.jsonl"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(EverstepError) as raised:
        read_run(copy)
    assert words in str(raised.value)
    assert str(file) in str(raised.value)


def test_directories_of_runs_are_their_runs(seeds: Path, tmp_path: Path) -> None:
    runs = find_runs([seeds, seeds / "seed-0"])
    assert [path.name for path in runs] == ["seed-0", "seed-1", "seed-2", "short-sighted"]
    with pytest.raises(ConfigError) as raised:
        find_runs([tmp_path, tmp_path / "missing", seeds / "seed-0" / "policy"])
    assert len(raised.value.problems) == 3


def test_the_last_record_is_the_budget(seeds: Path) -> None:
    run = read_run(seeds / "seed-0")
    assert run.env_steps >= run.config["total_env_steps"] == 256
    assert run.return_key == "episodes/return_mean_100"
    assert all(math.isfinite(value) for record in run.records for value in record.values())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_title_of_an_objective_is_its_class(name: str) -> None:
    assert RunRecord(Path(), {"objective": name}, (), (), ()).objective == OBJECTIVES[name].__name__


@pytest.mark.parametrize("objective", ["my.Objective", None, ["ppo"]])
def test_an_objective_of_ones_own_has_no_title(objective: object) -> None:
    assert RunRecord(Path(), {"objective": objective}, (), (), ()).objective is None
