"""rl8, with the environment and the settings of the work."""

from typing import Any

import torch
from rl8 import AlgorithmConfig, RecurrentAlgorithmConfig
from rl8.env import ContinuousDummyEnv, DiscreteDummyEnv, Env
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from ._serving import Iteration, Stopwatch, serve
from ._worlds import Pole


class PoleEnv(Env):
    """`Pole` in rl8's protocol."""

    max_horizon = 1_000_000

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Any = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.world = Pole(num_envs, device)
        self.observation_spec = Unbounded(Pole.obs_size, device=device)
        self.action_spec = Categorical(Pole.num_actions, shape=torch.Size([1]), device=device)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Observations `[N, 5]`."""
        return self.world.reset()

    def step(self, action: torch.Tensor) -> TensorDict:
        """Result of an action, `[N, 1]`."""
        obs, rewards = self.world.step(action.squeeze(-1))
        return TensorDict(
            {"obs": obs, "rewards": rewards.unsqueeze(-1)},
            batch_size=self.num_envs,
            device=self.device,
        )


ENVS = {
    "rl8-discrete": DiscreteDummyEnv,
    "rl8-continuous": ContinuousDummyEnv,
    "rl8-cartpole": PoleEnv,
}


class Rl8:
    """rl8's algorithm; its model and settings are its own defaults where the work says the same."""

    def __init__(self, work: dict[str, Any]) -> None:
        rows = work["num_envs"] * work["horizon"]
        settings: dict[str, Any] = {
            "num_envs": work["num_envs"],
            "horizon": work["horizon"],
            "horizons_per_env_reset": work["horizons_per_env_reset"],
            "num_sgd_iters": work["num_sgd_iters"],
            "optimizer_config": {"lr": work["lr"]},
            "enable_amp": work["precision"] == "bf16",  # float16 on CUDA, bfloat16 on a CPU
            "device": work["device"],
            **{name: work[name] for name in ("gamma", "gae_lambda", "clip_param", "vf_coeff")},
            "entropy_coeff": work["entropy_coeff"],
            "max_grad_norm": work["max_grad_norm"],
        }
        if work["recurrent"]:
            rows //= 4  # sequences of rl8's default length
        else:
            settings["model_config"] = {
                "hiddens": work["hiddens"],
                "activation_fn": work["activation"],
            }
        settings["sgd_minibatch_size"] = rows // work["num_minibatches"]
        config = RecurrentAlgorithmConfig if work["recurrent"] else AlgorithmConfig
        self.only_collect = work["only_collect"]
        self.algorithm = config(**settings).build(ENVS[work["env"]])
        self.reward: None | float = None

    def iterate(self) -> Iteration:
        """Collect and step."""
        elapsed = Stopwatch()
        stats = self.algorithm.collect()
        collect_s = elapsed()
        if self.only_collect:
            return Iteration(stats["env/steps"], collect_s, 0.0)
        self.algorithm.step()
        self.reward = stats["rewards/mean"]
        return Iteration(stats["env/steps"], collect_s, elapsed())

    def score(self, metric: str) -> None | float:
        """Its environments have no episodes, so there is a mean reward alone."""
        return self.reward if metric == "reward" else None

    def close(self) -> None:
        """Nothing to end."""


if __name__ == "__main__":
    serve(Rl8, ("rl8", "tensordict", "torchrl"))
