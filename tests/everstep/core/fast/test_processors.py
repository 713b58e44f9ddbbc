"""The kernel on a processor without Python: 64-bit ARM, emulated, beside this one."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from everstep.core.fast import build

DRIVER = Path(__file__).with_name("driver.cpp")


def trained(compiler: list[str], tmp_path: Path, *runs_with: str) -> list[np.ndarray]:
    """Results of 16 steps and weights after them, of each model of the driver."""
    program = tmp_path / "driver"
    options = ["-std=c++17", "-O1", "-w", "-ffp-contract=fast", f"-I{build.SOURCE.parent}"]
    command = [*compiler, *options, str(DRIVER), "-o", str(program), "-lpthread"]
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(tmp_path))
    subprocess.run(command, check=True, env={**caches, **os.environ})
    out = subprocess.run([*runs_with, str(program)], check=True, capture_output=True, text=True)
    numbers = np.array([float(x) for x in out.stdout.split()])
    return np.split(numbers, 4)


@pytest.mark.long
def test_arm_computes_what_this_processor_does(tmp_path: Path) -> None:
    """Within rounding: products are fused with sums elsewhere."""
    zig, emulator, compiler = map(shutil.which, ("zig", "qemu-aarch64", "c++"))
    if zig is None or emulator is None or compiler is None:
        pytest.skip("needs zig, of the package ziglang, qemu-aarch64, and a compiler")
    cross = [zig, "c++", "-target", "aarch64-linux-musl", "-static"]
    (tmp_path / "arm").mkdir()
    pairs = zip(
        trained([compiler], tmp_path), trained(cross, tmp_path / "arm", emulator), strict=True
    )
    for i, (here, there) in enumerate(pairs):
        assert np.isfinite(here).all()
        tolerance = 1e-6 if i % 2 else 1e-13
        np.testing.assert_allclose(there, here, rtol=tolerance, atol=tolerance)
