"""Recipes with stable-baselines3's PPO."""

from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from ._envs import Array, Batch
from ._serving import Curve, serve

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class BatchEnv(VecEnv):
    """A `Batch` with the interface of stable-baselines3."""

    def __init__(self, batch: Batch, curve: Curve) -> None:
        super().__init__(batch.num_envs, batch.observation_space, batch.action_space)
        self.batch, self.curve = batch, curve

    def reset(self) -> Array:
        """First observations."""
        return self.batch.reset()

    def step_async(self, actions: Array) -> None:
        """Keep the actions."""
        self.actions = actions

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Observations, rewards, ends, and final observations."""
        obs, rewards, terminated, truncated, final = self.batch.step(self.actions)
        done = np.logical_or(terminated, truncated)
        self.curve.returns.add(rewards, done)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(done):
            was_cut = bool(truncated[i] and not terminated[i])
            infos[i] = {"terminal_observation": final[i], "TimeLimit.truncated": was_cut}
        return obs, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """Close the environments."""
        self.batch.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute, once for each environment."""
        return [getattr(self.batch, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not used by PPO."""
        raise NotImplementedError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Not used by PPO."""
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No environment is wrapped."""
        return [False] * self.num_envs


class Recorder(BaseCallback):
    """Adds a point to the curve after each rollout."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self.curve = curve

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.curve.begin()

    def _on_rollout_end(self) -> None:
        self.curve.record(self.num_timesteps)


class Trained:
    """PPO that was trained."""

    def __init__(self, values: dict[str, Any], seed: int) -> None:
        self.curve = Curve(values["num_envs"])
        batch = Batch(values["env_cls"], values["num_envs"], seed)
        env: VecEnv = BatchEnv(batch, self.curve)
        normalized = values["normalize_observations"], bool(values["normalize_rewards"])
        if any(normalized):
            limit = values.get("clip_rewards") or np.inf
            options: dict[str, Any] = {"clip_reward": limit, "gamma": values["gamma"]}
            env = VecNormalize(env, norm_obs=normalized[0], norm_reward=normalized[1], **options)
        self.env = env
        self.model = PPO("MlpPolicy", env, **settings(values), seed=seed, device="cpu")
        self.model.learn(values["total_env_steps"], callback=Recorder(self.curve))
        self.env_steps = self.model.num_timesteps

    def predict(self, obs: Array) -> Array:
        """Most likely actions."""
        if isinstance(self.env, VecNormalize):
            obs = self.env.normalize_obs(obs)
        actions: Array = self.model.predict(obs, deterministic=True)[0]
        return actions


def settings(values: dict[str, Any]) -> dict[str, Any]:
    """A recipe's keys in the words of `PPO`."""
    lr = values["lr"]
    network = dict(values["model_config"])
    policy_kwargs = {
        "net_arch": network["hiddens"],
        "activation_fn": ACTIVATIONS[network["activation_fn"]],
    }
    if "log_std_init" in network:
        policy_kwargs["log_std_init"] = network["log_std_init"]
    return {
        "use_sde": network.get("use_sde", False),
        "sde_sample_freq": network.get("sde_sample_freq", -1),
        "n_steps": values["horizon"],
        "batch_size": values["sgd_minibatch_size"],
        "n_epochs": values["num_sgd_iters"],
        "learning_rate": (lambda left: left * lr) if values["lr_schedule"] == "linear" else lr,
        "gamma": values["gamma"],
        "gae_lambda": values["gae_lambda"],
        "clip_range": values["clip_param"],
        "clip_range_vf": values["vf_clip_param"],
        "ent_coef": values.get("entropy_coeff", 0.0),
        "vf_coef": 0.5 * values["vf_coeff"],  # its value loss is not halved
        "max_grad_norm": values["max_grad_norm"],
        "policy_kwargs": policy_kwargs,
    }


if __name__ == "__main__":
    serve(Trained, ("stable-baselines3", "gymnasium", "numpy"))
