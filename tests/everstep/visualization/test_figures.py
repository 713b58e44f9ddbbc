"""Curves: their mathematics, and the pictures."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from everstep.__main__ import main
from everstep.core.installation import install_command
from everstep.errors import ConfigError, EverstepError
from everstep.visualization import plot_runs, read_run
from everstep.visualization._curves import group_runs, mean_curve
from everstep.visualization._figures import choose_keys, unit_of

ROOT = Path(__file__).parents[3]


def test_the_mean_of_equal_curves_is_the_curve() -> None:
    x = np.array([0.0, 1.0, 3.0])
    curve = mean_curve([(x, x**2)] * 3)
    assert curve is not None
    assert curve.half is not None
    assert np.allclose(curve.mean, np.interp(curve.x, x, x**2))
    assert np.allclose(curve.half, 0)


def test_a_mean_ends_with_the_shortest_run() -> None:
    long, short = np.arange(10.0), np.arange(2.0, 6.0)
    curve = mean_curve([(long, long), (short, short + 1)])
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == (2.0, 5.0)
    assert np.allclose(curve.mean, curve.x + 0.5)
    assert curve.half is None  # of two seeds


def test_one_curve_has_no_mean() -> None:
    x = np.arange(3.0)
    empty = np.array([])
    assert mean_curve([(x, x), (empty, empty)]) is None
    assert mean_curve([(x, x), (x + 5, x)]) is None


def test_units_are_those_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    rows = importlib.import_module("statistics_rows").statistics()
    assert len(rows) > 15
    for meaning, names in rows.items():
        expected = meaning.unit.partition(",")[0]
        for name in names:
            if expected in ("0 to 1", "at most 1"):
                assert unit_of(name).startswith("fraction of"), name
            else:
                assert unit_of(name) == unit_of(f"eval/{name}") == expected, name


@pytest.mark.slow
def test_seeds_are_a_group_and_another_value_is_another(seeds: Path) -> None:
    groups = group_runs([read_run(path) for path in sorted(seeds.iterdir())])
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("gamma=0.99", 3),
        ("short-sighted: gamma=0.5", 1),
    ]


@pytest.mark.slow
def test_pictures_have_panels_units_and_groups(seeds: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "curves.svg"
    plot_runs([seeds], out, keys=["episodes/return_mean_100", "monitors/kl_div"])
    text = out.read_text(encoding="utf-8")
    for word in ("episodes/return_mean_100", "monitors/kl_div", ">reward<", ">nats<", "env steps"):
        assert word in text
    assert "gamma=0.99 (mean of 3 seeds, and its 95 % interval)" in text
    plot_runs([seeds], tmp_path / "again.svg", keys=["episodes/return_mean_100", "monitors/kl_div"])
    assert (tmp_path / "again.svg").read_bytes() == out.read_bytes()


@pytest.mark.slow
def test_a_run_is_drawn_into_its_directory(seeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    assert main(["plot", str(seeds / "seed-1"), "--x", "time"]) == 0
    made = seeds / "seed-1" / "curves.png"
    assert capsys.readouterr().out == f"Curves  {made}\n"
    pixels = np.asarray(image.open(made).convert("RGB"))
    assert (pixels == (31, 119, 180)).all(-1).sum() > 100  # matplotlib's first colour
    made.unlink()


@pytest.mark.slow
def test_a_page_needs_no_other_file(seeds: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["plot", str(seeds), "--out", str(tmp_path / "curves.html")]) == 0
    text = (tmp_path / "curves.html").read_text(encoding="utf-8")
    assert "<svg" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert "short-sighted" in text


@pytest.mark.slow
def test_keys_are_names_or_patterns(seeds: Path) -> None:
    runs = [read_run(seeds / "seed-0")]
    assert choose_keys(runs, ["losses/v*", "monitors/kl_div"]) == ["losses/vf", "monitors/kl_div"]
    assert choose_keys(runs, [])[0] == "episodes/return_mean_100"
    with pytest.raises(ConfigError, match="did you mean monitors/kl_div"):
        choose_keys(runs, ["monitors/kl"])


@pytest.mark.slow
def test_other_suffixes_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.png, \.svg, \.html; got '\.pdf'"):
        plot_runs([tmp_path], tmp_path / "curves.pdf")


@pytest.mark.slow
def test_without_matplotlib_the_extra_is_named(
    seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(EverstepError, match=re.escape(install_command("plot"))):
        plot_runs([seeds], tmp_path / "curves.png")


@pytest.mark.slow
def test_what_was_left_out_is_said(
    seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "config.yaml").write_bytes((seeds / "seed-0" / "config.yaml").read_bytes())
    lines = (seeds / "seed-0" / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(f"not a record\n{lines}")
    assert main(["plot", str(tmp_path)]) == 0
    file = tmp_path / "metrics.jsonl"
    expected = f"everstep: {file}:1: not a record of a run; 1 line is left out\n"
    assert capsys.readouterr().err == expected
