"""Operations and launches of a rollout and an update on a GPU, counted without one.

    python -m tests.device

Three usual shapes, with fewer environments: operations are as many with any number of them, as long
as a rollout is worked on in one piece.
"""

import logging
from typing import Any

import torch

import everstep
from everstep import AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv
from tests.device.installed import installed, unavailable
from tests.device.machine import Counts

SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "rl8's default: 32 vector steps, 256-256, 4 x 1 steps": (
        DiscreteDummyEnv,
        {"horizon": 32, "num_sgd_iters": 4, "model_config": {"hiddens": (256, 256)}},
    ),
    "Isaac's usual: 24 vector steps, 512-256-128, 5 x 4 steps": (
        ContinuousDummyEnv,
        {
            "horizon": 24,
            "num_sgd_iters": 5,
            "sgd_minibatch_size": 96,
            "model_config": {"hiddens": (512, 256, 128), "activation_fn": "elu"},
        },
    ),
    "CartPole of Gymnasium: 128 vector steps, 64-64, 4 x 4 steps": (
        everstep.factory("gymnasium:CartPole-v1"),
        {
            "horizon": 128,
            "num_sgd_iters": 4,
            "sgd_minibatch_size": 512,
            "model_config": {"hiddens": (64, 64), "activation_fn": "tanh"},
        },
    ),
}


def count(env: Any, **options: Any) -> list[Counts]:
    """Counts of the last rollout and the last update of a training of a few."""
    with installed() as machine:
        algorithm = AlgorithmConfig(num_envs=16, seed=0, device="cuda", **options).build(env)
        for _ in range(3 if options["cuda_graphs"] else 2):
            found = []
            for work in (algorithm.collect, algorithm.step):
                machine.counts = Counts()
                work()
                found.append(machine.counts)
        algorithm.env.close() if hasattr(algorithm.env, "close") else None
    return found


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if (reason := unavailable()) is not None:
        raise SystemExit(reason)
    for name, (env, options) in SHAPES.items():
        print(name)
        for graphs in (False, True):
            rollout, update = count(env, cuda_graphs=graphs, **options)
            for what, counts in (("rollout", rollout), ("update", update)):
                print(
                    f"  {'recorded' if graphs else 'eager':<9}{what:<8}"
                    f"{counts.kernels.total():>7,} operations {counts.launches:>6,} launches "
                    f"{counts.syncs.total():>4} waits"
                )


if __name__ == "__main__":
    main()
