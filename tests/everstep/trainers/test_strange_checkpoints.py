"""Checkpoints with valid checksums whose values no run has written: refused by name."""

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import DiscreteDummyEnv, TrainConfig, Trainer
from everstep.core.checkpoints import load_state, save_state
from everstep.errors import CheckpointError
from everstep.trainers._checkpointing import checkpoints_of

SMALL: dict[str, Any] = {"num_envs": 2, "horizon": 4, "seed": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    config = TrainConfig(DiscreteDummyEnv, total_env_steps=16, **SMALL)
    with config.build(run_dir=run_dir, track=False, progress=False) as trainer:
        trainer.run()
    return run_dir


def of_optimizer(key: str, value: Any) -> Any:
    def change(state: Any) -> None:
        state["algorithm"]["optimizer"]["param_groups"][0][key] = value

    return change


def of_parameter(key: str, value: Any) -> Any:
    def change(state: Any) -> None:
        for kept in state["algorithm"]["optimizer"]["state"].values():
            kept[key] = value
            if value is None:
                del kept[key]

    return change


def of_key(*path: str, value: Any) -> Any:
    def change(state: Any) -> None:
        *places, key = path
        for place in places:
            state = state[place]
        state[key] = value

    return change


CHANGES = {
    "trackers": lambda state: state.update(trackers=()),
    "trackers.0": lambda state: state.update(trackers={"wandb": 3}),
    "best": lambda state: state.update(best="../../x"),
    "best.value": lambda state: state.update(best={"value": "x"}),
    "metrics_size": lambda state: state.update(metrics_size=[]),
    "mlflow_run_id": lambda state: state.update(mlflow_run_id=1.5),
    "maximize": of_optimizer("maximize", b"x"),
    "betas": of_optimizer("betas", (0.9,)),
    "eps": of_optimizer("eps", float("nan")),
    "exp_avg": of_parameter("exp_avg", 1),
    "exp_avg_sq": of_parameter("exp_avg_sq", None),
    "step": of_parameter("step", torch.zeros(3)),
    # What the run's optimizer is not configured with, though its class would take it.
    "maximize.True": of_optimizer("maximize", True),
    "amsgrad.True": of_optimizer("amsgrad", True),
    "weight_decay": of_optimizer("weight_decay", -1),
    "weight_decay.0.1": of_optimizer("weight_decay", 0.1),
    "betas.above 1": of_optimizer("betas", (2.0, 0.999)),
    "lr": of_optimizer("lr", float("nan")),
    "lr.negative": of_optimizer("lr", -1e-3),
    "lr.of 9e18": of_optimizer("lr", 9e18),
    # Numbers that no training has.
    "env_steps": of_key("algorithm", "counters", "env_steps", value=-1),
    "horizons": of_key("algorithm", "counters", "horizons", value=1.5),
    "reward_scale": of_key("algorithm", "counters", "reward_scale", value=float("nan")),
    "buffered": of_key("algorithm", "counters", "buffered", value="yes"),
    "count": of_key("algorithm", "discounted_returns", "count", value=torch.tensor(-1.0)),
    "var": of_key("algorithm", "discounted_returns", "var", value=torch.tensor(float("nan"))),
    "env/steps": of_key("trainer", "env/steps", value=-16),
    "algorithm/steps": of_key("trainer", "algorithm/steps", value="2"),
    "annealed_to": of_key("annealed_to", value=0),
    "evaluated": of_key("evaluated", value=True),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", CHANGES)
def test_values_that_no_run_has_written_are_named(trained: Path, tmp_path: Path, name: str) -> None:
    run_dir = shutil.copytree(trained, tmp_path / "run")
    place, *others = checkpoints_of(run_dir)
    for other in others:
        shutil.rmtree(other)
    state = copy.deepcopy(load_state(place))
    CHANGES[name](state)
    save_state(place, state)
    before = (run_dir / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=name.partition(".")[0]):
        Trainer.load(run_dir, track=False, progress=False)
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def test_flags_of_an_implementation_stay_those_of_this_machine(
    trained: Path, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(trained, tmp_path / "run")
    place = checkpoints_of(run_dir)[0]
    state = copy.deepcopy(load_state(place))
    for flag in ("foreach", "differentiable", "capturable"):
        of_optimizer(flag, True)(state)
    save_state(place, state)
    with Trainer.load(run_dir, track=False, progress=False) as trainer:
        (group,) = trainer.algorithm.optimizer.param_groups
        assert (group["fused"], group["foreach"]) == (True, None)
        assert (group["differentiable"], group["capturable"]) == (False, False)
        trainer.run(additional_env_steps=8)


@pytest.mark.parametrize("name", ["Adafactor", "Adagrad", "NAdam", "Rprop"])
def test_optimizers_of_any_kind_go_on(name: str) -> None:
    """An optimizer may keep tensors of other shapes than the parameter."""
    options = {"run_dir": None, "progress": False, "optimizer_cls": getattr(torch.optim, name)}
    first, second = (Trainer("CartPole-v1", **SMALL, **options) for _ in range(2))
    first.run(total_env_steps=16)
    state = copy.deepcopy(first.state_dict())
    first.run(additional_env_steps=16)
    second.load_state_dict(state)
    second.run(additional_env_steps=16)
    weights = [x.algorithm.policy.model.state_dict() for x in (first, second)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


@pytest.mark.parametrize("where", ["after its lines", "in place of them"])
def test_a_record_that_is_no_file_of_lines_is_named_at_once(
    trained: Path, tmp_path: Path, where: str
) -> None:
    run_dir = shutil.copytree(trained, tmp_path / "run")
    file = run_dir / "metrics.jsonl"
    if where == "in place of them":
        file.write_bytes(b"")
    os.truncate(file, 2**40)  # a hole: it takes no space on the disk
    with pytest.raises(OSError, match="no end of a line in its last 1,048,576 bytes"):
        Trainer.load(run_dir, track=False, progress=False)


def test_a_long_record_is_cut_where_the_checkpoint_was(trained: Path, tmp_path: Path) -> None:
    """Only the byte before that place is read."""
    run_dir = shutil.copytree(trained, tmp_path / "run")
    file = run_dir / "metrics.jsonl"
    lines = file.read_bytes()
    with open(file, "r+b") as record:
        record.seek(2**40)
        record.write(b"\n{}\n")
    Trainer.load(run_dir, track=False, progress=False).close()
    assert file.read_bytes() == lines


@pytest.mark.parametrize("env", ["CartPole-v1", DiscreteDummyEnv, "torchrl:CartPole-v1"])
def test_a_state_from_before_the_first_reset_can_be_loaded(env: Any) -> None:
    trainer = Trainer(env, run_dir=None, progress=False, **SMALL)
    state = copy.deepcopy(trainer.state_dict())
    steps = []
    for _ in range(2):
        trainer.load_state_dict(copy.deepcopy(state))
        trainer.run(total_env_steps=16)
        steps.append(trainer.state["env/steps"])
    assert steps[0] == steps[1]
