"""Cost of random network distillation for an update and a rollout, as ratios of their times.

    OMP_NUM_THREADS=1 python -m everstep_lab.studies.bonus_cost

PPO with and without the bonus, on the same environment and with networks of the same width, take
turns: a rollout and an update each. Prints the times of plain PPO, and the median of the ratios of
neighbours, which other work on the machine disturbs least.
"""

import argparse
import statistics
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep import Algorithm, AlgorithmConfig
from everstep.data import Device
from everstep.env import Env

#: Hidden layers of policy and values.
HIDDENS = [256, 256]

#: Target and predictor: as they are by default, and as wide as policy and values.
NETWORKS: dict[str, dict[str, Any]] = {"default": {}, "as wide": {"hiddens": HIDDENS}}

#: Environments, vector steps of a rollout, and rows of a minibatch.
SIZES = ((16, 64, 256), (64, 64, 1024), (128, 64, 4096))

#: Shares of the rows that the predictor learns from.
PROPORTIONS = (0.25, 1.0)


class Noise(Env):
    """Observes 32 random numbers, whatever is done: an env step that costs next to nothing."""

    def __init__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(32, device=torch.device(device))
        self.action_spec = Categorical(4, shape=torch.Size([1]), device=torch.device(device))

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor:
        """Random numbers."""
        return torch.randn(self.num_envs, 32, device=self.device)

    def step(self, action: torch.Tensor) -> TensorDict:
        """Others."""
        rewards = torch.zeros(self.num_envs, 1, device=self.device)
        return TensorDict({"obs": self.reset(), "rewards": rewards}, [self.num_envs])


def build(
    size: tuple[int, int, int], proportion: None | float, widths: dict[str, Any]
) -> Algorithm:
    """PPO; with the bonus where a proportion is given."""
    num_envs, horizon, minibatch = size
    rnd = {**widths, "pre_normalization_steps": 0, "predictor_proportion": proportion}
    config = AlgorithmConfig(
        num_envs=num_envs,
        horizon=horizon,
        sgd_minibatch_size=minibatch,
        horizons_per_env_reset=-1,
        model_config={"hiddens": HIDDENS},
        bonuses=[] if proportion is None else [{"rnd": rnd}],
        seed=0,
    )
    return config.build(Noise)


def milliseconds(algorithm: Algorithm) -> tuple[float, float]:
    """Of a rollout, and of an update."""
    collected = algorithm.collect()["profiling/collect_ms"]
    return collected, algorithm.step()["profiling/step_ms"]


def measure(size: tuple[int, int, int], proportion: float, networks: str, rounds: int) -> str:
    """A row of the table."""
    widths = NETWORKS[networks]
    plain, with_bonus = build(size, None, widths), build(size, proportion, widths)
    for algorithm in (plain, with_bonus):
        milliseconds(algorithm)  # the first ones warm up
    pairs = []
    for i in range(rounds):
        order = (plain, with_bonus) if i % 2 else (with_bonus, plain)
        times = {algorithm: milliseconds(algorithm) for algorithm in order}
        pairs.append((times[plain], times[with_bonus]))
    found = [
        (
            statistics.median(before[which] for before, _ in pairs),
            statistics.median(after[which] / before[which] for before, after in pairs),
        )
        for which in (0, 1)
    ]
    (collect_ms, collect_ratio), (step_ms, step_ratio) = found
    return (
        f"| {' × '.join(map(str, size[:2]))} | {size[2]} | {networks} | {proportion} "
        f"| {step_ms:.1f} | {step_ratio:.2f} | {collect_ms:.1f} | {collect_ratio:.2f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="updates of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| rollout | minibatch | networks | proportion | update, ms | ratio | collect, ms | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for size in SIZES:
        for networks in NETWORKS:
            for proportion in PROPORTIONS:
                print(measure(size, proportion, networks, options.rounds), flush=True)


if __name__ == "__main__":
    main()
