"""Threads of PyTorch in a training from Python: one for small networks, or as the program says."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
{before}
import everstep
from everstep.callbacks import Callback
class Seen(Callback):
    def on_train_step(self, stats): self.threads = torch.get_num_threads()
start = torch.get_num_threads()
seen = Seen()
sizes = dict(num_envs=2, horizon=8, run_dir=None, progress=False, device="cpu")
trainer = everstep.Trainer(everstep.DiscreteDummyEnv, callbacks=[seen], {options} **sizes)
trainer.run(total_env_steps=16)
trainer.run(total_env_steps=32)
print(start, seen.threads, torch.get_num_threads())
"""

LARGE = "model_config={'hiddens': [2048, 2048]}, num_sgd_iters=1,"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "options", "variables", "threads"),
    [
        ("", "", {}, 1),
        ("torch.set_num_threads(3)", "", {}, 3),
        ("", "", {"OMP_NUM_THREADS": "2"}, 2),
        ("", LARGE, {}, None),
    ],
    ids=["small", "chosen in the program", "chosen outside", "large"],
)
def test_a_small_network_takes_one_thread_unless_the_program_has_chosen(
    before: str, options: str, variables: dict[str, str], threads: None | int
) -> None:
    environ = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)} | variables
    script = SCRIPT.format(before=before, options=options)
    run = [sys.executable, "-c", script]
    out = subprocess.run(run, env=environ, check=True, capture_output=True, text=True).stdout
    start, during, after = map(int, out.split())
    assert during == (start if threads is None else threads)
    assert after == start
