"""The live view in terminals that are resized: nothing is left behind, nothing is lost."""

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from everstep.trainers.live import LiveView

LABELS = [
    *("progress", "env steps", "return", "episode length", "update"),
    *("speed", "time", "elapsed", "time left"),
]


class Terminal:
    """A terminal that wraps its lines anew when it is resized, as tmux and most others do."""

    def __init__(self, width: int, height: int = 24) -> None:
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        #: Rows that continue in the next one.
        self.continued: list[bool] = [False]
        self.x = self.y = self.top = 0
        self.wraps = True

    def feed(self, text: str) -> None:
        for token in re.findall(r"\x1b\[\??\d*[A-Za-z]|\x1b\[[\d;]*m|[^\x1b]", text):
            if token == "\r":
                self.x = 0
            elif token == "\n":
                self.down()
            elif len(token) == 1:
                self.put(token)
            elif token == "\x1b[J":
                self.rows[self.y :] = [self.rows[self.y][: self.x]]
                self.continued[self.y :] = [False]
            elif token.endswith("A"):
                self.y = max(self.y - int(token[2:-1]), self.top)
            elif token in ("\x1b[?7l", "\x1b[?7h"):
                self.wraps = token.endswith("h")
            else:
                assert token.endswith("m") or token.startswith("\x1b[?25"), repr(token)

    def put(self, character: str) -> None:
        if self.x == self.width and self.wraps:
            self.continued[self.y] = True
            self.down()
            self.x = 0
        self.x = min(self.x, self.width - 1)
        row = self.rows[self.y].ljust(self.x)
        self.rows[self.y] = row[: self.x] + character + row[self.x + 1 :]
        self.x += 1

    def down(self) -> None:
        self.y += 1
        if self.y == len(self.rows):
            self.rows.append("")
            self.continued.append(False)
        self.top = max(self.top, self.y - self.height + 1)

    def resize(self, width: int, height: int = 24) -> None:
        lines, line, at = [""], 0, 0
        for y, (row, goes_on) in enumerate(zip(self.rows, self.continued, strict=True)):
            if y == self.y:
                line, at = len(lines) - 1, len(lines[-1]) + self.x
            lines[-1] += row
            if not goes_on:
                lines.append("")
        self.width, self.height, self.rows, self.continued = width, height, [], []
        for i, text in enumerate(lines[:-1]):
            if i == line:
                self.y, self.x = len(self.rows) + at // width, at % width
            parts = [text[k : k + width] for k in range(0, len(text), width)] or [""]
            self.rows += parts
            self.continued += [True] * (len(parts) - 1) + [False]
        self.top = max(self.y - height + 1, 0)

    def text(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


def below(lines: list[str]) -> list[str]:
    """The rows from the first label on."""
    return lines[next(i for i, row in enumerate(lines) if row.startswith(LABELS[0])) :]


# ---- without a process -----------------------------------------------------------------------


class Screen(StringIO):
    """A stream of a terminal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.terminal = Terminal(width)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.terminal.feed(text)
        return len(text)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm-256color")
    return Screen(60)


def opened(screen: Screen) -> tuple[LiveView, Console]:
    console = Console(file=screen, force_terminal=True, width=60, height=24)
    return LiveView(console), console


def resize(screen: Screen, console: Console, width: int, height: int = 24) -> None:
    screen.terminal.resize(width, height)
    console.size = (width, height)  # type: ignore[assignment]


VIEW = Text("\n".join(f"{'abcd'[i] * 50}" for i in range(4)))


@pytest.mark.parametrize("widths", [(20,), (7, 90, 33), (59, 60, 61), (1, 60), (200, 10, 200)])
def test_a_resized_terminal_shows_one_view(
    screen: Screen, widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    view, console = opened(screen)
    print("first", "x" * 70)
    view.draw(VIEW)
    for width in widths:
        resize(screen, console, width)
        view.draw(VIEW)
        shown = screen.terminal.text()
        cut = max(width - 1, 1)
        assert shown[-4:] == [letter * min(cut, 50) for letter in "abcd"]
        assert "".join(shown[:-4]) == f"first{' ' * (width > 6)}{'x' * 70}"
    view.stop()
    print("last")
    assert screen.terminal.text()[-2:] == ["last"[-screen.terminal.width :], ""]


def test_what_is_printed_stays_above(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen)
    view, _ = opened(screen)
    print("one")
    view.draw(VIEW)
    print("two\nthree")
    print("four, ", end="")
    view.draw(VIEW)
    assert "four" not in "".join(screen.terminal.text())  # until its line is complete
    print("five")
    sys.stdout.writelines(["six\n", "seven\n"])
    print("(Pdb) ", end="", flush=True)
    assert "(Pdb)" in screen.terminal.text()
    print("eight", end="")
    view.stop()
    shown = screen.terminal.text()
    assert shown[:7] == ["one", "two", "three", "four, five", "six", "seven", "(Pdb)"]
    assert [row[:1] for row in shown[7:]] == ["", "a", "b", "c", "d", "e"]
    assert sys.stdout is screen


def test_output_that_passes_the_view_by_stays_above(screen: Screen) -> None:
    """A library's own, in C, and of processes."""
    view, _ = opened(screen)
    view.draw(VIEW)
    screen.write("from C\n")
    view.draw(VIEW)
    view.stop()
    assert [row[:6] for row in screen.terminal.text()[:3]] == ["from C", "", "aaaaaa"]


def test_a_stream_that_is_no_terminal_is_left_alone(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    view, _ = opened(screen)
    view.draw(VIEW)
    print("a result")
    view.stop()
    assert file.getvalue() == "a result\n"
    assert "a result" not in screen.terminal.text()


def test_a_view_is_cut_to_the_height_of_the_terminal(screen: Screen) -> None:
    view, console = opened(screen)
    resize(screen, console, 60, 3)
    for _ in range(3):
        view.draw(VIEW)
    assert [row[:1] for row in screen.terminal.text()] == ["", "a"]
    view.stop()


def test_lines_that_became_too_long_while_they_were_drawn_are_cut(screen: Screen) -> None:
    """The width is read, and then the terminal is made narrower."""
    view, _ = opened(screen)
    screen.terminal.resize(20)
    for _ in range(3):
        view.draw(VIEW)
    assert [row[:1] for row in screen.terminal.text()] == ["", "a", "b", "c", "d"]
    view.stop()


# ---- a process in a terminal of the system ---------------------------------------------------

#: Obeys the lines of its standard input, and answers each with a dot.
PROGRAM = """
import itertools, logging, os, sys
logging.basicConfig(format="%(message)s")
from everstep.trainers.progress import ConsoleProgress
progress = ConsoleProgress(100_000, clock=itertools.count().__next__)
statistics = {"episodes/return_mean_100": 123.4, "episodes/length_mean": 123.0,
              "monitors/kl_div": 0.0081, "profiling/collect_ms": 30.0, "profiling/step_ms": 10.0}
steps = itertools.count(1000, 1000)
commands = {
    "draw": lambda: progress.log_metrics(statistics, step=next(steps)),
    "print": lambda: print("printed"),
    "log": lambda: logging.warning("logged"),
    "close": progress.close,
}
for line in sys.stdin:
    for word in line.split():
        commands[word]()
    os.write(int(sys.argv[1]), b".")
print("the end")
"""

#: The program below a screenful of lines, with its answers in a file.
IN_TMUX = "stty -echo; seq 30; exec env -u CI PYTHONPATH='{path}' {python} program.py 3 3>>{dots}"

Step = tuple[int, int, str]
#: Columns and rows of the terminal, and what the program does then.
SCRIPT: list[Step] = [
    (100, 24, "draw draw"),
    (40, 24, "print draw log"),
    (40, 24, "draw"),
    (23, 12, "draw"),
    (120, 30, "log draw print"),
    (9, 24, "draw"),
    (70, 24, "draw"),
    (55, 24, "close"),
]

#: tmux writes rows that do not fit into its history, and the cursor if there are few above it: here
#: a line is wrapped to two at most.
NARROWED_BY_HALF: list[Step] = [
    (100, 24, "draw draw"),
    (55, 24, "print draw log"),
    (55, 24, "draw"),
    (30, 16, "draw"),
    (90, 30, "log draw print"),
    (48, 24, "draw"),
    (70, 24, "draw"),
    (60, 24, "close"),
]


@contextmanager
def running(width: int) -> Iterator[Callable[[int, int, str], str]]:
    """Resizes the terminal of `PROGRAM`, gives it a command, and returns what it wrote."""
    master, slave = os.openpty()
    told, dots = os.pipe()
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "CI")}
    environment |= {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}

    def resized(columns: int, rows: int) -> None:  # sends SIGWINCH
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    resized(width, 24)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(dots)],
        stdin=subprocess.PIPE,
        stdout=slave,
        stderr=slave,
        pass_fds=[dots],
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    stdin = process.stdin

    def received() -> str:
        found = b""
        while select.select([master], [], [], 0)[0]:
            found += os.read(master, 65536)
        return found.decode()

    def command(columns: int, rows: int, words: str) -> str:
        resized(columns, rows)
        if words:
            stdin.write(f"{words}\n")
            stdin.flush()
            assert os.read(told, 1) == b"."
        else:
            stdin.close()
            assert process.wait() == 0
        return received()

    try:
        yield command
    finally:
        stdin.close()
        process.kill()
        process.wait()
        for file in (master, slave, told, dots):
            os.close(file)


def said(words: str) -> list[str]:
    """Messages of the commands."""
    messages = {"print": "printed", "log": "logged"}
    return [messages[word] for word in words.split() if word in messages]


def check(shown: list[str], messages: list[str], width: int) -> None:
    """The messages, and below them one view."""
    rows = [row for row in shown if row]
    assert rows[: len(messages)] == messages
    found = rows[len(messages) :]
    assert len(found) == len(LABELS), shown
    for row, label in zip(found, LABELS, strict=True):
        assert row[0] == label[0]
        assert len(row) <= width


@pytest.mark.slow
def test_a_process_in_a_terminal_that_is_resized() -> None:
    terminal, messages = Terminal(100, 24), []
    with running(100) as command:
        for width, height, words in SCRIPT:
            terminal.resize(width, height)
            terminal.feed(command(width, height, words))
            messages += said(words)
            check(terminal.text(), messages, width)
        terminal.feed(command(80, 24, ""))
    assert [row for row in terminal.text() if row][-1] == "the end"


@pytest.mark.slow
@pytest.mark.parametrize("width", [30, 60, 100, 200])
def test_an_emulator_shows_what_was_drawn(width: int) -> None:
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(width, 24)
    stream = pyte.Stream(screen)
    with running(width) as command:
        for words in ("draw draw print", "log draw", "draw"):
            stream.feed(command(width, 24, words))
        shown = [row.rstrip() for row in screen.display]
        check(shown, ["printed", "logged"], width)
        assert screen.cursor.y == shown.index("logged") + 1
        assert screen.cursor.hidden
        stream.feed(command(width, 24, "close"))
        assert screen.cursor.y == shown.index("logged") + 2 + len(LABELS)
        assert not screen.cursor.hidden


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_a_pane_of_tmux_that_is_resized(tmp_path: Path) -> None:
    """Sizes are followed by what the program does; each line of it is typed."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-f", os.devnull, "-S", str(tmp_path / "socket"), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def wait_for(is_there: Callable[[Any], bool], read: Callable[[], Any]) -> Any:
        for _ in range(600):
            if is_there(found := read()):
                return found
            time.sleep(0.1)
        raise AssertionError(found)

    dots = tmp_path / "dots"
    dots.touch()
    path = os.pathsep.join(sys.path)
    shell = IN_TMUX.format(path=path, python=sys.executable, dots=dots)
    start = ["new-session", "-d", "-x", "100", "-y", "24", "-c", str(tmp_path), shell]
    tmux(*start)
    try:
        wait_for(lambda shown: "30" in shown, lambda: tmux("capture-pane", "-p"))
        tmux("set-option", "-w", "window-size", "manual")
        tmux("set-option", "-w", "remain-on-exit", "on")
        messages: list[str] = []
        for count, (width, height, words) in enumerate(NARROWED_BY_HALF, start=1):
            tmux("resize-window", "-x", str(width), "-y", str(height))
            tmux("send-keys", words, "Enter")
            wait_for(lambda size, count=count: size == count, lambda: dots.stat().st_size)
            time.sleep(0.3)  # until tmux has read it
            messages += said(words)
            shown = tmux("capture-pane", "-p", "-S", "-").splitlines()
            check([row.rstrip() for row in shown if not row.isdigit()], messages, width)
    finally:
        tmux("kill-server")
