"""RL-Games' PPO on `Drift`: its own `train_epoch`."""

from typing import Any

import gymnasium
import numpy as np
import torch
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner

from ._serving import Iteration, serve
from ._worlds import Drift


class DriftEnv(IVecEnv):
    """`Drift` as RL-Games wants it."""

    def __init__(self, num_envs: int, device: str) -> None:
        self.world = Drift(num_envs, device)

    def reset(self) -> torch.Tensor:
        """Observations `[N, 60]`."""
        return self.world.reset()

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Observations, rewards, ends, and which ends were the clock's."""
        obs, rewards, done = self.world.step(actions)
        return obs, rewards, done, {"time_outs": done}

    def get_env_info(self) -> dict[str, Any]:
        """Its spaces."""
        return {
            "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (Drift.obs_size,)),
            "action_space": gymnasium.spaces.Box(-1.0, 1.0, (Drift.action_size,)),
        }


class RlGames:
    """Its continuous agent, made by its runner."""

    def __init__(self, work: dict[str, Any]) -> None:
        runner = Runner()
        env = DriftEnv(work["num_envs"], work["device"])
        runner.load({"params": _parameters(work, env)})
        self.agent = runner.algo_factory.create(
            runner.algo_name, base_name="run", params=runner.params
        )
        self.world = self.agent.vec_env.world  # the runner has copied the environment
        self.agent.init_tensors()
        self.agent.obs = self.agent.env_reset()
        self.rows = work["num_envs"] * work["horizon"]

    def iterate(self) -> Iteration:
        """Its epoch, with its own times."""
        self.agent.update_epoch()
        _, collect_s, update_s, *_ = self.agent.train_epoch()
        return Iteration(self.rows, collect_s, update_s)

    def score(self, metric: str) -> None | float:
        """Mean reward of an env step since the last call."""
        return self.world.take_mean_reward() if metric == "reward" else None

    def close(self) -> None:
        """Nothing to end."""


def _parameters(work: dict[str, Any], env: DriftEnv) -> dict[str, Any]:
    rows = work["num_envs"] * work["horizon"]
    adaptive = {"lr_schedule": "adaptive", "kl_threshold": work["target_kl_div"]}
    config = {
        "name": "drift",
        "env_name": "drift",
        "vec_env": env,
        "env_info": env.get_env_info(),
        "device": work["device"],
        "device_name": work["device"],
        "reward_shaper": {"scale_value": 1.0},
        "normalize_advantage": True,
        "normalize_input": False,
        "normalize_value": False,
        "value_bootstrap": True,
        "mixed_precision": work["precision"] == "bf16",
        "gamma": work["gamma"],
        "tau": work["gae_lambda"],
        "learning_rate": work["lr"],
        "grad_norm": work["max_grad_norm"],
        "truncate_grads": True,
        "entropy_coef": work["entropy_coeff"],
        "e_clip": work["clip_param"],
        "clip_value": True,
        "bounds_loss_coef": 0.0,  # 1.6 cannot do without it
        "critic_coef": work["vf_coeff"],
        "num_actors": work["num_envs"],
        "horizon_length": work["horizon"],
        "minibatch_size": rows // work["num_minibatches"],
        "mini_epochs": work["num_sgd_iters"],
        "print_stats": False,
        **(adaptive if work["adaptive_lr"] else {"lr_schedule": None}),
    }
    return {
        "seed": work["seed"],
        "torch_threads": work["threads"],
        "algo": {"name": "a2c_continuous"},
        "model": {"name": "continuous_a2c_logstd"},
        "network": _network(work),
        "load_checkpoint": False,
        "config": config,
    }


def _network(work: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "actor_critic",
        "separate": True,
        "space": {
            "continuous": {
                "mu_activation": "None",
                "sigma_activation": "None",
                "mu_init": {"name": "default"},
                "sigma_init": {"name": "const_initializer", "val": 0},
                "fixed_sigma": True,
            }
        },
        "mlp": {
            "units": work["hiddens"],
            "activation": work["activation"],
            "initializer": {"name": "default"},
        },
    }


if __name__ == "__main__":
    serve(RlGames, ("rl-games",))
