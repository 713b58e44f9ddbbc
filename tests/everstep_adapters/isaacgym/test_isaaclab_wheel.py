"""Isaac Lab's own classes, from its wheel, over a stand-in for Isaac Sim: rows are theirs."""

import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import AdapterError
from tests.everstep_adapters.isaacgym import isaaclab_stand_in

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: Env steps of an episode, and the position beyond which one fails.
LIMIT, EDGE, STEPS = 6, 0.8, 40


@pytest.fixture(scope="module")
def lab() -> Iterator[Any]:
    finders, path = list(sys.meta_path), list(sys.path)
    yield isaaclab_stand_in.load()
    sys.meta_path[:], sys.path[:] = finders, path


def seen(place: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"policy": place.clone(), "critic": torch.cat([place, -place], dim=-1)}


def direct(lab: Any, num_envs: int, finite: bool = False) -> Any:
    """A task of the direct workflow."""

    class Walk(lab.DirectRLEnv):  # type: ignore[misc, name-defined]
        def _pre_physics_step(self, actions: torch.Tensor) -> None:
            self.moves = 0.3 * actions

        def _apply_action(self) -> None:
            self.scene.place += self.moves

        def _get_observations(self) -> Any:
            return seen(self.scene.place)

        def _get_rewards(self) -> torch.Tensor:
            return self.scene.place[:, 0] + 1

        def _get_dones(self) -> Any:
            failed = self.scene.place[:, 0].abs() > EDGE
            return failed, self.episode_length_buf >= self.max_episode_length

    cfg = lab.DirectRLEnvCfg()
    cfg.observation_space, cfg.action_space, cfg.state_space = 1, 1, 2
    return Walk(sized(lab, cfg, num_envs, finite))


def sized(lab: Any, cfg: Any, num_envs: int, finite: bool) -> Any:
    from isaaclab.scene import InteractiveSceneCfg

    cfg.scene, cfg.decimation = InteractiveSceneCfg(num_envs=num_envs), 1
    cfg.episode_length_s = LIMIT * cfg.sim.dt
    cfg.is_finite_horizon, cfg.seed, cfg.wait_for_textures = finite, 0, False
    return cfg


def managed(lab: Any, num_envs: int, finite: bool = False) -> Any:
    """The same task of the workflow with managers."""
    from isaaclab import managers
    from isaaclab.utils import configclass

    class Move(managers.ActionTerm):
        """Adds actions to positions."""

        action_dim, raw_actions, processed_actions = 1, None, None

        def process_actions(self, actions: torch.Tensor) -> None:
            self.moves = 0.3 * actions

        def apply_actions(self) -> None:
            self._asset.place += self.moves

    def term(kind: str, **options: Any) -> Any:
        return getattr(managers, kind)(**options)

    def group(name: str) -> Any:
        @configclass
        class Group(managers.ObservationGroupCfg):
            obs: Any = term("ObservationTermCfg", func=lambda env: seen(env.scene.place)[name])

        return Group()

    @configclass
    class Observations:
        policy: Any = group("policy")
        critic: Any = group("critic")

    @configclass
    class Actions:
        move: Any = managers.ActionTermCfg(class_type=Move, asset_name="it")

    @configclass
    class Events:  # those of the default reset assets
        none: Any = term("EventTermCfg", func=lambda env, env_ids: None, mode="reset")

    @configclass
    class Rewards:
        far: Any = term("RewardTermCfg", func=lambda env: env.scene.place[:, 0] + 1, weight=1.0)

    @configclass
    class Terminations:
        failed: Any = term(
            "TerminationTermCfg", func=lambda env: env.scene.place[:, 0].abs() > EDGE
        )
        time_out: Any = term(
            "TerminationTermCfg",
            func=lambda env: env.episode_length_buf >= env.max_episode_length,
            time_out=True,
        )

    cfg = lab.ManagerBasedRLEnvCfg()
    cfg.observations, cfg.actions, cfg.events = Observations(), Actions(), Events()
    cfg.rewards, cfg.terminations = Rewards(), Terminations()
    return lab.ManagerBasedRLEnv(sized(lab, cfg, num_envs, finite))


def of_agents(lab: Any, num_envs: int, finite: bool = False) -> Any:
    """The same task for two agents, one of whom does nothing."""

    class Two(lab.DirectMARLEnv):  # type: ignore[misc, name-defined]
        def _pre_physics_step(self, actions: Any) -> None:
            self.moves = 0.3 * actions["a"]

        def _apply_action(self) -> None:
            self.scene.place += self.moves

        def _get_observations(self) -> Any:
            return {name: self.scene.place.clone() for name in "ab"}

        def _get_states(self) -> Any:
            return self.scene.place.clone()

        def _get_rewards(self) -> Any:
            return dict.fromkeys("ab", self.scene.place[:, 0] + 1)

        def _get_dones(self) -> Any:
            failed = self.scene.place[:, 0].abs() > EDGE
            expired = self.episode_length_buf >= self.max_episode_length
            return dict.fromkeys("ab", failed), dict.fromkeys("ab", expired)

    cfg = lab.DirectMARLEnvCfg()
    cfg.possible_agents = ["a", "b"]
    cfg.observation_spaces, cfg.action_spaces = {"a": 1, "b": 1}, {"a": 1, "b": 1}
    cfg.state_space = 0
    return Two(sized(lab, cfg, num_envs, finite))


def wrapper(env: Any) -> Any:
    """rsl_rl's wrapper, of Isaac Lab."""
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper

    return RslRlVecEnvWrapper(env)


def some_actions(env: Any, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = STEPS, env.num_envs, *env.action_spec.shape
    return torch.rand(shape, generator=generator) * 2 - 1


def check_rows(
    env: Any, alone: Any, seed: int, finite: bool = False, one_flag: bool = False
) -> int:
    """Compare rows with what an environment of its own returns; the number of ends."""
    actions = some_actions(env, seed)
    env.seed(seed)
    first = env.reset().clone()
    rows = [env.step(action.clone()).clone() for action in actions]
    # Only now, as both draw from PyTorch's generator.
    same(first, alone.reset(seed=seed)[0])
    ends = 0
    for row, action in zip(rows, actions, strict=True):
        expected, rewards, failed, expired, _ = alone.step(action)
        if finite:
            failed, expired = failed | expired, torch.zeros_like(expired)
        elif one_flag:  # rsl_rl's has one flag, and time-outs
            failed = failed & ~expired
        same(row["obs"], expected)
        torch.testing.assert_close(row["rewards"][:, 0], rewards)
        assert torch.equal(row["terminated"][:, 0], failed)
        assert torch.equal(row["truncated"][:, 0], expired)
        assert torch.equal(row["first"][:, 0], failed | expired)
        ends += int((failed | expired).sum())
    return ends


def same(obs: Any, expected: dict[str, torch.Tensor]) -> None:
    for key, value in expected.items():
        torch.testing.assert_close(obs if isinstance(obs, torch.Tensor) else obs[key], value)


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("num_envs", [1, 2, 256, 1024])
@pytest.mark.parametrize("make", [direct, managed])
def test_rows_are_those_of_the_environment(
    lab: Any, make: Any, num_envs: int, finite: bool
) -> None:
    for seed in range(10):
        env = everstep.wrap(make(lab, num_envs, finite))
        assert env.describe()["resets"].startswith("C (same_step)")
        assert check_rows(env, make(lab, num_envs, finite), seed, finite) >= num_envs


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("make", [direct, managed])
def test_rsl_rls_wrapper(lab: Any, make: Any, finite: bool) -> None:
    env = everstep.wrap(wrapper(make(lab, 8, finite)))
    assert check_rows(env, make(lab, 8, finite), 0, finite, one_flag=True) >= 8


@pytest.mark.parametrize("make", [direct, managed])
def test_stepped_environments(lab: Any, make: Any) -> None:
    task = make(lab, 8)
    task.reset()
    for _ in range(3):
        task.step(torch.rand(8, 1))
    assert check_rows(everstep.wrap(task), make(lab, 8), 1) >= 8


def test_environments_of_several_agents_are_wrapped_as_the_error_says(lab: Any) -> None:
    with pytest.raises(AdapterError, match=r"isaaclab\.envs\.multi_agent_to_single_agent\(env\)"):
        everstep.wrap(of_agents(lab, 8))
    single = lab.multi_agent_to_single_agent
    env = everstep.wrap(single(of_agents(lab, 8)))
    assert env.action_spec.shape == (2,)
    assert check_rows(env, single(of_agents(lab, 8)), 0) >= 8


def test_the_policy_is_trained_on_the_actors_observations(lab: Any) -> None:
    env = everstep.wrap(managed(lab, 8), observation_keys=["policy"])
    with everstep.Trainer(env, horizon=16, run_dir=None) as trainer:
        stats = [trainer.step() for _ in range(2)]
    assert all(math.isfinite(x["losses/total"]) for x in stats)
