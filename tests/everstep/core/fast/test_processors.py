"""The kernel without Python: on 64-bit ARM, emulated, and on this processor."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from everstep.core.fast import build

DRIVER = Path(__file__).with_name("driver.cpp")

#: What float64 and float32 may differ by: products are fused with sums, or rounded before.
TOLERANCES = 1e-13, 2e-6


def built(compiler: list[str], folder: Path, source: Path = build.SOURCE.parent) -> Path:
    """The driver, with the kernel of a folder."""
    program = folder / "driver"
    options = ["-std=c++17", "-O1", "-w", "-ffp-contract=fast", f"-I{source}"]
    command = [*compiler, *options, str(DRIVER), "-o", str(program), "-lpthread"]
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder))
    subprocess.run(command, check=True, env={**caches, **os.environ})
    return program


def computed(*command: str) -> list[np.ndarray]:
    """Numbers that the driver computes, in float64 and in float32."""
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [np.array(line.split(), float) for line in out.splitlines()]


def assert_same(here: list[np.ndarray], there: list[np.ndarray]) -> None:
    """Within rounding."""
    for x, y, tolerance in zip(here, there, TOLERANCES, strict=True):
        assert np.isfinite(x).all()
        np.testing.assert_allclose(y, x, rtol=tolerance, atol=tolerance)


def with_threads(folder: Path, *more: tuple[str, str]) -> Path:
    """The folder, with a kernel that starts threads for as little work as the driver has."""
    text = build.SOURCE.read_text(encoding="utf-8")
    for before, after in (("WORK_OF_A_THREAD = 4e6", "WORK_OF_A_THREAD = 1"), *more):
        assert before in text
        text = text.replace(before, after)
    (folder / "kernel.cpp").write_text(text, "utf-8")
    return folder


@pytest.mark.slow
def test_the_driver_computes_the_same_in_several_threads(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a compiler")
    program = str(built([compiler], tmp_path, with_threads(tmp_path)))
    expected = computed(program, "1")
    for threads in ("2", "4"):
        assert_same(expected, computed(program, threads))


@pytest.mark.long
def test_arm_computes_what_this_processor_does(tmp_path: Path) -> None:
    emulator, compiler = map(shutil.which, ("qemu-aarch64", "c++"))
    if importlib.util.find_spec("ziglang") is None or emulator is None or compiler is None:
        pytest.skip("needs the package ziglang, qemu-aarch64 (qemu-user), and a compiler")
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl", "-static"]
    (tmp_path / "arm").mkdir()
    here, there = built([compiler], tmp_path), built(zig, tmp_path / "arm")
    assert_same(computed(str(here)), computed(emulator, str(there)))
