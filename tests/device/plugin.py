"""Runs the tests marked `gpu` on the stand-in: `python -m pytest -p tests.device.plugin -m gpu`."""

from collections.abc import Iterator

import pytest

from tests.device.installed import installed, unavailable


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests run that are skipped where there is no CUDA device."""
    if unavailable() is None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.own_markers = [x for x in item.own_markers if x.name != "skip"]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Call a test on the stand-in, and let it fail for what is wrong there."""
    if not pyfuncitem.get_closest_marker("gpu"):
        return (yield)
    with installed() as machine:
        found = yield
    assert machine.faults == [], "\n".join(machine.faults)  # pytest shortens lists
    return found
