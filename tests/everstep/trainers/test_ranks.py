"""A program with a trainer in several processes: each of them calls the same lines."""

from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import DiscreteDummyEnv, Trainer
from everstep.callbacks import Callback
from everstep.core.ranks import current_reducer
from everstep.core.ranks._group import seed_of
from everstep.errors import CheckpointError, ConfigError
from tests.ranks import run_ranks

SIZES: dict[str, Any] = {"num_envs": 4, "horizon": 4, "seed": 1, "track": False}


#: Everything that is reduced, with rollouts of several pieces of random network distillation.
EVERYTHING: dict[str, Any] = {
    **SIZES,
    "num_envs": 64,
    "horizon": 64,
    "sgd_minibatch_size": 1024,
    "num_sgd_iters": 2,
    "normalize_observations": True,
    "normalize_rewards": "running",
    "normalize_values": True,
    "bonuses": [{"rnd": {"pre_normalization_steps": 1}}],
}


class Picky(DiscreteDummyEnv):
    """Its last rank refuses the next state if it was told to."""

    refuses = False

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if Picky.refuses and current_reducer().rank == 1:
            Picky.refuses = False
            raise RuntimeError("this simulator is not that one")
        super().load_state_dict(state)


def weights(trainer: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(trainer.algorithm.policy.model.parameters()).detach()


def program(place: str) -> dict[str, Any]:
    """Save, go on, load and refuse; each step's outcome."""
    rank, root = current_reducer().rank, Path(place)
    found: dict[str, Any] = {}
    with Trainer(Picky, run_dir=root / "run", progress=False, **SIZES) as trainer:
        found["seed"] = torch.initial_seed()
        found["run_dir"] = str(trainer.run_dir)
        trainer.step()
        before, env = weights(trainer), trainer.algorithm.env.state.clone()
        trainer.save_checkpoint()
        trainer.save_checkpoint(root / "named")
        trainer.step()
        after = weights(trainer)
        trainer.load_checkpoint()
        found["run"] = torch.equal(weights(trainer), before)
        found["rows"] = torch.equal(trainer.algorithm.env.state, env)
        trainer.step()
        found["exact"] = torch.equal(weights(trainer), after)
        rows = trainer.algorithm.env.state.clone()
        Picky.refuses = True
        try:
            trainer.load_checkpoint(root / "named")
        except CheckpointError as error:
            found["refused"] = str(error)
        found["kept"] = torch.equal(weights(trainer), after)
        found["kept rows"] = torch.equal(trainer.algorithm.env.state, rows)
        found["continues"] = trainer.algorithm.continues
        try:
            trainer.load_checkpoint(root / "missing")
        except CheckpointError as error:
            found["missing"] = str(error)
        # A rank's request is answered after this train step, before the first one too.
        if rank == 1:
            trainer.callbacks.members += (_Stops(),)
        steps = trainer.state["algorithm/steps"]
        trainer.run(total_env_steps=10_000)
        found["steps"] = trainer.state["algorithm/steps"] - steps
    with Trainer(Picky, run_dir=None, **SIZES) as trainer:
        try:
            trainer.save_checkpoint()
        except ValueError as error:
            found["no directory"] = str(error)
    try:
        Trainer(Picky, run_dir=root / "run", **SIZES)
    except ConfigError as error:
        found["taken"] = str(error)
    return found


class _Stops(Callback):
    """Asks for the end in the first train step."""

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.trainer.stop()


class _Counts(Callback):
    """Collectives before each train step's end."""

    def on_start(self, trainer: Any) -> None:
        super().on_start(trainer)
        self.seen: list[int] = []

    def on_train_step(self, stats: dict[str, Any]) -> None:
        self.seen.append(self.trainer.algorithm.reducer.collectives.count)


def counted() -> list[int]:
    """Collectives of three updates of `run` with everything that is reduced."""
    counts = _Counts()
    with Trainer(DiscreteDummyEnv, run_dir=None, callbacks=[counts], **EVERYTHING) as trainer:
        trainer.run(total_env_steps=4 * 64 * 64)
    return [after - before for before, after in zip(counts.seen, counts.seen[1:], strict=False)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("ranks")
    return run_ranks(2, program, place / "processes", str(place))


pytestmark = pytest.mark.slow


def test_all_ranks_save_and_load_the_runs_checkpoints(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["run"]
        assert found["rows"]
        assert found["exact"]
        assert found["run_dir"] == ranks[0]["run_dir"] != "None"


def test_a_state_that_one_rank_refuses_is_loaded_by_none(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "this simulator is not that one" in found["refused"]
        assert found["kept"]
        assert found["kept rows"]
        assert found["continues"]


def test_errors_of_files_are_raised_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "missing" in found["missing"]
        assert "no `run_dir`" in found["no directory"]
        assert "holds a run already" in found["taken"]


def test_a_rank_ends_the_training_of_all_after_the_train_step(ranks: list[dict[str, Any]]) -> None:
    assert [found["steps"] for found in ranks] == [1, 1]


def test_noise_of_ranks_is_not_that_of_neighbouring_seeds(ranks: list[dict[str, Any]]) -> None:
    seeds = {seed_of(seed, rank) for seed in range(100) for rank in range(20)}
    assert len(seeds) == 2000
    assert [seed_of(seed, 0) for seed in range(3)] == [0, 1, 2]
    assert [found["seed"] for found in ranks] == [1, seed_of(1, 1)]


def test_run_has_seven_collectives_beside_the_optimizer_steps(tmp_path: Path) -> None:
    """Where rollouts are counted in pieces, and with the question whether to stop, too."""
    assert run_ranks(2, counted, tmp_path) == 2 * [[8 + 7] * 3]
