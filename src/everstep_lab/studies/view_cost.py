"""Processor time of the live view, as a share of a core.

    python -m everstep_lab.studies.view_cost

Prints the cost of a train step's statistics and of a redraw (four a second, at most), on a terminal
of 100 columns whose output is discarded; and their share of the processor time of a training of
CartPole-v1 with the defaults.
"""

import os
import time
from io import StringIO
from typing import Any

import torch
from rich.console import Console

import everstep
from everstep.trainers.progress import ConsoleProgress

STEPS, DRAWS, TRAIN_STEPS, REDRAWS_A_SECOND = 5_000, 200, 15, 4


def main() -> None:
    """Print the costs."""
    torch.set_num_threads(1)
    with everstep.Trainer("CartPole-v1", seed=0, run_dir=None, progress=False) as trainer:
        stats: Any = trainer.step()
        started = time.process_time()
        for _ in range(TRAIN_STEPS):
            stats = trainer.step()
        train_step = (time.process_time() - started) / TRAIN_STEPS
    console = Console(file=StringIO(), force_terminal=True, width=100, height=40)
    progress = ConsoleProgress(10_000_000, console=console, clock=lambda: 0.0, pid=os.getpid())
    started = time.process_time()
    for step in range(STEPS):
        progress.log_metrics(stats, step=1000 * step)
    log = (time.process_time() - started) / STEPS
    started = time.process_time()
    for _ in range(DRAWS):
        progress._show()
    draw = (time.process_time() - started) / DRAWS
    progress.close()
    share = log / train_step + REDRAWS_A_SECOND * draw
    print(f"a train step  {1e3 * train_step:.1f} ms")
    print(f"statistics    {1e6 * log:.0f} µs a train step")
    print(f"a redraw      {1e3 * draw:.2f} ms")
    print(
        f"the view      {share:.2%} of the processor time, with {REDRAWS_A_SECOND} redraws a second"
    )


if __name__ == "__main__":
    main()
