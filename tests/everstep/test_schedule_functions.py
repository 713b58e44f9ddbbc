"""Schedules that are functions of the fraction of the budget that is left."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everstep import AlgorithmConfig, DiscreteDummyEnv, TrainConfig, Trainer
from everstep.config import load
from everstep.errors import ConfigError
from everstep.schedulers import ClipScheduler, EntropyScheduler, FunctionScheduler, LRScheduler
from everstep.trainers._trust import foreign_names

SMALL: dict[str, Any] = {"num_envs": 8, "horizon": 8, "progress": False}
VALUES = ("lr", "clip_param", "entropy_coeff")


# ---- values -----------------------------------------------------------------------------------


def test_functions_are_of_the_fraction_that_is_left() -> None:
    """f(1 - n/N) after n of N env steps; f(1) without a budget, f(0) from its end on."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)

    def curve(left: float) -> float:
        return 0.1 + 0.2 * left**2

    schedulers = (
        LRScheduler(optimizer, schedule=curve),
        ClipScheduler(0.7, schedule=curve),
        EntropyScheduler(0.7, schedule=curve),
    )
    for scheduler in schedulers:
        assert scheduler.step(50) == pytest.approx(0.3)
        scheduler.anneal(200)
        assert [scheduler.step(n) for n in (0, 50, 100, 200, 300)] == pytest.approx(
            [0.3, 0.2125, 0.15, 0.1, 0.1]
        )
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("suffix", ["", "_schedule"])
def test_a_training_follows_functions(suffix: str) -> None:
    functions: dict[str, Any] = {
        f"lr{suffix}": lambda left: 1e-3 * left,
        f"clip_param{suffix}": lambda left: 0.1 + 0.1 * left,
        f"entropy_coeff{suffix}": lambda left: 0.01 * (left > 0.6),
    }
    trainer = Trainer(DiscreteDummyEnv, **SMALL, **functions, run_dir=None)
    seen = []
    for update in range(4):
        if not update:
            trainer.algorithm.anneal(256)
        stats = trainer.step()
        seen.append([stats[f"coefficients/{x}"] for x in ("lr", "clip_param", "entropy")])  # type: ignore[literal-required]
    assert seen == [
        pytest.approx([1e-3, 0.2, 0.01]),
        pytest.approx([0.75e-3, 0.175, 0.01]),
        pytest.approx([0.5e-3, 0.15, 0.0]),
        pytest.approx([0.25e-3, 0.125, 0.0]),
    ]
    algorithm = trainer.algorithm
    assert float(algorithm.objective.clip_param) == pytest.approx(0.1)  # type: ignore[attr-defined]
    assert algorithm.schedule_end == 256  # the rate is 0 there, as with "linear"


def test_a_function_is_what_linear_is() -> None:
    """`lr=lambda left: x * left` trains as `lr=x, lr_schedule="linear"` does."""
    weights = []
    for options in ({"lr": 1e-3, "lr_schedule": "linear"}, {"lr": lambda left: 1e-3 * left}):
        trainer = Trainer(DiscreteDummyEnv, **SMALL, **options, seed=3, run_dir=None)
        trainer.run(total_env_steps=256)
        assert trainer.algorithm.general_way is None  # functions go the fused way
        weights.append(
            torch.cat([x.flatten() for x in trainer.algorithm.policy.model.parameters()])
        )
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


def test_a_function_can_be_given_while_training() -> None:
    trainer = Trainer(DiscreteDummyEnv, **SMALL, lr=1e-3, run_dir=None)
    algorithm = trainer.algorithm
    algorithm.anneal(256)
    trainer.step()
    algorithm.update_algorithm_parameter("lr", lambda left: 2e-3 * left)
    algorithm.update_algorithm_parameter("entropy_coef", lambda left: 0.1 * left)
    algorithm.update_algorithm_parameter("clip_param_schedule", lambda left: 0.4 * left)
    stats = trainer.step()
    found = [stats[f"coefficients/{x}"] for x in ("lr", "clip_param", "entropy")]  # type: ignore[literal-required]
    assert found == pytest.approx([1.5e-3, 0.3, 0.075])
    with pytest.raises(ConfigError, match=r"`lr` is set by `lr_schedule`"):
        algorithm.update_algorithm_parameter("lr", 1e-4)
    algorithm.update_algorithm_parameter("gamma", 0.9)  # another parameter
    assert algorithm.lr_scheduler.coeff == pytest.approx(1e-3)


# ---- what functions return --------------------------------------------------------------------

BAD: dict[str, tuple[Any, str]] = {
    "nothing": (lambda left: None, "returned None with 1 of"),
    "text": (lambda left: "3e-4", "returned '3e-4' with 1 of"),
    "a bool": (lambda left: True, "returned True with 1 of"),
    "NaN": (lambda left: math.nan, "returned nan with 1 of"),
    "infinity": (lambda left: math.inf, "returned inf with 1 of"),
    "less than 0": (lambda left: left - 0.7, r"returned -0\.19\d* with 0\.5 of"),
    "an error at the end": (lambda left: 1e-4 / left, "raised ZeroDivisionError: .* with 0 of"),
    "two arguments": (lambda left, steps: 0.1, "must be a function of one number"),
    "a vector": (lambda left: np.ones(2), "returned array"),
    "a class": (torch.optim.Adam, r"must be a function of one number.* got torch\.optim"),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("bad", BAD)
def test_bad_values_of_functions_are_named(bad: str, name: str) -> None:
    function, message = BAD[bad]
    with pytest.raises(ConfigError, match=message) as caught:
        AlgorithmConfig(**{name: function}).validate()
    assert f"`{name}_schedule` (or `{name}`)" in str(caught.value)
    assert "must be a function" in message or "must return a number from 0" in str(caught.value)
    if function is not torch.optim.Adam:
        assert Path(__file__).name in str(caught.value)


def test_clip_param_is_at_most_1() -> None:
    with pytest.raises(ConfigError, match=r"returned 2 with 1 of the budget left.* from 0 to 1 "):
        AlgorithmConfig(clip_param=lambda left: 2).validate()


def test_numbers_of_other_libraries_are_numbers() -> None:
    for one in (np.float32(0.25), np.array(0.25), torch.tensor(0.25)):
        assert FunctionScheduler("lr", lambda left, x=one: x, 10).step(3) == 0.25  # type: ignore[misc]


def test_an_error_while_training_names_the_function() -> None:
    """One that fails only at a fraction that was not tried before."""

    def moody(left: float) -> float:
        return 0.1 if left in (0.0, 0.5, 1.0) else math.nan

    trainer = Trainer(DiscreteDummyEnv, **SMALL, lr=moody, run_dir=None)
    with pytest.raises(ConfigError, match=r"moody.* returned nan with 0\.75"):
        trainer.run(total_env_steps=256)


def test_what_would_have_no_effect_is_refused_or_said(caplog: pytest.LogCaptureFixture) -> None:
    def function(left: float) -> float:
        return 1e-3 * left

    with pytest.raises(ConfigError, match="`lr` is a function, and `lr_schedule` is set too"):
        AlgorithmConfig(lr=function, lr_schedule="linear").validate()
    with pytest.raises(ConfigError, match="adaptive"):
        AlgorithmConfig(lr=function, lr_schedule_kind="adaptive", target_kl_div=0.1).validate()
    with pytest.raises(ConfigError, match="lr_pi"):
        AlgorithmConfig(lr=function, optimizer_config={"lr_pi": 1e-3}).validate()
    Trainer(DiscreteDummyEnv, **SMALL, lr=1e-3, lr_schedule=function, run_dir=None)
    assert "`lr` has no effect: `lr_schedule` replaces it" in caplog.text
    config = AlgorithmConfig(lr=function).validate()
    assert config.lr is None
    assert config.lr_schedule is function
    assert replace(config, gamma=0.5).validate().lr_schedule is function


# ---- files ------------------------------------------------------------------------------------

MODULE = """\
def falling(left):
    return 1e-3 * left


def wrong(left):
    return -1.0


def of_gradients(left):
    return 0.1 * left


NUMBER = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's with schedules."""
    (tmp_path / "my_schedules.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_schedules", raising=False)
    return "my_schedules"


def written(tmp_path: Path, **keys: Any) -> Path:
    path = tmp_path / "train.yaml"
    lines = ["env_cls: everstep.DiscreteDummyEnv", "num_envs: 8", "horizon: 8"]
    path.write_text("\n".join([*lines, *(f"{k}: {x}" for k, x in keys.items())]) + "\n")
    return path


@pytest.mark.slow
def test_a_file_names_functions(tmp_path: Path, module: str) -> None:
    """Reading imports nothing; the record names them; a run goes on as if it never stopped."""
    keys = {"lr": f"{module}.falling", "clip_param_schedule": f"{module}.of_gradients", "seed": 1}
    path = written(tmp_path, **keys, total_env_steps=256)
    document = load(path)
    assert module not in sys.modules
    assert document.values["lr"] == f"{module}.falling"
    assert [key for key, _ in foreign_names(document)] == ["lr", "clip_param_schedule"]
    config = TrainConfig.from_file(path)
    assert config.to_dict()["lr"] == f"{module}.falling"
    whole = config.build(run_dir=tmp_path / "whole", track=False, progress=False)
    whole.run()
    record = (tmp_path / "whole" / "config.yaml").read_text()
    assert f"lr_schedule: {module}.falling" in record
    assert "cannot repeat" not in record
    again = TrainConfig.from_file(tmp_path / "whole" / "config.yaml", ["seed=2"])
    assert again.lr_schedule is sys.modules[module].falling

    parts = config.build(run_dir=tmp_path / "parts", track=False, progress=False)
    parts.algorithm.anneal(256)
    parts.step()
    parts.save()
    parts.close()
    resumed = Trainer.load(tmp_path / "parts", progress=False)
    assert resumed.algorithm.lr_scheduler.coeff == pytest.approx(0.75e-3)
    assert resumed.algorithm.annealed_to == 256
    assert resumed.step()["coefficients/lr"] == pytest.approx(0.75e-3)
    resumed.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_schedules.missing", r"lr: .*has no 'missing'"),
        ("my_schedules.NUMBER", "lr: expected a function, of a module of your own"),
        ("my_schedules.wrong", r"lr: .*my_schedules\.wrong, which returned -1\.0"),
        ("os.system", "lr: a file cannot name what is in Python's standard library"),
        ("torch.relu", "lr: expected a function, of a module of your own"),
        ("torch.optim.Adam", "lr: expected a function, of a module of your own"),
        ("'__main__.<lambda> (train.py:3)'", r"lr: the function .*train\.py:3.* in the program"),
        ("fast", "lr: expected float >= 0 or a function .*got 'fast'"),
    ],
)
def test_what_a_file_cannot_name(name: str, message: str, tmp_path: Path, module: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.yaml:4: {message}"):
        TrainConfig.from_file(written(tmp_path, lr=name))


def test_a_lambda_is_trained_with_and_the_record_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options: dict[str, Any] = {**SMALL, "run_dir": run_dir, "track": False, "seed": 1}
    with Trainer(DiscreteDummyEnv, **options, lr=lambda left: 1e-3 * left) as trainer:
        trainer.run(total_env_steps=128)
    record = (run_dir / "config.yaml").read_text()
    assert "exists in the program only, so this file cannot repeat: lr_schedule" in record
    line = Path(__file__).read_text().split("left: 1e-3 * left) as trainer")[0].count("\n") + 1
    assert f"<lambda> ({__file__}:{line})" in record.replace("\n ", "")
    with pytest.raises(ConfigError, match=r"lr_schedule: the function .* in the program only"):
        Trainer.load(run_dir)
    with Trainer(DiscreteDummyEnv, **options, lr=lambda left: 1e-3 * left, resume=True) as resumed:
        resumed.run(total_env_steps=256)
        assert resumed.algorithm.state.env_steps == 256
