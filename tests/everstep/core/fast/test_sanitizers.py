"""The kernel under the sanitizers of addresses, undefined behaviour, and threads.

The tests of odd inputs run under the first two. Python and PyTorch, which are built without, report
races of their own: the third watches the driver, whose threads call the kernel alone.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.core.fast import build
from tests.everstep.core.fast.test_processors import built, with_threads

ROOT = Path(__file__).parents[4]

#: Options of the compiler; an error ends the process.
SANITIZERS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"

#: A read of one row more than a minibatch has.
DEFECT = (
    "for (int64_t i = 0; b.mask && i < b.rows; i++) count",
    "for (int64_t i = 0; b.mask && i <= b.rows; i++) count",
)


@pytest.mark.long
@pytest.mark.parametrize("has_defect", [False, True], ids=["as it is", "with a defect"])
def test_odd_inputs_neither_leave_memory_nor_what_is_defined(
    has_defect: bool, tmp_path: Path
) -> None:
    compiler = shutil.which("g++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no g++ of Linux")
    # One level, for its time; its vectors are the narrowest.
    shutil.copytree(ROOT / "src" / "everstep", tmp_path / "everstep")
    fast = tmp_path / "everstep" / "core" / "fast"
    (fast / build.FILE).unlink(missing_ok=True)
    replace(fast / "build.py", 'LEVELS = ("v2", "v3", "v4")', 'LEVELS = ("v2",)')
    if has_defect:
        replace(fast / "kernel.cpp", *DEFECT)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CXX": f"{compiler} {SANITIZERS}"}
    subprocess.run([sys.executable, str(fast / "build.py")], check=True, env=environ)
    libraries = [
        subprocess.run(
            [compiler, f"-print-file-name={name}.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan", "libubsan")
    ]
    environ |= {
        "LD_PRELOAD": ":".join(libraries),  # before Python, which is built without
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0",  # Python's own
        "EVERSTEP_NATIVE_LEVEL": "v2",
    }
    chosen = (
        "left_out" if has_defect else "odd or strange or left_out or special or no_row or resets"
    )
    tests = [f"tests/everstep/core/fast/test_{name}.py" for name in ("kernel", "recurrent", "rows")]
    run = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-qxs",
                "-p",
                "no:cacheprovider",
                "-m",
                "",
                "-k",
                chosen,
            ),
            *("-o", f"pythonpath={tmp_path} . adapters", *tests),
        ],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
    )
    text = run.stdout + run.stderr
    if has_defect:
        assert "AddressSanitizer: heap-buffer-overflow" in text, text[-2000:]
    else:
        assert run.returncode == 0, text[-4000:]
        assert " passed" in text


#: A thread that adds to what another one adds to.
RACE = ("Work<T>& w = e.work[t];\n    clear", "Work<T>& w = e.work[0];\n    clear")


@pytest.mark.long
@pytest.mark.parametrize(
    ("sanitizers", "has_defect"),
    [("address,undefined", False), ("thread", False), ("thread", True)],
    ids=["memory", "threads", "threads with a race"],
)
def test_threads_neither_race_nor_leave_memory(
    sanitizers: str, has_defect: bool, tmp_path: Path
) -> None:
    compiler = shutil.which("g++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no g++ of Linux")
    folder = with_threads(tmp_path, *([RACE] if has_defect else []))
    options = ["-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    program = built([compiler, *options], tmp_path, folder)
    for threads in ["4"] if has_defect else ["1", "2", "4"]:
        command, environ = (
            [str(program), threads],
            {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        )
        run = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert ("data race" in run.stderr) is has_defect, run.stderr[-2000:]
        assert (run.returncode != 0) is has_defect, run.stderr[-2000:]


def replace(path: Path, before: str, after: str) -> None:
    """Replace a text that occurs in a file."""
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
