"""Memory that is freed and kept."""

import os
import platform
import subprocess
import sys

import pytest

#: Page faults of blocks that are freed and needed again, behind a first time.
SCRIPT = """
import resource, torch
from everstep.core.memory import keep_freed_memory
is_kept = {before}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    before = faults()
    blocks = [torch.ones(2**23) for _ in range(4)]
    del blocks
print(is_kept, faults() - before)
"""

PAGES = 4 * 2**25 // 4096


def faults(before: str, **variables: str) -> tuple[str, int]:
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    is_kept, count = out.split()
    return is_kept, int(count)


@pytest.mark.slow
def test_memory_that_is_kept_is_not_got_again_page_by_page() -> None:
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip("blocks of more than 32 MiB cannot be kept")
    is_kept, count = faults("keep_freed_memory()")
    assert is_kept == "True"
    assert count < PAGES / 100
    assert faults("False")[1] > PAGES / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1"}],
    ids=["variable", "tunable"],
)
def test_what_a_user_has_set_stays(variables: dict[str, str]) -> None:
    assert faults("keep_freed_memory()", **variables)[0] == "False"
