"""Commands of messages install into the environment that runs, however Everstep came there."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from everstep.core.installation import install_command, requirements_of
from tests.test_docs import DOCS, ROOT


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with two extras, the only packages on the path."""
    folder = tmp_path / "everstep-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: everstep\nVersion: 0.1.0\n"
        "Requires-Dist: torch>=2.9\n"
        "Provides-Extra: plot\nRequires-Dist: matplotlib>=3.10.7; extra == 'plot'\n"
        "Requires-Dist: old; python_version < '3' and extra == 'plot'\n"
        "Provides-Extra: classic\n"
        "Requires-Dist: gymnasium[classic-control]>=1.1; extra == 'classic'\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    return folder


@pytest.mark.parametrize(
    "origin",
    [
        None,  # an index
        '{"url": "file:///gone/everstep", "dir_info": {}}',
        '{"url": "file:///gone/everstep", "dir_info": {"editable": true}}',
        '{"url": "file:///gone/everstep-0.1.0-py3-none-any.whl", "archive_info": {}}',
        '{"url": "https://gone.example/everstep", "vcs_info": {"vcs": "git", "commit_id": "0"}}',
    ],
)
def test_an_extra_is_installed_whatever_everstep_was_installed_from(
    installed: Path, origin: None | str
) -> None:
    if origin is not None:
        (installed / "direct_url.json").write_text(origin)
    *pip, packages = install_command("plot").rsplit(" ", 1)
    assert pip == [f"{shlex.quote(sys.executable)} -m pip install"]
    assert shlex.split(packages) == ["matplotlib>=3.10.7"]
    both = shlex.split(install_command("classic", "plot", "plot"))[4:]
    assert both == ["gymnasium[classic-control]>=1.1", "matplotlib>=3.10.7"]


def test_an_environment_without_pip_is_one_of_uv(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(installed.parent)])
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/a b/python")
    assert install_command("plot") == "uv pip install --python '/a b/python' 'matplotlib>=3.10.7'"


def test_a_source_tree_is_installed_with_the_extra() -> None:
    assert requirements_of("nothing") == []
    assert requirements_of("plot", "no-such-distribution") == []
    assert shlex.split(install_command("nothing"))[4:] == ["-e", f"{ROOT}[nothing]"]


def test_no_message_names_the_distribution_which_no_index_has() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    found = [str(path) for path in files if re.search(r"install.*\beverstep\[", path.read_text())]
    assert found == []


def test_pages_install_extras_from_the_clone_in_one_form() -> None:
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    pages += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    named, wrong = set(), []
    for path in pages:
        for command in re.findall(r"pip install [^`\n]*\[[^`\n]*", path.read_text()):
            form = re.search(r'pip install -c constraints\.txt "\.\[([\w,]+)\]"', command)
            if form:
                named |= set(form[1].split(","))
            elif "everstep" in command or '".[' in command or "'.[" in command:
                wrong.append(f"{path}: {command}")
    assert wrong == []
    assert named <= extras
    assert {"plot", "video", "classic", "envpool", "ui"} <= named
