"""Comparisons, reports and the view of a run that trains elsewhere."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from everstep.__main__ import main
from everstep.loggers import read_metrics

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def test_a_comparison_has_what_differs_and_results(
    seeds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(seeds), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [sorted(each) for each in compared["configuration"]] == [["gamma", "seed"]] * 4
    last = [read_metrics(Path(run) / "metrics.jsonl") for run in compared["runs"]]
    key = "episodes/return_mean_100"
    expected = [[r[key] for r in records if key in r][-1] for records in last]
    assert [result[key] for result in compared["result"]] == pytest.approx(expected)
    [group] = compared["groups"]
    assert (group["label"], group["seeds"]) == ("gamma=0.99", 3)
    assert group["mean"] == pytest.approx(np.mean(expected[:3]))
    assert group["interval"][0] < group["mean"] < group["interval"][1]


def test_the_table_has_a_row_for_each_difference(
    seeds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(seeds)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["seed-0", "seed-1", "seed-2", "short-sighted"]
    assert lines[1] == ["gamma", "0.99", "0.99", "0.99", "0.5"]
    assert lines[2] == ["seed", "0", "1", "2", "0"]


def test_one_run_is_not_compared(seeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(seeds / "seed-0")]) == 2
    assert "two runs or more" in capsys.readouterr().err


@pytest.fixture
def reported(seeds: Path, tmp_path: Path) -> Path:
    """A report with a video."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    video = tmp_path / "play.gif"
    frames = [image.new("RGB", (64, 48), (0, shade, 0)) for shade in (250, 200)]
    frames[0].save(video, save_all=True, append_images=frames[1:])
    out = tmp_path / "report.html"
    command = ["report", str(seeds / "seed-0"), "--out", str(out), "--video", str(video)]
    assert main(command) == 0
    return out


def test_a_report_has_everything_in_one_file(seeds: Path, reported: Path) -> None:
    text = reported.read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert f"everstep train -f {seeds / 'seed-0' / 'config.yaml'}" in text
    assert "gamma: 0.99" in text
    assert re.search(r"everstep \S+, python \S+, torch \S+", text)
    assert "episodes/return_mean_100" in text
    assert 'src="data:image/gif;base64,' in text
    evaluations = text.partition("<h2>Evaluations</h2>")[2].partition("<h2>")[0]
    records = read_metrics(seeds / "seed-0" / "metrics.jsonl")
    assert evaluations.count("<tr>") == 1 + sum("eval/episodes/count" in r for r in records)


def test_a_report_says_how_to_get_what_it_lacks(painted: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "report.html"
    assert main(["report", str(painted), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert f"everstep video {painted}" in text
    assert f"everstep eval {painted}" in text


def test_text_of_a_run_is_not_markup(painted: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run_dir = Path(shutil.copytree(painted, tmp_path / "<b>run</b>"))
    config = run_dir / "config.yaml"
    config.write_text(f"{config.read_text()}experiment_name: <script>alert(1)</script>\n")
    assert main(["report", str(run_dir)]) == 0
    text = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>run" not in text


@pytest.mark.parametrize("video", ["missing.mp4", "config.yaml"])
def test_other_videos_are_refused(
    seeds: Path, video: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = seeds / "seed-0"
    assert main(["report", str(run_dir), "--video", str(run_dir / video)]) == 2
    assert "expected an existing file that ends in .mp4 or .gif" in capsys.readouterr().err


def test_a_browser_shows_the_report(reported: Path, tmp_path: Path) -> None:
    """The curves are drawn, the video is decoded, and nothing is loaded from elsewhere."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("needs a browser: apt-get install chromium")
    image = pytest.importorskip("PIL.Image")
    picture = tmp_path / "page.png"
    switches = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
        "--disable-background-networking --disable-component-update --disable-sync"
    )
    command = [browser, *switches.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1100,2200", f"--screenshot={picture}", reported.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    pixels = np.asarray(image.open(picture).convert("RGB")).astype(int)
    assert pixels.shape == (2200, 1100, 3)
    curve, video = np.array([31, 119, 180]), np.array([0, 250, 0])
    assert (abs(pixels - curve).max(-1) < 30).sum() > 500
    shown = (abs(pixels - video).max(-1) < 12) | (abs(pixels - [0, 200, 0]).max(-1) < 12)
    assert shown.sum() > 0.9 * 64 * 48


def test_watch_shows_the_last_record(seeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(seeds / "seed-0"), "--once"]) == 0
    last = read_metrics(seeds / "seed-0" / "metrics.jsonl")[-1]
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"env_steps={last['step']:,}" in line
    assert f"return_last_100={last['episodes/return_mean_100']:.1f}" in line


def test_watch_follows_a_run_to_its_budget(seeds: Path, tmp_path: Path) -> None:
    """It waits for the first record, and ends when the budget is reached."""
    run_dir = Path(shutil.copytree(seeds / "seed-0", tmp_path / "run"))
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("")
    command = [sys.executable, "-m", "everstep", "watch", str(run_dir)]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert "waiting for the first train step" in watching.stdout.readline()
    with open(run_dir / "metrics.jsonl", "a") as file:
        for line in lines:
            file.write(line)
            file.flush()
    _, shown = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert f"env_steps={json.loads(lines[-1])['step']:,}" in shown.splitlines()[-1]
