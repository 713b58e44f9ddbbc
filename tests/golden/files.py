"""A checkpoint and a policy's file of a feedforward and of a recurrent training."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from everstep import ContinuousDummyEnv, DiscreteDummyEnv, RecurrentTrainer, Trainer
from everstep.policies import load_policy
from tests.golden.runs import float64, rounded

HERE = Path(__file__).parent / "files"

OPTIONS: dict[str, Any] = {"num_envs": 4, "horizon": 4, "seed": 0, "device": "cpu"}

#: Trainer, environment and options of each kind of training.
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "feedforward": (
        Trainer,
        ContinuousDummyEnv,
        {"model_config": {"hiddens": (4,)}, "normalize_observations": True},
    ),
    "recurrent": (
        RecurrentTrainer,
        DiscreteDummyEnv,
        {"model_config": {"hidden_size": 3}, "seq_len": 2},
    ),
}


def trainer_of(kind: str, run_dir: None | Path = None) -> Any:
    cls, env, options = KINDS[kind]
    return cls(env, run_dir=run_dir, **OPTIONS, **options)


def after(trainer: Any) -> dict[str, float]:
    """Statistics of the next train step."""
    torch.manual_seed(0)
    stats = trainer.step()
    return {k: rounded(x) for k, x in stats.items() if not k.startswith(("profiling/", "memory/"))}


def acted(path: Path) -> list[float]:
    """Actions of a policy's file for some observations."""
    policy: Any = load_policy(path)
    obs = torch.linspace(-2, 2, 5).view(5, 1)
    found = policy.predict(obs.numpy(), deterministic=True)
    actions = found[0] if isinstance(found, tuple) else found
    return [rounded(float(x)) for x in actions.flatten()]


def write() -> None:
    """Keep files of now, and the numbers that follow from them."""
    shutil.rmtree(HERE, ignore_errors=True)
    numbers = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as directory, float64():
            run_dir = Path(directory) / "run"
            trainer = trainer_of(kind, run_dir)
            trainer.step()
            trainer.step()
            trainer.save()
            (newest,) = (run_dir / "checkpoints").iterdir()
            shutil.copytree(newest, HERE / kind / "checkpoint")
            trainer.algorithm.policy.save(HERE / kind / "policy")
            numbers[kind] = {"step": after(trainer), "actions": acted(HERE / kind / "policy")}
            trainer.close()
    (HERE / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n")
