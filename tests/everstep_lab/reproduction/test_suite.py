"""Suites: processes that really train, are killed, and go on."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.everstep_lab.reproduction.lines import result

from everstep.__main__ import main
from everstep.errors import EverstepError
from everstep_lab.recipes import read_recipe
from everstep_lab.reproduction import Job, Results, jobs_of
from everstep_lab.reproduction._worker import ProcessorClock

ROOT = Path(__file__).parents[3]

RECIPE = """
recipe:
  task: CartPole-v1
  source: a trial
  score: training
  published: {mean: 20.0, std: 5.0, of: a guess, env_steps: 4000, source: us, link: https://a.org}
env_cls: gymnasium:CartPole-v1
total_env_steps: 3_000
checkpoint_every: 1
num_envs: 4
horizon: 64
"""

BROKEN = """
recipe: {task: none, source: a trial}
env_cls: gymnasium:CartPoll-v1
total_env_steps: 3_000
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a recipe, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / x) for x in ("src", "adapters")))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "cartpole.yaml").write_text(RECIPE)
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    left_out = ("seconds", "processor_seconds")
    curve = {k: v for k, v in line["curve"].items() if k not in left_out}
    return {k: v for k, v in line.items() if k not in left_out} | {"curve": curve}


# ---- results.jsonl ----------------------------------------------------------------------------


def line_of(job: Job, score: float) -> dict[str, Any]:
    return result(job.recipe, job.side, job.seed, score)


def test_what_is_there_is_not_missing(tmp_path: Path) -> None:
    jobs = jobs_of([read_recipe("classic/CartPole-v1")], 3)
    results = Results(tmp_path / "results.jsonl")
    results.add(line_of(jobs[0], 1.0))
    name, digest, side, seed = jobs[1].key
    results.add({"recipe": name, "digest": digest, "side": side, "seed": seed, "error": "no"})
    again = Results(results.path)
    assert again.missing(jobs) == [jobs[2]]
    assert again.missing(jobs, retry=True) == jobs[1:]
    again.add(line_of(jobs[1], 2.0))
    assert Results(results.path).lines == again.lines
    assert [x.get("training") for x in again.lines] == [1.0, 2.0]


def test_a_torn_last_line_is_removed(tmp_path: Path) -> None:
    jobs = jobs_of([read_recipe("classic/CartPole-v1")], 2)
    results = Results(tmp_path / "results.jsonl")
    results.add(line_of(jobs[0], 1.0))
    with results.path.open("a") as file:
        file.write('{"recipe": "classic/Ca')
    again = Results(results.path)
    assert again.missing(jobs) == [jobs[1]]
    again.add(line_of(jobs[1], 1.0))
    assert len(lines(results.path)) == 2


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"recipe": "a"}\n')
    with pytest.raises(EverstepError, match=r"results.jsonl:1: expected a result"):
        Results(tmp_path / "results.jsonl")


def test_another_budget_is_another_training() -> None:
    recipe = read_recipe("classic/CartPole-v1")
    [job], [short] = jobs_of([recipe], 1), jobs_of([recipe.with_env_steps(1000)], 1)
    assert job.key != short.key
    assert short.recipe.env_steps == 1000


def test_recipes_that_cannot_be_run_have_no_jobs() -> None:
    assert jobs_of([read_recipe("isaacgym/Ant")], 2) == []


def test_processor_time_adds_up_over_attempts(tmp_path: Path) -> None:
    path = tmp_path / "seconds.txt"
    path.write_text("0 1.5\n0 2.5\n1 4.0\n1 ")
    clock = ProcessorClock(path)
    assert clock.attempt == 2
    assert clock.seconds() == 6.5


# ---- processes --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_suite_trains_and_failures_are_lines(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "tiny" / "broken.yaml").write_text(BROKEN)
    assert main(["reproduce", "tiny", "--seeds", "1", "--jobs", "2"]) == 1
    broken, line = sorted(lines(folder / "reproduced" / "results.jsonl"), key=lambda x: x["recipe"])
    assert "CartPoll" in broken["error"]
    assert line["env_steps"] >= 3_000
    assert len(line["evaluation"]["returns"]) == 20
    assert line["curve"]["env_steps"][-1] == line["env_steps"]
    assert line["curve"]["return"][-1] == line["training"]
    assert line["processor_seconds"] >= line["curve"]["processor_seconds"][-1] > 0
    assert {"everstep", "torch", "python", "gymnasium"} <= line["versions"].keys()
    assert set(line["machine"]) == {"cpu", "cores"}
    before = (folder / "reproduced" / "results.jsonl").read_bytes()
    assert main(["reproduce", "tiny", "--seeds", "1", "--only", "cartpole"]) == 0
    assert (folder / "reproduced" / "results.jsonl").read_bytes() == before
    assert "1 of 1 trainings are in" in capfd.readouterr().out


@pytest.mark.slow
def test_an_error_of_the_environment_is_in_the_log_with_its_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\n\n\n"
        "class Mine(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        raise ZeroDivisionError('the pole is gone')\n"
    )
    own = RECIPE.replace("gymnasium:CartPole-v1", "mine.Mine")
    (folder / "tiny" / "cartpole.yaml").write_text(own)
    assert main(["reproduce", "tiny", "--seeds", "1", "--report"]) == 2
    said = capsys.readouterr()
    assert "ZeroDivisionError: the pole is gone" in said.out
    assert "all trainings failed, seed 0: " in said.err
    [log] = folder.glob("reproduced/runs/tiny/*/everstep-0/log.txt")
    text = log.read_text()
    assert "in step" in text
    assert "mine.py" in text


def test_mistakes_in_a_recipe_are_found_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tiny" / "cartpole.yaml").write_text(RECIPE + "gama: 0.9\n")
    assert main(["reproduce", "tiny"]) == 2
    assert "gama: unknown key (did you mean gamma?)" in capsys.readouterr().err
    assert not (folder / "reproduced").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_suite_goes_on_without_repeating_and_says_the_same(folder: Path) -> None:
    """The suite's process is killed while the second training runs; its workers end with it."""
    command = [sys.executable, "-m", "everstep", "reproduce", "tiny", "--seeds", "2", "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*command, "--out", out], env=environment)

    assert start("whole").wait() == 0
    suite = start("cut")
    metrics = f"cut/runs/{read_recipe('tiny/cartpole.yaml').name}-*/everstep-1/run/metrics.jsonl"
    end = time.monotonic() + 200
    while not any(len(x.read_text().splitlines()) >= 4 for x in folder.glob(metrics)):
        assert suite.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    suite.send_signal(signal.SIGKILL)
    suite.wait()
    first = (folder / "cut" / "results.jsonl").read_text()
    assert len(first.splitlines()) == 1
    assert start("cut").wait() == 0
    [log] = folder.glob(f"cut/runs/{read_recipe('tiny/cartpole.yaml').name}-*/everstep-1/log.txt")
    assert "interrupted; the run goes on" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert (folder / "cut" / "results.jsonl").read_text().startswith(first)
    [metrics_file] = folder.glob(metrics)
    steps = [json.loads(x)["step"] for x in metrics_file.read_text().splitlines()]
    assert steps == sorted(set(steps))  # no env step twice
    whole, cut = (lines(folder / out / "results.jsonl") for out in ("whole", "cut"))
    assert [without_times(x) for x in cut] == [without_times(x) for x in whole]
    attempts = metrics_file.with_name("processor_seconds.txt").read_text().split()[::2]
    assert set(attempts) == {"0", "1"}  # it went on, and did not begin anew


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce"], "no suite"),
        (["reproduce", "nothing"], "recipe:nothing: unknown recipe"),
        (["reproduce", "nothing"], "named by its file, mine/lake.yaml, or its folder, mine/"),
        (["reproduce", "classic", "--compare", "sb4"], "got 'sb4'"),
        (
            ["reproduce", "memory", "--compare", "cleanrl"],
            "cleanrl is not given clip_param_schedule, model_config.hidden_size, "
            "model_config.ortho_init, model_config.shared, recurrent, seq_len",
        ),
        (
            ["reproduce", "classic/Pendulum-v1", "--compare", "cleanrl"],
            "cleanrl is not given model_config.sde_sample_freq, model_config.use_sde",
        ),
        (
            ["reproduce", "ablation/gsde", "--compare", "stable-baselines3"],
            "the recipe leaves clip_param, normalize_advantages, vf_coeff to Everstep's defaults",
        ),
        (
            ["reproduce", "exploration/DeepSea-20", "--compare", "cleanrl"],
            "cleanrl does not have model_config.activation_fn: relu (tanh there)",
        ),
    ],
)
def test_wrong_command_lines(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("peer", ["cleanrl", "stable-baselines3"])
@pytest.mark.parametrize("schedule", ["constant_then_linear", "[[0, 1e-3], [100, 1e-4]]"])
def test_a_peer_is_not_given_a_schedule_that_it_does_not_have(
    peer: str, schedule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rate would be constant."""
    classic = files("everstep_lab.recipes").joinpath("classic/CartPole-v1.yaml").read_text()
    recipe = tmp_path / "cartpole.yaml"
    recipe.write_text(re.sub("(?m)^lr_schedule: .*", f"lr_schedule: {schedule}", classic))
    assert main(["reproduce", str(recipe), "--compare", peer]) == 2
    assert f"{peer} does not have lr_schedule: " in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("peer", ["cleanrl", "stable-baselines3"])
def test_a_peer_trains_the_same_recipe(folder: Path, peer: str) -> None:
    if peer == "stable-baselines3":
        pytest.importorskip("stable_baselines3")
    words = ["--seeds", "1", "--steps", "2048", "--jobs", "1", "--compare", peer]
    assert main(["reproduce", "classic/CartPole-v1", *words]) == 0
    ours, theirs = sorted(
        lines(folder / "reproduced" / "results.jsonl"), key=lambda x: x["side"] != "everstep"
    )
    assert theirs["side"] == peer
    assert (ours["recipe"], ours["digest"]) == (theirs["recipe"], theirs["digest"])
    assert theirs["env_steps"] == 2048
    assert len(theirs["evaluation"]["returns"]) == 20
    assert theirs["curve"]["return"][-1] == theirs["training"]
    assert theirs.keys() == ours.keys()


@pytest.mark.slow
def test_a_recipe_of_ones_own_environment_by_the_page_alone(folder: Path) -> None:
    """The blocks of the page's section are written to their files, and its command is run."""
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    page = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    section = page.split("## A recipe of your own environment\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)```", section, re.DOTALL)
    assert [name for name, _ in blocks] == ["lake.py", "mine/lake.yaml"]
    for name, text in blocks:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    [command] = re.findall(r"```sh\neverstep (.*)\n```", section)
    done = subprocess.run([sys.executable, "-m", "everstep", *shlex.split(command)], check=False)
    assert done.returncode == 0
    assert len(lines(folder / "reproduced" / "results.jsonl")) == 3
    text = (folder / "reproduced" / "results.md").read_text()
    row, _ = [x for x in text.splitlines() if x.startswith("| `mine/lake`")]
    assert row.endswith("| 3 |")
    assert "too few seeds" in row
    assert (folder / "reproduced" / "results" / "mine_env_steps.svg").exists()
