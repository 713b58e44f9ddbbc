"""Trainings that go on in a new process: `python -m tests.everstep.trainers.exactness`.

k train steps, a checkpoint, a new process and `AFTER` more must equal k + `AFTER`: all weights, and
all statistics of each, bit for bit. Prints a table of algorithms and environments. `--real N` cells
use new interpreters, the others forks of a process that has imported everything and has no thread.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from everstep import DiscreteDummyEnv, RecurrentTrainer, Trainer, make
from everstep.core.checkpoints import load_state
from everstep.models import Model
from everstep.nn import PositionalEmbedding, SelfAttention, SelfAttentionStack
from everstep.views import ViewRequirement
from everstep_adapters.isaacgym import IsaacGymEnv

#: Train steps before the checkpoint.
BEFORE = (1, 2, 7, 50)

#: Train steps after it.
AFTER = 3

PAST = 3


class Windowed(Model):
    """A transformer over a window of observations."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.view_requirements["obs"] = ViewRequirement(shift=PAST)
        self.embedding = nn.Linear(observation_spec.shape[-1], 8)
        self.places = PositionalEmbedding(8, PAST + 1)
        self.attention = SelfAttentionStack(SelfAttention(8, num_heads=2, hidden_dim=8), 1)
        self.discrete = not action_spec.dtype.is_floating_point
        size = action_spec.space.n if self.discrete else 2 * action_spec.shape[-1]
        self.actions, self.values = nn.Linear(8, size), nn.Linear(8, 1)
        self.out: Any = None

    def forward(self, batch: TensorDict, /) -> dict[str, torch.Tensor]:
        window = batch["obs"]
        x = self.places(self.embedding(window["inputs"].float()))
        self.out = self.attention(x, key_padding_mask=window["padding_mask"])[:, -1]
        features = self.actions(self.out)
        if self.discrete:
            return {"logits": features.unsqueeze(-2)}
        mean, log_std = features.chunk(2, -1)
        return {"mean": mean, "log_std": log_std.tanh()}

    def value_function(self) -> torch.Tensor:
        return self.values(self.out)


def _task() -> Any:
    from tests.everstep_adapters.isaacgym.test_isaacgym_states import SCRIPTS, offering

    return IsaacGymEnv(offering("A")(SCRIPTS), 8)


def _torchrl() -> Any:
    name = "torchrl:torchrl.envs.custom.PendulumEnv"
    return make(name, 3, horizon=8, max_episode_steps=20, observation_keys=["th"])


ENVIRONMENTS: dict[str, Any] = {
    "PyTorch": lambda: DiscreteDummyEnv(3, horizon=8),
    "Gymnasium CartPole": lambda: make("gymnasium:CartPole-v1", 3, horizon=8),
    "Gymnasium MuJoCo": lambda: make("gymnasium:Hopper-v5", 3, horizon=8),
    "TorchRL": _torchrl,
    "IsaacGym style": _task,
}

#: Options of the trainer.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "PPO, feedforward": {"model_config": {"hiddens": [8]}},
    "PPO, LSTM": {},
    "PPO, windowed transformer": {"model_cls": Windowed},
    "A2C": {"model_config": {"hiddens": [8]}, "objective": "a2c"},
    "PPO, RND": {"model_config": {"hiddens": [8]}, "bonuses": [{"rnd": {}}]},
}


def trainer_of(algorithm: str, environment: str) -> Any:
    """A new trainer."""
    kind = RecurrentTrainer if "LSTM" in algorithm else Trainer
    options = {"horizon": 8, "horizons_per_env_reset": -1, "seed": 0, "run_dir": None}
    return kind(ENVIRONMENTS[environment](), **options, **ALGORITHMS[algorithm])


def digest(trainer: Any, stats: dict[str, Any]) -> str:
    """A hash of all weights, and of the statistics that do not depend on the clock."""
    machine = ("profiling/", "memory/", "time")
    numbers = {k: v for k, v in stats.items() if not k.startswith(machine)}
    found = hashlib.sha256(repr(sorted(numbers.items())).encode())
    for x in trainer.algorithm.policy.model.state_dict().values():
        found.update(x.numpy().tobytes())
    return found.hexdigest()


def whole(place: Path, algorithm: str, environment: str) -> None:
    """Train without a break; write checkpoints, and the digest of each train step."""
    trainer = trainer_of(algorithm, environment)
    digests = []
    for k in range(1, BEFORE[-1] + AFTER + 1):
        digests.append(digest(trainer, trainer.step()))
        if k in BEFORE:
            trainer.save_checkpoint(place / str(k))
    (place / "digests.json").write_text(json.dumps(digests))


def rest(place: Path, algorithm: str, environment: str, k: int) -> None:
    """Go on from a checkpoint; write whether all was equal."""
    trainer = trainer_of(algorithm, environment)
    trainer.load_state_dict(load_state(place / str(k)))
    found = [digest(trainer, trainer.step()) for _ in range(AFTER)]
    expected = json.loads((place / "digests.json").read_text())[k : k + AFTER]
    answer = "equal" if found == expected else "reset"
    if answer == "reset" and trainer.algorithm.continues is True and expected:
        answer = "differs"
    (place / f"{k}.txt").write_text(answer)


def in_process(function: Any, *arguments: Any, real: bool = False) -> None:
    """Call a function in a new process: a fork, or an interpreter."""
    if real:
        words = [function.__name__, *map(str, arguments)]
        subprocess.run([sys.executable, "-m", __spec__.name, "--call", *words], check=True)
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.manual_seed(0)
            function(*arguments)
            code = 0
        except BaseException as error:
            print(f"{arguments}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, arguments


def cell(algorithm: str, environment: str, *, before: Sequence[int] = BEFORE, real: int = 0) -> str:
    """The result of one algorithm in one environment."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        in_process(whole, place, algorithm, environment, real=real > 0)
        for k in before:
            in_process(rest, place, algorithm, environment, k, real=real > 0)
        answers = {k: (place / f"{k}.txt").read_text() for k in before}
    wrong = [f"{k}: {answer}" for k, answer in answers.items() if answer != "equal"]
    return ", ".join(wrong) or "equal"


def table(real: int = 0, only: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Results by environment and algorithm."""
    found: dict[str, dict[str, str]] = {}
    for environment in only or ENVIRONMENTS:
        if "MuJoCo" in environment and importlib.util.find_spec("mujoco") is None:
            continue
        for algorithm in ALGORITHMS:
            result = cell(algorithm, environment, real=real)
            real -= 1
            found.setdefault(environment, {})[algorithm] = result
            print(f"{environment:20} {algorithm:28} {result}", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=0, help="how many cells are new interpreters")
    parser.add_argument("--only", nargs="+", default=(), choices=ENVIRONMENTS)
    parser.add_argument("--call", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.call:
        name, place, *words = given.call
        arguments = [int(word) if word.isdigit() else word for word in words]
        {"whole": whole, "rest": rest}[name](Path(place), *arguments)
    else:
        results = table(given.real, given.only)
        equal = sum(x == "equal" for row in results.values() for x in row.values())
        print(f"{equal} of {sum(map(len, results.values()))} equal at k in {BEFORE}")
