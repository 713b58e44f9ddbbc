"""A command of Everstep in a session of its own, as a new interpreter or a fork of this process."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Started:
    """A process that was started, with its output in `output.txt` of its directory.

    Args:
        directory: Where it runs.
        command: Arguments of `python -m everstep`.
        fork: Runs the command in a fork, and returns its exit code; None for a new interpreter.
        variables: Environment variables.

    """

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        fork: None | Callable[[list[str]], Any],
        variables: dict[str, str],
    ) -> None:
        self.log = directory / "output.txt"
        self.status: None | int = None
        self.process: None | subprocess.Popen[bytes] = None
        if fork is None:
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "everstep", *command],
                    cwd=directory,
                    env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.pid = self.process.pid
        else:
            self.pid = os.fork()
            if self.pid == 0:
                self._be(directory, fork, [*command], variables)

    def poll(self) -> None | int:
        """The exit code, as `subprocess` has it; None while it runs."""
        if self.status is None:
            if self.process is not None:
                self.status = self.process.poll()
            else:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def _be(
        self,
        directory: Path,
        run: Callable[[list[str]], Any],
        command: list[str],
        variables: dict[str, str],
    ) -> None:
        """Be the process; does not return."""
        code: Any = 70
        try:
            os.setsid()
            output = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.chdir(directory)
            os.environ.update(variables)
            code = run(command)
        except SystemExit as error:
            code = error.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)
