"""Lines at the end of a terminal that are redrawn in place.

Between two draws the cursor is at the start of the view, and a draw erases everything below it.
Terminals keep the cursor on its line when they are resized, so nothing of the last draw is left,
however its lines were wrapped. Lines are never longer than the terminal is wide. (`rich.live` moves
up by the lines of its last draw, and leaves some behind in a terminal that became narrower.)
"""

import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, RenderableType

#: From the second column on, as tmux writes a whole screen that is erased to its history.
_ERASE = "\r \x1b[J\r"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
#: The terminal cuts what is too long, if it was made narrower after its width was read.
_CUT_LINES, _WRAP_LINES = "\x1b[?7l", "\x1b[?7h"


class LiveView:
    """A view at the end of a terminal, below what the program prints.

    The streams of the program that are this terminal are replaced until `stop`: what they are given
    appears above the view. Output that passes them by, such as a library's in C, begins on the
    empty line above the view.

    Args:
        console: The terminal.

    """

    def __init__(self, console: Console) -> None:
        self._console, self._file = console, console.file
        self._lines: list[str] = []
        self._lock = threading.RLock()
        self._streams = {
            name: Above(self, stream)
            for name in ("stdout", "stderr")
            if (stream := getattr(sys, name)) is not None and stream.isatty()
        }
        self._handlers: list[tuple[Any, TextIO]] = []
        for name, above in self._streams.items():
            setattr(sys, name, above)
            for handler in logging.getLogger().handlers:
                if getattr(handler, "stream", None) is above.stream:
                    self._handlers.append((handler, above.stream))
                    handler.setStream(above)  # type: ignore[attr-defined]
        self._write(_HIDE_CURSOR)

    def draw(self, view: RenderableType) -> None:
        """Replace the view."""
        console = self._console
        with self._lock:
            width = max(console.width - 1, 1)  # a full line may count as wrapped
            with console.capture() as captured:
                console.print(view, width=width, no_wrap=True, crop=True)
            self._lines = ["", *captured.get().splitlines()][: max(console.height - 1, 1)]
            self._redraw()

    def write_above(self, stream: TextIO, text: str) -> None:
        """Write whole lines to a stream of this terminal, above the view."""
        with self._lock:
            self._write(_ERASE)
            stream.write(text)
            stream.flush()
            self._redraw()

    def stop(self) -> None:
        """Leave the last view behind, the cursor below it, and restore the streams."""
        with self._lock:
            self._write(_ERASE + self._cut() + "\r\n" + _SHOW_CURSOR)
            self._lines = []
        for name, above in self._streams.items():
            if getattr(sys, name) is above:
                setattr(sys, name, above.stream)
            above.finish()
        for handler, stream in self._handlers:
            handler.setStream(stream)

    def _redraw(self) -> None:
        up = len(self._lines) - 1
        self._write(_ERASE + self._cut() + (f"\x1b[{up}A" if up > 0 else "") + "\r")

    def _cut(self) -> str:
        return _CUT_LINES + "\r\n".join(self._lines) + _WRAP_LINES

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class Above:
    """A stream whose lines appear above a live view, each once it is complete.

    Args:
        view: The view.
        stream: The stream of the view's terminal.

    """

    def __init__(self, view: LiveView, stream: TextIO) -> None:
        self.stream = self.rich_proxied_file = stream  # by rich's name, so that consoles find it
        self._view, self._process = view, os.getpid()
        self._begun = ""

    def write(self, text: str) -> int:
        """Write the lines that are complete; the rest waits for its end."""
        if os.getpid() != self._process:  # a forked worker has a view of its own, of no use
            return self.stream.write(text)
        lines, end, self._begun = (self._begun + text).rpartition("\n")
        if end:
            self._view.write_above(self.stream, lines + end)
        return len(text)

    def flush(self) -> None:
        """Write the line that has begun as well: it may be a question."""
        if self._begun and os.getpid() == self._process:
            begun, self._begun = self._begun, ""
            self._view.write_above(self.stream, f"{begun}\n")
        self.stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def finish(self) -> None:
        """Write what has no end of line yet; from now on, everything at once."""
        self.stream.write(self._begun)
        self.stream.flush()
        self._begun, self._process = "", -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
