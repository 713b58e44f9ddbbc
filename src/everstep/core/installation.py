"""The command that installs the packages of an extra into the environment that runs."""

import importlib.metadata
import importlib.util
import shlex
import sys
from pathlib import Path


def install_command(*extras: str) -> str:
    """A command for a shell that installs what extras of Everstep need.

    It names the packages, not `everstep[extra]`: they are the same whether Everstep was installed
    from a clone, an address of git, a wheel or an index, and Everstep itself is left as it is. The
    interpreter is the one that runs, as its environment need not be the activated one.
    """
    packages = [text for extra in extras for text in requirements_of(extra)]
    if not packages:  # a source tree on `sys.path`, or its metadata is older than the extra
        packages = ["-e", f"{Path(__file__).resolve().parents[3]}[{','.join(extras)}]"]
    python = shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None  # uv makes environments without it
    pip = f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"
    return f"{pip} {shlex.join(dict.fromkeys(packages))}"


def requirements_of(extra: str, package: str = "everstep") -> list[str]:
    """Requirements that an extra of an installed package adds; none if it is not installed."""
    from packaging.requirements import Requirement

    try:
        texts = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    requirements = []
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if marker and "extra" in str(marker) and marker.evaluate({"extra": extra}):
            requirement.marker = None
            requirements.append(str(requirement))
    return requirements
