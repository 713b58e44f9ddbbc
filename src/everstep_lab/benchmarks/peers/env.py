"""An environment alone, with random actions: what training on it can come near to."""

from typing import Any

import numpy as np

from ._gymnasium import make_vector_env
from ._serving import Iteration, Stopwatch, serve


class Env:
    """Random actions, drawn beforehand."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.work = work
        self.envs = make_vector_env(work, work["options"].get("vectorization"))
        self.envs.reset(seed=work["seed"])
        space = self.envs.single_action_space
        space.seed(work["seed"])
        num_envs = work["num_envs"]
        self.actions = [np.array([space.sample() for _ in range(num_envs)]) for _ in range(64)]

    def iterate(self) -> Iteration:
        """A rollout without a policy."""
        elapsed = Stopwatch()
        for t in range(self.work["horizon"]):
            self.envs.step(self.actions[t % len(self.actions)])
        return Iteration(self.work["num_envs"] * self.work["horizon"], elapsed(), 0.0)

    def score(self, metric: str) -> None:
        """Nothing learns."""

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()


if __name__ == "__main__":
    serve(Env, ("gymnasium",))
