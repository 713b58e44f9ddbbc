"""How often each kind of training waits, and what it copies: a table, in which nothing may change.

A number that falls is good news for the table; one that rises is a wait or a copy that was added.
"""

from collections import Counter
from typing import NamedTuple

import pytest
from torch.profiler import ProfilerActivity, profile

from everstep_lab.benchmarks import cells, load_case
from everstep_lab.benchmarks._roofline import LOADS
from tests.device.__main__ import load_of
from tests.device.installed import unavailable
from tests.device.machine import Counts, Machine
from tests.device.trainings import CASES, HORIZON, WORKS

#: Bytes of the statistics: 8 each, packed into one copy.
ROLLOUT, EPISODES, UPDATE, RECORDED = 12 * 8, 19 * 8, 9 * 8, 13 * 8


class Row(NamedTuple):
    """Waits, copies to the device and to the host, and bytes of both; of a rollout or an update."""

    syncs: int
    to_device: int
    to_host: int
    bytes: int


def native(*, finals: int = 1) -> tuple[Row, Row]:
    """A native environment with episodes: one wait for truncated rows, one for the numbers."""
    return Row(1 + finals, 0, 1, EPISODES), Row(1, 0, 1, UPDATE)


def with_numbers(rows: tuple[Row, Row], *, rollout: int = 0, update: int = 0) -> tuple[Row, Row]:
    """Rows of a training with so many more statistics."""
    return tuple(  # type: ignore[return-value]
        row._replace(bytes=row.bytes + 8 * n)
        for row, n in zip(rows, (rollout, update), strict=True)
    )


def of_host(row: int, action: int, *, bounded: bool = True) -> tuple[Row, Row]:
    """An environment of the host: a wait for the actions, and a copy each way a vector step.

    Bounds of a space are looked at, which is one number more.
    """
    copied = HORIZON * (row + action) + EPISODES + 8 * bounded
    return Row(2 + HORIZON, HORIZON, 1 + HORIZON, copied), Row(1, 0, 1, UPDATE)


RECORDED_UPDATE = Row(1, 0, 1, RECORDED)
ONE_GRAPH = Row(1, 0, 1, EPISODES), RECORDED_UPDATE

#: Of one rollout and one update. Rows of the host are padded to 64 bytes a tensor.
BUDGET: dict[str, tuple[Row, Row]] = {
    "discrete": (Row(1, 0, 1, ROLLOUT), Row(1, 0, 1, UPDATE)),
    "continuous": (Row(1, 0, 1, ROLLOUT), Row(1, 0, 1, UPDATE)),
    "continuous, graphs": (Row(1, 0, 1, ROLLOUT), RECORDED_UPDATE),
    "episodes": native(),
    "episodes, graphs": ONE_GRAPH,
    "final observations lost": native(),
    "final observations masked": native(),
    "A2C": native(),
    # Where states or windows are gathered, the host asks in each vector step which rows end.
    "LSTM": native(finals=1 + HORIZON),
    "LSTM, graphs": ONE_GRAPH,
    "GRU": native(finals=1 + HORIZON),
    "GRU, graphs": ONE_GRAPH,
    "windows": native(finals=1 + HORIZON),
    "windows, graphs": ONE_GRAPH,
    "masks": native(),
    "normalised": native(),
    # The host decides after each of the four minibatches; in a graph the device does.
    "KL stop": (Row(2, 0, 1, EPISODES), Row(5, 0, 5, UPDATE + 4 * 4)),
    "KL stop, graphs": ONE_GRAPH,
    "adaptive rate, graphs": ONE_GRAPH,
    "AMSGrad, graphs": ONE_GRAPH,
    "accumulated gradients": native(),
    "bfloat16": native(),
    "RND": with_numbers(native(), rollout=1, update=1),
    "symmetry": with_numbers(native(), update=1),
    "symmetry, graphs": with_numbers(ONE_GRAPH, update=1),
    "symmetry, LSTM": with_numbers(native(finals=1 + HORIZON), update=1),
    "distillation": native(),
    "distillation, graphs": ONE_GRAPH,
    "distillation, LSTM": native(finals=1 + HORIZON),
    "gSDE": (Row(1, 0, 1, ROLLOUT), Row(1, 0, 1, UPDATE)),
    "squashed": (Row(1, 0, 1, ROLLOUT), Row(1, 0, 1, UPDATE)),
    "asymmetric critic": native(),
    "Gymnasium, next step": of_host(192, 32),
    "Gymnasium, same step": of_host(256, 32),
    "Gymnasium, disabled": of_host(256, 32),
    "Gymnasium, graphs": (of_host(192, 32)[0], RECORDED_UPDATE),
    "Gymnasium, LSTM": of_host(192, 32),
    "Gymnasium, LSTM, graphs": (of_host(192, 32)[0], RECORDED_UPDATE),
    "mapping with images": of_host(15808, 64),
    "tensor vector, next step": native(),
    "tensor vector, same step": native(),
    # TorchRL asks in `step` and `reset` whether anything is done: 19 times, not 8.
    "TorchRL": (Row(21, 0, 20, EPISODES + 19), Row(1, 0, 1, UPDATE)),
    "EnvPool": of_host(192, 32),
    "dm_control": of_host(320, 32, bounded=False),
    "PettingZoo": of_host(256, 32),
    # Each policy asks for its own truncated rows, and for its own numbers.
    "PettingZoo, a policy each": (
        Row(4 + HORIZON, HORIZON, 2 + HORIZON, HORIZON * 288 + 2 * (EPISODES + 8)),
        Row(2, 0, 2, 2 * UPDATE),
    ),
    "bridge": of_host(256, 32),
    "TorchRL of the host": of_host(384, 32, bounded=False),
    # The actions carry the order to JAX's stream: neither library waits for the other.
    "JAX": native(),
    "JAX, graphs": (native()[0], RECORDED_UPDATE),
    "IsaacGym C, graphs": (native()[0], RECORDED_UPDATE),
    "IsaacGym A": native(),
    "IsaacGym B": native(),
    "IsaacGym C": native(),
    "IsaacGym D": native(),
}

#: Of one call, or of a reset and eight vector steps; see `trainings`.
BESIDE = {
    "predict, tensors": Row(0, 0, 0, 0),
    "predict, arrays": Row(2, 1, 1, 64),
    # Which episodes begin is an array of the host.
    "predict, LSTM, tensors": Row(1, 1, 0, 4),
    "predict, LSTM, arrays": Row(3, 2, 1, 68),
    "acting_step": Row(0, 0, 0, 0),
    # One wait a vector step, for who has ended.
    "evaluate": Row(7, 0, 7, 364),
    "evaluate, LSTM": Row(7, 0, 7, 364),
    # A wait for the actions and one for the row; one for the reset, and for final observations.
    "to_gymnasium, same step": Row(2 * HORIZON + 6, HORIZON, 46, 800),
    "to_gymnasium, next step": Row(2 * HORIZON + 1, HORIZON, 49, 672),
    "to_sb3": Row(2 * HORIZON + 6, HORIZON, 46, 800),
    # All but 7 are TorchRL's own.
    "to_torchrl": Row(60, 4, 52, 68),
    "to_torchrl, as_tensordict_module": Row(52, 12, 36, 84),
}

#: Waits of every training, which a failure does not list.
USUAL = {("copy to the host", "to_floats"), ("torch.cuda.synchronize", "capture")}

#: Those that are tried in each run of the tests.
FAST = ("continuous, graphs", "episodes", "LSTM", "Gymnasium, next step", "IsaacGym C", "evaluate")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in CASES]
)
def test_training_waits_and_copies_as_the_table_says(machine: Machine, name: str) -> None:
    case = CASES[name]
    algorithm = case.build()
    is_recorded = bool(case.options.get("cuda_graphs"))
    found: dict[str, Counts] = {}
    places = ""
    for i in range(4 if is_recorded else 3):
        for work in (algorithm.collect, algorithm.step):
            machine.counts = Counts()
            stats = work()
            found[work.__name__] = machine.counts
            for (what, place), n in machine.counts.syncs.items():
                if (what, place.function) not in USUAL:
                    places += f"\n{work.__name__} {i}: {n} times {what} at {place}"
    assert all(x == x for key, x in stats.items() if key.startswith(("losses", "monitors")))
    rows = tuple(Row(**counts.totals()) for counts in found.values())
    assert rows == BUDGET[name], places
    if is_recorded:
        assert algorithm.recorder.update.replays == 2
    if hasattr(algorithm.env, "close"):
        algorithm.env.close()


@pytest.mark.gpu(real=True)
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_waits_and_copies_as_the_table_says(name: str) -> None:
    """Counts of CUDA's profiler on a real device."""
    case = CASES[name]
    algorithm = case.build()
    for _ in range(3 if case.options.get("cuda_graphs") else 2):
        algorithm.collect()
        algorithm.step()
    for work, row in zip((algorithm.collect, algorithm.step), BUDGET[name], strict=True):
        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, acc_events=True) as seen:
            work()
        calls = Counter(event.name.partition(" (")[0] for event in seen.events())
        # Hand-offs from and to the host wait by events, also for buffers that have long been free.
        waits, events = calls["cudaStreamSynchronize"], calls["cudaEventSynchronize"]
        assert waits <= row.syncs <= waits + events, calls
        assert calls["Memcpy HtoD"] == row.to_device, calls
        # A wait for how many rows there are is a copy of its own.
        assert row.to_host <= calls["Memcpy DtoH"] <= row.syncs, calls


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in WORKS]
)
def test_what_is_beside_training_waits_and_copies_as_the_table_says(
    machine: Machine, name: str
) -> None:
    if name == "to_sb3":
        pytest.importorskip("stable_baselines3")
    work = WORKS[name]()
    work()
    machine.counts = Counts()
    work()
    places = "".join(
        f"\n{n} times {what} at {place}" for (what, place), n in machine.counts.syncs.items()
    )
    assert Row(**machine.counts.totals()) == BESIDE[name], places


def test_every_training_has_its_row() -> None:
    assert BUDGET.keys() == CASES.keys()
    assert BESIDE.keys() == WORKS.keys()
    assert set(FAST) <= CASES.keys() | WORKS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADS)
def test_the_model_of_a_gpu_starts_from_what_is_counted(name: str) -> None:
    """In `everstep_lab.benchmarks._roofline`; `python -m tests.device everstep` counts anew."""
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    found = load_of(cells(load_case(name))[0], "everstep")
    assert found == pytest.approx(LOADS[name]["everstep"], rel=0.02)
