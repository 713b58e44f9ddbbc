"""Vector environments that return tensors: the same rows as through the host."""

from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch.utils._python_dispatch import TorchDispatchMode

import everstep
from everstep.errors import EnvError
from everstep_adapters.common.handoff import is_of_tensors
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.everstep.algorithms.test_host_budget import Work
from tests.everstep_adapters.gymnasium.gymnasium_toys import MODES, SCRIPTS, check_stream, scripted


def on_tensors(infos: dict[str, Any]) -> dict[str, Any]:
    """The numbers in infos, as tensors."""
    nested = {k: on_tensors(v) for k, v in infos.items() if isinstance(v, dict)}
    arrays = {k: v for k, v in infos.items() if isinstance(v, np.ndarray) and v.dtype.kind in "bif"}
    found = nested | {k: torch.from_numpy(v) for k, v in arrays.items()}
    found.pop("_final_obs", None)
    return found


class OnTensors(VectorEnv):
    """A real vector environment whose arrays are turned into tensors, and actions into arrays.

    As simulators on a GPU do it: one buffer for each thing that is returned, written in place, and
    dense final observations.
    """

    def __init__(self, env: VectorEnv, infos: str = "final_obs", numbers: bool = False) -> None:
        self.env, self.key, self.has_numbers = env, infos, numbers
        self.num_envs, self.metadata = env.num_envs, dict(env.metadata)
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.actions: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, _ = self.env.reset(seed=seed, options=options)
        self.obs = self._tensor(obs)
        self.rewards = torch.zeros(self.num_envs, dtype=torch.float64)
        self.terminated = torch.zeros(self.num_envs, dtype=torch.bool)
        self.truncated = torch.zeros(self.num_envs, dtype=torch.bool)
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, torch.Tensor)
        self.actions.append(actions)
        with torch.utils._python_dispatch._disable_current_modes():  # as a simulator, unseen
            obs, rewards, terminated, truncated, infos = self.env.step(actions.numpy())
            self.obs.copy_(self._tensor(obs))
            self.rewards.copy_(torch.from_numpy(rewards))
            self.terminated.copy_(torch.from_numpy(terminated))
            self.truncated.copy_(torch.from_numpy(truncated))
        found = on_tensors(infos) if self.has_numbers else {}
        if "final_obs" in infos and self.key:
            dense = obs.copy()
            for i in np.flatnonzero(infos["_final_obs"]):
                dense[i] = infos["final_obs"][i]
            found[self.key] = self._tensor(dense)
        return self.obs, self.rewards, self.terminated, self.truncated, found

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_are_those_of_environments_stepped_by_hand(mode: str, name: str) -> None:
    env = GymnasiumEnv(OnTensors(scripted(name, mode)), autoreset_mode=mode)
    check_stream(env, name, mode)
    goes_through_host = mode == "DISABLED"  # which resets single rows
    assert (env._tensors is None) == goes_through_host


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_gymnasiums_own_wrapper_makes_such_environments(mode: str) -> None:
    """In SAME_STEP it fails: it cannot convert the infos."""
    pytest.importorskip("array_api_compat")
    from gymnasium.wrappers.vector import NumpyToTorch

    check_stream(GymnasiumEnv(NumpyToTorch(scripted("mixed", mode))), "mixed", mode)


@pytest.mark.parametrize("mode", MODES)
def test_training_is_the_same_through_tensors(mode: str) -> None:
    found = []
    for wrap in (partial(OnTensors, numbers=True), lambda env: env):
        env = GymnasiumEnv(wrap(scripted("mixed", mode)), horizon=12, autoreset_mode=mode)
        trainer = everstep.Trainer(env, seed=0, run_dir=None)
        stats = [trainer.step() for _ in range(3)]
        found.append(
            [{k: v for k, v in s.items() if "_ms" not in k and "mem" not in k} for s in stats]
        )
    assert found[0] == found[-1]
    assert all(stats["env/t"] > 0 for stats in found[0])


def test_metrics_on_tensors_do_not_wait() -> None:
    """Their sums stay on the device until they are read."""
    env = GymnasiumEnv(OnTensors(scripted("mixed", "SAME_STEP"), numbers=True))
    env.reset()
    with Work() as work:
        for _ in range(10):
            env.step(torch.ones(3, 1, dtype=torch.int64))
        found = env.metrics()
    assert work.waited == 0
    assert isinstance(found["t"], torch.Tensor)


def test_observations_are_the_environments_own_and_nothing_else_is() -> None:
    inner = OnTensors(scripted("mixed", "NEXT_STEP"))
    env = GymnasiumEnv(inner, autoreset_mode="NEXT_STEP")
    assert env.reset().data_ptr() == inner.obs.data_ptr()
    action = torch.ones(3, 1, dtype=torch.int64)
    row = env.step(action)
    assert row["obs"].data_ptr() == inner.obs.data_ptr()
    owned = {inner.rewards.data_ptr(), inner.terminated.data_ptr(), inner.truncated.data_ptr()}
    taken = {row[key].data_ptr() for key in ("rewards", "terminated", "truncated", "first")}
    assert not owned & taken
    assert inner.actions[-1].data_ptr() != action.data_ptr()


class NoSync(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select"), name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_an_env_step_waits_for_nothing(mode: str) -> None:
    env = GymnasiumEnv(OnTensors(scripted("mixed", mode)), autoreset_mode=mode)
    env.reset()
    with NoSync():
        for _ in range(12):
            env.step(torch.zeros(3, 1, dtype=torch.int64))


def test_lost_final_observations_are_nan_where_their_value_is_wanted() -> None:
    env = GymnasiumEnv(
        OnTensors(scripted("mixed", "SAME_STEP"), infos=""), autoreset_mode="SAME_STEP"
    )
    env.reset()
    seen = False
    for _ in range(20):
        row = env.step(torch.zeros(3, 1, dtype=torch.int64))
        wanted = row["truncated"] & ~row["terminated"]
        assert torch.equal(row["final_obs"].isnan().all(-1, keepdim=True), wanted)
        seen |= bool(wanted.any())
    assert seen


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("obs", torch.zeros(2, 4), r"`obs` must have shape \(3, 4\)"),
        ("rewards", torch.zeros(2), r"`rewards` must have shape \(3,\)"),
        ("terminated", np.array(["a"] * 3), "`terminated` must be numbers"),
    ],
)
def test_values_that_do_not_fit_are_named(attribute: str, value: Any, message: str) -> None:
    class Lying(OnTensors):
        def step(self, actions: Any) -> Any:
            super().step(actions)
            setattr(self, attribute, value)
            return self.obs, self.rewards, self.terminated, self.truncated, {}

    env = GymnasiumEnv(Lying(scripted("mixed", "NEXT_STEP")), autoreset_mode="NEXT_STEP")
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step(torch.zeros(3, 1, dtype=torch.int64))


class Continuous(VectorEnv):
    """Returns nested tensors, and notes the actions that it is sent."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self) -> None:
        self.num_envs = 2
        box = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.single_observation_space = spaces.Dict({"a": box, "b": spaces.Discrete(4, start=2)})
        self.single_action_space = spaces.Box(
            np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32)
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return {"a": torch.ones(2, 3).double(), "b": torch.tensor([2, 5])}, {}

    def step(self, actions: Any) -> Any:
        self.sent = actions
        flags = torch.zeros(2, dtype=torch.bool)
        return *self.reset()[:1], torch.zeros(2), flags, flags, {}


@pytest.mark.parametrize(("bounds", "expected"), [("clip", [-0.5, 0.5]), ("rescale", [-0.5, 3.0])])
def test_nested_tensors_and_bounded_actions(bounds: Any, expected: list[float]) -> None:
    inner = Continuous()
    env = GymnasiumEnv(inner, action_bounds=bounds)
    obs = env.reset()
    assert obs["a"].dtype is torch.get_default_dtype()
    assert obs["b"].tolist() == [[0], [3]]
    env.step(torch.tensor([[-0.5, 0.5], [9.0, -9.0]]))
    assert inner.sent.tolist() == [expected, [1.0, 0.0]]


class OneByOne(OnTensors):
    """Final observations as a list, `None` where there is none."""

    def step(self, actions: Any) -> Any:
        *returned, infos = super().step(actions)
        if self.key in infos:
            done = (self.terminated | self.truncated).tolist()
            rows = infos[self.key]
            infos = {self.key: [row if d else None for row, d in zip(rows, done, strict=True)]}
        return *returned, infos


def test_final_observations_may_come_one_by_one() -> None:
    env = GymnasiumEnv(OneByOne(scripted("mixed", "SAME_STEP")), autoreset_mode="SAME_STEP")
    check_stream(env, "mixed", "SAME_STEP")
    assert env._tensors is not None


def test_a_mode_that_the_infos_contradict_is_an_error() -> None:
    inner = OnTensors(scripted("all done together", "SAME_STEP"))
    env = GymnasiumEnv(inner, autoreset_mode="NEXT_STEP")
    env.reset()
    action = torch.zeros(3, 1, dtype=torch.int64)
    env.step(action)
    env.step(action)
    with pytest.raises(EnvError, match="`autoreset_mode='SAME_STEP'`"):
        env.step(action)


class Returning(VectorEnv):
    """Returns what it is given, and notes the actions that it is sent."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, observation: Any, space: spaces.Space, action: spaces.Space) -> None:
        self.num_envs, self.observation = 2, observation
        self.single_observation_space, self.single_action_space = space, action

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation, {}

    def step(self, actions: Any) -> Any:
        self.sent = actions
        flags = torch.zeros(2, dtype=torch.bool)
        return self.observation, torch.zeros(2), flags, flags, {}


REAL, CHOICE = spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(4)


def test_a_leaf_that_counts_from_zero_is_the_environments_own() -> None:
    inner = Returning({"a": torch.tensor([0, 3])}, spaces.Dict({"a": CHOICE}), CHOICE)
    assert GymnasiumEnv(inner).reset()["a"].data_ptr() == inner.observation["a"].data_ptr()


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Dict({"a": REAL}), {"b": torch.zeros(2, 3)}, r"`obs\['a'\]` is missing"),
        (spaces.Dict({"a": CHOICE}), {"a": torch.zeros(2)}, r"fits torch.int64; got torch.float32"),
        (REAL, torch.zeros(2, 3, dtype=torch.complex64), "`obs` must have a dtype that fits"),
    ],
)
def test_observations_that_do_not_fit_are_named(space: Any, observation: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        GymnasiumEnv(Returning(observation, space, CHOICE)).reset()


@pytest.mark.parametrize(
    ("space", "dtype", "expected"),
    [
        (spaces.Discrete(4, start=3), torch.int64, [3, 4]),
        (spaces.MultiBinary(2), torch.int8, [[0, 0], [1, 1]]),
        (spaces.MultiDiscrete([3, 4], dtype=np.int32), torch.int32, [[0, 0], [1, 1]]),
    ],
    ids=str,
)
def test_integer_actions_are_sent_as_their_space_has_them(
    space: Any, dtype: torch.dtype, expected: list[Any]
) -> None:
    inner = Returning(torch.zeros(2, 3), REAL, space)
    env = GymnasiumEnv(inner)
    env.reset()
    ones = torch.ones(2, *env.action_spec.shape, dtype=torch.int64)
    env.step(ones * torch.tensor([0, 1]).view(-1, 1))
    assert inner.sent.tolist() == expected
    assert inner.sent.dtype is dtype


def test_the_environments_of_jax_reset_once_more_after_a_reset() -> None:
    """They keep in mind over `reset` which rows were done."""
    pytest.importorskip("jax")
    pytest.importorskip("flax")
    pytest.importorskip("array_api_compat")
    from gymnasium.wrappers.vector import JaxToTorch

    env = GymnasiumEnv(JaxToTorch(gymnasium.make_vec("phys2d/CartPole-v1", 3)))
    env.seed(0)
    env.reset()
    action = torch.ones(3, 1, dtype=torch.int64)
    while not (row := env.step(action))["terminated"].any():
        assert row["valid"].all()
    done = row["terminated"].clone()
    env.reset()
    row = env.step(action)
    assert torch.equal(row["first"], done)
    assert torch.equal(row["rewards"], (~done).float())
    assert env._tensors is not None


def test_what_is_immutable_is_copied() -> None:
    jax = pytest.importorskip("jax")
    env = GymnasiumEnv(Returning(torch.zeros(2, 3), REAL, CHOICE))
    env.reset()
    assert env._tensors is not None
    obs, flags = jax.numpy.ones((2, 3)), jax.numpy.zeros(2, dtype=bool)
    row = env._tensors.step((obs, jax.numpy.ones(2), flags, flags, {}))
    assert row["obs"].data_ptr() != obs.unsafe_buffer_pointer()
    row.apply_(lambda leaf: leaf.zero_())
    assert obs.sum() == 6


class OnDevice:
    """As an array on a device says it of itself."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_arrays_on_a_device_need_no_host() -> None:
    assert is_of_tensors(torch.zeros(1))
    assert is_of_tensors(OnDevice())
    assert not is_of_tensors(np.zeros(1))
    assert not is_of_tensors([0.0])
    jax = pytest.importorskip("jax")
    on_host = jax.device_put(jax.numpy.zeros(1), jax.devices("cpu")[0])
    assert not is_of_tensors(on_host)


def test_environments_of_jax_are_read_through_numpy() -> None:
    pytest.importorskip("jax")
    import jax.numpy as jnp

    class Jax(OnTensors):
        def reset(self, **options: Any) -> Any:
            obs, infos = self.env.reset(**options)
            return jnp.asarray(obs), infos

        def step(self, actions: Any) -> Any:
            obs, *rest, infos = self.env.step(np.asarray(actions))
            return jnp.asarray(obs), *(jnp.asarray(x) for x in rest), infos

    check_stream(GymnasiumEnv(Jax(scripted("mixed", "NEXT_STEP"))), "mixed", "NEXT_STEP")


# ---- a GPU -----------------------------------------------------------------------------------


class Counting(VectorEnv):
    """A simulator on a device: counts env steps, in place, and truncates at 5 of them."""

    def __init__(self, mode: str, device: str) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.num_envs, self.device = 64, torch.device(device)
        self.single_observation_space = REAL
        self.single_action_space = spaces.Box(-1, 1, (2,))
        self.mode = mode

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        steps = torch.arange(self.num_envs, device=self.device) % 5
        self.obs = steps.float().unsqueeze(-1).repeat(1, 3)
        self.rewards = torch.zeros(self.num_envs, device=self.device)
        self.truncated = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.terminated = torch.zeros_like(self.truncated)
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        assert actions.device == self.obs.device
        before = self.truncated.unsqueeze(-1) & (self.mode == "NEXT_STEP")
        self.obs.copy_(torch.where(before, 0.0, self.obs + 1))
        self.rewards.copy_(actions.sum(-1))
        self.truncated.copy_(self.obs[:, 0] >= 5)
        if self.mode == "NEXT_STEP":
            return self.obs, self.rewards, self.terminated, self.truncated, {}
        final = self.obs.clone()
        self.obs.copy_(torch.where(self.truncated.unsqueeze(-1), 0.0, self.obs))
        return self.obs, self.rewards, self.terminated, self.truncated, {"final_obs": final}


def stream(mode: str, device: str) -> list[dict[str, torch.Tensor]]:
    """Rows of some env steps, after one in which what is made once is made."""
    env = GymnasiumEnv(Counting(mode, device), device=device, action_bounds="rescale")
    env.reset()
    actions = torch.linspace(-2, 2, 12 * 64 * 2).view(12, 64, 2).to(device)
    rows = [env.step(actions[0]).clone()]
    strict = torch.device(device).type == "cuda"
    try:
        if strict:
            torch.cuda.set_sync_debug_mode("error")
        rows += [env.step(action).clone() for action in actions[1:]]
    finally:
        if strict:
            torch.cuda.set_sync_debug_mode("default")
    return [{key: value.cpu() for key, value in row.items()} for row in rows]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_simulators_on_the_host_are_streamed(mode: str) -> None:
    rows = stream(mode, "cpu")
    assert torch.stack([row["truncated"] for row in rows]).sum() > 64
    assert torch.stack([row["first"] for row in rows]).any()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_an_env_step_on_a_gpu_never_waits(mode: str) -> None:
    for on_host, on_gpu in zip(stream(mode, "cpu"), stream(mode, "cuda"), strict=True):
        for key, value in on_host.items():
            torch.testing.assert_close(on_gpu[key], value)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_rows_on_the_host_of_a_simulator_on_a_gpu(mode: str) -> None:
    """Actions go to the simulator's device, and rows come back complete."""
    env = GymnasiumEnv(Counting(mode, "cuda"), device="cpu")
    twin = GymnasiumEnv(Counting(mode, "cpu"))
    assert torch.equal(env.reset(), twin.reset())
    for _ in range(12):
        action = torch.rand(64, 2)
        there, here = env.step(action), twin.step(action)
        for key, value in here.items():
            assert there[key].device.type == "cpu"
            torch.testing.assert_close(there[key], value)
