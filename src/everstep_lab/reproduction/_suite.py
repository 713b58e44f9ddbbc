"""A suite: jobs in processes, several at once, whose results are added as they end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ..benchmarks import machine
from ._jobs import OURS, Job, Results, problem_of
from ._peers import peer_command, peer_request

#: Seconds between looks at the processes.
_POLL_S = 0.2

#: Seconds that processes may take to save their runs after an interruption.
_PATIENCE_S = 30.0


class View(Protocol):
    """Something that shows how the jobs go on."""

    def started(self, job: Job, directory: Path) -> None:
        """A job's process has started."""

    def ended(self, job: Job, line: dict[str, Any]) -> None:
        """A job's process has ended; `line` is its result."""

    def tick(self) -> None:
        """Some time has passed."""


class Process:
    """The process of a job.

    Args:
        job: The job.
        out: Directory of the suite.

    """

    #: The job.
    job: Job

    #: Directory of its files.
    directory: Path

    def __init__(self, job: Job, out: Path) -> None:
        self.job, self.directory = job, job.directory(out)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.result = self.directory / "result.json"
        self._log = (self.directory / "log.txt").open("ab")
        self._start = self._log.tell()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*self._command(environment), json.dumps(self._request())],
            stdin=subprocess.PIPE,  # it ends when we do
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the suite, which ends all of them
        )

    def _command(self, environment: dict[str, str]) -> list[str]:
        if self.job.side != OURS:
            return peer_command(self.job, environment)
        paths = [str(Path(__file__).parents[2]), os.getcwd(), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return [self.job.python or sys.executable, "-m", "everstep_lab.reproduction._worker"]

    def _request(self) -> dict[str, Any]:
        if self.job.side != OURS:
            return peer_request(self.job, self.directory)
        recipe = self.job.recipe
        return {
            "file": recipe.file,
            "overrides": [f"seed={self.job.seed}", f"total_env_steps={recipe.env_steps}"],
            "run_dir": str(self.directory / "run"),
            "result": str(self.result),
        }

    def poll(self) -> None | dict[str, Any]:
        """The line of the result; None while the process runs."""
        code = self._process.poll()
        if code is None:
            return None
        self.close()
        job = self.job
        line = {
            "recipe": job.recipe.name,
            "digest": job.recipe.digest,
            "side": job.side,
            "seed": job.seed,
            "file": job.recipe.file,
            "total_env_steps": job.recipe.env_steps,
            "machine": {k: v for k, v in machine("cpu").items() if k in ("cpu", "cores")},
        }
        if code == 0 and self.result.is_file():
            line |= json.loads(self.result.read_text(encoding="utf-8"))
            problem = problem_of(line)  # without a return there is nothing to compare
            return {**line, "error": f"no result: {problem}"} if problem else line
        return {**line, "error": self._why(code)}

    def _why(self, code: int) -> str:
        """The last line that the process printed."""
        text = (self.directory / "log.txt").read_bytes()[self._start :].decode("utf-8", "replace")
        said = [line for line in text.splitlines() if line.strip()]
        return said[-1][:500] if said else f"ended with code {code}, and printed nothing"

    def stop(self) -> None:
        """Ask the process to save its run and to end."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Wait for the end of the process, and release its files."""
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._log.close()


def run_jobs(jobs: Sequence[Job], out: Path, results: Results, *, at_once: int, view: View) -> None:
    """Run jobs, and add a line for each that ends.

    Args:
        jobs: Jobs without a line.
        out: Directory of the suite.
        results: The file of results.
        at_once: Largest number of processes.
        view: Shows the progress.

    Raises:
        KeyboardInterrupt: If it was interrupted, after all processes have saved their runs.

    """
    waiting, running = list(jobs), list[Process]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                process = Process(waiting.pop(0), out)
                running.append(process)
                view.started(process.job, process.directory)
            for process in list(running):
                line = process.poll()
                if line is not None:
                    running.remove(process)
                    results.add(line)
                    view.ended(process.job, line)
            view.tick()
            if running:
                time.sleep(_POLL_S)
    finally:
        for process in running:
            process.stop()
        for process in running:
            process.close()
