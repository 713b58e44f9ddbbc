"""The sides of a benchmark: processes that work one at a time, and end with the bench."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ._errors import PeerError
from ._peers import OURS, PEERS, family

_HERE = Path(__file__).parent


class Side:
    """A program in a process that waits for requests; a context manager.

    Args:
        name: `everstep`, or a peer's name.
        work: Settings of the program.
        python: Interpreter that has the packages the program needs.
        timeout_s: Seconds that an answer may take.

    Raises:
        PeerError: If it cannot be started.

    """

    #: Versions of its packages.
    versions: dict[str, str]

    def __init__(self, name: str, work: dict[str, Any], python: str, timeout_s: float) -> None:
        self.name, self.work, self.timeout_s = name, work, timeout_s
        self.python = _found(name, python)
        #: When it was started, by `time.perf_counter`.
        self.started = time.perf_counter()
        self._directory = tempfile.mkdtemp(prefix="everstep-bench-")
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process = self._start()
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._send(work)
            self.versions = self._receive("ready")["ready"]["versions"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, request: str, argument: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            PeerError: If the program fails, or does not answer in time.

        """
        self._send({request: argument})
        return self._receive(request)

    def close(self) -> None:
        """End the process and all processes that it started."""
        process = self._process
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            assert process.stdin is not None
            process.stdin.close()  # the end of its input, at which it ends
            process.wait(timeout=2)
        _kill_group(process)
        process.wait()
        for stream in (process.stdin, process.stdout, self._complaints):
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> "subprocess.Popen[bytes]":
        ours = self.name == OURS
        module = (
            "everstep_lab.benchmarks._everstep" if ours else f"peers.{PEERS[family(self.name)][0]}"
        )
        path = str(_HERE.parents[1] if ours else _HERE)
        before = os.environ.get("PYTHONPATH")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([path, before] if before and ours else [path]),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": str(self.work["threads"]),
            "MKL_NUM_THREADS": str(self.work["threads"]),
        }
        if self.work["device"] == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""  # rl8 would take the GPU otherwise
        return subprocess.Popen(
            [self.python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            # Files that a library writes are removed; our side may import from here.
            cwd=None if ours else self._directory,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the bench, which ends all sides
        )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # closed while reading
            for line in self._process.stdout:
                self._answers.put(line.decode("utf-8", "replace"))
        self._answers.put("")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the missing answer is reported
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _receive(self, request: str) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=self.timeout_s)
        except queue.Empty:
            raise self._error(
                f"no answer to `{request}` within {self.timeout_s:g} s. Set a smaller work, or "
                "more time with --set measure.timeout_s=…"
            ) from None
        if not line:
            raise self._error(self._why_it_ended(request))
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._error(f"answered `{request}` with {line[:200]!r}, not JSON.") from None
        return answer

    def _why_it_ended(self, request: str) -> str:
        with suppress(subprocess.TimeoutExpired):  # its output ended, and it did not
            self._process.wait(timeout=5)
        self._complaints.seek(0)
        said = self._complaints.read().decode("utf-8", "replace").strip().splitlines()[-15:]
        missing = [line for line in said if line.startswith("ModuleNotFoundError")]
        if missing and family(self.name) in PEERS:
            needs = PEERS[family(self.name)].needs
            return (
                f"{missing[-1]}. Install what it needs, `{self.python} -m pip install {needs}`, or "
                f"name an interpreter that has it: --peer-python {self.name}=/path/to/python"
            )
        tail = "\n  ".join(said)
        code = self._process.returncode
        return f"ended with code {code} at `{request}`. Its last output:\n  {tail}"

    def _error(self, what: str) -> PeerError:
        return PeerError(self.name, self.python, what)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its children, which share its group."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _found(name: str, python: str) -> str:
    """The interpreter's absolute path; links are kept, since they identify virtual environments."""
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise PeerError(
            name,
            python,
            "no such interpreter. Make a virtual environment, install "
            f"`{PEERS[family(name)].needs if family(name) in PEERS else name}` in it, and name its "
            f"python: --peer-python {name}=/path/to/python",
        )
    return os.path.abspath(path)


def interpreter(name: str, given: dict[str, str]) -> str:
    """The interpreter of a side: the one given for it or for its library, or this one."""
    return given.get(name, given.get(family(name), sys.executable))
