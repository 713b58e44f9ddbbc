"""mjlab's real environments on the CPU: rows are those of the environment, stepped by hand."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch

import everstep

pytestmark = [
    pytest.mark.skipif(find_spec("mjlab") is None, reason="mjlab is not installed"),
    pytest.mark.slow,
    pytest.mark.long,  # kernels are compiled at first
    pytest.mark.filterwarnings("ignore"),
]

ENVS, STEPS = 4, 24


def made(**config: Any) -> Any:
    """Cart-poles of 5 env steps, which fail where the cart has moved to the right."""
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.managers.termination_manager import TerminationTermCfg
    from mjlab.tasks.cartpole import cartpole_env_cfg

    cfg = cartpole_env_cfg.cartpole_balance_env_cfg()
    cfg.scene.num_envs, cfg.episode_length_s = ENVS, 5 * 0.05
    fails = TerminationTermCfg(func=lambda env: env.scene["cartpole"].data.joint_pos[:, 0] > 0.03)
    cfg.terminations["fails"] = fails
    for name, value in config.items():
        setattr(cfg, name, value)
    return ManagerBasedRlEnv(cfg, device="cpu")


def of_rsl_rl(**config: Any) -> Any:
    """The same in mjlab's wrapper for rsl_rl."""
    from mjlab.rl import RslRlVecEnvWrapper

    return RslRlVecEnvWrapper(made(**config))


ACTIONS = torch.rand(STEPS, ENVS, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1


def rows_of(env: Any, **options: Any) -> tuple[Any, list[Any]]:
    wrapped = everstep.wrap(env, observation_keys=["actor"], **options)
    wrapped.seed(3)
    first = wrapped.reset().clone()
    return first, [wrapped.step(action.clone()).clone() for action in ACTIONS]


def test_rows_are_those_of_the_environment() -> None:
    for env in (made(), of_rsl_rl()):
        first, rows = rows_of(env)
        alone = made()
        assert torch.equal(first, alone.reset(seed=3)[0]["actor"])
        seen = set()
        for action, row in zip(ACTIONS, rows, strict=True):
            obs, rewards, terminated, truncated, _ = alone.step(action)
            torch.testing.assert_close(row["obs"], obs["actor"], rtol=0, atol=0)
            torch.testing.assert_close(row["rewards"][:, 0], rewards, rtol=0, atol=0)
            is_wrapper = env is not env.unwrapped  # rsl_rl has one flag, and time-outs
            expected = terminated & ~truncated if is_wrapper else terminated
            assert torch.equal(row["terminated"][:, 0], expected)
            assert torch.equal(row["truncated"][:, 0], truncated)
            assert torch.equal(row["first"][:, 0], terminated | truncated)
            seen |= set(zip(terminated.tolist(), truncated.tolist(), strict=True))
        assert {(True, False), (False, True), (False, False)} <= seen


def test_final_observations_of_environments_that_wait_for_a_reset() -> None:
    first, rows = rows_of(made(auto_reset=False))
    alone = made(auto_reset=False)
    assert torch.equal(first, alone.reset(seed=3)[0]["actor"])
    ended = 0
    for action, row in zip(ACTIONS, rows, strict=True):
        obs, _, terminated, truncated, _ = alone.step(action)
        assert torch.equal(row["final_obs"], obs["actor"])
        opening = obs["actor"].clone()
        ids = (terminated | truncated).nonzero().flatten()
        if len(ids):
            opening[ids] = alone.reset(env_ids=ids)[0]["actor"][ids]
            ended += len(ids)
        assert torch.equal(row["obs"], opening)
    assert ended > 8


def test_the_end_of_a_finite_horizon_is_a_termination() -> None:
    for env in (made(is_finite_horizon=True), of_rsl_rl(is_finite_horizon=True)):
        _, rows = rows_of(env)
        assert not any(row["truncated"].any() for row in rows)
        assert sum(row["terminated"].sum().item() for row in rows) > 8


def test_a_policy_is_trained() -> None:
    trainer = everstep.Trainer(made(auto_reset=False), horizon=8, run_dir=None)
    assert [trainer.step()["algorithm/steps"] for _ in range(2)][-1] == 2
