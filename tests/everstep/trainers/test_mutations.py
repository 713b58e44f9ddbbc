"""Changed files of a run are refused, or give what was saved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from everstep import DiscreteDummyEnv, Trainer
from everstep.core.checkpoints import load_file, save_file
from everstep.errors import CheckpointError


@pytest.mark.slow
def test_mutated_files_run_no_code_and_leave_the_trainer_as_it_was() -> None:
    # In a process of its own: an audit hook stays for ever.
    done = subprocess.run(
        [sys.executable, "-m", "tests.everstep.trainers.mutations", "200", "--seed", "1"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "200 of 200" in done.stdout


def test_sizes_that_the_archive_claims_are_compared_with_the_file(tmp_path: Path) -> None:
    save_file(tmp_path / "file", {"x": 1})
    content = bytearray((tmp_path / "file").read_bytes())
    at = content.index(b"PK\x01\x02") + 23  # highest byte of the member's compressed size
    content[at] ^= 0x40
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match="compressed members"):
        load_file(tmp_path / "file")


def test_a_state_without_a_mapping_of_the_algorithm_is_refused() -> None:
    trainer = Trainer(DiscreteDummyEnv, num_envs=2, horizon=4, run_dir=None)
    state = trainer.state_dict()
    with pytest.raises(CheckpointError, match="`algorithm` of a state is a mapping; got Tensor"):
        trainer.load_state_dict({**state, "algorithm": torch.zeros(3)})
