"""skrl's PPO on `Drift`, in the order of its own sequential trainer."""

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.schedulers.torch import KLAdaptiveLR
from torch import nn

from ._serving import Iteration, Stopwatch, serve
from ._worlds import Drift

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}

SPACES = {
    "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (Drift.obs_size,)),
    "action_space": gymnasium.spaces.Box(-np.inf, np.inf, (Drift.action_size,)),
}


def _network(work: dict[str, Any], outputs: int) -> nn.Sequential:
    sizes = [Drift.obs_size, *work["hiddens"]]
    layers: list[nn.Module] = []
    for inputs, hidden in pairwise(sizes):
        layers += [nn.Linear(inputs, hidden), ACTIVATIONS[work["activation"]]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class Actor(GaussianMixin, Model):
    """A mean for each action, and a deviation that no observation changes."""

    def __init__(self, work: dict[str, Any]) -> None:
        Model.__init__(self, **SPACES, device=work["device"])
        GaussianMixin.__init__(self)
        self.network = _network(work, Drift.action_size)
        self.log_std = nn.Parameter(torch.zeros(Drift.action_size))

    def compute(
        self, inputs: dict[str, Any], role: str = ""
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Means, and the logarithm of the deviations."""
        return self.network(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    """A value."""

    def __init__(self, work: dict[str, Any]) -> None:
        Model.__init__(self, **SPACES, device=work["device"])
        DeterministicMixin.__init__(self)
        self.network = _network(work, 1)

    def compute(
        self, inputs: dict[str, Any], role: str = ""
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The value."""
        return self.network(inputs["observations"]), {}


class Skrl:
    """Its agent and its memory."""

    def __init__(self, work: dict[str, Any]) -> None:
        device = work["device"]
        self.horizon, self.num_envs = work["horizon"], work["num_envs"]
        self.world = Drift(self.num_envs, device)
        self.obs = self.world.reset()
        self.agent = PPO(
            models={"policy": Actor(work).to(device), "value": Critic(work).to(device)},
            memory=RandomMemory(memory_size=self.horizon, num_envs=self.num_envs, device=device),
            **SPACES,
            device=device,
            cfg=_settings(work),
        )
        self.agent.init()
        self.agent.enable_training_mode(True)
        self.never = torch.zeros(self.num_envs, 1, dtype=torch.bool, device=device)
        self.t = 0

    def iterate(self) -> Iteration:
        """A rollout; its last vector step brings the update."""
        elapsed, collect_s = Stopwatch(), 0.0
        for _ in range(self.horizon):
            collect_s += elapsed()
            self._step()
        self.agent.post_interaction(timestep=self.t, timesteps=10**9)
        return Iteration(self.horizon * self.num_envs, collect_s, elapsed())

    def _step(self) -> None:
        """One vector step, and what the trainer calls around it but for what ends it."""
        agent, clock = self.agent, {"timestep": self.t, "timesteps": 10**9}
        if self.t % self.horizon:
            agent.post_interaction(timestep=self.t - 1, timesteps=10**9)
        agent.pre_interaction(**clock)
        with torch.no_grad():
            actions, _ = agent.act(self.obs, None, **clock)
            next_obs, rewards, done = self.world.step(actions)
            agent.record_transition(
                observations=self.obs,
                states=None,
                actions=actions,
                rewards=rewards.unsqueeze(-1),
                next_observations=next_obs,
                next_states=None,
                terminated=self.never,
                truncated=done.unsqueeze(-1),
                infos={},
                **clock,
            )
        self.obs = next_obs
        self.t += 1

    def score(self, metric: str) -> None | float:
        """Mean reward of an env step since the last call."""
        return self.world.take_mean_reward() if metric == "reward" else None

    def close(self) -> None:
        """Nothing to end."""


def _settings(work: dict[str, Any]) -> PPO_CFG:
    """The work in the words of its configuration."""
    adaptive = {
        "learning_rate_scheduler": KLAdaptiveLR,
        "learning_rate_scheduler_kwargs": {"kl_threshold": work["target_kl_div"]},
    }
    settings = PPO_CFG(
        rollouts=work["horizon"],
        learning_epochs=work["num_sgd_iters"],
        mini_batches=work["num_minibatches"],
        discount_factor=work["gamma"],
        gae_lambda=work["gae_lambda"],
        learning_rate=work["lr"],
        grad_norm_clip=work["max_grad_norm"],
        ratio_clip=work["clip_param"],
        entropy_loss_scale=work["entropy_coeff"],
        value_loss_scale=0.5 * work["vf_coeff"],  # its value loss is not halved
        time_limit_bootstrap=True,
        mixed_precision=work["precision"] == "bf16",
        **(adaptive if work["adaptive_lr"] else {}),
    )
    settings.experiment.write_interval = 0
    settings.experiment.checkpoint_interval = 0
    return settings


if __name__ == "__main__":
    serve(Skrl, ("skrl",))
