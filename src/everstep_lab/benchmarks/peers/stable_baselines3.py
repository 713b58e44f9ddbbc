"""Stable-Baselines3's PPO.

As shipped it steps Gymnasium's environments one after the other, in a `DummyVecEnv`. With
`vectorized: true` among the options its `VecEnv` is one around CartPole's own vectorised form.
Options of that class, such as `n_epochs`, stand under `ppo`.

Recurrent work is done by `RecurrentPPO` of sb3-contrib, with the networks of Everstep's default:
one LSTM of width 256 for policy and values, and a linear layer each.
"""

from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from ._frames import Frames
from ._serving import Iteration, Stopwatch, serve

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class VectorizedCartPole(VecEnv):
    """Gymnasium's vectorised CartPole, which resets in the env step that ends an episode."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.inner: Any = gymnasium.make_vec("CartPole-v1", num_envs=num_envs).unwrapped
        super().__init__(
            num_envs, self.inner.single_observation_space, self.inner.single_action_space
        )
        self._first_seed: int | None = seed
        self._returns = np.zeros(num_envs)

    def reset(self) -> np.ndarray:
        """Observations `[N, 4]`."""
        obs: np.ndarray = self.inner.reset(seed=self._first_seed)[0]
        self._first_seed = None
        self._returns[:] = 0.0
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Observations, rewards, ends and what belongs to the ends."""
        obs, rewards, terminated, truncated, _ = self.inner.step(self._actions)
        done = terminated | truncated
        self._returns += rewards
        infos: list[dict[str, Any]] = [{}] * self.num_envs
        if done.any():
            for i in np.flatnonzero(done):
                infos[i] = {
                    "terminal_observation": obs[i].copy(),
                    "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                    "episode": {"r": float(self._returns[i]), "l": int(self.inner.steps[i])},
                }
            self._open(done)
            obs[done] = self.inner.state[:, done].T
        return obs, rewards, done, infos

    def _open(self, done: np.ndarray) -> None:
        """Begin the next episodes now, instead of in the next env step."""
        inner = self.inner
        inner.state[:, done] = inner.np_random.uniform(inner.low, inner.high, (4, done.sum()))
        inner.steps[done] = 0
        inner.prev_done = np.zeros_like(done)
        self._returns[done] = 0.0

    def close(self) -> None:
        """Close the environment."""
        self.inner.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute, once for each environment."""
        return [getattr(self.inner, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set the attribute."""
        setattr(self.inner, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Not used by PPO."""
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No environment is wrapped."""
        return [False] * self.num_envs


class Silent(BaseCallback):
    """Does nothing."""

    def _on_step(self) -> bool:
        return True


class StableBaselines3:
    """PPO's own rollout and its own update, in the order of its own loop."""

    def __init__(self, work: dict[str, Any]) -> None:
        num_envs, options = work["num_envs"], work["options"]
        if options.get("vectorized"):
            env: Any = VectorizedCartPole(num_envs, work["seed"])
        else:
            source = Frames if work["env"] == "frames" else work["env"].partition(":")[2]
            env = make_vec_env(source, n_envs=num_envs, seed=work["seed"])
        self.rows = num_envs * work["horizon"]
        settings = _settings(work) | options.get("ppo", {})
        for name in ("learning_rate", "clip_range"):  # a function of what is left of the training
            start = settings[name]
            if options.get("decay_env_steps"):
                settings[name] = lambda left, start=start: left * start
        self.model = _model(env, settings, recurrent=work["recurrent"])
        self.total = options.get("decay_env_steps", 10**9)
        _, self.callback = self.model._setup_learn(self.total, Silent())

    def iterate(self) -> Iteration:
        """Collect and train."""
        model, elapsed = self.model, Stopwatch()
        model.collect_rollouts(model.env, self.callback, model.rollout_buffer, model.n_steps)
        collect_s = elapsed()
        model._update_current_progress_remaining(min(model.num_timesteps, self.total), self.total)
        model.train()
        return Iteration(self.rows, collect_s, elapsed())

    def score(self, metric: str) -> None | float:
        """Mean return of the last episodes, or mean reward of the last rollout."""
        if metric == "reward":
            return float(self.model.rollout_buffer.rewards.mean())
        found = [episode["r"] for episode in self.model.ep_info_buffer]
        return float(np.mean(found)) if found else None

    def close(self) -> None:
        """Close the environment."""
        self.model.env.close()


def _model(env: Any, settings: dict[str, Any], *, recurrent: bool) -> Any:
    if not recurrent:
        is_image = len(env.observation_space.shape) == 3
        return PPO("CnnPolicy" if is_image else "MlpPolicy", env, **settings)
    from sb3_contrib import RecurrentPPO

    networks = {"net_arch": [], "shared_lstm": True, "enable_critic_lstm": False}
    return RecurrentPPO("MlpLstmPolicy", env, **settings | {"policy_kwargs": networks})


def _settings(work: dict[str, Any]) -> dict[str, Any]:
    """The work in the words of `PPO`."""
    rows = work["num_envs"] * work["horizon"]
    return {
        "n_steps": work["horizon"],
        "batch_size": rows // work["num_minibatches"],
        "n_epochs": work["num_sgd_iters"],
        "learning_rate": work["lr"],
        "gamma": work["gamma"],
        "gae_lambda": work["gae_lambda"],
        "clip_range": work["clip_param"],
        "ent_coef": work["entropy_coeff"],
        "vf_coef": 0.5 * work["vf_coeff"],  # its value loss is not halved
        "max_grad_norm": work["max_grad_norm"],
        "policy_kwargs": {
            "net_arch": work["hiddens"],
            "activation_fn": ACTIVATIONS[work["activation"]],
        },
        "device": work["device"],
        "seed": work["seed"],
        "verbose": 0,
    }


if __name__ == "__main__":
    serve(StableBaselines3, ("stable-baselines3", "gymnasium", "numpy"))
