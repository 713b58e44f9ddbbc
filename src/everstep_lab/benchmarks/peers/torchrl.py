"""PPO from TorchRL's parts: a collector, `GAE`, a replay buffer and `ClipPPOLoss`."""

import math
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from ._serving import Iteration, Stopwatch, serve

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class TorchRL:
    """The loop of its examples, cut into a rollout and an update."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work = work
        self.rows = work["num_envs"] * work["horizon"]
        name = work["env"].partition(":")[2]
        # One thread: workers in processes of their own would have to share it.
        envs = SerialEnv(work["num_envs"], lambda: GymEnv(name, categorical_action_encoding=True))
        env = TransformedEnv(envs, RewardSum())
        env.set_seed(work["seed"])
        actor, self.critic = _agents(work, env)
        self.collector = Collector(env, actor, frames_per_batch=self.rows, total_frames=-1)
        self.rollouts = iter(self.collector)
        self.advantage = GAE(
            gamma=work["gamma"], lmbda=work["gae_lambda"], value_network=self.critic
        )
        self.loss = ClipPPOLoss(
            actor_network=actor,
            critic_network=self.critic,
            clip_epsilon=work["clip_param"],
            entropy_coeff=work["entropy_coeff"],
            critic_coeff=0.5 * work["vf_coeff"],  # its value loss is not halved
            loss_critic_type="l2",
            normalize_advantage=True,
        )
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=work["lr"])
        self.buffer = ReplayBuffer(
            storage=LazyTensorStorage(self.rows),
            sampler=SamplerWithoutReplacement(),
            batch_size=self.rows // work["num_minibatches"],
        )
        self.returns: list[float] = []
        self.reward = math.nan

    def iterate(self) -> Iteration:
        """A batch of the collector, and an update from it."""
        elapsed = Stopwatch()
        batch = next(self.rollouts)
        collect_s = elapsed()
        self._update(batch)
        update_s = elapsed()
        ended = batch["next", "done"]
        self.returns = (self.returns + batch["next", "episode_reward"][ended].tolist())[-100:]
        self.reward = float(batch["next", "reward"].mean())
        return Iteration(self.rows, collect_s, update_s)

    def _update(self, batch: Any) -> None:
        with torch.no_grad():
            batch = self.advantage(batch)
        self.buffer.extend(batch.reshape(-1))
        for _ in range(self.work["num_sgd_iters"]):
            for minibatch in self.buffer:
                losses = self.loss(minibatch)
                terms = ("loss_objective", "loss_critic", "loss_entropy")
                total = sum(losses[term] for term in terms)
                self.optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(self.loss.parameters(), self.work["max_grad_norm"])
                self.optimizer.step()

    def score(self, metric: str) -> None | float:
        """Mean return of the last episodes, or mean reward of the last rollout."""
        if metric == "reward":
            return self.reward
        return sum(self.returns) / len(self.returns) if self.returns else None

    def close(self) -> None:
        """Close the environment."""
        self.collector.shutdown()


def _agents(work: dict[str, Any], env: Any) -> tuple[Any, Any]:
    """Actor and critic, apart."""
    obs_size = env.observation_spec["observation"].shape[-1]
    networks = [
        MLP(
            in_features=obs_size,
            out_features=outputs,
            num_cells=work["hiddens"],
            activation_class=ACTIVATIONS[work["activation"]],
        )
        for outputs in (env.action_spec.space.n, 1)
    ]
    actor = ProbabilisticActor(
        TensorDictModule(networks[0], in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.full_action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    return actor, ValueOperator(networks[1], in_keys=["observation"])


if __name__ == "__main__":
    serve(TorchRL, ("torchrl", "tensordict", "gymnasium"))
