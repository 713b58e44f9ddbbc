"""Isaac Lab's own environment classes over a stand-in for Isaac Sim.

The wheel's modules of environments, managers and utilities run as they are. What needs Isaac Sim is
replaced by modules whose names are empty classes, and the simulation context and the scene by a
world of one position an environment, which actions are added to.
"""

import builtins
import contextlib
import enum
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

#: Modules that need Isaac Sim, or packages that come with it.
REPLACED = (
    *("omni", "carb", "isaacsim", "pxr", "usdrt", "h5py", "hid", "pyglet", "flatdict"),
    *("isaaclab_contrib", "isaaclab.sim", "isaaclab.scene", "isaaclab.assets", "isaaclab.sensors"),
    *("isaaclab.terrains", "isaaclab.markers", "isaaclab.devices", "isaaclab.ui"),
    *("isaaclab.actuators", "isaaclab.controllers", "isaaclab.envs.mdp", "isaaclab.envs.ui"),
)


class Empty(type):
    """Class whose attributes are classes like it."""

    def __getattr__(cls, name: str) -> Any:
        return empty(name)


def empty(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Empty(name, (), {"__init__": lambda self, *args, **kwargs: None})


class Replacer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of the replaced modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == root or name.startswith(f"{root}.") for root in REPLACED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = empty  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        """Nothing: names are made when they are asked for."""


class Simulation:
    """The simulation context: it does nothing."""

    class RenderMode(enum.IntEnum):
        NOTHING = 0
        PARTIAL_RENDERING = 1

    render_mode = RenderMode.NOTHING
    device = "cpu"

    def __init__(self, cfg: Any) -> None:
        """The config is that of the environment's `sim`."""

    @staticmethod
    def instance() -> None:
        """None: there may be several."""

    def __getattr__(self, name: str) -> Any:
        answers = {"is_playing": True, "has_gui": False, "has_rtx_sensors": False}
        return lambda *args, **kwargs: answers.get(name)


class Scene:
    """Positions `[N, 1]`; a reset draws new ones."""

    def __init__(self, cfg: Any) -> None:
        self.num_envs = cfg.num_envs
        self.place = torch.zeros(cfg.num_envs, 1)

    def reset(self, env_ids: Any) -> None:
        self.place[env_ids] = torch.rand(len(env_ids), 1) - 0.5

    def __getitem__(self, name: str) -> Any:
        return self

    def update(self, dt: float) -> None:
        """Nothing to update."""

    def write_data_to_sim(self) -> None:
        """Nothing to write."""


def load() -> Any:
    """The module `isaaclab.envs` of the installed wheel, over the stand-in; skips without it."""
    for needed in ("toml", "prettytable", "trimesh", "warp", "rsl_rl"):
        pytest.importorskip(needed)
    found = importlib.util.find_spec("isaaclab")
    if found is None or not found.submodule_search_locations:
        pytest.skip("isaaclab's wheel is not installed")
    root = Path(next(iter(found.submodule_search_locations)))
    if (root / "source").is_dir():
        sys.path[:0] = [str(root / "source" / name) for name in ("isaaclab", "isaaclab_rl")]
        sys.modules.pop("isaaclab", None)
        importlib.invalidate_caches()
    sys.meta_path.insert(0, Replacer())
    builtins.ISAAC_LAUNCHED_FROM_TERMINAL = False  # type: ignore[attr-defined]
    sim, scene = importlib.import_module("isaaclab.sim"), importlib.import_module("isaaclab.scene")
    stage: Any = importlib.import_module("isaaclab.sim.utils.stage")
    stage.use_stage = lambda stage: contextlib.nullcontext()
    stage.attach_stage_to_usd_context = lambda: None
    sim.SimulationContext, scene.InteractiveScene = Simulation, Scene  # type: ignore[attr-defined]
    utils = importlib.import_module("isaaclab.utils")
    version: Any = importlib.import_module("isaaclab.utils.version")
    version.get_isaac_sim_version = lambda: version.Version("4.5.0")  # asked for in `close`

    @utils.configclass
    class SimulationCfg:
        dt: float = 0.1
        render_interval: int = 1
        device: str = "cpu"

    @utils.configclass
    class InteractiveSceneCfg:
        num_envs: int = 4

    sim.SimulationCfg = SimulationCfg  # type: ignore[attr-defined]
    scene.InteractiveSceneCfg = InteractiveSceneCfg  # type: ignore[attr-defined]
    return importlib.import_module("isaaclab.envs")
