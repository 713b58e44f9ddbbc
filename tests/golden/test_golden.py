"""Trainings compute, and files and names are, what they were; see `tests.golden.runs`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden import files, names, runs
from tests.golden.__main__ import compare
from tests.ranks import run_ranks

KEPT: Any = json.loads((Path(__file__).parent / "runs.json").read_text())

#: Trainings whose updates are native where there is a library.
NATIVE = (
    *("feedforward", "continuous", "a2c", "rnd", "kl stop", "adaptive rate", "accumulated"),
    *("chunks", "schedules"),
)

#: Trainings whose recurrent layers are.
RECURRENT = ("lstm", "gru", "chunks of sequences")


@pytest.fixture(scope="module")
def same_draws() -> None:
    """Skip where random numbers or random weights are others, as with another PyTorch or MKL."""
    if [*runs.differences(KEPT["draws"], runs.draws())]:
        pytest.skip("other random numbers than those that the numbers were computed with")


@pytest.mark.few(10)
@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("way", runs.WAYS)
@pytest.mark.parametrize("name", runs.RUNS)
def test_a_training_computes_what_it_did(name: str, way: str) -> None:
    if (kept := KEPT["runs"][name].get(way)) is None:
        pytest.skip("its work is not recorded")
    assert [*runs.differences(kept, runs.train(name, way == "tape"))] == []


@pytest.mark.few(3)
@pytest.mark.usefixtures("same_draws", "native")
@pytest.mark.parametrize("name", NATIVE + RECURRENT)
def test_the_native_way_computes_what_the_general_way_did(name: str) -> None:
    with runs.float64(natively=True):
        algorithm = runs.built(name, recorded=False)
        algorithm.collect()
        algorithm.step()
        assert (algorithm._fast is None) == (name in RECURRENT)
    kept = KEPT["runs"][name]["eager"]
    assert [*runs.differences(kept, runs.train(name, False, natively=True))] == []


@pytest.mark.usefixtures("same_draws")
@pytest.mark.slow
def test_two_ranks_compute_what_they_did(tmp_path: Path) -> None:
    first, _ = run_ranks(2, runs.train_on_ranks, tmp_path)
    for name in runs.RANKS:
        kept = KEPT["runs"][f"{name} on two ranks"]
        assert [*runs.differences(kept, first[name])] == []


@pytest.mark.usefixtures("same_draws", "native")
@pytest.mark.slow
def test_two_ranks_compute_natively_what_they_did(tmp_path: Path) -> None:
    first, _ = run_ranks(2, runs.train_on_ranks_natively, tmp_path)
    kept = KEPT["runs"]["feedforward on two ranks"]["eager"]
    assert [*runs.differences(kept, first["feedforward"])] == []
    assert kept["digest"] != first["feedforward"]["digest"]  # rounded otherwise


def test_the_comparison_sees_a_digit_and_a_lost_statistic() -> None:
    kept = {"a": {"x": 1.0, "digest": "1"}, "weights": [0.5]}
    assert not [*runs.differences(kept, {"a": {"x": 1.0 + 1e-12, "digest": "2"}, "weights": [0.5]})]
    assert [*runs.differences(kept, {"a": {"x": 1.0 + 1e-7}, "weights": [0.5]})]
    assert [*runs.differences(kept, {"a": {}, "weights": [0.5]})]
    assert [*runs.differences(kept, {"a": {"x": 1.0, "y": 2.0}, "weights": [0.5]})]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({}, 0, "0 of 2 digests"),
        ({"digest": "2"}, 1, "not bit for bit: a, eager: state"),
        ({"x": 1.0 + 1e-10}, 1, "more than 1e-12: /a/eager/x"),
        ({"machine": "B", "digest": "2", "x": 1.0 + 1e-10}, 0, "They are of A; this is B"),
        ({"machine": "B", "x": 1.0 + 1e-7}, 1, "more than 1e-9: /a/eager/x"),
        ({"machine": "B", "draws": [0.1]}, 2, "random numbers of B are not A's"),
    ],
)
def test_another_machine_is_compared_within_its_rounding(
    change: dict[str, Any], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(machine: str = "A", draws: Any = (0.2,), digest: str = "1", x: float = 1.0) -> Any:
        way = {"digest": {"state": digest}, "x": x}
        return {"machine": machine, "draws": [*draws], "runs": {"a": {"eager": way}}}

    assert compare(record(), record(**change)) == code
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("kind", files.KINDS)
def test_a_kept_checkpoint_and_a_kept_policy_load(kind: str) -> None:
    kept = json.loads((files.HERE / "numbers.json").read_text())[kind]
    acted = files.acted(files.HERE / kind / "policy")
    assert not [*runs.differences(kept["actions"], acted, rel=1e-5)]
    with runs.float64():
        trainer = files.trainer_of(kind)
        trainer.load_checkpoint(files.HERE / kind / "checkpoint")
        assert trainer.state["algorithm/steps"] == 2
        stats = files.after(trainer)
    if not [*runs.differences(KEPT["draws"], runs.draws())]:
        assert [*runs.differences(kept["step"], stats)] == []


def test_documented_names_are_there_and_take_what_they_took() -> None:
    """After an intended change: `python -m tests.golden --names`."""
    kept = json.loads(names.FILE.read_text())
    assert names.lost(kept, names.documented()) == []


def test_a_lost_name_and_a_lost_parameter_are_seen() -> None:
    kept: dict[str, Any] = {"a": ["x", "y="], "b": None}
    assert names.lost(kept, {"a": ["x", "y=", "z="], "b": None, "c": []}) == []
    assert names.lost(kept, {"a": ["x", "y="]}) == ["b is gone"]
    assert names.lost(kept, {"a": ["x"], "b": None}) == ["a(x), was (x, y=)"]
    assert names.lost(kept, {"a": ["x", "y=", "z"], "b": None}) == ["a(x, y=, z), was (x, y=)"]
