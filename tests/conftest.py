"""Fixtures shared by all tests."""

import logging
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

torch.set_num_threads(1)  # tests are many small operations; a second thread only waits


def pytest_configure(config: pytest.Config) -> None:
    """Build the native library of this source tree if it is not there, or of another source."""
    from everstep.core.fast import build

    if not hasattr(config, "workerinput") and not build.is_switched_off() and not build.is_built():
        build.build_or_explain(build.SOURCE.parent)


@pytest.fixture(scope="session")
def native() -> None:
    """Skip where there is no native library, as where nothing compiles it."""
    from everstep.core.fast import unavailable

    if (reason := unavailable()) is not None:
        pytest.skip(reason)


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the general way, as a test needs that watches functions that only this one calls."""
    monkeypatch.setenv("EVERSTEP_NATIVE", "0")


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Act as if a library were not installed, and had registered nothing in an earlier test."""

    def hidden(library: str) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)  # an import fails, and nothing finds it
        for id, spec in [*gymnasium.registry.items()]:
            if str(spec.entry_point).partition(".")[0] == library:
                monkeypatch.delitem(gymnasium.registry, id)

    return hidden


@pytest.fixture
def without_ale(hide: Callable[[str], None]) -> None:
    """Act as if ALE were not installed."""
    hide("ale_py")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Notes about runs go to a folder of the tests, also those of processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def float64() -> Iterator[None]:
    """Make float64 the default dtype, for comparisons to rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random numbers of a test do not depend on the tests before it in its process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def on_a_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device being named tests train on a CPU, also where there is a GPU."""
    if torch.cuda.is_available() and not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr("everstep.algorithms.resolve._default_device", lambda: "cpu")


@pytest.fixture(autouse=True)
def no_run_left_open() -> Iterator[None]:
    """An MLflow run that a test leaves open would be the run of the tests after it."""
    yield
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and (run := mlflow.active_run()) is not None:
        mlflow.end_run()
        pytest.fail(f"the test left an MLflow run open: {run.info.run_name}")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store without runs, to be copied: creating its tables takes seconds."""
    mlflow = pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    logging.disable(logging.INFO)
    try:
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    finally:
        logging.disable(logging.NOTSET)
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow tests of minutes, and all but a few cases of those marked `few`.

    Of those as many again are slow; the others are exhaustive.

    Tests marked `gpu` are skipped where there is none, and say so.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        (count,) = same[0].get_closest_marker("few").args  # type: ignore[union-attr]
        chosen, slow = ({i * len(same) // n for i in range(n)} for n in (count, 2 * count))
        for i, item in enumerate(same):
            if i not in chosen:
                item.add_marker(pytest.mark.slow if i in slow else pytest.mark.exhaustive)
    for item in items:
        if any(map(item.get_closest_marker, ("learning", "long", "exhaustive", "projects"))):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
