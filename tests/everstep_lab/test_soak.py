"""The soak script: it runs, and its verdict follows the samples."""

import subprocess
import sys
from pathlib import Path

import pytest

from everstep_lab.studies.soak import verdict


def samples(**growth: float) -> list[dict[str, float]]:
    """A minute apart, each value growing by an amount a sample."""
    start = {
        "memory MiB": 500.0,
        "children MiB": 80.0,
        "descriptors": 20.0,
        "threads": 7.0,
        "env steps/s": 5000.0,
        "env steps/processor s": 6000.0,
        "fixed work ms": 100.0,
        "env steps/work": 600.0,
    }
    return [
        {"seconds": 60.0 * i} | {name: x + i * growth.get(name, 0.0) for name, x in start.items()}
        for i in range(60)
    ]


@pytest.mark.parametrize(
    ("growth", "failed"),
    [
        ({}, set()),
        ({"memory MiB": 0.1}, set()),  # 6 MiB an hour
        ({"memory MiB": 0.5}, {"memory"}),
        ({"children MiB": 0.5}, {"children"}),
        ({"descriptors": 0.1}, {"descriptors"}),
        ({"threads": 1.0}, {"threads"}),
        ({"env steps/work": -1.0}, {"rate"}),
        ({"env steps/work": 1.0}, set()),
    ],
)
def test_the_verdict_follows_the_samples(growth: dict[str, float], failed: set[str]) -> None:
    lines, is_ok = verdict(samples(**growth))
    assert {line.split()[1] for line in lines if line.startswith("FAIL")} == failed
    assert is_ok is (not failed)


def test_a_rate_too_noisy_to_tell_is_not_within_the_limit() -> None:
    noisy = samples()
    for i, sample in enumerate(noisy):
        sample["env steps/work"] *= 1 + 0.2 * (-1) ** i
    lines, is_ok = verdict(noisy)
    assert not is_ok
    assert [line.split()[1] for line in lines if line.startswith("FAIL")] == ["rate"]


@pytest.mark.long
@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "everstep_lab.studies.soak",
        "--minutes",
        "0.1",
        "--samples",
        "6",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert "env steps/s" in done.stdout
    assert "points not delivered" in done.stdout
