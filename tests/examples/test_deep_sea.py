"""DeepSea: its returns by hand, and that both files of it train."""

import sys
from pathlib import Path

import pytest
import torch

from everstep import TrainConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize(("goes_right", "expected"), [(True, 0.99), (False, 0.0)])
def test_the_treasure_is_on_the_right(goes_right: bool, expected: float) -> None:
    from examples.deep_sea import DeepSea

    env = DeepSea(3, size=7)
    obs = env.reset()
    for _ in range(2):  # dives follow each other without a reset
        total = torch.zeros(3, 1)
        for t in range(7):
            assert obs.sum(-1).eq(1).all()
            cell = int(obs[0].argmax())
            means_right = env.rightwards[cell // 7, cell % 7]
            action = means_right if goes_right else 1 - means_right
            row = env.step(action.expand(3, 1))
            obs, total = row["obs"], total + row["rewards"]
            assert row["terminated"].all() == (t == 6)
        torch.testing.assert_close(total, torch.full((3, 1), expected))


@pytest.mark.parametrize("name", ["rnd", "ppo"])
def test_files_train(name: str) -> None:
    config = TrainConfig.from_file(ROOT / "examples" / "deep_sea" / f"{name}.yaml")
    trainer = config.build(run_dir=None)
    stats = trainer.step()
    assert ("losses/rnd" in stats) == (name == "rnd")
    assert "examples.deep_sea" in sys.modules
