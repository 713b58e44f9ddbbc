"""How much memory does training take, beside the rollout itself?

    OMP_NUM_THREADS=1 python -m everstep_lab.studies.memory
    python -m everstep_lab.studies.memory --device cuda

For a few shapes: the bytes of a rollout's storage, the most that `collect` and `step` allocate
beside it at any time, and what of that one chunk of a minibatch takes (its rows, its activations
and their gradients). The ratio is 1 + (most - chunk) / rollout: 1 where nothing but the rollout and
a chunk is ever there. Where gradients are written out, most of a chunk is kept from one update to
the next, and is part of all three. Weights, gradients and the optimizer's state exist
before and count for nothing.

On a CPU every allocation is recorded by PyTorch's profiler, those inside of operations too; on an
accelerator its allocator keeps the peak.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import torch
from tensordict import TensorDict
from torch.profiler import ProfilerActivity, profile
from torchrl.data import Bounded, Categorical, TensorSpec, Unbounded

from everstep import AlgorithmConfig, DiscreteDummyEnv, RecurrentAlgorithmConfig
from everstep.adapters import GymnasiumEnv
from everstep.algorithms.recording import optimizer_steps
from everstep.core.fast import actor, learner
from everstep.core.rollouts import Rollout
from everstep.data import Device
from everstep.env import Env
from everstep.policies import Actor


class Noise(Env):
    """Observes random numbers or images, whatever is done; episodes of 10 env steps where asked."""

    def __init__(
        self,
        spec: TensorSpec,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        ends: bool = False,
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = spec.to(torch.device(device))
        self.action_spec = Categorical(4, shape=torch.Size([1]), device=torch.device(device))
        self.t = 0
        if ends:
            self.episode_keys = frozenset({"terminated", "truncated", "first", "final_obs"})

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Random observations."""
        shape, spec = (self.num_envs, *self.observation_spec.shape), self.observation_spec
        if spec.dtype.is_floating_point:
            return torch.randn(shape, device=self.device)
        return torch.randint(256, shape, dtype=spec.dtype, device=self.device)

    def step(self, action: torch.Tensor) -> TensorDict:
        """Others; every tenth env step truncates all episodes."""
        self.t += 1
        obs, rewards = self.reset(), torch.zeros(self.num_envs, 1, device=self.device)
        found = {"obs": obs, "rewards": rewards}
        if self.episode_keys:
            ended = torch.full_like(rewards, self.t % 10 == 0, dtype=torch.bool)
            no = torch.zeros_like(ended)
            found |= {"terminated": no, "truncated": ended, "first": ended}
            found["final_obs"] = self.reset()  # of the episode that ended, in memory of its own
        return TensorDict(found, [self.num_envs])


@dataclass(frozen=True)
class Peak:
    """Memory that a call allocates, in bytes."""

    #: The most that is there at one time, beside what was there before.
    most: int
    #: The largest single tensor; 0 where that is not known.
    largest: int
    #: What is still there afterwards.
    left: int


def peak_of(call: Callable[[], object], device: torch.device) -> Peak:
    """Memory that `call` allocates on `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        most, left = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        return Peak(most - before, 0, left - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    assert found.profiler is not None
    events: Any = found.profiler.kineto_results.events()
    taken = [event for event in events if event.name() == "[memory]"]
    most = total = largest = 0
    for event in sorted(taken, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most, largest = max(most, total), max(largest, event.nbytes())
    return Peak(most, largest, total)


def tensors_of(rollout: Rollout) -> list[torch.Tensor]:
    """Everything that a rollout keeps."""
    kept: list[Any] = list(vars(rollout).values())
    leaves = [x for value in kept for x in (value if isinstance(value, tuple) else (value,))]
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def rollout_bytes(rollout: Rollout) -> int:
    """Bytes of everything that a rollout keeps, each storage once."""
    storages = [x.untyped_storage() for x in tensors_of(rollout)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def acting(algorithm: Any) -> None:
    """One env step's share of `collect`: the policy acts, by a copy of its weights."""
    with torch.no_grad(), algorithm.policy.keep_casts():
        policy, rollout = algorithm.policy, algorithm.rollout
        kind = actor(policy, rollout, deterministic=False)
        acts = kind or Actor(policy, rollout, deterministic=False)
        states = policy.memory.flatten(policy.init_states(rollout.num_envs))
        _, states = acts.act(0, states)
        acts.finish(states)


def learning(algorithm: Any) -> None:
    """One chunk's share of `step`: gather, forward, backward."""
    chunk = next(next(optimizer_steps(algorithm.parts, 1, algorithm.chunk_size)))
    algorithm._fast = learner(algorithm.policy, algorithm.objective, algorithm._fast)
    algorithm._add_gradients(chunk)
    algorithm.updater.zero_grad()


@dataclass(frozen=True)
class Budget:
    """Memory of a rollout and an update, in bytes."""

    #: The rollout's storage, and what bonuses keep of it.
    rollout: int
    #: `collect` and `step`.
    collect: Peak
    step: Peak
    #: The most that one chunk of a minibatch takes, or acting in all environments, beside `kept`.
    chunk: int
    #: Of a chunk, what is there from one update to the next: what layers return, written again.
    kept: int

    @classmethod
    def of(cls, algorithm: Any, warm_up: int = 2) -> "Budget":
        """Measured, after everything was done `warm_up` times."""
        device = algorithm.rollout.device
        for _ in range(warm_up):
            algorithm.collect()
            algorithm.step()
        collect, step = peak_of(algorithm.collect, device), peak_of(algorithm.step, device)
        # Not all chunks cost the same: their sequences have more openings of episodes, or fewer.
        parts = [acting, *[learning] * 4]
        chunk = max(peak_of(partial(part, algorithm), device).most for part in parts)
        of_bonuses = sum(x.nbytes for bonus in algorithm.bonuses for x in bonus.cache)
        algorithm._fast = None
        kept = max(0, peak_of(lambda: learning(algorithm), device).left)
        return cls(rollout_bytes(algorithm.rollout) + of_bonuses, collect, step, chunk, kept)

    @property
    def ratios(self) -> tuple[float, float]:
        """Of collect and of step: 1 + (peak - chunk) / rollout."""
        rest = [max(0, peak.most - self.chunk) for peak in (self.collect, self.step)]
        return 1 + rest[0] / self.rollout, 1 + rest[1] / self.rollout


NUMBERS, IMAGE = Unbounded(256), Bounded(0, 255, (4, 84, 84), dtype=torch.uint8)


def cartpole(device: Device) -> Env:
    """CartPole, with final observations, on the CPU."""
    return GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 64), 128)


#: Name, environment on a device, kind of algorithm, options.
CASES: list[tuple[str, Callable[[Device], Env], Any, dict[str, Any]]] = [
    ("1 number, 2048 × 32", lambda d: DiscreteDummyEnv(2048, 32, device=d), AlgorithmConfig, {}),
    ("CartPole, 64 × 128", cartpole, AlgorithmConfig, {}),
    ("256 numbers, 128 × 64", lambda d: Noise(NUMBERS, 128, 64, device=d), AlgorithmConfig, {}),
    (
        "the same, minibatches of 1024",
        lambda d: Noise(NUMBERS, 128, 64, device=d),
        AlgorithmConfig,
        {"sgd_minibatch_size": 1024},
    ),
    (
        "the same, normalised, with episodes",
        lambda d: Noise(NUMBERS, 128, 64, device=d, ends=True),
        AlgorithmConfig,
        {"normalize_observations": True, "sgd_minibatch_size": 1024},
    ),
    (
        "the same, with a bonus",
        lambda d: Noise(NUMBERS, 128, 64, device=d, ends=True),
        AlgorithmConfig,
        {"bonuses": [{"rnd": {"pre_normalization_steps": 0}}], "sgd_minibatch_size": 1024},
    ),
    (
        "256 numbers, 128 × 64, recurrent",
        lambda d: Noise(NUMBERS, 128, 64, device=d, ends=True),
        RecurrentAlgorithmConfig,
        {"seq_len": 16, "sgd_minibatch_size": 64},
    ),
    (
        "4 images of 84 × 84, 16 × 64",
        lambda d: Noise(IMAGE, 16, 64, device=d),
        AlgorithmConfig,
        {"sgd_minibatch_size": 64},
    ),
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    print("| observations | rollout, MB | chunk, MB | collect, MB | ratio | step, MB | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, make, config, chosen in CASES:
        defaults = {"seed": 0, "num_sgd_iters": 1, "horizons_per_env_reset": -1}
        algorithm = config(**{**defaults, **chosen}).build(make(options.device))
        found = Budget.of(algorithm)
        beside = (found.chunk, found.collect.most, found.step.most)
        sizes = (found.rollout, *(found.kept + size for size in beside))
        rollout, chunk, collect, step = (f"{size / 2**20:.2f}" for size in sizes)
        first, second = (f"{ratio:.2f}" for ratio in found.ratios)
        print(f"| {name} | {rollout} | {chunk} | {collect} | {first} | {step} | {second} |")


if __name__ == "__main__":
    main()
