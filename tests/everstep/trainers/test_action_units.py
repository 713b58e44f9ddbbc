"""A policy acts in the unit of actions that it was trained in, or is refused."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces

import everstep
from everstep import Trainer
from everstep.errors import CheckpointError, ConfigError
from everstep.evaluation import evaluate
from everstep.policies import Policy


class Reach(gymnasium.Env[Any, Any]):
    """One env step, whose reward is the action."""

    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, most: float = 2.0) -> None:
        self.action_space = spaces.Box(-most, most, (1,))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(1, np.float32), float(action[0]), True, False, {}


def wrapped(most: float = 2.0, **options: Any) -> Any:
    return everstep.wrap(
        gymnasium.vector.SyncVectorEnv([lambda: Reach(most)] * 2), horizon=4, **options
    )


def reach(
    num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu", **options: Any
) -> Any:
    make = gymnasium.vector.SyncVectorEnv([Reach] * num_envs)
    return everstep.wrap(make, horizon=horizon, device=device, **options)


def policy_of(env: Any) -> Any:
    trainer = Trainer(env, run_dir=None)
    trainer.step()
    return trainer.algorithm.policy


@pytest.mark.parametrize(("trained", "played"), [("clip", "auto"), ("rescale", "clip")])
def test_another_unit_of_actions_is_refused(trained: Any, played: Any, tmp_path: Path) -> None:
    policy = policy_of(wrapped(action_bounds=trained))
    policy.save(tmp_path / "policy")
    for each in (policy, Policy.load(tmp_path / "policy")):
        with pytest.raises(ConfigError, match=f"env_kwargs.action_bounds={trained}"):
            evaluate(each, wrapped(action_bounds=played), episodes=1)
        evaluate(each, wrapped(action_bounds=trained), episodes=1)


def test_bounds_that_differ_are_no_other_unit() -> None:
    """One from -1 to 1 is mapped to none, and acts in any environment that maps its own."""
    for trained, played in ((1.0, 2.0), (2.0, 3.0), (2.0, 1.0)):
        evaluate(policy_of(wrapped(trained)), wrapped(played), episodes=1)
    clips: Any = {"action_bounds": "clip"}
    evaluate(policy_of(wrapped(2.0, **clips)), wrapped(3.0, **clips), episodes=1)


def test_a_run_that_is_older_than_the_default_goes_on_in_its_unit(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    sizes: Any = {"num_envs": 2, "horizon": 4, "track": False}
    own = {"action_bounds": "clip"}
    with Trainer(reach, env_kwargs=own, run_dir=run_dir, **sizes) as run:
        run.run(total_env_steps=8)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump({**config, "env_kwargs": None}))
    with pytest.raises(CheckpointError, match=r"env_kwargs.action_bounds=clip"):
        Trainer.load(run_dir, trust=True, track=False)
    with Trainer.load(run_dir, env_kwargs=own, total_env_steps=16, trust=True, track=False) as run:
        run.run()
        assert run.algorithm.policy.action_spec.space.high.item() == 2
    for change in ({"action_bounds": "rescale"}, {"action_bounds": "clip", "most": 3}):
        with pytest.raises(ConfigError, match="cannot change in a run that is resumed"):
            Trainer.load(run_dir, env_kwargs=change, trust=True, track=False)
