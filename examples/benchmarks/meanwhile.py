"""What is gained by computing while environments are stepped elsewhere?

    OMP_NUM_THREADS=1 python examples/benchmarks/meanwhile.py

Milliseconds of a rollout of PPO, whose environments take a fixed time for an env step and nothing
of this machine's processors: they sleep, in place of another machine, or of processors that have
nothing else to do. Once they are `asynchronous`, and once they are not; rollouts alternate.
"""

import argparse
import statistics
import time
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Unbounded

from everstep import Algorithm, AlgorithmConfig, Env


class Case(NamedTuple):
    """A row of the table."""

    num_envs: int
    horizon: int
    #: Units of each of the two hidden layers.
    width: int
    #: Milliseconds of an env step.
    delay: float


CASES = (
    Case(8, 128, 64, 0.5),
    Case(64, 64, 64, 2.0),
    Case(256, 32, 256, 4.0),
    Case(1024, 32, 256, 10.0),
)


class Elsewhere(Env):
    """Random observations like HalfCheetah's, `delay` milliseconds after the actions were sent."""

    asynchronous = True
    delay = 0.0

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec, self.action_spec = Unbounded(17), Bounded(-1, 1, (6,))

    def reset(self, *, config: Any = None) -> torch.Tensor:
        return self.observation_spec.rand([self.num_envs])

    def step_async(self, action: Any) -> None:
        self.done_at = time.perf_counter() + self.delay / 1e3

    def step_wait(self) -> TensorDict:
        time.sleep(max(0.0, self.done_at - time.perf_counter()))
        rewards = torch.zeros(self.num_envs, 1)
        return TensorDict({"obs": self.reset(), "rewards": rewards}, [self.num_envs])

    def step(self, action: Any) -> TensorDict:
        self.step_async(action)
        return self.step_wait()


def rollouts(case: Case, pairs: int) -> tuple[list[float], list[float]]:
    """Milliseconds of rollouts that wait, and of rollouts that do not."""
    kind = type("Elsewhere", (Elsewhere,), {"delay": case.delay})
    algorithm: Algorithm = AlgorithmConfig(
        num_envs=case.num_envs,
        horizon=case.horizon,
        seed=0,
        model_config={"hiddens": (case.width, case.width)},
    ).build(kind)
    algorithm.collect()
    found: tuple[list[float], list[float]] = ([], [])
    for i in range(2 * pairs):
        kind.asynchronous = i % 2 == 1  # type: ignore[attr-defined]
        found[i % 2].append(algorithm.collect()["profiling/collect_ms"])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    print("| rollout | network | an env step, ms | waiting, ms | meanwhile, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        waiting, meanwhile = rollouts(case, options.pairs)
        ratio = statistics.median(a / b for a, b in zip(waiting, meanwhile, strict=True))
        print(
            f"| {case.num_envs} × {case.horizon} | {case.width}-{case.width} | {case.delay} "
            f"| {statistics.median(waiting):.1f} | {statistics.median(meanwhile):.1f} "
            f"| {ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
