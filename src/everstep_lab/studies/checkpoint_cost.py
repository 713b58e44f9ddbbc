"""Processor time of a checkpoint: `python -m everstep_lab.studies.checkpoint_cost`.

Trains CartPole-v1 with the defaults, with a checkpoint after each train step and without, in turn.
The thread that writes is part of the time, waiting for the disk is not.
"""

import tempfile
import time
from typing import Any

from everstep import Trainer

TRAIN_STEPS = 15


def seconds(checkpoint_every: Any) -> float:
    """Processor time of some train steps."""
    with tempfile.TemporaryDirectory() as place:
        options: dict[str, Any] = {
            "run_dir": f"{place}/run",
            "seed": 0,
            "track": False,
            "progress": False,
        }
        with Trainer("CartPole-v1", checkpoint_every=checkpoint_every, **options) as trainer:
            stats = trainer.run(total_env_steps=1)
            began = time.process_time()
            trainer.run(total_env_steps=(TRAIN_STEPS + 1) * stats["env/steps"])
            return time.process_time() - began


if __name__ == "__main__":
    pairs = [(seconds("end"), seconds(1)) for _ in range(3)]
    without, each = (min(times) / TRAIN_STEPS for times in zip(*pairs, strict=True))
    print(f"{1e3 * without:.0f} ms a train step, {1e3 * (each - without):.0f} ms a checkpoint")
