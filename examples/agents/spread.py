"""Cooperation of three agents: simple_spread with one policy for all, one for each, and MAPPO.

`python examples/agents/spread.py ippo 1` trains with seed 1 and prints the mean return of an agent,
in 300 episodes of agents.
"""

import sys
from typing import Any

import everstep

SPREAD = "pettingzoo:mpe2.simple_spread_v3"

VARIANTS: dict[str, dict[str, Any]] = {
    "shared": {},
    "ippo": {"policies": "agent"},
    "mappo": {"env_kwargs": {"all_agents": True}},
}


def train(variant: str, seed: int, total_env_steps: int = 300_000) -> float:
    """The mean return of the policies after a training."""
    options = VARIANTS[variant]
    with everstep.Trainer(
        SPREAD,
        **options,
        num_envs=96,
        horizon=25,
        seed=seed,
        lr_schedule="linear",
        num_sgd_iters=10,
        run_dir=None,
        eval_env=everstep.make(SPREAD, 96, **options.get("env_kwargs", {})),
    ) as trainer:
        trainer.run(total_env_steps=total_env_steps)
        return float(trainer.eval(episodes=300)["eval/episodes/return_mean"])


if __name__ == "__main__":
    print(f"{train(sys.argv[1], int(sys.argv[2])):.1f}")
