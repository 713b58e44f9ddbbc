"""Bonuses of one's own: in files, and what they may not return."""

from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep import AlgorithmConfig, DiscreteDummyEnv
from everstep.__main__ import main
from everstep.bonuses import Bonus, Stream
from everstep.core.rollouts import Minibatch, Rollout
from everstep.errors import ConfigError, NonFiniteError

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 4, "seed": 0, "num_sgd_iters": 1}


class Constant(Bonus):
    """One for every transition; it counts its calls of `prepare`."""

    name = "constant"

    def __init__(self, value: float = 1.0, weight: float = 0.5) -> None:
        super().__init__()
        self.value, self.prepared = value, 0
        self.options = {"value": value, "weight": weight}
        self.stream = Stream(0.9, weight)

    def build(self, *arguments: Any) -> None:
        """Nothing is built."""

    def prepare(self, env: Any) -> bool:
        self.prepared += 1
        return False

    def rewards(self, rollout: Rollout) -> torch.Tensor:
        return torch.full(rollout.valid.shape, self.value)

    def losses(self, minibatch: Minibatch) -> torch.Tensor:
        return torch.zeros(())


NAME = f"{__name__}.Constant"


def made(bonus: Any) -> Any:
    return AlgorithmConfig(**SMALL, bonuses=[bonus]).build(DiscreteDummyEnv)


@pytest.mark.slow
@pytest.mark.parametrize("named", [NAME, Constant])
def test_a_run_with_a_class_is_resumed_and_repeated(tmp_path: Path, named: Any) -> None:
    """Its name in `config.yaml` is the one that files have."""
    bonuses: Any = [{named: {"value": 0.5}}]
    if isinstance(named, str):
        file = tmp_path / "train.yaml"
        file.write_text(
            f"env_cls: everstep.DiscreteDummyEnv\nnum_envs: 4\nhorizon: 4\n"
            f"bonuses: [{{{named}: {{value: 0.5}}}}]\ntotal_env_steps: 32\n"
        )
        words = ["train", "-f", str(file), "--run-dir", str(tmp_path / "run"), "--no-mlflow"]
        assert main(words) == 0
    else:
        options = {"run_dir": tmp_path / "run", "track": False, "progress": False}
        with everstep.Trainer(DiscreteDummyEnv, bonuses=bonuses, **SMALL, **options) as trainer:
            trainer.run(total_env_steps=32)
    text = (tmp_path / "run/config.yaml").read_text()
    assert f"{NAME}:" in text
    assert "<class" not in text
    assert main(["resume", str(tmp_path / "run"), "--steps", "64", "--no-mlflow"]) == 0
    again = ["train", "-f", str(tmp_path / "run/config.yaml"), "--no-mlflow"]
    assert main([*again, "--run-dir", str(tmp_path / "again")]) == 0


def test_an_option_that_it_does_not_have_names_the_class() -> None:
    with pytest.raises(ConfigError, match=rf"`bonuses` {NAME}: .*wight"):
        made({Constant: {"wight": 1}})


def test_it_is_prepared_once_also_after_a_checkpoint_from_before_the_first_rollout() -> None:
    first, second, third = (made(Constant()) for _ in range(3))
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.collect()
        second.step()
    assert second.bonuses[0].prepared == 1
    third.load_state_dict(second.state_dict())
    third.collect()
    assert third.bonuses[0].prepared == 0


def test_rewards_that_are_not_finite_are_those_of_the_bonus() -> None:
    algorithm = made(Constant(float("inf")))
    with pytest.raises(NonFiniteError, match="Rewards of the bonus `constant` are not finite"):
        algorithm.collect()


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("rewards", lambda rollout: torch.ones(4, 4), r"must be \[4, 4, 1\]; got \[4, 4\]"),
        ("rewards", lambda rollout: 1.0, r"must be \[4, 4, 1\]; got 1.0"),
        ("losses", lambda minibatch: torch.ones(3), "`losses` of the bonus `constant`"),
        ("losses", lambda minibatch: None, "`losses` of the bonus `constant`"),
    ],
)
def test_what_has_another_shape_is_refused(attribute: str, value: Any, says: str) -> None:
    bonus = Constant()
    setattr(bonus, attribute, value)
    trainer = everstep.Trainer(made(bonus), run_dir=None, progress=False)
    with pytest.raises(ConfigError, match=says):
        trainer.step()


def test_a_bonus_without_a_stream_is_refused() -> None:
    bonus = Constant()
    del bonus.stream
    with pytest.raises(ConfigError, match="Constant has no `stream`"):
        made(bonus)
