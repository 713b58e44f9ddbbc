"""RSL-RL's PPO on `Drift`, in the order of its own runner."""

from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from ._serving import Iteration, Stopwatch, serve
from ._worlds import Drift


class DriftEnv(VecEnv):
    """`Drift` as RSL-RL wants it."""

    num_actions = Drift.action_size
    max_episode_length = Drift.max_episode_steps

    def __init__(self, num_envs: int, device: str) -> None:
        self.num_envs, self.device = num_envs, device
        self.cfg: dict[str, Any] = {}
        self.world = Drift(num_envs, device)
        self.obs = self.world.reset()

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Env steps of the episodes so far."""
        return self.world.clock

    def get_observations(self) -> TensorDict:
        """Observations `[N, 60]`, in the group `policy`."""
        return TensorDict({"policy": self.obs}, [self.num_envs])

    def step(
        self, actions: torch.Tensor
    ) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Observations, rewards, ends, and which ends were the clock's."""
        self.obs, rewards, done = self.world.step(actions)
        return self.get_observations(), rewards, done, {"time_outs": done}


class RslRl:
    """Its algorithm, constructed as its runner does, without logging."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.horizon = work["horizon"]
        self.env = DriftEnv(work["num_envs"], work["device"])
        self.obs = self.env.get_observations()
        settings = _settings(work)
        self.algorithm = PPO.construct_algorithm(self.obs, self.env, settings, work["device"])
        self.algorithm.train_mode()
        self.reward: None | float = None

    def iterate(self) -> Iteration:
        """A rollout and an update."""
        algorithm, elapsed = self.algorithm, Stopwatch()
        with torch.inference_mode():
            for _ in range(self.horizon):
                actions = algorithm.act(self.obs)
                self.obs, rewards, dones, extras = self.env.step(actions)
                algorithm.process_env_step(self.obs, rewards, dones, extras)
            collect_s = elapsed()
            algorithm.compute_returns(self.obs)
        algorithm.update()
        return Iteration(self.horizon * self.env.num_envs, collect_s, elapsed())

    def score(self, metric: str) -> None | float:
        """Mean reward of an env step since the last call."""
        return self.env.world.take_mean_reward() if metric == "reward" else None

    def close(self) -> None:
        """Nothing to end."""


def _settings(work: dict[str, Any]) -> dict[str, Any]:
    """The work in the words of its configuration."""
    model = {
        "class_name": "MLPModel",
        "hidden_dims": work["hiddens"],
        "activation": work["activation"],
    }
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
    return {
        "num_steps_per_env": work["horizon"],
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "multi_gpu": None,
        "torch_compile_mode": work["options"].get("torch_compile_mode"),
        "actor": model | {"distribution_cfg": gaussian},
        "critic": dict(model),
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": work["num_sgd_iters"],
            "num_mini_batches": work["num_minibatches"],
            "clip_param": work["clip_param"],
            "gamma": work["gamma"],
            "lam": work["gae_lambda"],
            "value_loss_coef": 0.5 * work["vf_coeff"],  # its value loss is not halved
            "entropy_coef": work["entropy_coeff"],
            "learning_rate": work["lr"],
            "max_grad_norm": work["max_grad_norm"],
            "schedule": "adaptive" if work["adaptive_lr"] else "fixed",
            "desired_kl": work["target_kl_div"],
            "use_mixed_precision": work["precision"] == "bf16",
        },
    }


if __name__ == "__main__":
    serve(RslRl, ("rsl-rl-lib", "tensordict"))
