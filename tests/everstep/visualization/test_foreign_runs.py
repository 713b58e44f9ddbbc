"""Runs and policies that came from somebody else: what reading one cannot do."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded

import everstep
from everstep.__main__ import main
from everstep.config import load
from everstep.core.checkpoints import load_file, save_file
from everstep.core.plain_files import open_plain, printable, read_plain
from everstep.errors import CheckpointError, ConfigError, EverstepError
from everstep.loggers import read_metrics
from everstep.policies import Policy, policy_state
from everstep.visualization import read_run, write_report

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and links")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    with everstep.Trainer(
        "CartPole-v1", num_envs=2, horizon=8, run_dir=run_dir, track=False, best="returns/mean"
    ) as trainer:
        trainer.run(total_env_steps=32)
    trainer.algorithm.env.close()
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run, in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    return Path("run")


def replace(path: Path, how: str) -> None:
    """Put something else in the place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
    else:
        path.symlink_to({"zero": "/dev/zero", "elsewhere": "/etc/passwd"}[how])


READERS: dict[str, tuple[str, list[str]]] = {
    "report": ("metrics.jsonl config.yaml play.gif", ["report", "run"]),
    "compare": ("metrics.jsonl config.yaml", ["compare", "run", "copy"]),
    "plot": ("metrics.jsonl config.yaml", ["plot", "run"]),
    "watch": ("metrics.jsonl config.yaml", ["watch", "--once", "run"]),
    "publish": (
        "metrics.jsonl config.yaml best/policy best/best.json play.mp4",
        ["publish", "run", "shared"],
    ),
    "eval": ("policy config.yaml", ["eval", "run", "--episodes", "1"]),
    "play": ("policy config.yaml", ["play", "run", "--episodes", "1"]),
    "video": ("policy config.yaml", ["video", "run", "--episodes", "1", "--out", "seen.gif"]),
    "export": ("policy config.yaml", ["export", "run", "--format", "torch-export"]),
    "resume": (
        "metrics.jsonl config.yaml checkpoints policy best traceback.txt videos",
        ["resume", "run", "--steps", "64", "--no-mlflow"],
    ),
}


FOREIGN = [(x, how) for x in READERS for how in ("pipe", "zero", "elsewhere", "directory")]


@pytest.mark.few(4)
@pytest.mark.few(13)
@pytest.mark.parametrize(("command", "how"), FOREIGN)
def test_what_is_no_plain_file_of_the_run_is_refused(
    run_dir: Path,
    command: str,
    how: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No reader waits for a pipe, reads a device, or shows a file from elsewhere."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # `play` needs a display
    names, words = READERS[command]
    shutil.copytree(run_dir, "copy")
    for name in names.split():
        if how == "directory" and name in ("checkpoints", "best", "videos", "traceback.txt"):
            continue
        shutil.rmtree(run_dir)
        shutil.copytree("copy", run_dir)
        replace(run_dir / name, how)
        code = main(words)
        told = capsys.readouterr().err
        assert code in (1, 2), (name, told)
        assert name.split("/")[0] in told or "no checkpoint in it" in told, (name, told)
        for made in Path().rglob("*"):
            assert not made.is_file() or made.is_symlink() or b"root:" not in made.read_bytes()[:20]
        shutil.rmtree("shared", ignore_errors=True)


READ: dict[str, Callable[[Path], Any]] = {
    "policy": Policy.load,
    "config.yaml": lambda run_dir: everstep.Trainer.load(run_dir, track=False),
    "metrics.jsonl": lambda run_dir: read_run(run_dir),
}


@pytest.mark.parametrize("how", ["pipe", "zero"])
@pytest.mark.parametrize("name", READ)
def test_python_reads_no_pipe_and_no_device(run_dir: Path, name: str, how: str) -> None:
    replace(run_dir / name, how)
    before = psutil.Process().memory_info().rss
    with pytest.raises((OSError, EverstepError), match=r"a pipe|leads out of|no config.yaml"):
        READ[name](run_dir)
    assert psutil.Process().memory_info().rss - before < 200 * 2**20


def test_a_page_is_not_written_through_a_link(run_dir: Path) -> None:
    """Nor pictures, videos and models that a command writes into the run's directory."""
    kept = Path("kept").absolute()
    kept.write_text("mine")
    for name, words in {
        "report.html": ["report", "run"],
        "curves.png": ["plot", "run"],
        "play.mp4": ["video", "run", "--episodes", "1"],
        "policy.pt2": ["export", "run", "--format", "torch-export"],
    }.items():
        (run_dir / name).symlink_to(kept)
        assert main(words) == 2
        assert kept.read_text() == "mine"


def test_links_inside_a_run_and_to_a_policy_are_followed(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").rename(run_dir / "m")
    (run_dir / "metrics.jsonl").symlink_to("m")
    assert read_run(run_dir).records
    Path("policy").symlink_to(run_dir / "policy")
    assert isinstance(Policy.load("policy"), Policy)


def test_a_plain_file_is_opened_and_has_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_plain(path) == b"12345"
    with pytest.raises(OSError, match="has 5 bytes; at most 4 are read"):
        read_plain(path, limit=4)
    with pytest.raises(OSError, match="leads out of"):
        open_plain(path, within=tmp_path / "b")
    with pytest.raises(OSError, match="leads out of"):
        open_plain(tmp_path / "b" / ".." / "a", within=tmp_path / "b")
    with pytest.raises(OSError, match="a directory"):
        open_plain(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_plain(tmp_path / "c")


def test_a_configuration_is_a_small_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is a pipe, not a plain file"):
        load(path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ConfigError, match="at most 10,000,000"):
        load(path)


# ---- sizes -----------------------------------------------------------------------------------


def huge(change: Callable[[dict[str, Any]], None], path: Path) -> None:
    """A policy's file with something in it changed."""
    policy = Policy(Unbounded([4]), Categorical(2, shape=[1]))
    state = policy_state(policy)
    change(state)
    save_file(path, state)


def _bounded(key: str) -> Callable[[dict[str, Any]], None]:
    described = {"kind": "bounded", "low": -1.0, "high": 1.0, "dtype": "float32"}
    return lambda state: state.update({key: {**described, "shape": [300_000_000]}})


def _kind(key: str, **spec: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.update({key: {"dtype": "int64", **spec}})


def _config(**config: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.update(model_config={**state["model_config"], **config})


def _unbounded(state: dict[str, Any]) -> None:
    state["observation_spec"] = {"kind": "unbounded", "shape": [10**10], "dtype": "float32"}


def _normalized(state: dict[str, Any]) -> None:
    _unbounded(state)
    state["normalizer"] = {"clip": 1.0, "moments": {}}


BOMBS: dict[str, Callable[[dict[str, Any]], None]] = {
    "bounds of an observation": _bounded("observation_spec"),
    "bounds of an action": _bounded("action_spec"),
    "unbounded": _unbounded,
    "normalised": _normalized,
    "choices": _kind("action_spec", kind="categorical", n=2, shape=[300_000_000]),
    "options": _kind("action_spec", kind="categorical", n=10**10, shape=[1]),
    "one-hot": _kind("action_spec", kind="one_hot", n=10**9, shape=[10**9]),
    "binary": _kind("action_spec", kind="binary", shape=[10**9]),
    "several": _kind("action_spec", kind="multi_categorical", nvec=[10**9] * 3, shape=[3]),
    "several, expanded": _kind(
        "action_spec", kind="multi_categorical", nvec=[2], shape=[300_000_000, 1]
    ),
    "layers": _config(hiddens=[1] * 20_000),
    "a wide layer": _config(hiddens=[10**9, 64]),
}


#: Loads the policies that it is given; prints each error, and the MiB that it took at most.
_LOADING = """
import resource, sys
from everstep.errors import CheckpointError
from everstep.policies import load_policy
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for path in sys.argv[1:]:
    try:
        load_policy(path)
    except CheckpointError as error:
        print(str(error).splitlines()[0], "|", peak() - before)
"""


@pytest.mark.slow
def test_a_small_file_takes_no_large_memory(tmp_path: Path) -> None:
    """Sizes that a file declares are compared with its content before anything is allocated."""
    paths = [str(tmp_path / name) for name in BOMBS]
    for change, path in zip(BOMBS.values(), paths, strict=True):
        huge(change, Path(path))
    found = subprocess.run(
        [sys.executable, "-c", _LOADING, *paths],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    lines = [line.rsplit("|", 1) for line in found.stdout.splitlines()]
    assert [line[0].startswith(path) for line, path in zip(lines, paths, strict=True)]
    assert int(lines[-1][1]) < 300, found.stdout


def test_policies_of_every_spec_are_still_loaded(tmp_path: Path) -> None:
    specs = [
        (Bounded(-torch.ones(3), torch.ones(3)), Bounded(-1, 1, [2])),
        (Unbounded([4]), MultiCategorical([3, 2])),
        (Bounded(0, 255, [3, 32, 32], dtype=torch.uint8), Categorical(4, shape=[1])),
    ]
    for observation, action in specs:
        Policy(observation, action).save(tmp_path / "policy")
        assert Policy.load(tmp_path / "policy").action_spec.shape == action.shape


def test_lines_of_a_record_are_short(tmp_path: Path) -> None:
    """A huge line, deep nesting, or a number beyond all floats costs its line alone."""
    path = tmp_path / "metrics.jsonl"
    good = b'{"step": 2, "time": 1.0, "a": 3.0}\n'
    lines = [
        good,
        b'{"a": "' + b"x" * 3_000_000 + b'"}\n',
        b"[" * 100_000 + b"\n",
        b'{"a":' * 50_000 + b"\n",
        b"1" * 5000 + b"\n",
        good,
    ]
    path.write_bytes(b"".join(lines))
    skipped: list[str] = []
    found = read_metrics(path, skipped=skipped)
    assert found == [{"step": 2, "time": 1.0, "a": 3.0}] * 2
    assert skipped == [f"{path}:{i}" for i in (2, 3, 4, 5)]
    with pytest.raises(EverstepError, match=r"metrics.jsonl:2: expected one JSON object"):
        read_metrics(path)
    path.write_bytes(good + b'{"step": 3')
    assert len(read_metrics(path)) == 1
    path.write_bytes(good + good[:-1])
    assert len(read_metrics(path)) == 2
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(OSError, match="at most"):
        read_metrics(path)


def test_a_file_of_a_policy_has_a_small_document(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    save_file(path, {"a": "x" * 65_000_000})
    with pytest.raises(CheckpointError, match="its document has"):
        load_file(path)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "text",
    [
        "a: &a [" + "1, " * 1000 + "]\n" + "".join(f"b{i}: *a\n" for i in range(200)),
        "a: &a " + "x" * 100_000 + "\n" + "".join(f"b{i}: *a\n" for i in range(2000)),
        "a: " + "[" * 100 + "]" * 100 + "\n",
        "a: " + "[" * 100_000 + "\n",
        "a: " + "{a: " * 40 + "1" + "}" * 40 + "\n",
    ],
    ids=["values", "characters", "lists", "open lists", "mappings"],
)
def test_a_configuration_does_not_grow_when_it_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"more than|too deeply"):
        load(path)


# ---- what is shown ---------------------------------------------------------------------------

NASTY = "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script>\u202e|$\\frac{$"


def test_names_of_a_run_are_text(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No HTML in pages and pictures, no mathematics in labels, nothing that a terminal obeys."""
    record = {"step": 16, "time": 1e9, f"losses/{NASTY}": 1.0, "episodes/return_mean": 10**400}
    lines = [json.dumps({**record, "step": step}) for step in (16, 32, 48)]
    (run_dir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(
        f"# {NASTY.encode('unicode_escape').decode()}\n# <script>\n"
        + text
        + f"recipe: {{task: {json.dumps(NASTY)}}}\n"
    )
    (run_dir / "best" / "best.json").write_text(json.dumps({"key": NASTY, "value": 1.0}))
    renamed = Path("<script>alert(2)<")
    shutil.copytree(run_dir, renamed)
    page = write_report(renamed).read_text()
    assert "<script" not in page.lower()
    for words in (
        ["compare", "run", str(renamed)],
        ["watch", "--once", "run"],
        ["plot", "run", "--out", "curves.html", "--key", "losses/*"],
        ["plot", "run", "--out", "curves.svg", "--key", "losses/*"],
        ["publish", "run", "shared"],
        ["resume", "run", f"{NASTY}=1"],
        ["eval", "run", f"env_kwargs.x={json.dumps(NASTY)}"],
    ):
        main(words)
    shown = capsys.readouterr()
    for out in (shown.out, shown.err):
        assert "\x1b]" not in out
        assert "\x1b[2J" not in out
        assert "\u202e" not in out
    for name in ("curves.html", "curves.svg", "shared/README.md"):
        lines = Path(name).read_text().lower().splitlines()
        assert not any("<script" in line for line in lines if line[:4].strip())  # others are code


def test_errors_have_no_control_characters() -> None:
    assert printable("a\tb\nc\x1b[1m\x9b\u202e") == "a\tb\nc\\x1b[1m\\x9b\\u202e"
    assert str(ConfigError(["\x1b"])) == "\\x1b"
    assert ConfigError("\x1b").problems == ("\\x1b",)
    assert str(EverstepError("\x07é")) == "\\x07é"


def test_a_best_result_is_names_and_numbers(run_dir: Path) -> None:
    for text in ("[" * 100_000, "[]", '{"a": {"b": 1}}', "{", '{"a": ' + "9" * 5000 + "}"):
        (run_dir / "best" / "best.json").write_text(text)
        assert main(["publish", "run", "shared"]) == 2
        shutil.rmtree("shared", ignore_errors=True)


# ---- records of a stranger -------------------------------------------------------------------


def records(run_dir: Path, *lines: dict[str, Any]) -> None:
    """Write lines of statistics, each with its step and time."""
    text = [json.dumps({"step": 16 * i, "time": 1e9 + i, **x}) for i, x in enumerate(lines, 1)]
    (run_dir / "metrics.jsonl").write_text("\n".join(text) + "\n")


HISTORY = {
    "env/steps": 0,
    "algorithm/steps": 0,
    "by": "run",
    "resumed": False,
    "restorable": True,
    "processes": 1,
    "settings": {"lr": 0.1},
    "status": "FINISHED",
}


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "changed",
    [
        {"env/steps": "x"},
        {"env/steps": float("nan")},
        {"env/steps": True},
        {"algorithm/steps": [1]},
        {"by": ["step"]},
        {"processes": "2; rm"},
        {"resumed": 1},
        {"restorable": None},
        {"settings": [1]},
        {"status": {"a": 1}},
    ],
    ids=repr,
)
def test_a_history_is_of_stretches_or_refused_where_it_would_be_lost(
    run_dir: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Reports say that it was left out; a run that goes on does not write over it."""
    text = "".join(f"{json.dumps(x)}\n" for x in (HISTORY, {**HISTORY, **changed}))
    (run_dir / "history.jsonl").write_text(text)
    assert read_run(run_dir).history == ()
    assert main(["report", "run"]) == 0
    [key] = changed
    assert f"has no valid &#39;{key}&#39;" in (run_dir / "report.html").read_text()
    assert main(["resume", "run", "--steps", "64", "--no-mlflow"]) == 2
    assert "history.jsonl:2: expected one JSON object about a stretch" in capsys.readouterr().err
    assert (run_dir / "history.jsonl").read_text() == text
    assert main(["resume", "run", "--steps", "32", "--no-mlflow"]) == 2  # it holds no lock


@pytest.mark.parametrize(
    "values",
    [[-1.7e308, 1.7e308], [1e305, -1e305], [10**400, -(10**400)], [1e300, -1e300], [5e-324, 0.0]],
    ids=repr,
)
def test_numbers_that_no_axis_has_are_noted_and_the_others_drawn(
    run_dir: Path, values: list[float]
) -> None:
    records(run_dir, *({"episodes/return_mean": x, "losses/a": 1.0} for x in values))
    run = read_run(run_dir)
    assert bool(run.notes) == (abs(values[0]) > 1e300)
    assert main(["report", "run"]) == 0
    assert main(["plot", "run", "--key", "*", "--out", "a.svg"]) == 0


def test_a_figure_has_few_panels_and_short_texts(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {f"k{i}": 1.0 for i in range(500)}
    records(run_dir, many, many)
    assert main(["report", "run"]) == 0  # none of its statistics is drawn by default
    assert main(["plot", "run", "--key", "*", "--out", "a.svg"]) == 2
    assert "500 statistics; a figure has at most 100 panels" in capsys.readouterr().err
    long = {"losses/" + "x" * 500_000: 1.0, "losses/\ud800\x00\n$": 2.0}
    records(run_dir, long, long)
    assert main(["plot", "run", "--key", "*", "--out", "a.svg"]) == 0
    assert len(Path("a.svg").read_text()) < 100_000
    assert "losses/\\ud800\\x00\\n$" in Path("a.svg").read_text()
    records(run_dir, {}, {})
    assert main(["plot", "run"]) == 2
    assert "metrics.jsonl: no statistic in it" in capsys.readouterr().err


def test_steps_that_go_back_again_and_again_take_no_time(run_dir: Path) -> None:
    ahead = [f'{{"step": {i}, "time": 1, "a": 1}}' for i in range(30_000)]
    back = [f'{{"step": {29_999 - i % 2}, "time": 2, "a": 2}}' for i in range(30_000)]
    (run_dir / "metrics.jsonl").write_text("\n".join([*ahead, *back]) + "\n")
    begin = time.process_time()
    assert read_run(run_dir).records[-1] == {"step": 29_998.0, "time": 2.0, "a": 2.0}
    assert time.process_time() - begin < 5


def test_a_card_has_no_link_and_a_page_no_control_character_of_a_stranger(run_dir: Path) -> None:
    nasty = "[x](javascript:alert(1)) `a` ~~b~~ \x1b[2J\u202e"
    config = (run_dir / "config.yaml").read_text()
    assert "env_cls: gymnasium:CartPole-v1" in config
    name = f"env_cls: {json.dumps('gymnasium:' + nasty)}"
    config = config.replace("env_cls: gymnasium:CartPole-v1", name)
    (run_dir / "config.yaml").write_text(config)
    stretches = [{**HISTORY, "by": nasty, "status": nasty}] * 2
    (run_dir / "history.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in stretches))
    assert main(["report", "run"]) == 0
    assert main(["publish", "run", "shared"]) == 0
    title = next(x for x in Path("shared/README.md").read_text().splitlines() if x[:2] == "# ")
    assert not set(title) & set("[]`~")
    for path in (run_dir / "report.html", Path("shared/README.md")):
        assert "\x1b" not in path.read_text()
        assert "\u202e" not in path.read_text()


def test_a_line_of_somebody_else_stays_where_a_run_goes_on(run_dir: Path) -> None:
    """A record that an editor has changed is cut by its steps; what is no record is not ours."""
    path = run_dir / "metrics.jsonl"
    kept = path.read_bytes()
    path.write_bytes(b"# my own line\n" + kept + b'{"step": 999, "time": 1.0}\n')
    assert main(["resume", "run", "--steps", "64", "--no-mlflow"]) == 0
    assert path.read_bytes().startswith(b"# my own line\n" + kept)
    assert b'"step": 999' not in path.read_bytes()


@pytest.mark.parametrize(("name", "size"), [("play.mp4", 10**8 + 1), ("best/policy", 2**33)])
def test_a_published_file_has_a_limit(
    run_dir: Path, name: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / name).parent.mkdir(exist_ok=True)
    with (run_dir / name).open("wb") as file:
        file.truncate(size)  # a hole: it takes no room
    assert main(["publish", str(run_dir), "shared"]) == 2
    assert f"{run_dir / name}: has {size:,} bytes" in capsys.readouterr().err
    assert not Path("shared").exists()
