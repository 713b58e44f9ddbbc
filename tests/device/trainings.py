"""Trainings on the stand-in: environments of every family, whose tensors are on the device."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

import everstep
from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentAlgorithmConfig,
)
from everstep.distillation import Distillation
from everstep.distributions import SquashedNormal
from everstep.env import Env
from everstep.models import RecurrentModel
from everstep_adapters.export import to_gymnasium, to_sb3, to_torchrl
from tests.everstep.core.graphs.graph_toys import Losing, Seeing, Walk
from tests.everstep_adapters.isaacgym.isaacgym_tasks import TASKS

NUM_ENVS, HORIZON = 4, 8


class Choosing(Env):
    """Some of its choices are not allowed."""

    episode_keys = frozenset({"terminated", "truncated", "first"})

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        mask = Binary(3, dtype=torch.bool)
        spec = Composite(x=Unbounded(2), action_mask=mask)
        self.observation_spec = spec.to(torch.device(device))
        self.action_spec = Categorical(3, shape=torch.Size([1]), device=torch.device(device))

    def _observe(self) -> TensorDict:
        allowed = torch.rand(self.num_envs, 3, device=self.device) > 0.5
        allowed[:, :1] = True
        x = torch.randn(self.num_envs, 2, device=self.device)
        return TensorDict({"x": x, "action_mask": allowed}, [self.num_envs])

    def reset(self, *, config: Any = None) -> TensorDict:
        return self._observe()

    def step(self, action: Any) -> TensorDict:
        done = torch.rand(self.num_envs, 1, device=self.device) < 0.2
        row = {"obs": self._observe(), "rewards": action.float(), "terminated": done}
        row |= {"truncated": torch.zeros_like(done), "first": done}
        return TensorDict(row, [self.num_envs])


class Gated(RecurrentModel):
    """A GRU for the policy and the value."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.state_spec = Composite(hidden=Unbounded(8))
        self.gru = nn.GRU(2, 8, batch_first=True)
        self.policy, self.value = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, batch: Any, states: Any) -> Any:
        before = states["hidden"].transpose(0, 1).contiguous()
        latents, after = self.gru(batch["obs"], before)
        rows = latents.flatten(0, 1)
        self.values = self.value(rows)
        return {"logits": self.policy(rows).unsqueeze(1)}, {"hidden": after[0]}

    def value_function(self) -> torch.Tensor:
        return self.values


class Images(gym.Env):  # type: ignore[type-arg]
    """Observations are a mapping with an image, and actions two choices."""

    observation_space = gym.spaces.Dict(
        a=gym.spaces.Box(-1, 1, (3,), np.float32),
        image=gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
        k=gym.spaces.Discrete(4),
    )
    action_space = gym.spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t % 5 == 0, self.t >= 7, {}


class TensorVector(VectorEnv):  # type: ignore[type-arg]
    """A vector environment whose tensors are on the device, and which writes them in place."""

    def __init__(self, mode: str) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.mode, self.num_envs, self.device = mode, NUM_ENVS, torch.device("cuda:0")
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, NUM_ENVS)
        self.action_space = batch_space(self.single_action_space, NUM_ENVS)
        self.t = torch.zeros(NUM_ENVS, 1, device=self.device)
        self.limit = torch.arange(NUM_ENVS, device=self.device).view(-1, 1) + 4

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t.zero_()
        self.over = torch.zeros(NUM_ENVS, dtype=torch.bool, device=self.device)
        return self.t.repeat(1, 2), {}

    def step(self, actions: Any) -> Any:
        assert actions.is_cuda
        if self.mode == "NEXT_STEP":
            self.t.copy_(torch.where(self.over.view(-1, 1), 0.0, self.t + 1))
        else:
            self.t += 1
        final = self.t.repeat(1, 2)
        self.over = (self.t >= self.limit).flatten()
        infos = {}
        if self.mode == "SAME_STEP":
            self.t.masked_fill_(self.over.view(-1, 1), 0.0)
            infos = {"final_obs": final, "_final_obs": self.over}
        ended = torch.zeros_like(self.over)
        return self.t.repeat(1, 2), final[:, 0].clone(), ended, self.over, infos


class InPlace(EnvBase):
    """An environment of TorchRL that steps its state in place and hands it out."""

    def __init__(self, device: Any) -> None:
        super().__init__(batch_size=(NUM_ENVS,), device=device)
        shape = self.batch_size
        self.observation_spec = Composite(observation=Unbounded((*shape, 2)), shape=shape).to(
            device
        )
        self.action_spec = Unbounded((*shape, 2), device=device)
        self.reward_spec = Unbounded((*shape, 1), device=device)
        self.state = torch.zeros(*shape, 2, device=device)
        self.clock = torch.zeros(*shape, 1, device=device)

    def _set_seed(self, seed: int | None) -> None:
        pass

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        rows = torch.ones(NUM_ENVS, 1, dtype=torch.bool, device=self.device)
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            rows = tensordict["_reset"].view(-1, 1)
        self.state.masked_fill_(rows, 0.0)
        self.clock.masked_fill_(rows, 0.0)
        return TensorDict({"observation": self.state}, self.batch_size, device=self.device)

    def _step(self, tensordict: Any) -> Any:
        self.state += tensordict["action"]
        self.clock += 1
        done = self.clock >= 5
        data = {"observation": self.state, "reward": self.state.sum(-1, keepdim=True)}
        data |= {"done": done, "terminated": torch.zeros_like(done)}
        return TensorDict(data, self.batch_size, device=self.device)


def isaac(kind: str) -> Any:
    """A task with IsaacGym's interface."""
    scripts = [[3, 9], [9, 9], [5, 2], [9, 4]]
    return everstep.wrap(TASKS[kind](scripts, 7, device="cuda:0", rl_device="cuda:0"))


def counters(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> Any:
    """Environments in JAX, on the pretended device; without JAX the test is skipped."""
    pytest.importorskip("jax")
    from tests.device import jax_double

    return jax_double.make(num_envs, horizon, device=device)


def made(make: Callable[[], Any]) -> Any:
    """A factory of an environment, whatever it is asked for."""
    return lambda num_envs, horizon=None, *, device="cpu": make()


def gymnasium(name: str, mode: str) -> Any:
    """Environments of Gymnasium, on the host."""

    def make() -> Any:
        envs = [lambda: gym.make(name, max_episode_steps=5)] * NUM_ENVS
        vector = gym.vector.SyncVectorEnv(envs, autoreset_mode=AutoresetMode[mode])
        return everstep.wrap(vector, device="cuda")

    return made(make)


def agents() -> Any:
    """Two environments of PettingZoo's interface, with two agents each."""
    pytest.importorskip("pettingzoo")
    from tests.everstep_adapters.pettingzoo.pettingzoo_toys import Team

    ends = {"one_0": (3, "terminated"), "other_0": (5, "truncated")}
    return everstep.wrap([Team(ends) for _ in range(NUM_ENVS // 2)], device="cuda")


def control(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> Any:
    """Environments with dm_control's interface, on the host."""
    pytest.importorskip("dm_env")
    from everstep.adapters import DMControlEnv
    from tests.everstep_adapters.dm_control.test_dm_control import Count

    return DMControlEnv.make(Count, num_envs, horizon=horizon, device=device)


def pool(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> Any:
    """CartPole of EnvPool."""
    pytest.importorskip("envpool")
    return everstep.make("envpool:CartPole-v1", num_envs, horizon=horizon, device=device)


def bridged(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> Any:
    """CartPole in another process."""
    return everstep.make(
        "bridge:gymnasium:CartPole-v1",
        num_envs,
        horizon=horizon,
        device=device,
        python=sys.executable,
    )


@dataclass(frozen=True)
class Case:
    """A training: its environment, and its hyperparameters."""

    env: Any
    options: dict[str, Any] = field(default_factory=dict)
    recurrent: bool = False
    #: Whether the policy follows a teacher, one with a memory.
    distils: bool = False

    def build(self, device: str = "cuda") -> Any:
        """The algorithm."""
        cls = RecurrentAlgorithmConfig if self.recurrent else AlgorithmConfig
        small = {"num_envs": NUM_ENVS, "horizon": HORIZON, "seed": 0, "cuda_graphs": False}
        model = {"hidden_size": 8} if self.recurrent else {"hiddens": (8,)}
        small |= {"device": device, "model_config": model, "num_sgd_iters": 2}
        if self.recurrent:
            small["seq_len"] = 4
        if self.distils:
            small["objective"] = Distillation(Case(Walk, recurrent=True).build(device).policy)
        return cls(**{**small, **self.options}).build(self.env)


GRAPHS = {"cuda_graphs": True}

#: Through the centre; each push becomes the opposite one.
MIRRORED = {"symmetry": {"observation": [-1, -1], "action": [2, 3, 0, 1], "mirror_coeff": 0.5}}

CASES: dict[str, Case] = {
    "discrete": Case(DiscreteDummyEnv),
    "continuous": Case(ContinuousDummyEnv, {"sgd_minibatch_size": 16}),
    "continuous, graphs": Case(ContinuousDummyEnv, GRAPHS),
    "episodes": Case(Walk),
    "episodes, graphs": Case(Walk, GRAPHS),
    "final observations lost": Case(Losing, {"on_missing_final": "approximate"}),
    "final observations masked": Case(Losing, {"on_missing_final": "mask"}),
    "A2C": Case(Walk, {"objective": "a2c"}),
    "LSTM": Case(Walk, recurrent=True),
    "LSTM, graphs": Case(Walk, GRAPHS, recurrent=True),
    "GRU": Case(Walk, {"model_cls": Gated, "model_config": {}}, recurrent=True),
    "GRU, graphs": Case(Walk, {"model_cls": Gated, "model_config": {}, **GRAPHS}, recurrent=True),
    "windows": Case(Walk, {"model_cls": Seeing, "model_config": {}}),
    "windows, graphs": Case(Walk, {"model_cls": Seeing, "model_config": {}, **GRAPHS}),
    "masks": Case(Choosing),
    "normalised": Case(
        Walk,
        {
            "normalize_observations": True,
            "normalize_values": True,
            "normalize_rewards": "running",
            "normalize_advantages": "minibatch",
            "sgd_minibatch_size": 16,
        },
    ),
    "KL stop": Case(Walk, {"target_kl_div": 0.01, "sgd_minibatch_size": 16}),
    "KL stop, graphs": Case(Walk, {"target_kl_div": 0.01, "sgd_minibatch_size": 16, **GRAPHS}),
    "adaptive rate, graphs": Case(
        Walk, {"target_kl_div": 0.01, "lr_schedule_kind": "adaptive", **GRAPHS}
    ),
    "AMSGrad, graphs": Case(Walk, {"optimizer_config": {"lr": 1e-3, "amsgrad": True}, **GRAPHS}),
    "accumulated gradients": Case(Walk, {"accumulate_grads": True, "sgd_minibatch_size": 16}),
    "bfloat16": Case(Walk, {"enable_amp": True}),
    "RND": Case(Walk, {"bonuses": [{"rnd": {}}]}),
    "symmetry": Case(Walk, MIRRORED),
    "symmetry, graphs": Case(Walk, {**MIRRORED, **GRAPHS}),
    "symmetry, LSTM": Case(Walk, MIRRORED, recurrent=True),
    "distillation": Case(Walk, distils=True),
    "distillation, graphs": Case(Walk, GRAPHS, distils=True),
    "distillation, LSTM": Case(Walk, recurrent=True, distils=True),
    "gSDE": Case(ContinuousDummyEnv, {"model_config": {"hiddens": (8,), "use_sde": True}}),
    "squashed": Case(ContinuousDummyEnv, {"distribution_cls": SquashedNormal}),
    "asymmetric critic": Case(Choosing, {"model_config": {"hiddens": (8,), "critic_obs": ["x"]}}),
    "Gymnasium, next step": Case(gymnasium("CartPole-v1", "NEXT_STEP")),
    "Gymnasium, same step": Case(gymnasium("CartPole-v1", "SAME_STEP")),
    "Gymnasium, disabled": Case(gymnasium("CartPole-v1", "DISABLED")),
    "Gymnasium, graphs": Case(gymnasium("CartPole-v1", "NEXT_STEP"), GRAPHS),
    "Gymnasium, LSTM": Case(gymnasium("CartPole-v1", "NEXT_STEP"), recurrent=True),
    "Gymnasium, LSTM, graphs": Case(gymnasium("CartPole-v1", "NEXT_STEP"), GRAPHS, recurrent=True),
    "mapping with images": Case(gymnasium("EverstepDeviceImages-v0", "NEXT_STEP")),
    "tensor vector, next step": Case(made(lambda: everstep.wrap(TensorVector("NEXT_STEP")))),
    "tensor vector, same step": Case(made(lambda: everstep.wrap(TensorVector("SAME_STEP")))),
    "TorchRL": Case(made(lambda: everstep.wrap(InPlace("cuda:0"), device="cuda"))),
    "EnvPool": Case(pool),
    "dm_control": Case(control),
    "PettingZoo": Case(made(agents)),
    "PettingZoo, a policy each": Case(made(agents), {"policies": "agent"}),
    "bridge": Case(bridged, {"horizons_per_env_reset": -1}),
    "TorchRL of the host": Case(made(lambda: everstep.wrap(InPlace("cpu"), device="cuda"))),
    "JAX": Case(counters),
    "JAX, graphs": Case(counters, GRAPHS),
    "IsaacGym C, graphs": Case(made(lambda: isaac("C")), GRAPHS),
    **{f"IsaacGym {kind}": Case(made(lambda kind=kind: isaac(kind))) for kind in TASKS},
}

gym.register("EverstepDeviceImages-v0", Images)


# ---- what is done beside training ---------------------------------------------------------------


def device_rows(mode: str = "SAME_STEP") -> Any:
    """Environments whose episodes have four to seven env steps."""
    return everstep.wrap(TensorVector(mode))


def predicting(*, recurrent: bool, arrays: bool) -> Callable[[], Any]:
    """Actions of a policy for observations from outside."""
    policy = Case(Walk, recurrent=recurrent).build().policy
    there = torch.zeros(NUM_ENVS, 2, device="cuda")
    state = policy.predict(there)[1]
    obs: Any = np.zeros((NUM_ENVS, 2), np.float32) if arrays else there
    starts = np.arange(NUM_ENVS) == 0 if recurrent else None
    return lambda: policy.predict(obs, state, episode_start=starts)


def acting() -> Callable[[], Any]:
    """A vector step of pytorchrl's loop."""
    algorithm, obs = Case(Walk).build(), torch.zeros(NUM_ENVS, 2, device="cuda")
    done = torch.zeros(NUM_ENVS, device="cuda")
    return lambda: algorithm.acting_step(obs, None, done)


def evaluating(*, recurrent: bool = False) -> Callable[[], Any]:
    """Seven vector steps, in which each environment ends an episode."""
    env = device_rows()
    policy = Case(made(device_rows), recurrent=recurrent).build().policy
    return lambda: everstep.evaluate(policy, env, episodes=NUM_ENVS)


def exported(export: Callable[[Any], Any], mode: str = "SAME_STEP") -> Callable[[], Any]:
    """A reset and eight vector steps of an environment of another library, with arrays."""
    env, actions = export(device_rows(mode)), np.zeros((NUM_ENVS, 1), np.float32)

    def work() -> None:
        env.reset()
        for _ in range(HORIZON):
            env.step(actions)

    return work


def exported_to_torchrl(*, module: bool) -> Callable[[], Any]:
    """Eight vector steps in TorchRL's rollout, with our policy or its random one."""
    env = to_torchrl(device_rows())
    policy = Case(made(device_rows)).build().policy.as_tensordict_module() if module else None
    return lambda: env.rollout(HORIZON, policy, break_when_any_done=False)


WORKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "predict, tensors": lambda: predicting(recurrent=False, arrays=False),
    "predict, arrays": lambda: predicting(recurrent=False, arrays=True),
    "predict, LSTM, tensors": lambda: predicting(recurrent=True, arrays=False),
    "predict, LSTM, arrays": lambda: predicting(recurrent=True, arrays=True),
    "acting_step": acting,
    "evaluate": evaluating,
    "evaluate, LSTM": lambda: evaluating(recurrent=True),
    "to_gymnasium, same step": lambda: exported(to_gymnasium),
    "to_gymnasium, next step": lambda: exported(to_gymnasium, "NEXT_STEP"),
    "to_sb3": lambda: exported(to_sb3),
    "to_torchrl": lambda: exported_to_torchrl(module=False),
    "to_torchrl, as_tensordict_module": lambda: exported_to_torchrl(module=True),
}
