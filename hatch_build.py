"""Build hook: the native library is compiled where the package is built or installed.

Nothing here may break an installation: without the library, training takes the general way, and
`everstep doctor` says why.
"""

import importlib.util
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACE = "everstep/core/fast"


def _load_build(root: str) -> Any:
    path = Path(root, "src", PLACE, "build.py")
    spec = importlib.util.spec_from_file_location("everstep_native_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the native library to wheels, and puts it into the source tree of editable ones."""

    def dependencies(self) -> list[str]:
        """A compiler from the registry, if there is none and it has one for this platform.

        It goes into an environment that is made for the build. One that has PyTorch is somebody's
        own: nothing is asked of it (`python -m build --no-isolation` would refuse to build).
        """
        build = _load_build(self.root)
        machines = ("x86_64", "amd64", "aarch64", "arm64")
        has_wheels = (
            sys.platform in ("linux", "darwin", "win32") and platform.machine().lower() in machines
        )
        is_own = importlib.util.find_spec("torch") is not None
        if is_own or not has_wheels or build.is_switched_off() or build.compiler():
            return []
        return ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; if that fails, the wheel is made without, and has the reason in it."""
        build = _load_build(self.root)
        is_editable = version == "editable"
        if is_editable:
            folder = build.SOURCE.parent
        else:
            self._scratch = tempfile.TemporaryDirectory()
            folder = Path(self._scratch.name)
        found = build.build_or_explain(folder)
        if found.name != build.FILE:
            self.app.display_warning(f"The native library is not built: {found.read_text()}")
        if is_editable:
            return
        build_data["force_include"][str(found)] = f"{PLACE}/{found.name}"
        if found.name == build.FILE:
            build_data["pure_python"] = False
            tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()
