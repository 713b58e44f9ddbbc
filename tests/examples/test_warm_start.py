"""`examples/warm_start`: a clone of recorded behaviour, and PPO that begins with it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minari")
pytest.importorskip("h5py")


@pytest.mark.filterwarnings("ignore")  # Minari asks for metadata that a local dataset needs not
def test_a_clone_solves_what_random_actions_seldom_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari
    from examples.warm_start import cloning

    from everstep import Trainer, make

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    cloning.record(episodes=5)
    dataset = minari.load_dataset(cloning.OWN)
    obs, actions = cloning.pairs_of(dataset)
    assert obs.shape == (len(actions), 2)
    assert actions.shape == (dataset.total_steps, 1)
    options: dict[str, Any] = {"run_dir": None, "progress": False, "eval_env": make(cloning.ENV, 8)}
    with Trainer(cloning.ENV, seed=0, critic_warmup=2048, **options) as trainer:
        untrained = cloning.mean_return(trainer)
        cloning.clone(trainer.algorithm.policy, obs, actions)
        assert cloning.mean_return(trainer) > 80 > untrained
        trainer.step()  # while `critic_warmup` lasts, the policy stays that of the clone
        assert cloning.mean_return(trainer) > 80
