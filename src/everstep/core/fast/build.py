"""Builds the native library with any C++ compiler that it finds; imports Python's own modules only.

The build backend runs this file where the package is built or installed (`hatch_build.py`), and
`python src/everstep/core/fast/build.py` in a source tree whose `kernel.cpp` was changed.
"""

import hashlib
import importlib.util
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

#: The library's source.
SOURCE = Path(__file__).with_name("kernel.cpp")

#: Name of the library's file.
FILE = "_kernel" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")

#: Name of a file that says why there is no library.
REASON = "_kernel.txt"

#: Options of every compiler. Numbers that are not finite are kept: this is not `-ffast-math`.
OPTIONS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
)

#: Processor levels of x86-64; the lowest one's object chooses.
LEVELS = ("v2", "v3", "v4")

#: Seconds that a compiler may take.
TIMEOUT = 300


class BuildError(Exception):
    """The library cannot be built."""


def digest() -> str:
    """Digest of the source and of how it is compiled, which the library reports."""
    return hashlib.sha256(SOURCE.read_bytes() + repr((OPTIONS, LEVELS)).encode()).hexdigest()[:16]


def is_built() -> bool:
    """Whether a library of this source is beside it."""
    library = SOURCE.with_name(FILE)
    return library.exists() and digest().encode() in library.read_bytes()


def is_switched_off() -> bool:
    """Whether the environment asks for no native library."""
    return os.environ.get("EVERSTEP_NATIVE") == "0"


def compiler() -> list[str]:
    """Command of a C++ compiler: `CXX`, `CC`, the system's, or that of the package `ziglang`.

    Empty if there is none. What the environment names is used, whether it works or not; the
    system's only if it does: a compiler without its headers is common in containers.
    """
    for variable in ("CXX", "CC"):
        if named := shlex.split(os.environ.get(variable, "")):
            return named
    for name in ("c++", "g++", "clang++"):
        if (found := shutil.which(name)) and _works(found):
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    return []


def _works(command: str) -> bool:
    """Whether a compiler compiles and links a library."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "trial.cpp")
        source.write_text("#include <cmath>\ndouble f(double x) { return std::log(x); }\n")
        try:
            _run([[command, "-shared", "-fPIC", str(source), "-o", str(Path(scratch, "trial"))]])
        except BuildError:
            return False
    return True


def build(folder: Path) -> Path:
    """The library, built into `folder`.

    Raises:
        BuildError: If it cannot be built.

    """
    command = compiler()
    if not command:
        raise BuildError("there is no C++ compiler")
    is_zig = "ziglang" in command or Path(command[0]).stem == "zig"
    levels = LEVELS if platform.machine().lower() in ("x86_64", "amd64") else ("plain",)
    with tempfile.TemporaryDirectory() as scratch:
        jobs = []
        for level in levels:
            target = "x86_64_" + level if is_zig else "x86-64-" + level
            chosen = [] if level == "plain" else [f"-m{'cpu' if is_zig else 'arch'}={target}"]
            defined = [f"-DLEVEL={level}"]
            if level == levels[0]:
                defined += ["-DDISPATCHES", f"-DSOURCE={digest()}"]
            out = str(Path(scratch, f"{level}.o"))
            jobs.append([*command, *OPTIONS, *chosen, *defined, "-c", str(SOURCE), "-o", out])
        _run(jobs, scratch)
        linked = Path(scratch, FILE)
        # The lowest level comes first: of functions that are in several, its own are taken.
        objects = [job[-1] for job in jobs]
        if is_zig and sys.platform == "linux":
            _link_alone(command, objects, linked)
        else:
            libraries = [] if sys.platform in ("win32", "darwin") else ["-lm", "-lpthread"]
            _run([[*command, "-shared", "-o", str(linked), *objects, *libraries]], scratch)
        library, beside = folder / FILE, folder / f"{FILE}.{secrets.token_hex(4)}"
        try:
            # Beside it and renamed: a process that has loaded the old one goes on with it, and
            # nobody sees half of one.
            shutil.copyfile(linked, beside)
            os.replace(beside, library)
            (folder / REASON).unlink(missing_ok=True)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise BuildError(f"{folder} cannot be written: {error}") from None
    return library


def build_or_explain(folder: Path) -> Path:
    """The library, built into `folder`, or a file there that says why there is none."""
    try:
        if is_switched_off():
            raise BuildError("`EVERSTEP_NATIVE` was 0")
        return build(folder)
    except BuildError as error:
        (folder / FILE).unlink(missing_ok=True)
        reason = " ".join(str(error).split())  # it becomes a line of records
        (folder / REASON).write_text(reason, encoding="utf-8")
        return folder / REASON


def _link_alone(zig: list[str], objects: list[str], linked: Path) -> None:
    """Link with Zig's linker alone.

    `zig c++` would compile a C and a C++ library first, for a minute. Of them only functions of C
    are used, and Python has loaded those: stand-ins say in which libraries they are.
    """
    scratch = str(linked.parent)
    link = [*zig[:-1], "ld.lld", "-shared", "--no-as-needed", "-z", "noexecstack"]
    stand_ins = []
    if platform.libc_ver()[0] == "glibc":
        empty = linked.with_name("empty.cpp")
        empty.touch()
        _run([[*zig, "-c", str(empty), "-o", f"{empty}.o"]], scratch)
        for name in ("libm.so.6", "libpthread.so.0", "libc.so.6"):
            stand_ins.append(str(linked.with_name(name)))
            _run([[*link, "-soname", name, "-o", stand_ins[-1], f"{empty}.o"]], scratch)
    _run([[*link, "-o", str(linked), *objects, *stand_ins]], scratch)


def _run(jobs: list[list[str]], scratch: "None | str" = None) -> None:
    """Run commands side by side; none of them is left behind.

    Zig keeps what it has compiled in `scratch`.
    """
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    if scratch is not None:
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), scratch)
        options["env"] = {**os.environ, **caches}
    running: list[Any] = []
    texts = []
    try:
        for job in jobs:
            running.append(subprocess.Popen(job, **options))
        texts += [x.communicate(timeout=TIMEOUT)[0].decode("utf-8", "replace") for x in running]
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{jobs[0][0]} does not run: {error}") from None
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    for job, process, text in zip(jobs, running, texts):  # noqa: B905  3.9 may run a build backend
        if process.returncode:
            raise BuildError(f"{job[0]} failed with status {process.returncode}: {text[-600:]}")


if __name__ == "__main__":
    print(build(SOURCE.parent))
