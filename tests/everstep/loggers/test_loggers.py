"""The primary record, run directories, and a group that no member can break."""

import json
import logging
import math
import subprocess
import sys

import pytest

from everstep.errors import ConfigError, EverstepError
from everstep.loggers import JsonlLogger, LoggerGroup, create_run_dir, read_metrics

NUMBERS = {"a": 1.5, "b": -0.0, "c": 1e-320, "d": 10**30, "e": 0.1 + 0.2}
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def strict(line):
    """Parse as JSON proper, which knows no NaN."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_every_value_comes_back_exactly(tmp_path):
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.log_metrics(NUMBERS, step=1)
    logger.log_metrics(NON_FINITE, step=2)
    first, second = read_metrics(logger.path)
    logger.close()
    assert {name: repr(first[name]) for name in NUMBERS} == {n: repr(v) for n, v in NUMBERS.items()}
    assert math.isnan(second["nan"])
    assert (second["inf"], second["-inf"], second["step"]) == (math.inf, -math.inf, 2)


def test_lines_are_strict_json_and_complete_before_close(tmp_path):
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    for step in range(3):
        logger.log_metrics(NON_FINITE, step=step)
        text = logger.path.read_text()
        assert text.endswith("\n")
        assert [strict(line)["step"] for line in text.splitlines()] == list(range(step + 1))
    assert strict(text.splitlines()[0])["inf"] == "Infinity"
    logger.close()


def test_other_number_types_are_recorded_as_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.log_metrics(
        {"np32": numpy.float32(0.5), "np64": numpy.float64(0.1), "t": torch.tensor(2.0)}, step=0
    )
    logger.close()
    [record] = read_metrics(logger.path)
    assert (record["np32"], record["np64"], record["t"]) == (0.5, 0.1, 2.0)


def test_resume_appends(tmp_path):
    for step in range(3):
        logger = JsonlLogger(tmp_path / "metrics.jsonl")
        logger.log_metrics({"a": step}, step=step)
        logger.close()
    assert [record["step"] for record in read_metrics(logger.path)] == [0, 1, 2]


@pytest.mark.parametrize("torn", ['{"step": 2, "ti', "{", "x" * 200_000])
def test_torn_last_line_is_ignored_then_removed(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}\n' + torn)
    assert [record["step"] for record in read_metrics(path)] == [0, 1]
    logger = JsonlLogger(path)
    logger.log_metrics({}, step=2)
    logger.close()
    assert [strict(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_a_last_record_counts_without_the_end_of_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}')
    assert [record["step"] for record in read_metrics(path)] == [0, 1]


def test_file_of_one_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"st')
    assert read_metrics(path) == []
    JsonlLogger(path).close()
    assert path.read_bytes() == b""


def test_damage_inside_the_file_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\nrubbish\n{"step": 2}\n')
    with pytest.raises(EverstepError, match=r"metrics\.jsonl:2"):
        read_metrics(path)


@pytest.mark.parametrize("name", ["step", "time"])
def test_reserved_names_are_refused(tmp_path, name):
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match=f"`{name}`"):
        logger.log_metrics({name: 1.0}, step=0)
    logger.close()
    assert logger.path.read_bytes() == b""


KILLED = """
import os, signal, sys
from everstep.loggers import JsonlLogger
logger = JsonlLogger(sys.argv[1])
for step in range(1000):
    logger.log_metrics({"a": step}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""

FULL_DISK = """
import resource, signal, sys
from everstep.loggers import JsonlLogger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
logger = JsonlLogger(sys.argv[1])
for step in range(100):
    if step in (10, 60):  # full, and then not any more
        limit = 1000 if step == 10 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    logger.log_metrics({"losses/policy": 0.125}, step=step)
    if step == 59:
        print(len(open(sys.argv[1]).read().splitlines()), logger.size)
logger.close()
"""


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_everything_logged_survives_a_kill(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert run_script(KILLED, path).returncode == -9
    assert [record["a"] for record in read_metrics(path)] == list(range(1000))


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_lines_of_a_full_disk_are_written_when_there_is_room(tmp_path):
    path = tmp_path / "metrics.jsonl"
    done = run_script(FULL_DISK, path)
    during, size = map(int, done.stdout.split())
    assert 0 < during < 60
    lines = path.read_text().splitlines()
    assert [strict(line)["step"] for line in lines] == list(range(100))
    assert size == sum(len(line) + 1 for line in lines[:60])
    assert done.stderr.count("cannot be written") == 1
    assert str(path) in done.stderr


class Recorder:
    """A logger that remembers its calls, and raises in those it is told to."""

    def __init__(self, *raises):
        self.raises = raises
        self.calls = []

    def _called(self, name, *arguments):
        self.calls.append((name, *arguments))
        if name in self.raises:
            raise OSError(28, "No space left on device")

    def log_params(self, params):
        self._called("params", params)

    def log_metrics(self, metrics, *, step):
        self._called("metrics", metrics, step)

    def close(self, status="FINISHED"):
        self._called("close", status)


def test_group_passes_everything_on():
    members = [Recorder(), Recorder()]
    group = LoggerGroup(members)
    group.log_params({"a": 1})
    group.log_metrics({"b": 2.0}, step=3)
    group.close("KILLED")
    expected = [("params", {"a": 1}), ("metrics", {"b": 2.0}, 3), ("close", "KILLED")]
    assert [member.calls for member in members] == [expected, expected]


@pytest.mark.parametrize("where", ["params", "metrics", "close"])
def test_a_failing_member_is_tried_again_and_said_to_lack_calls(caplog, where):
    broken, working = Recorder(where, "close"), Recorder()
    group = LoggerGroup([broken, working])
    with caplog.at_level(logging.WARNING):
        group.log_params({})
        for step in range(3):
            group.log_metrics({}, step=step)
        group.close()
    first, *last = (record.getMessage() for record in caplog.records)
    assert "Recorder failed: OSError: [Errno 28] No space left on device" in first
    expected = {"params": ["lacks 4 of 4"], "metrics": ["lacks 3 of 4"], "close": []}[where]
    assert [x.split("Recorder ")[1].split(" calls")[0] for x in last] == expected
    assert len(working.calls) == 5
    names = [call[0] for call in broken.calls]
    assert names.count("metrics") >= {"params": 0, "metrics": 3, "close": 3}[where]
    assert names[-1] == "close"  # it may hold a file or a thread


def test_group_lets_an_interrupt_pass():
    class Interrupted(Recorder):
        def log_metrics(self, metrics, *, step):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LoggerGroup([Interrupted()]).log_metrics({}, step=0)


def test_empty_group():
    group = LoggerGroup([])
    group.log_params({})
    group.log_metrics({}, step=0)
    group.close()


def test_run_dirs_count_up(tmp_path):
    root = tmp_path / "deep" / "runs"
    names = [create_run_dir(root, "cartpole").name for _ in range(3)]
    assert names == ["cartpole-0001", "cartpole-0002", "cartpole-0003"]
    (root / "cartpole-0002").rmdir()
    assert create_run_dir(root, "cartpole").name == "cartpole-0004"
    assert create_run_dir(root, "cart").name == "cart-0001"
    (root / "cart-12345").mkdir()
    assert create_run_dir(root, "cart").name == "cart-12346"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gymnasium:CartPole-v1", "gymnasium-CartPole-v1-0001"),
        ("../up/and away", "up-and-away-0001"),
        ("ünï", "ünï-0001"),
    ],
)
def test_run_dir_names_are_safe(tmp_path, name, expected):
    run_dir = create_run_dir(tmp_path, name)
    assert run_dir == tmp_path / expected


@pytest.mark.parametrize("name", ["", "..", "/", "-"])
def test_run_dir_needs_a_name(tmp_path, name):
    with pytest.raises(ConfigError, match="`name`"):
        create_run_dir(tmp_path, name)


RUN_DIRS = """
import sys
from everstep.loggers import create_run_dir
sys.stdin.readline()
for _ in range(50):
    print(create_run_dir(sys.argv[1], "run").name)
"""


def test_concurrent_processes_never_share_a_run_dir(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUN_DIRS, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    names = [name for process in processes for name in process.communicate()[0].split()]
    assert len(names) == len(set(names)) == 150


@pytest.mark.parametrize("size", [10, 65_535, 65_536, 65_537, 200_000])
def test_a_torn_line_of_any_length_is_removed_and_lines_of_any_length_are_kept(tmp_path, size):
    """Also where the end of the line before it is more than 64 KiB away."""
    path = tmp_path / "metrics.jsonl"
    first = json.dumps({"step": 1, "time": 1e12, "a": 1.0}).encode() + b"\n"
    long = json.dumps({"step": 2, "time": 2e12, "x" * size: 1.0}).encode() + b"\n"
    path.write_bytes(first + long + b'{"step": 3, "' + b"y" * size)
    logger = JsonlLogger(path)
    logger.log_metrics({"a": 2.0}, step=4)
    logger.close()
    assert path.read_bytes()[: len(first + long)] == first + long
    records = read_metrics(path)
    assert [record["step"] for record in records] == [1, 2, 4]
    assert records[-1]["time"] >= 2e12  # the time of the line before, however long it is
