"""The parts of a release agree: version, citation, changelog, container and archives."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
tomllib = pytest.importorskip("tomllib")  # of Python 3.11 and newer
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("name", ["run", "matrix"])
def test_paths_of_tests_in_ci_exist(name: str) -> None:
    text = (
        (ROOT / ".ci" / name)
        .read_text(encoding="utf-8")
        .replace("$adapters", "tests/everstep_adapters")
    )
    words = re.findall(r"tests/[\w/.{},]+", text.replace('"', ""))
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(words)}"],
        capture_output=True,
        text=True,
        check=True,
    )
    paths = shown.stdout.split()
    assert len(paths) >= len(words) > 0
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_changelog_has_headings_of_keep_a_changelog() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    parts = [line for line in lines if line.startswith("### ")]
    assert versions[0] == "## Unreleased"
    assert [
        x for x in versions[1:] if not re.fullmatch(r"## \d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", x)
    ] == []
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert {line.removeprefix("### ") for line in parts} <= kinds


def test_the_container_installs_as_the_readme_does_and_runs_its_first_training() -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    run = re.search(r"^RUN (.*)$", text, re.M)
    command = re.search(r"^CMD \[(.*)\]$", text, re.M)
    assert run
    assert command
    installs = run[1].replace(" --no-cache-dir", "")
    trains = ".venv/bin/everstep " + " ".join(re.findall('"(.*?)"', command[1]))
    assert f"{installs} && {trains}\n" in readme


@pytest.mark.slow
def test_the_source_archive_has_what_its_tests_and_documentation_need(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "--outdir"]
    subprocess.run([*build, str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("the tracked files are known in a clone only")
    assert set(tracked.stdout.split()) - names == set()
