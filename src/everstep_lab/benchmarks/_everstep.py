"""Everstep's side of a benchmark: the algorithm, through the public interface.

Run as `python -m everstep_lab.benchmarks._everstep`; see `peers._serving` for requests and answers.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep.algorithms import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.algorithms.resolve import DEFAULT_SEQ_LEN, DEFAULTS
from everstep.config import import_name
from everstep.data import DataKeys, Device
from everstep.env import ContinuousDummyEnv, DiscreteDummyEnv, Env, EnvFactory
from everstep.env.registry import factory

from .peers._frames import Frames
from .peers._serving import Iteration, Stopwatch, serve
from .peers._worlds import Drift, Pole


class PoleEnv(Env):
    """`Pole` in Everstep's protocol."""

    capturable = True

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.world = Pole(num_envs, device)
        self.observation_spec = Unbounded(Pole.obs_size, device=torch.device(device))
        self.action_spec = Categorical(Pole.num_actions, shape=torch.Size([1])).to(device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Observations `[N, 5]`."""
        return self.world.reset()

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """Result of an action, `[N, 1]`."""
        assert isinstance(action, torch.Tensor)
        obs, rewards = self.world.step(action.squeeze(-1))
        return TensorDict(
            {DataKeys.OBS: obs, DataKeys.REWARDS: rewards.unsqueeze(-1)}, [self.num_envs]
        )


class DriftEnv(Env):
    """`Drift` in Everstep's protocol; its episodes are truncated, and final observations lost."""

    capturable = True
    episode_keys = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST})

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.world = Drift(num_envs, device)
        self.observation_spec = Unbounded(Drift.obs_size, device=torch.device(device))
        self.action_spec = Unbounded(Drift.action_size, device=torch.device(device))
        self._never = torch.zeros(num_envs, 1, dtype=torch.bool, device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Observations `[N, 60]`."""
        return self.world.reset()

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """Result of an action, `[N, 8]`."""
        assert isinstance(action, torch.Tensor)
        obs, rewards, done = self.world.step(action)
        ends = done.unsqueeze(-1)
        return TensorDict(
            {
                DataKeys.OBS: obs,
                DataKeys.REWARDS: rewards.unsqueeze(-1),
                DataKeys.TERMINATED: self._never,
                DataKeys.TRUNCATED: ends,
                DataKeys.FIRST: ends,
            },
            [self.num_envs],
        )


ENVS: dict[str, EnvFactory] = {
    "rl8-discrete": DiscreteDummyEnv,
    "rl8-continuous": ContinuousDummyEnv,
    "rl8-cartpole": PoleEnv,
    "drift": DriftEnv,
    "frames": factory(Frames),
}


class Everstep:
    """`collect` and `step`."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.only_collect = work["only_collect"]
        self.algorithm = make_config(work).build(make_env(work["env"]))
        self.stats: dict[str, Any] = {}

    def iterate(self) -> Iteration:
        """Collect and step."""
        elapsed = Stopwatch()
        self.stats = dict(self.algorithm.collect())
        collect_s = elapsed()
        if self.only_collect:
            return Iteration(self.stats["env/steps"], collect_s, 0.0)
        self.algorithm.step()
        return Iteration(self.stats["env/steps"], collect_s, elapsed())

    def score(self, metric: str) -> None | float:
        """Mean return of the last episodes, or mean reward of the last rollout."""
        name = "episodes/return_mean_100" if metric == "return" else "rewards/mean"
        return self.stats.get(name)

    def close(self) -> None:
        """Close the environment."""
        self.algorithm.env.close()


def make_env(name: str) -> EnvFactory:
    """The environment of `work.env`: a benchmark environment, a spec or a dotted path."""
    if name in ENVS:
        return ENVS[name]
    if ":" in name:
        return factory(name)
    found: Callable[..., Any] = import_name(name)
    return found


def make_config(work: dict[str, Any]) -> AlgorithmConfig | RecurrentAlgorithmConfig:
    """The work as an `AlgorithmConfig`, overridden by the fields under `everstep`.

    What neither has is as in rl8, also where episodes end.
    """
    config_cls = RecurrentAlgorithmConfig if work["recurrent"] else AlgorithmConfig
    known = {field.name for field in fields(config_cls)}
    settings = {name: pair[0] for name, pair in DEFAULTS.items()}
    settings |= {"horizons_per_env_reset": "auto", "sgd_minibatch_size": None}
    settings |= {name: value for name, value in work.items() if name in known}
    rows = work["num_envs"] * work["horizon"]
    if work["recurrent"]:
        settings["seq_len"] = work["everstep"].get("seq_len", DEFAULT_SEQ_LEN)
        rows //= settings["seq_len"]
    else:
        settings["model_config"] = {"hiddens": work["hiddens"], "activation_fn": work["activation"]}
    if work["num_minibatches"] > 1:
        settings["sgd_minibatch_size"] = rows // work["num_minibatches"]
    own = dict(work["everstep"])
    settings["enable_amp"] = work["precision"] == "bf16"
    if work["adaptive_lr"]:
        settings["lr_schedule_kind"] = "adaptive"
    return config_cls(**(settings | own))


if __name__ == "__main__":
    serve(Everstep, ("everstep", "tensordict", "torchrl"))
