"""The IsaacGym adapter: observations, actions, memory, devices, matching, making, training."""

import importlib
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Bounded, Composite, Unbounded

import everstep
from everstep import RecurrentAlgorithmConfig, TrainConfig
from everstep.errors import AdapterError, EnvError
from everstep.testing import EnvConformance
from everstep_adapters import IsaacGymEnv
from tests.everstep_adapters.isaacgym.isaacgym_tasks import (
    LIMIT,
    LONGEST,
    NEVER,
    SCRIPTS,
    TASKS,
    AtOnce,
    LabEnv,
    LazyAfter,
    LazyBefore,
    LeggedTask,
    RslEnv,
    VecTask,
    Waiting,
    check_rows,
    some_actions,
)

STYLES = list(TASKS)

# ---- observations and actions -----------------------------------------------------------------


def test_specs_are_those_of_one_environment() -> None:
    env = IsaacGymEnv(LazyAfter([[3], [4]]))
    assert env.observation_spec == Unbounded([4], dtype=torch.float32)
    assert env.action_spec == Bounded(-1, 1, [1], dtype=torch.float32)
    assert (env.num_envs, env.horizon, env.device) == (2, None, "cpu")
    assert env.max_episode_steps == env.task.max_episode_length - 1  # as VecTasks count
    legged = IsaacGymEnv(LeggedTask([[3]]))
    assert legged.action_spec == Unbounded([1])
    assert legged.max_episode_steps == legged.task.max_episode_length
    assert IsaacGymEnv(LabEnv([[3]])).action_spec == Unbounded([1])


@pytest.mark.parametrize("style", STYLES)
def test_states_for_a_critic_come_beside_the_observation(style: str) -> None:
    env = IsaacGymEnv(TASKS[style]([[3], [4]], LONGEST, num_states=2))
    assert isinstance(env.observation_spec, Composite)
    assert {k: list(v.shape) for k, v in env.observation_spec.items()} == {
        "obs": [4],
        "states": [2],
    }
    env.reset()
    for _ in range(10):
        row = env.step(torch.zeros(2, 1))
        assert torch.equal(row["obs", "states"][:, 0], row["obs", "obs"][:, 2])
        if style == "D":
            assert torch.equal(row["final_obs", "states"][:, 0], row["final_obs", "obs"][:, 2])
    alone = IsaacGymEnv(TASKS[style]([[3]], LONGEST, num_states=2), observation_keys=["obs"])
    assert alone.reset().shape == (1, 4)
    with pytest.raises(AdapterError, match="no observation image; it has obs, states"):
        IsaacGymEnv(TASKS[style]([[3]], LONGEST, num_states=2), observation_keys=["image"])


def test_an_entry_that_vanishes_is_named() -> None:
    task = LazyAfter([[3]], num_states=2)
    env = IsaacGymEnv(task)
    env.reset()
    task.num_states = 0
    task.obs_dict.clear()
    with pytest.raises(EnvError, match="without states, which its first ones had"):
        env.step(torch.zeros(1, 1))


def test_actions_are_clipped_and_never_written_to() -> None:
    sent = []

    class Keeper(LazyAfter):
        def step(self, actions: torch.Tensor) -> Any:
            sent.append(actions)
            returned = super().step(actions)
            actions.fill_(7.0)
            return returned

    env = IsaacGymEnv(Keeper([[NEVER]] * 3), reset_style="A")
    env.reset()
    action = torch.tensor([[-3.0], [0.25], [3.0]], dtype=torch.float64, requires_grad=True)
    sent.clear()
    env.step(action)
    assert action.flatten().tolist() == [-3.0, 0.25, 3.0]
    assert env.task.actions.flatten().tolist() == [-1.0, 0.25, 1.0]
    assert (sent[0].dtype, sent[0].requires_grad) == (torch.float32, False)
    (form,) = env.env_format.action
    assert form.to_torch(action.detach()).flatten().tolist() == [-1.0, 0.25, 1.0]


def test_unbounded_actions_are_copied_as_they_are() -> None:
    env = IsaacGymEnv(LabEnv([[NEVER]]))
    env.reset()
    action = torch.tensor([[9.0]])
    assert env.step(action)["obs", "policy"][0, 3] == 9.0
    assert env._actions.send(action).data_ptr() != action.data_ptr()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(2), r"shape \(2, 1\).*got \(2,\)"),
        (torch.zeros(2, 1, dtype=torch.int64), "dtype torch.float32.*got torch.int64"),
        (None, "must be a tensor; got NoneType"),
    ],
)
def test_actions_that_do_not_fit_are_named(action: Any, message: str) -> None:
    env = IsaacGymEnv(LazyAfter([[3], [3]]))
    with pytest.raises(AdapterError, match=message):
        env.step(action)


def test_actions_that_are_choices_are_refused() -> None:
    task = LazyAfter([[3]])
    task.act_space = spaces.Discrete(2)  # type: ignore[assignment]
    with pytest.raises(AdapterError, match=r"must be real numbers, a `Box`; got Discrete\(2\)"):
        IsaacGymEnv(task)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((0, 1, 2), "the five parts of legged_gym or Isaac Lab; got a tuple of 3"),
        (({}, torch.zeros(3), torch.zeros(2), {}), r"`rewards` as \[3\]; expected .* 2 numbers"),
        (({}, torch.zeros(2), None, {}), "`resets` as NoneType"),
    ],
)
def test_what_a_task_may_not_return(returned: Any, message: str) -> None:
    task = LazyAfter([[3], [3]])
    env = IsaacGymEnv(task)
    task.step = lambda actions: returned  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=message):
        env.step(torch.zeros(2, 1))


# ---- memory, devices, synchronisation ---------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_observations_are_handed_over_as_they_are(style: str) -> None:
    task = TASKS[style]([[3], [NEVER]], LONGEST, num_states=2)
    env = IsaacGymEnv(task)
    env.reset()
    for _ in range(10):
        row = env.step(torch.zeros(2, 1))
        for key in ("obs", "states"):
            assert row["obs", key].data_ptr() == task.obs_dict[key].data_ptr()


def memory(tensors: Any) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors}


@pytest.mark.parametrize("style", STYLES)
def test_only_observations_share_memory_with_the_task(style: str) -> None:
    task = TASKS[style]([[3], [NEVER]], LONGEST, alias=True)
    env = IsaacGymEnv(task)
    env.reset()
    for _ in range(10):
        row = env.step(torch.zeros(2, 1))
        buffers = [x for x in vars(task).values() if isinstance(x, torch.Tensor)]
        buffers += [x for x in task.extras.values() if isinstance(x, torch.Tensor)]
        ours = [row[key] for key in {"rewards"} | env.episode_keys]
        assert not memory(ours) & memory(buffers)
        before = row.exclude("obs").clone()
        for buffer in buffers:
            buffer.fill_(1)
        assert bool((row.exclude("obs") == before).all())
        task.reset_buf.zero_()
        task.progress_buf.zero_()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("style", STYLES)
def test_a_task_with_one_buffer_gives_the_same_rows(style: str) -> None:
    scripts = SCRIPTS["both"]
    env = IsaacGymEnv(TASKS[style](scripts, LONGEST, alias=True))
    check_rows(env, style, scripts, knows_failures=style == "D")


class OnTheDevice(TorchDispatchMode):
    """Forbids what makes the CPU wait for another device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name not in ("aten::_local_scalar_dense", "aten::nonzero"), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("final", [None, "final_obs"])
@pytest.mark.parametrize("style", STYLES)
def test_an_env_step_never_waits_for_the_device(style: str, final: None | str) -> None:
    """Nor does D's, where the task's `reset_done` does not, as this one."""
    task = TASKS[style](SCRIPTS["both"], LONGEST, num_states=2)
    if final and style == "C":
        task.final_key = final  # type: ignore[attr-defined]
        task.extras[final] = None
    env = IsaacGymEnv(task, observation_keys=["obs"])
    env.reset()
    with OnTheDevice():
        for action in some_actions(20, 2):
            env.step(action.unsqueeze(-1))


def test_results_are_copied_where_the_adapter_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("everstep_adapters.common.options.check_device", lambda device: None)
    env = IsaacGymEnv(AtOnce([[3]]), reset_style="C", device="meta")
    row = env.step(torch.zeros(1, 1))
    leaves = [row[key] for key in {"obs", "rewards"} | env.episode_keys]
    assert {leaf.device.type for leaf in leaves} == {"meta"}
    assert env.observation_spec.device == env.action_spec.device == torch.device("meta")
    assert env.describe()["hand-off"] == "observations copied from cpu to meta, actions back"


@pytest.mark.gpu
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("style", STYLES)
def test_simulation_and_policy_on_different_devices(style: str) -> None:
    scripts = SCRIPTS["both"]
    task = TASKS[style](scripts, LONGEST, device="cpu", rl_device="cuda:0", num_states=2)
    env = IsaacGymEnv(task)
    assert env.device == "cuda:0"
    env.reset()
    row = env.step(torch.zeros(2, 1, device="cuda:0"))
    leaves = [*row["obs"].values(), *(row[key] for key in env.episode_keys - {"final_obs"})]
    assert {str(leaf.device) for leaf in leaves} == {"cuda:0"}
    back = IsaacGymEnv(TASKS[style](scripts, LONGEST, rl_device="cuda:0"), device="cpu")
    check_rows(back, style, scripts, knows_failures=style == "D")


@pytest.mark.gpu
@pytest.mark.parametrize("style", STYLES)
def test_an_env_step_on_a_gpu_does_not_synchronise(style: str) -> None:
    task = TASKS[style](SCRIPTS["both"], LONGEST, device="cuda:0", rl_device="cuda:0", num_states=2)
    env = IsaacGymEnv(task)
    env.reset()
    actions = some_actions(20, 2).to("cuda:0").unsqueeze(-1)
    env.step(actions[0])
    before = torch.cuda.get_sync_debug_mode()
    try:
        torch.cuda.set_sync_debug_mode("error")
        rows = [env.step(action) for action in actions]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert rows[-1]["obs", "obs"].data_ptr() == task.obs_dict["obs"].data_ptr()


# ---- training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_a_trainer_takes_a_wrapped_task(style: str) -> None:
    env = everstep.wrap(TASKS[style](SCRIPTS["both"], LONGEST, num_states=2), horizon=16)
    stats = everstep.Trainer(env, run_dir=None).step()
    assert math.isfinite(stats["losses/total"])
    invalid = 32 - stats["env/steps"]
    assert (invalid > 0) is (style in "AB")
    assert stats["episodes/length_mean"] <= LIMIT


@pytest.mark.parametrize("style", STYLES)
def test_a_policy_with_a_memory_takes_a_wrapped_task(style: str) -> None:
    env = IsaacGymEnv(TASKS[style](SCRIPTS["both"], LONGEST), 8)
    algorithm = RecurrentAlgorithmConfig(seq_len=4).build(env)
    algorithm.collect()
    assert math.isfinite(algorithm.step()["losses/total"])


# ---- conformance ------------------------------------------------------------------------------


class Conformance(EnvConformance):
    """Episodes go by a script, so a seed decides nothing; each reset opens others."""

    episodes_end = True
    deterministic_by_seed = False
    num_envs_choices = (1, 3)
    task: type[VecTask]

    def make_env(self, num_envs: int, horizon: int, device: Any) -> IsaacGymEnv:
        scripts = [[NEVER, 3], [1, NEVER, 5], [0, 4]][:num_envs]
        return IsaacGymEnv(self.task(scripts, LONGEST, num_states=2), horizon, device=device)


class TestConformanceOfNextStepAfterPhysics(Conformance):
    task = LazyAfter


class TestConformanceOfNextStepBeforePhysics(Conformance):
    task = LazyBefore


class TestConformanceOfSameStep(Conformance):
    task = AtOnce


class TestConformanceOfExternal(Conformance):
    task = Waiting


class TestConformanceOfSameStepWithFinalObservations(Conformance):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> IsaacGymEnv:
        task = AtOnce([[NEVER, 3], [1, NEVER, 5], [0, 4]][:num_envs], LONGEST)
        task.final_key = "final_obs"
        return IsaacGymEnv(task, horizon, device=device)


class TestConformanceOfLeggedGym(Conformance):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> IsaacGymEnv:
        return IsaacGymEnv(LeggedTask([[NEVER, 3], [1], [5]][:num_envs], 6), horizon, device=device)


class TestConformanceOfRslRl(Conformance):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> IsaacGymEnv:
        return IsaacGymEnv(RslEnv([[NEVER, 3], [1], [5]][:num_envs], 6), horizon, device=device)


class TestConformanceOfIsaacLab(Conformance):
    def make_env(self, num_envs: int, horizon: int, device: Any) -> IsaacGymEnv:
        task = LabEnv([[NEVER, 3], [1], [5]][:num_envs], 6, final=True)
        return IsaacGymEnv(task, horizon, device=device)


# ---- the example ------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[3] / "examples" / "isaacgym_cartpole" / "train.yaml"


def cartpole(num_envs: int, horizon: None | int = None) -> IsaacGymEnv:
    sys.path.insert(0, str(EXAMPLE.parents[2]))
    try:
        module = importlib.import_module("examples.isaacgym_cartpole")
    finally:
        sys.path.pop(0)
    env = module.cartpole(num_envs, horizon)
    assert isinstance(env, IsaacGymEnv)
    return env


class TestConformanceOfTheExample(EnvConformance):
    """It has a generator of its own, so a seed decides everything."""

    num_envs_choices = (1, 4)
    episodes_end = True
    num_steps = 80

    def make_env(self, num_envs: int, horizon: int, device: Any) -> IsaacGymEnv:
        return cartpole(num_envs, horizon)


def test_the_example_is_a_task_that_resets_after_the_physics() -> None:
    env = cartpole(4)
    assert env.reset_style == "A"
    assert "after 499 env steps" in env.describe()["limit"]
    row = env.step(torch.zeros(4, 1))
    assert row["obs"].data_ptr() == env.task.obs_dict["obs"].data_ptr()


def test_the_example_falls_the_way_it_is_pushed_from() -> None:
    """5 N on the cart at rest: it moves that way, and the pole falls the other."""
    env = cartpole(2)
    env.reset()
    env.task.state.zero_()
    obs = env.step(torch.tensor([[0.5], [-0.5]]))["obs"]
    turning = -(5 / 1.1) / (0.5 * (4 / 3 - 0.1 / 1.1))
    speed = 0.02 * (5 / 1.1 - 0.05 * turning / 1.1)
    expected = torch.tensor([0.02 * speed, speed, 0.02 * 0.02 * turning, 0.02 * turning])
    torch.testing.assert_close(obs, torch.stack([expected, -expected]))


@pytest.mark.slow
def test_the_example_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random policy's mean return is about 20."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[2]))
    trainer = TrainConfig.from_file(EXAMPLE, ["total_env_steps=30_000"]).build(run_dir=None)
    assert trainer.run()["episodes/return_mean_100"] >= 80


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_the_example_is_solved(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parents[2]))
    trainer = TrainConfig.from_file(EXAMPLE, [f"seed={seed}"]).build(run_dir=None)
    assert trainer.run()["episodes/return_mean_100"] >= 480


# ---- what matches -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task",
    [*(cls([[3]]) for cls in TASKS.values()), LeggedTask([[3]]), RslEnv([[3]]), LabEnv([[3]])],
    ids=lambda task: type(task).__name__,
)
def test_tasks_match(task: Any) -> None:
    assert IsaacGymEnv.matches(task)


class Proxy:
    """Passes on what it has not, as some wrappers do."""

    def __init__(self, inner: Any) -> None:
        self.inner = self.unwrapped = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["inner"], name)


def test_other_environments_do_not_match() -> None:
    from torchrl.envs import EnvBase, GymEnv

    class Wrapped(EnvBase):  # TorchRL's pass on the members of what they wrap
        progress_buf = reset_buf = torch.zeros(1)
        num_envs = 1

        def __init__(self) -> None:
            pass

        def _reset(self, *args: Any, **kwargs: Any) -> Any: ...
        def _step(self, *args: Any, **kwargs: Any) -> Any: ...
        def _set_seed(self, seed: Any) -> None: ...

    vector = gymnasium.make_vec("CartPole-v1", num_envs=2)
    vector.progress_buf = vector.reset_buf = torch.zeros(2)
    others: list[Any] = [
        vector,
        gymnasium.make("CartPole-v1"),
        GymEnv("CartPole-v1"),
        Wrapped(),
        IsaacGymEnv(LazyAfter([[3]])),
        LazyAfter,
        "isaacgym:Cartpole",
        None,
        3,
    ]
    assert not any(IsaacGymEnv.matches(other) for other in others)
    assert IsaacGymEnv.matches(Proxy(LazyAfter([[3]])))


@pytest.mark.parametrize(
    "change",
    [
        {"num_environments": "two"},
        {"progress_buf": None},
        {"reset_buf": torch.zeros(3)},
        {"reset_buf": np.zeros(2)},
        {"step": None},
    ],
    ids=str,
)
def test_what_lacks_a_member_does_not_match(change: dict[str, Any]) -> None:
    task = LazyAfter([[3], [3]])
    assert IsaacGymEnv.matches(task)
    vars(task).update(change)
    assert not IsaacGymEnv.matches(task)
    with pytest.raises(AdapterError, match="must have the interface of IsaacGymEnvs' VecTask"):
        IsaacGymEnv(task)


def test_a_wrapper_is_told_what_to_do() -> None:
    class Box:
        unwrapped = LazyAfter([[3]])

    with pytest.raises(
        AdapterError, match=r"wraps a LazyAfter, which can be: pass `env\.unwrapped`"
    ):
        everstep.wrap(Box())
    assert IsaacGymEnv.suggest(object()) == ""


def test_nothing_is_imported() -> None:
    """In a process of its own: other libraries' environments may have imported them here."""
    code = (
        f"import {__name__}, sys; print({{'isaacgym', 'isaacgymenvs', 'gym'}} & {{*sys.modules}})"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert found.stdout == "set()\n", found.stderr


# ---- making, seeding, closing, describing -----------------------------------------------------


def test_tasks_are_made_by_isaacgymenvs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    module = ModuleType("isaacgymenvs")

    def make(
        seed: int, task: str, num_envs: int, sim_device: str, rl_device: str, **more: Any
    ) -> Any:
        calls.append({"seed": seed, "task": task, "sim": sim_device, "rl": rl_device, **more})
        return LazyAfter([[3]] * num_envs, device="cpu")

    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "isaacgymenvs", module)
    env = everstep.make("isaacgym:Cartpole", 5, horizon=16, reset_style="A")
    assert isinstance(env, IsaacGymEnv)
    assert (env.num_envs, env.horizon, env.reset_style) == (5, 16, "A")
    everstep.make("isaacgym:Ant", 2, seed=3, sim_device="cuda:1", headless=False)
    made = {"headless": True, "force_render": False}
    assert calls == [
        {"seed": 0, "task": "Cartpole", "sim": "cpu", "rl": "cpu", **made},
        {"seed": 3, "task": "Ant", "sim": "cuda:1", "rl": "cpu", **made, "headless": False},
    ]


def test_without_isaacgymenvs_the_error_says_what_to_do() -> None:
    with pytest.raises(AdapterError, match=r"cannot be imported.*everstep\.wrap.*isaacgymenvs"):
        everstep.make("isaacgym:Cartpole", 2)


def test_a_task_with_a_seed_is_given_it_at_the_next_reset() -> None:
    task = LabEnv([[3]])
    env = IsaacGymEnv(task)
    env.seed(5)
    assert task.seeds == []
    env.reset()
    env.reset()
    assert task.seeds == [5]
    assert env.describe()["seeding"] == "the task's own `seed`"


class Drawing(LazyAfter):
    """Draws where it starts from PyTorch's generator."""

    def reset_rows(self, rows: torch.Tensor) -> None:
        super().reset_rows(rows)
        self.world.place.copy_(torch.where(rows, torch.rand(self.num_envs), self.world.place))


def test_a_seed_decides_the_next_reset_and_nothing_else() -> None:
    env = IsaacGymEnv(Drawing([[NEVER]] * 3))
    before = torch.get_rng_state()
    env.seed(1)
    one = env.reset().clone()
    assert torch.equal(torch.get_rng_state(), before)
    other, third = env.reset().clone(), env.reset().clone()
    env.seed(1)
    assert torch.equal(env.reset()[:, 3], one[:, 3])
    assert not torch.equal(one[:, 3], other[:, 3])
    assert not torch.equal(third[:, 3], other[:, 3])


def test_a_task_is_closed_once_where_it_can_be() -> None:
    closed = []
    task = LazyAfter([[3]])
    env = IsaacGymEnv(task)
    env.close()
    task.close = lambda: closed.append(1)  # type: ignore[attr-defined]
    env = IsaacGymEnv(task)
    env.close()
    env.close()
    assert closed == [1]


def test_everything_that_was_detected_is_described() -> None:
    env = IsaacGymEnv(LazyAfter([[3], [3]], 500, num_states=2))
    assert env.describe() == {
        "family": "a task with the interface of IsaacGymEnvs' VecTask",
        "environment": "LazyAfter",
        "num_envs": "2",
        "observation": "obs: Unbounded [4] float32, states: Unbounded [2] float32",
        "action": "Bounded [1] float32",
        "resets": "A (next_step_after_physics), known from its calls of `reset_idx`",
        "final observations": "what the row that ends returns",
        "limit": "time-outs: after 499 env steps, counted by `progress_buf`",
        "hand-off": "observations returned as they are, 0 copies; rewards and flags are new",
        "seeding": "the next reset only",
    }
    assert repr(env) == (
        "IsaacGymEnv(LazyAfter, num_envs=2, horizon=None, device='cpu', reset_style='A')"
    )
