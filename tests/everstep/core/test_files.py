"""Files are written whole or not at all, whenever a process is interrupted or a disk is full."""

import ast
import contextlib
import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from types import FrameType
from typing import Any

import pytest

import everstep
import everstep_adapters
import everstep_lab
from everstep.core import files
from everstep.core.files import append_line, replacing, write_file
from everstep.errors import ConfigError
from everstep.loggers import JsonlLogger, read_metrics, writer_of
from everstep_lab.recipes import read_recipe
from everstep_lab.reproduction import Results
from tests.everstep_lab.reproduction.lines import result
from tests.tracing import traced

#: What writes a file by itself, beside `open`, `replace` and `rename`.
WRITERS = frozenset({"write_text", "write_bytes", "savez", "savefig", "tofile", "symlink_to"})

#: Places that write no file of their own: streams, a renamed directory, an inner temporary one.
ALLOWED = {
    ("bridge/server.py", "fdopen"),  # a key, on a machine without Everstep
    ("cli/_processes.py", "open"),  # standard output of other ranks, to nowhere
    ("benchmarks/peers/_serving.py", "fdopen"),  # a pipe
    ("benchmarks/peers/recipes/_serving.py", "write_text"),  # in a Python without Everstep
    ("reproduction/_suite.py", "open"),  # standard output of a process, appended
    ("trainers/_checkpointing.py", "rename"),  # a damaged or an old checkpoint
    ("core/checkpoints.py", "open"),  # into `replacing`
    ("core/fast/build.py", "write_text"),  # for a compiler, while Everstep is installed
    ("core/fast/build.py", "replace"),  # the same: it may import the standard library alone
    ("visualization/publishing.py", "open"),  # into `replacing`
    ("policies/_export.py", "rename"),  # into `replacing`
    ("policies/_export_formats.py", "rename"),  # inside a temporary directory
    ("studies/scaling.py", "savefig"),  # into `replacing`
    ("visualization/_figures.py", "savefig"),  # into `replacing`
}


def writes(path: Path) -> set[str]:
    """Names of calls in a file that may write one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        texts = [x.value for x in [*node.args, *(k.value for k in node.keywords)] if _is_text(x)]
        if name in ("open", "fdopen"):
            modes = [x for x in texts if set(x) <= set("rwxab+tU")]
            if any(set(mode) & set("wxa+") for mode in modes):
                found.add(name)
        elif name in ("replace", "rename"):  # of a path: strings have two arguments
            is_method = isinstance(node.func, ast.Attribute) and not node.keywords
            if is_method and (len(node.args) == 1 or ast.unparse(node.func).startswith("os.")):
                found.add(name)
        elif name in WRITERS:
            found.add(name)
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_nothing_else_writes_files() -> None:
    others = set()
    for package in (everstep, everstep_lab, everstep_adapters):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            names = {(path.relative_to(root).as_posix(), name) for name in writes(path)}
            others |= {x for x in names if x[0] not in ("core/files.py", "loggers/lock.py")}
    assert others == ALLOWED


# ---- whole or not at all ----------------------------------------------------------------------


class Interrupting:
    """Raises in the `count`-th line that code of a module runs.

    Args:
        module: The module.
        count: Lines before it.
        raised: What is raised.

    """

    def __init__(self, module: Any, count: int, raised: type[BaseException]) -> None:
        self.file, self.left, self.raised = module.__file__, count, raised

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise self.raised
        return self


#: A file whose opening is interrupted is closed by the garbage collector, which Python reports.
unclosed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@unclosed
@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_anywhere_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, raised: type[BaseException]
) -> None:
    path, outcomes = tmp_path / "a.txt", []
    for count in range(1, 40):
        path.write_text("old")
        try:
            with traced(Interrupting(files, count, raised)):
                write_file(path, "new" * 1000)
        except raised:
            outcomes.append(path.read_text())
            assert outcomes[-1] in ("old", "new" * 1000)
            left = [x.name for x in tmp_path.iterdir() if x != path]
            assert not left, count
    assert "old" in outcomes


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_an_error_of_the_system_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left") as error:
        write_file(path, "new")
    assert error.value.filename == str(path)
    assert [x.read_text() for x in tmp_path.iterdir()] == ["old"]


def test_permissions_stay_and_links_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "1")
    os.umask(umask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o640)
    write_file(path, "ä")
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o640, "ä".encode())
    link = tmp_path / "link"
    link.symlink_to(path)
    write_file(link, "2")
    assert (path.read_text(), link.read_text(), link.is_symlink()) == ("ä", "2", False)


def test_devices_and_pipes_are_written_and_stay() -> None:
    write_file(os.devnull, "text")
    assert not Path(os.devnull).is_file()
    reader, writer = os.pipe()
    write_file(f"/dev/fd/{writer}", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    os.close(writer)


def test_long_names_and_directories(tmp_path: Path) -> None:
    write_file(tmp_path / ("ä" * 125 + ".txt"), "text")
    with replacing(tmp_path / "folder") as place:
        place.mkdir()
        (place / "a").touch()
    with contextlib.suppress(ZeroDivisionError), replacing(tmp_path / "other") as place:
        place.mkdir()
        (place / "a").touch()
        _ = 1 / 0
    assert sorted(x.name[-6:] for x in tmp_path.iterdir()) == ["folder", "ää.txt"]
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError) as error:
        write_file(tmp_path / "none" / "a", "text")
    assert error.value.filename == str(tmp_path / "none" / "a")


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from everstep.core.files import append_line, write_file
from everstep.loggers import JsonlLogger
limit, path = int(sys.argv[1]), sys.argv[2]
logger = JsonlLogger(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for write in (
    lambda: logger.cut(10**9, 30), lambda: write_file(path + "-page", "x" * 5000),
    lambda: append_line(path + "-lines", "x" * 5000),
):
    try:
        write()
    except OSError as error:
        print(error.filename.removeprefix(path))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
@pytest.mark.parametrize("limit", [0, 1, 100, 4000])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "m"
    steps = (*range(20), *range(50, 60), *range(20, 400))  # as two writers leave them
    damaged = "".join(f'{{"step": {step}, "x": 1}}\n' for step in steps)
    for suffix in ("", "-page", "-lines"):
        path.with_name(f"m{suffix}").write_text(damaged)
    command = [sys.executable, "-c", FULL, str(limit), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = ["-page", "-lines"] if limit == 4000 else ["", "-page", "-lines"]
    assert done.stdout.splitlines() == expected, done.stderr
    assert path.with_name("m-page").read_text() == damaged
    assert path.with_name("m-lines").read_text() == damaged
    if limit == 4000:
        assert [x["step"] for x in read_metrics(path)] == [*range(31)]
    else:
        assert path.read_text() == damaged
    assert not list(tmp_path.glob(".*.tmp*"))


# ---- lines ------------------------------------------------------------------------------------


def each_line(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", range(10))
def test_lines_are_whole_and_once_though_writing_fails_at_any_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, write = random.Random(seed), os.write
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    faults: list[Callable[[], BaseException]] = [
        lambda: OSError(28, "No space left on device"),
        KeyboardInterrupt,
    ]

    def failing(descriptor: int, content: bytes) -> int:
        if rng.random() < 0.6:
            return write(descriptor, content)
        write(descriptor, content[: rng.randrange(len(content) + 1)])
        raise rng.choice(faults)()

    monkeypatch.setattr(os, "write", failing)
    for step in range(50):
        try:
            logger.log_metrics({"x": step}, step=step)
        except KeyboardInterrupt:  # the line is the logger's
            continue
    monkeypatch.setattr(os, "write", write)
    logger.close()
    assert [line["step"] for line in each_line(logger.path)] == list(range(50))


@unclosed
def test_an_interrupt_between_write_and_the_next_line_writes_it_once(tmp_path: Path) -> None:
    from everstep.loggers import jsonl

    path = tmp_path / "metrics.jsonl"
    for count in range(1, 45):
        path.unlink(missing_ok=True)
        logger = JsonlLogger(path)
        logger.log_metrics({"x": 0}, step=0)
        kept = [0]
        try:
            with traced(Interrupting(jsonl, count, KeyboardInterrupt)):
                logger.log_metrics({"x": 1}, step=1)
        except KeyboardInterrupt:
            kept = [0] if logger.size == path.stat().st_size == 0 else kept
        logger.log_metrics({"x": 2}, step=2)
        logger.close()
        assert [x["step"] for x in each_line(path)] in ([0, 1, 2], [0, 2]), count


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1}')
    logger = JsonlLogger(path)
    logger.log_metrics({}, step=2)
    logger.close()
    assert [x["step"] for x in each_line(path)] == [0, 1, 2]


def row(seed: int, **more: Any) -> dict[str, Any]:
    """A line of a failed training, or of one with a result."""
    measured = result(read_recipe("classic/CartPole-v1"), "everstep", seed, 1.0)
    key = {"recipe": "a", "digest": "b", "side": "everstep", "seed": seed}
    return ({} if "error" in more else measured) | key | more


@unclosed
@pytest.mark.parametrize("limit", range(1, 60, 2))
def test_a_retried_result_never_costs_another(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "results.jsonl"
    for seed in range(5):
        Results(path).add(row(seed, error="no"))
    try:
        with traced(Interrupting(files, limit, KeyboardInterrupt)):
            Results(path).add(row(2, training=1.0))
    except KeyboardInterrupt:
        pass
    found = {x["seed"]: x.get("training") for x in Results(path).lines}
    assert found.keys() == set(range(5))
    assert found[2] in (None, 1.0)


def add_results(path: Path, side: str) -> None:
    """Retry five trainings."""
    results = Results(path)
    for seed in range(5):
        results.add(row(seed, training=1) | {"side": side})


def test_two_processes_keep_each_others_results(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for side in "xy":
        for seed in range(5):
            Results(path).add(row(seed, error="no") | {"side": side})
    fork = multiprocessing.get_context("fork").Process
    processes = [fork(target=add_results, args=(path, side)) for side in "xy"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = Results(path).lines
    assert len(found) == 10
    assert all(line.get("training") == 1 for line in found)


def test_an_appended_line_follows_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    append_line(path, "1 2.5")
    with path.open("a") as file:
        file.write("1 3")
    append_line(path, "2 0.5")
    assert path.read_text() == "1 2.5\n2 0.5\n"


# ---- one writer -------------------------------------------------------------------------------

HOLD = """
import os, sys, time
from everstep.loggers import JsonlLogger
logger = JsonlLogger(sys.argv[1])
print(os.getpid(), flush=True)
if "fork" in sys.argv:
    if os.fork() == 0:
        logger.close()  # as a finalizer does
        print("forked", flush=True)
        time.sleep(60)
sys.stdin.readline()
"""


def hold(path: Path, *words: str) -> "subprocess.Popen[str]":
    """A process that has the lock."""
    command = [sys.executable, "-c", HOLD, str(path), *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def end(process: "subprocess.Popen[str]") -> None:
    """Kill it, and close its pipes."""
    process.kill()
    with process:
        process.wait()


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    process = hold(path)
    try:
        for _ in range(3):
            read_metrics(path)  # opening and closing the file does not unlock it
            assert writer_of(path) == process.pid
            with pytest.raises(ConfigError, match=f": process {process.pid} on {gethostname()}"):
                JsonlLogger(path)
    finally:
        end(process)
    assert writer_of(path) == 0
    JsonlLogger(path).close()


def test_reading_in_the_process_that_writes_does_not_unlock(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log_metrics({"x": 1}, step=1)
    read_metrics(path)
    with pytest.raises(ConfigError, match=r"another trainer of this process.*`close\(\)` first"):
        JsonlLogger(path)
    command = [sys.executable, "-c", HOLD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, input="")
    assert f"training in {tmp_path}: process {os.getpid()} on {gethostname()}." in done.stderr
    assert writer_of(path) == os.getpid()
    logger.close()
    logger.close()
    assert writer_of(path) == 0
    JsonlLogger(path).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_neither_holds_nor_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    process = hold(path, "fork")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"  # and it has closed its copy
        assert writer_of(path) == process.pid
        end(process)
        assert writer_of(path) == 0  # though the fork lives
        JsonlLogger(path).close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_holder_on_another_machine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    (tmp_path / ".metrics.jsonl.lock").write_text('{"pid": 7, "host": "node12"}')
    with pytest.raises(ConfigError, match="process 7 on node12"):
        JsonlLogger(path)
    assert writer_of(path) is None
    logger.close()


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fcntl

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    JsonlLogger(tmp_path / "metrics.jsonl").close()
    [record] = caplog.records
    assert f"{tmp_path}: this file system has no locks" in record.getMessage()


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes among files")
def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe that nobody reads"):
        write_file(path, "text")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_file(path, "text")
    assert os.read(reader, 100) == b"text"
    assert os.read(reader, 100) == b""
    os.close(reader)
