"""PPO in one file, in the manner of CleanRL; see `_ppo.py`.

`vectorization: sync` in the options steps Gymnasium's environments one after the other, as such
scripts do; without it an environment's own vectorised form is used.
"""

from typing import Any

import numpy as np
import torch

from ._gymnasium import Returns, make_vector_env
from ._ppo import PPO, Settings
from ._serving import Iteration, Stopwatch, serve

#: Keys of the work that are hyperparameters of the update.
NAMES = (
    *("lr", "gamma", "gae_lambda", "num_sgd_iters", "clip_param", "entropy_coeff", "vf_coeff"),
    "max_grad_norm",
)


class CleanRL:
    """The script's loop cut into a rollout and an update."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work, num_envs = work, work["num_envs"]
        self.envs = make_vector_env(work, work["options"].get("vectorization"))
        self.device = torch.device(work["device"])
        rows = work["horizon"] * num_envs
        self.ppo = PPO(
            self.envs.single_action_space,
            self.envs.single_observation_space.shape,
            (work["horizon"], num_envs),
            work["hiddens"],
            Settings(
                sgd_minibatch_size=rows // work["num_minibatches"],
                **{name: work[name] for name in NAMES},
            ),
            self.device,
        )
        self.next_obs = self._tensor(self.envs.reset(seed=work["seed"])[0])
        self.next_done = torch.zeros(num_envs, device=self.device)
        self.returns = Returns(num_envs)

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float32, device=self.device)

    def iterate(self) -> Iteration:
        """A rollout, and an update from it."""
        elapsed = Stopwatch()
        for t in range(self.work["horizon"]):
            self._step(t)
        collect_s = elapsed()
        self.ppo.update(self.next_obs, self.next_done)
        return Iteration(self.ppo.rewards.numel(), collect_s, elapsed())

    def _step(self, t: int) -> None:
        action = self.ppo.act(t, self.next_obs, self.next_done)
        obs, rewards, terminated, truncated, _ = self.envs.step(action)
        done = np.logical_or(terminated, truncated)
        self.returns.add(rewards, done)
        self.ppo.rewards[t] = self._tensor(rewards)
        self.next_obs, self.next_done = self._tensor(obs), self._tensor(done)

    def score(self, metric: str) -> None | float:
        """Mean return of the last episodes, or mean reward of the last rollout."""
        return self.returns.mean() if metric == "return" else float(self.ppo.rewards.mean())

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()


if __name__ == "__main__":
    serve(CleanRL, ("numpy", "gymnasium"))
