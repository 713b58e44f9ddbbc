"""The tasks of IsaacGymEnvs and legged_gym over a stand-in for the package `isaacgym`.

The projects' modules run as they are. Their simulator is replaced by one whose states have the
sizes that the task's URDF and MJCF files ask for. `simulate` drifts them at random and by what the
task applied; like the original, a state that is set shows only in a tensor that is refreshed.
"""

import contextlib
import functools
import importlib
import importlib.machinery
import math
import random
import re
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
import yaml

DOF = np.dtype(
    [(name, "f4") for name in ("lower", "upper", "velocity", "effort", "stiffness", "damping")]
    + [(name, "f4") for name in ("friction", "armature")]
    + [("driveMode", "i4"), ("hasLimits", "?")]
)


class Open:
    """Object with the attributes that it is given; others are made when they are asked for."""

    def __init__(self, *args: Any, **values: Any) -> None:
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value.item() if isinstance(value, np.ndarray) else value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = Transform() if name in ("transform", "offset") else Open()
        return vars(self)[name]


class Vec3:
    def __init__(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> None:
        self.x, self.y, self.z = float(x), float(y), float(z)

    def __iter__(self) -> Iterator[float]:
        return iter((self.x, self.y, self.z))

    def __add__(self, other: "Vec3") -> "Vec3":
        return Vec3(*(a + b for a, b in zip(self, other, strict=True)))

    def __mul__(self, scale: float) -> "Vec3":
        return Vec3(*(scale * a for a in self))


class Quat:
    """Quaternion, its real part last."""

    def __init__(self, x: float = 0.0, y: float = 0.0, z: float = 0.0, w: float = 1.0) -> None:
        self.x, self.y, self.z, self.w = float(x), float(y), float(z), float(w)

    def __iter__(self) -> Iterator[float]:
        return iter((self.x, self.y, self.z, self.w))

    @staticmethod
    def from_axis_angle(axis: Vec3, angle: float) -> "Quat":
        return Quat(*(math.sin(angle / 2) * a for a in axis), math.cos(angle / 2))

    @staticmethod
    def from_euler_zyx(x: float, y: float, z: float) -> "Quat":
        axes = zip((Vec3(0, 0, 1), Vec3(0, 1, 0), Vec3(1, 0, 0)), (z, y, x), strict=True)
        a, b, c = (Quat.from_axis_angle(*turn) for turn in axes)
        return a * b * c

    def __mul__(self, other: "Quat") -> "Quat":
        return Quat(*quat_mul(torch.tensor([*self]), torch.tensor([*other])).tolist())

    def rotate(self, v: Vec3) -> Vec3:
        return Vec3(*quat_apply(torch.tensor([*self]), torch.tensor([*v])).tolist())


class Transform:
    def __init__(self, p: None | Vec3 = None, r: None | Quat = None) -> None:
        self.p, self.r = p or Vec3(), r or Quat()

    def transform_point(self, v: Vec3) -> Vec3:
        return self.p + self.r.rotate(v)

    def inverse(self) -> "Transform":
        turn = Quat(-self.r.x, -self.r.y, -self.r.z, self.r.w)
        return Transform(turn.rotate(self.p) * -1.0, turn)

    def __mul__(self, other: "Transform") -> "Transform":
        return Transform(self.transform_point(other.p), self.r * other.r)


# ---- `isaacgym.torch_utils`, from the definitions ---------------------------------------------


def quat_mul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(u + s)(v + t) = (s v + t u + u × v) + (s t − u · v)."""
    u, s, v, t = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    imaginary = s * v + t * u + torch.linalg.cross(u, v)
    return torch.cat([imaginary, s * t - (u * v).sum(-1, keepdim=True)], -1)


def quat_conjugate(q: torch.Tensor) -> torch.Tensor:
    return torch.cat([-q[..., :3], q[..., 3:]], -1)


def quat_apply(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The imaginary part of q v q*; rows may be in other shapes, as long as they are as many."""
    q, pure = q.reshape(-1, 4), torch.nn.functional.pad(v.reshape(-1, 3), (0, 1))
    return quat_mul(quat_mul(q, pure), quat_conjugate(q))[:, :3].view(v.shape)


def quat_rotate_inverse(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return quat_apply(quat_conjugate(q), v)


def normalize(x: torch.Tensor, eps: float = 1e-9) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=eps)


def to_torch(x: Any, dtype: Any = torch.float, device: Any = "cpu", **more: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=dtype, device=device)


def get_axis_params(value: float, axis: int, *more: Any) -> list[float]:
    return [value if i == axis else 0.0 for i in range(3)]


def torch_rand_float(low: float, high: float, shape: Any, device: Any) -> torch.Tensor:
    return low + (high - low) * torch.rand(*shape, device=device)


# ---- `isaacgym.terrain_utils`: heights at random ----------------------------------------------


class SubTerrain:
    def __init__(self, terrain_name: str = "terrain", **size: Any) -> None:
        vars(self).update(size)
        self.height_field_raw = np.zeros((size["width"], size["length"]), dtype=np.int16)


def terrain(it: SubTerrain, *args: Any, **kwargs: Any) -> SubTerrain:
    it.height_field_raw[:] = np.random.randint(-20, 20, it.height_field_raw.shape)
    return it


def convert_heightfield_to_trimesh(*args: Any) -> Any:
    return np.zeros((3, 3), np.float32), np.zeros((1, 3), np.uint32)


# ---- robots -----------------------------------------------------------------------------------


class Asset:
    """Names of a robot's bodies, joints, actuators and tendons."""

    def __init__(self, path: None | Path, options: Any) -> None:
        self.is_fixed = vars(options).get("fix_base_link", False)
        self.bodies: list[str] = []
        self.dofs: list[tuple[str, float, float]] = []
        self.actuators: list[tuple[str, float]] = []
        self.tendons: list[str] = []
        self.sensors = 0
        if path is None:
            self.bodies = ["box"]
        elif (root := read(path)).tag == "robot":
            self.read_urdf(root, vars(options).get("collapse_fixed_joints", False))
        else:
            compiler = root.find("compiler")
            is_radian = compiler is not None and compiler.get("angle") == "radian"
            for body in root.findall("worldbody/body"):
                self.bodies.append(body.get("name", ""))  # its joint is that of the base
                self.read_mjcf(body, 1.0 if is_radian else math.pi / 180)
            motors = [x for part in root.findall("actuator") for x in part]
            self.actuators = [(x.get("joint", ""), float(x.get("gear", "1"))) for x in motors]
            self.tendons = [x.get("name", "") for part in root.findall("tendon") for x in part]
        count = len(self.dofs)
        self.properties = np.zeros(count, DOF)
        for i, (_, low, high) in enumerate(self.dofs):
            self.properties[i] = (low, high, 10.0, 50.0, 100.0, 1.0, 0.0, 0.0, 0, True)

    def read_urdf(self, root: Any, collapses: bool) -> None:
        children: dict[str, list[Any]] = {}
        for joint in root.findall("joint"):
            children.setdefault(joint.find("parent").get("link"), []).append(joint)

        def visit(link: str) -> None:
            for joint in sorted(children.get(link, []), key=lambda joint: joint.get("name")):
                child = joint.find("child").get("link")
                if joint.get("type") != "fixed":
                    limit = joint.find("limit")
                    ends = {} if limit is None else limit.attrib
                    low, high = float(ends.get("lower", -3)), float(ends.get("upper", 3))
                    self.dofs.append((joint.get("name"), low, high))
                if joint.get("type") != "fixed" or not collapses or joint.get("dont_collapse"):
                    self.bodies.append(child)
                visit(child)

        links = [link.get("name") for link in root.findall("link")]
        below = {joint.find("child").get("link") for joint in root.findall("joint")}
        first = next(link for link in links if link not in below)
        self.bodies.append(first)
        visit(first)

    def read_mjcf(self, body: Any, unit: float) -> None:
        for child in body.findall("body"):
            self.bodies.append(child.get("name", ""))
            for joint in child.findall("joint"):
                ends = [unit * float(x) for x in joint.get("range", "-60 60").split()]
                self.dofs.append((joint.get("name", ""), *ends))
            self.read_mjcf(child, unit)


def read(path: Path) -> Any:
    """The XML of a file, with what it includes."""
    root = ET.parse(path).getroot()
    for parent in list(root.iter()):
        for i, child in reversed(list(enumerate(parent))):
            if child.tag == "include":
                parent.remove(child)
                for x in reversed(list(read(path.parent / child.get("file", "")))):
                    parent.insert(i, x)
    return root


class Shown:
    """A state of the simulator, and the tensor in which it is shown when it is refreshed."""

    def __init__(self, state: torch.Tensor) -> None:
        self.state, self.tensor = state, state.clone()


class Sim:
    """Environments of actors, and their states once all are there."""

    def __init__(self, params: Any) -> None:
        self.params, self.frames = params, 0
        self.envs: list[list[int]] = []
        self.actors: list[tuple[Asset, Transform, str, int]] = []
        self.is_ready = False

    def prepare(self) -> None:
        """Make the states."""
        if self.is_ready:
            return
        self.is_ready, count = True, len(self.actors)
        poses = [[*pose.p, *pose.r, *[0.0] * 6] for _, pose, _, _ in self.actors]
        assets = [asset for asset, _, _, _ in self.actors]
        self.is_free = torch.tensor([not asset.is_fixed for asset in assets]).float().unsqueeze(-1)
        ids = torch.arange(count)
        self.body_of = ids.repeat_interleave(torch.tensor([len(a.bodies) for a in assets]))
        self.dof_of = ids.repeat_interleave(torch.tensor([len(a.dofs) for a in assets]))
        ends = [(low, high) for a in assets for _, low, high in a.dofs]
        self.limits = torch.tensor(ends).view(-1, 2).sort(dim=-1).values
        # The first environments are calm and live long, the last ones fail soon.
        self.noise = torch.linspace(0.2, 4.0, count)
        self.offsets = torch.linspace(0.0, 0.2, len(self.body_of)).unsqueeze(-1)
        dofs, bodies = len(self.dof_of), len(self.body_of)
        self.root, self.dof = Shown(torch.tensor(poses)), Shown(torch.zeros(dofs, 2))
        self.body, self.contact = Shown(torch.zeros(bodies, 13)), Shown(torch.zeros(bodies, 3))
        self.torque = Shown(torch.zeros(dofs))
        self.sensor = Shown(torch.zeros(sum(asset.sensors for asset in assets), 6))
        self.force, self.target = torch.zeros(dofs), torch.zeros(dofs)
        self.pushes = torch.zeros(bodies, 3)

    def step(self) -> None:
        self.frames += 1
        dt = float(self.params.dt)
        dof, root = self.dof.state, self.root.state
        pull = torch.tanh(self.force) + torch.tanh(self.target - dof[:, 0])
        noise = self.noise[self.dof_of] * torch.randn(len(dof))
        dof[:, 1] = 0.9 * dof[:, 1] + 2.0 * pull + noise
        dof[:, 0] += dt * dof[:, 1]
        dof[:, 0] = torch.clamp(dof[:, 0], self.limits[:, 0] - 1, self.limits[:, 1] + 1)
        pushed = torch.zeros(len(root), 3).index_add(0, self.body_of, torch.tanh(self.pushes))
        pulled = torch.zeros(len(root)).index_add(0, self.dof_of, pull).unsqueeze(-1)
        moves = self.noise.unsqueeze(-1) * torch.randn(len(root), 6) + 0.1 * pulled
        moves[:, :3] += pushed
        root[:, 7:] = torch.where(self.is_free > 0, 0.9 * root[:, 7:] + moves, root[:, 7:])
        root[:, :3] += dt * root[:, 7:10] * self.is_free
        turn = torch.cat([dt / 2 * root[:, 10:] * self.is_free, torch.ones(len(root), 1)], -1)
        root[:, 3:7] = normalize(quat_mul(turn, root[:, 3:7]))
        self.contact.state = 100.0 * (torch.rand(len(self.body_of), 1) < 0.005) * torch.rand(1, 3)
        self.torque.state, self.sensor.state = pull, torch.randn(self.sensor.state.shape)
        self.pushes.zero_()

    def place_bodies(self) -> None:
        """Bodies are where their actor is, a little apart."""
        self.body.state = self.root.state[self.body_of]
        bent = torch.zeros(len(self.actors)).index_add(0, self.dof_of, self.dof.state[:, 0])
        self.body.state[:, :3] += self.offsets * torch.sin(bent[self.body_of]).unsqueeze(-1)


#: Names of states in the functions of `gym`.
STATES = {
    "actor_root_state": "root",
    "dof_state": "dof",
    "rigid_body_state": "body",
    "net_contact_force": "contact",
    "dof_force": "torque",
    "force_sensor": "sensor",
}


def dof_names(asset: Asset) -> list[str]:
    return [name for name, _, _ in asset.dofs]


#: What is asked of an asset, and in the same way of an actor.
ASKED: dict[str, Callable[..., Any]] = {
    "get_asset_rigid_body_count": lambda asset: len(asset.bodies),
    "get_asset_rigid_shape_count": lambda asset: len(asset.bodies),
    "get_asset_rigid_body_names": lambda asset: list(asset.bodies),
    "get_asset_rigid_body_name": lambda asset, i: asset.bodies[i],
    "find_asset_rigid_body_index": lambda asset, name: asset.bodies.index(name),
    "get_asset_rigid_body_properties": lambda asset: [Open(mass=1.0) for _ in asset.bodies],
    "get_asset_rigid_shape_properties": lambda asset: [
        Open(friction=1.0, restitution=0.0) for _ in asset.bodies
    ],
    "get_asset_dof_count": lambda asset: len(asset.dofs),
    "get_asset_joint_count": lambda asset: len(asset.dofs),
    "get_asset_dof_names": dof_names,
    "find_asset_dof_index": lambda asset, name: dof_names(asset).index(name),
    "get_asset_dof_properties": lambda asset: asset.properties.copy(),
    "get_asset_actuator_count": lambda asset: len(asset.actuators),
    "get_asset_actuator_joint_name": lambda asset, i: asset.actuators[i][0],
    "get_asset_actuator_properties": lambda asset: [
        Open(motor_effort=gear) for _, gear in asset.actuators
    ],
    "get_asset_tendon_count": lambda asset: len(asset.tendons),
    "get_asset_tendon_name": lambda asset, i: asset.tendons[i],
    "get_asset_tendon_properties": lambda asset: [
        Open(stiffness=1.0, damping=1.0) for _ in asset.tendons
    ],
}


class Gym:
    """The simulator's functions; those that are not here do nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        words = re.fullmatch(r"(acquire|refresh)_(\w+)_tensor", name)
        if words and words[2] in STATES:
            return getattr(self, words[1])(STATES[words[2]])  # type: ignore[no-any-return]
        if name in ASKED:
            return ASKED[name]
        if (
            asked := name.replace("_actor_", "_asset_").replace("dof_handle", "dof_index")
        ) in ASKED:
            return lambda env, handle, *more: ASKED[asked](self.actor(env, handle)[0], *more)
        return lambda *args, **kwargs: None

    def acquire(self, which: str) -> Callable[[Sim], torch.Tensor]:
        def acquire(sim: Sim) -> torch.Tensor:
            sim.prepare()
            self.refresh(which)(sim)
            shown: torch.Tensor = getattr(sim, which).tensor
            return shown

        return acquire

    def refresh(self, which: str) -> Callable[[Sim], None]:
        def refresh(sim: Sim) -> None:
            if which == "body":
                sim.place_bodies()
            getattr(sim, which).tensor.copy_(getattr(sim, which).state)

        return refresh

    def create_sim(self, device: int, graphics: int, engine: Any, params: Any) -> Sim:
        return Sim(params)

    def prepare_sim(self, sim: Sim) -> bool:
        sim.prepare()
        return True

    def simulate(self, sim: Sim) -> None:
        sim.step()

    def get_frame_count(self, sim: Sim) -> int:
        return sim.frames

    def get_sim_params(self, sim: Sim) -> Any:
        return sim.params

    def get_sim_dof_count(self, sim: Sim) -> int:
        return sum(len(asset.dofs) for asset, _, _, _ in sim.actors)

    def get_sim_actor_count(self, sim: Sim) -> int:
        return len(sim.actors)

    # ---- what tasks set -----------------------------------------------------------------------

    def set_dof_actuation_force_tensor(self, sim: Sim, force: torch.Tensor) -> None:
        sim.force = force.flatten().clone()

    def set_dof_position_target_tensor(self, sim: Sim, target: torch.Tensor) -> None:
        sim.target = target.flatten().clone()

    def set_dof_position_target_tensor_indexed(
        self, sim: Sim, target: torch.Tensor, ids: torch.Tensor, count: int
    ) -> None:
        sim.target = torch.where(chosen(sim.dof_of, ids, count), target.flatten(), sim.target)

    def apply_rigid_body_force_tensors(self, sim: Sim, force: Any, torque: Any, space: Any) -> None:
        for pushes in (force, torque):
            if pushes is not None:
                sim.pushes += pushes.view(-1, 3)

    def set_actor_root_state_tensor(self, sim: Sim, state: torch.Tensor) -> None:
        sim.root.state = state.view(-1, 13).clone()

    def set_actor_root_state_tensor_indexed(
        self, sim: Sim, state: torch.Tensor, ids: torch.Tensor, count: int
    ) -> None:
        rows = ids[:count].long()
        sim.root.state[rows] = state.view(-1, 13)[rows]

    def set_dof_state_tensor_indexed(
        self, sim: Sim, state: torch.Tensor, ids: torch.Tensor, count: int
    ) -> None:
        rows = chosen(sim.dof_of, ids, count).unsqueeze(-1)
        sim.dof.state = torch.where(rows, state.view(-1, 2), sim.dof.state)

    # ---- assets -------------------------------------------------------------------------------

    def load_asset(self, sim: Sim, root: str, file: str, options: Any = None) -> Asset:
        return Asset(Path(root) / file, options or Open())

    def create_box(self, sim: Sim, x: float, y: float, z: float, options: Any) -> Asset:
        return Asset(None, options)

    def create_sphere(self, sim: Sim, radius: float, options: Any) -> Asset:
        return Asset(None, options)

    def create_asset_force_sensor(self, asset: Asset, body: int, pose: Any, *more: Any) -> int:
        asset.sensors += 1
        return asset.sensors - 1

    # ---- actors -------------------------------------------------------------------------------

    def create_env(self, sim: Sim, *args: Any) -> Any:
        sim.envs.append([])
        return sim, len(sim.envs) - 1

    def create_actor(self, env: Any, asset: Asset, pose: Transform, name: str, *more: Any) -> int:
        sim, i = env
        before = sum(len(sim.actors[j][0].bodies) for j in sim.envs[i])
        sim.envs[i].append(len(sim.actors))
        at = Transform(Vec3(*pose.p), Quat(*pose.r))
        sim.actors.append((asset, at, name, before))
        return len(sim.envs[i]) - 1

    def actor(self, env: Any, handle: int) -> tuple[Asset, Transform, str, int]:
        sim, i = env
        found: tuple[Asset, Transform, str, int] = sim.actors[sim.envs[i][handle]]
        return found

    def find_actor_handle(self, env: Any, name: str) -> int:
        sim, i = env
        return [sim.actors[j][2] for j in sim.envs[i]].index(name)

    def get_actor_count(self, env: Any) -> int:
        return len(env[0].envs[env[1]])

    def get_actor_handle(self, env: Any, i: int) -> int:
        return i

    def get_actor_name(self, env: Any, handle: int) -> str:
        return self.actor(env, handle)[2]

    def get_actor_index(self, env: Any, handle: int, domain: Any) -> int:
        sim, i = env
        index: int = sim.envs[i][handle]
        return index

    def find_actor_rigid_body_handle(self, env: Any, handle: int, name: str) -> int:
        asset, _, _, before = self.actor(env, handle)
        return before + asset.bodies.index(name)

    def get_actor_joint_dict(self, env: Any, handle: int) -> Any:
        return {"panda_hand_joint": 7}

    def get_rigid_transform(self, env: Any, body: int) -> Transform:
        return Transform(Vec3(0.1 * body, 0.0, 0.5))

    def acquire_jacobian_tensor(self, sim: Sim, name: str) -> torch.Tensor:
        asset = next(asset for asset, _, found, _ in sim.actors if found == name)
        size = len(sim.envs), len(asset.bodies), 6, len(asset.dofs)
        return torch.randn(size)

    def acquire_mass_matrix_tensor(self, sim: Sim, name: str) -> torch.Tensor:
        asset = next(asset for asset, _, found, _ in sim.actors if found == name)
        return torch.eye(len(asset.dofs)).repeat(len(sim.envs), 1, 1)


def chosen(owner: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """The rows whose owner is among the first `count` indices."""
    return torch.isin(owner, ids[:count].long())


# ---- modules ----------------------------------------------------------------------------------


def module(name: str, *found: Any, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__path__, made.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
    vars(made).update({x.__name__: x for x in found} | names)
    return made


@functools.cache
def constant(name: str) -> Any:
    """A class with open attributes, or a number if all letters are capitals."""
    if name.startswith("__"):
        raise AttributeError(name)
    return sum(map(ord, name)) if name.isupper() else type(name, (Open,), {})


def modules() -> dict[str, types.ModuleType]:
    """The modules of `isaacgym`, and those beside it that tasks import without using them."""
    gymapi = module("isaacgym.gymapi", Vec3, Quat, Transform, acquire_gym=Gym)
    gymapi.ContactCollection = int  # type: ignore[attr-defined]
    gymapi.INVALID_HANDLE = -1  # type: ignore[attr-defined]
    gymapi.__getattr__ = constant  # type: ignore[method-assign]
    same = {"wrap_tensor": lambda x: x, "unwrap_tensor": lambda x: x}
    gymutil = module(
        "isaacgym.gymutil",
        parse_device_str=lambda name: (name.split(":")[0], 0),
        _indent_xml=lambda root: None,
    )
    gymutil.__getattr__ = constant  # type: ignore[method-assign]
    torch_utils = module(
        *("isaacgym.torch_utils", quat_mul, quat_conjugate, quat_apply, quat_rotate_inverse),
        *(normalize, to_torch, get_axis_params, torch_rand_float),
    )
    kinds = ("random_uniform", "sloped", "pyramid_sloped", "discrete_obstacles", "wave", "stairs")
    kinds += ("pyramid_stairs", "stepping_stones")
    heights = {f"{kind}_terrain": terrain for kind in kinds}
    made = [
        module("isaacgym"),
        *(gymapi, gymutil, torch_utils, module("isaacgym.gymtorch", **same)),
        module("isaacgym.terrain_utils", SubTerrain, convert_heightfield_to_trimesh, **heights),
        module("rsl_rl"),
        module("rsl_rl.env", VecEnv=object),
        module("rsl_rl.runners", OnPolicyRunner=object),
        module("matplotlib"),
        module("matplotlib.pyplot"),
        module("omegaconf", ListConfig=list),
        module("tkinter", W=None),
        module("scipy", interpolate=None),
        module("scipy.ndimage"),
        module("scipy.ndimage.filters", gaussian_filter1d=lambda x, *args, **kwargs: x),
    ]
    found = {x.__name__: x for x in made}
    for name, it in found.items():
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(found[parent], last, it)
    return found | {"gym": gymnasium, "gym.spaces": gymnasium.spaces}


@contextlib.contextmanager
def loaded(*roots: Path) -> Iterator[None]:
    """A context in which the projects at `roots` can be imported."""
    with (
        mock.patch.dict(sys.modules, modules()),
        mock.patch.object(sys, "path", [*map(str, roots), *sys.path]),
        mock.patch.object(np, "Inf", np.inf, create=True),  # removed in NumPy 2
        mock.patch.object(torch, "where", where),
        mock.patch.object(torch.jit, "script", lambda function: function),
    ):
        for root in roots:
            # Their `__init__` imports Hydra, and every task.
            for name in ("isaacgymenvs", "isaacgymenvs.tasks"):
                if (place := root / name.replace(".", "/")).is_dir():
                    sys.modules[name] = module(name)
                    sys.modules[name].__path__ = [str(place)]
        yield


def where(condition: torch.Tensor, *values: Any, where: Any = torch.where) -> torch.Tensor:
    """`torch.where`, whose condition may be of integers, as in the PyTorch of DeXtreme's time."""
    chosen: torch.Tensor = where(condition.bool(), *values)
    return chosen


def set_seed(seed: int) -> None:
    """Seed all generators that tasks draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def config(path: Path) -> Any:
    """A task's config, with the values of `config.yaml` for a simulation on the CPU."""
    answers = {"physics_engine": "physx", "num_threads": 1, "solver_type": 1, "num_subscenes": 1}

    def resolve(found: re.Match[str]) -> str:
        if default := re.match(r"resolve_default:(\d+)", found[1]):
            return default[1]
        return str(answers.get(found[1].strip("."), False))

    text = path.read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\{((?:[^{}]|\{[^{}]*\}|\$)*)\}", resolve, text))


def vec_task(root: Path, module: str, name: str, cfg: str, num_envs: int, **env: Any) -> Any:
    """A task of IsaacGymEnvs; `env` replaces entries of its config."""
    options = config(root / "isaacgymenvs/cfg/task" / f"{cfg}.yaml")
    options["env"] |= {"numEnvs": num_envs, **env}
    options["rl_device"] = "cpu"
    sys.modules.get("isaacgymenvs.tasks.base.vec_task", types.SimpleNamespace()).EXISTING_SIM = None  # type: ignore[union-attr]
    made = getattr(importlib.import_module(f"isaacgymenvs.tasks.{module}"), name)
    return made(options, "cpu", "cpu", -1, True, False, False)


def legged(root: Path, name: str, num_envs: int) -> Any:
    """A task of legged_gym, by its name in the registry."""
    registry = importlib.import_module("legged_gym.envs").task_registry
    cfg = type(registry.env_cfgs[name])()
    cfg.env.num_envs = num_envs
    network = getattr(cfg.control, "actuator_net_file", "").format(LEGGED_GYM_ROOT_DIR=root)
    cfg.control.use_actuator_network = Path(network).is_file()
    params = Open(dt=cfg.sim.dt, use_gpu_pipeline=False)
    return registry.get_task_class(name)(cfg, params, "physx", "cpu", True)
