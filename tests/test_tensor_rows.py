"""Vector environments that return tensors: their rows are those of the host, without the host."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch.utils._python_dispatch import TorchDispatchMode

import everstep
from everstep.errors import EnvError
from everstep_adapters.gymnasium import GymnasiumEnv
from gymnasium_toys import MODES, SCRIPTS, check_stream, scripted


class OnTensors(VectorEnv):
    """A real vector environment whose arrays are turned into tensors, and actions into arrays.

    As simulators on a GPU do it: one buffer for each thing that is returned, written in place, and
    dense final observations.
    """

    def __init__(self, env: VectorEnv, infos: str = "final_obs") -> None:
        self.env, self.key = env, infos
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
        found = {}
        if "final_obs" in infos and self.key:
            dense = obs.copy()
            for i in np.flatnonzero(infos["_final_obs"]):
                dense[i] = infos["final_obs"][i]
            found = {self.key: self._tensor(dense)}
        return self.obs, self.rewards, self.terminated, self.truncated, found

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_rows_are_those_of_environments_stepped_by_hand(mode: str, name: str) -> None:
    env = GymnasiumEnv(OnTensors(scripted(name, mode)), autoreset_mode=mode)
    check_stream(env, name, mode)
    assert env._tensors is not None


@pytest.mark.parametrize("mode", MODES)
def test_training_is_the_same_through_tensors(mode: str) -> None:
    found = []
    for wrap in (OnTensors, lambda env: env):
        if mode == "DISABLED" and wrap is OnTensors:
            continue
        env = GymnasiumEnv(wrap(scripted("mixed", mode)), horizon=12, autoreset_mode=mode)
        trainer = everstep.Trainer(env, seed=0, run_dir=None)
        stats = [trainer.step() for _ in range(3)]
        found.append(
            [{k: v for k, v in s.items() if "_ms" not in k and "mem" not in k} for s in stats]
        )
    assert found[0] == found[-1]


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
