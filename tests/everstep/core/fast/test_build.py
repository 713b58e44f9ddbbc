"""Builds of the native library: what they leave where they fail, and where there is none."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.__main__ import main
from everstep.core.fast import build
from everstep.core.fast.library import Library

ROOT = Path(build.__file__).parents[4]

#: A compiler that leaves half of what it was to write.
HALFWAY = """#!/bin/sh
for last; do :; done
printf half > "$last"
echo no space left on device >&2
exit 1
"""


@pytest.fixture(params=["false", "halfway", "missing"])
def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A compiler that fails, and what the reason says of it."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("EVERSTEP_NATIVE", raising=False)
    command = {"false": "/bin/false", "missing": "/no/such/compiler"}.get(request.param)
    if command is None:
        command = str(tmp_path / "compiler")
        Path(command).write_text(HALFWAY)
        Path(command).chmod(0o755)
    monkeypatch.setenv("CC", command)
    reasons = {"halfway": "no space left on device", "missing": "does not run"}
    return reasons.get(request.param, "/bin/false failed with status 1")


@pytest.mark.parametrize("before", [False, True], ids=["first", "again"])
def test_a_compiler_that_fails_leaves_a_reason_alone(
    before: bool, broken: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if before:  # of another source
        (folder / build.FILE).write_bytes(b"old")
    assert build.build_or_explain(folder) == folder / build.REASON
    assert [path.name for path in folder.iterdir()] == [build.REASON]
    assert broken in (folder / build.REASON).read_text(encoding="utf-8")


def test_the_build_hook_makes_a_wheel_without_the_library(broken: str) -> None:
    pytest.importorskip("hatchling")
    sys.path.insert(0, str(ROOT))
    try:
        from hatch_build import NativeBuildHook
    finally:
        sys.path.remove(str(ROOT))
    warnings: list[str] = []
    app: Any = SimpleNamespace(display_warning=warnings.append)
    hook: Any = NativeBuildHook(str(ROOT), {}, None, None, "", "wheel", app)  # type: ignore[arg-type]
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    ((source, target),) = data["force_include"].items()
    assert target == f"everstep/core/fast/{build.REASON}"
    assert broken in Path(source).read_text(encoding="utf-8")
    assert data.keys() == {"force_include"}  # for every platform, as without a hook
    assert len(warnings) == 1
    hook.finalize("standard", data, "")
    assert not Path(source).exists()


@pytest.mark.usefixtures("native")
def test_two_builds_in_one_folder_leave_a_library_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tuple("-O0" if x == "-O3" else x for x in build.OPTIONS)
    monkeypatch.setattr(build, "OPTIONS", quick)
    (tmp_path / build.REASON).write_text("of a build before")
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(build.build_or_explain, [tmp_path] * 2))
    assert found == [tmp_path / build.FILE] * 2
    assert [path.name for path in tmp_path.iterdir()] == [build.FILE]
    for path in found:
        assert Library(path).level


def test_the_switch_chooses_the_general_way_and_the_doctor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVERSTEP_NATIVE", "0")
    monkeypatch.chdir(tmp_path)

    def doctor(*arguments: str) -> str:
        assert main(["doctor", *arguments]) == 0
        return capsys.readouterr().out

    report = json.loads(doctor("--json"))
    assert report["native_library"] == report["native"] == "`EVERSTEP_NATIVE` is 0"
    assert report["problems"] == []
    assert "\nnative      off: `EVERSTEP_NATIVE` is 0\n" in doctor()
