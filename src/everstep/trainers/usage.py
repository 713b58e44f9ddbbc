"""Use of the machine by a process."""

import contextlib
import os
import sys

import psutil


class Usage:
    """Processor, memory and GPU memory that a process uses, as text.

    Args:
        pid: The process.

    """

    def __init__(self, pid: int) -> None:
        self._process: None | psutil.Process = None
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(pid)
            self._process.cpu_percent()  # since now

    def __str__(self) -> str:
        if self._process is None:
            return ""
        try:
            with self._process.oneshot():
                cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss
        except psutil.Error:  # it has ended
            return ""
        torch = sys.modules.get("torch")
        own = torch is not None and self._process.pid == os.getpid()
        if own and torch is not None and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            gpu = f", GPU memory {(total - free) / 2**30:.1f} of {total / 2**30:.1f} GiB"
        else:
            gpu = ""
        return f"processor {cpu:.0f} %, memory {memory / 2**20:,.0f} MiB{gpu}"
