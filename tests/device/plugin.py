"""Runs the tests marked `gpu` on the stand-in: `python -m pytest -p tests.device.plugin -m gpu`.

Those marked `gpu(real=True)` need what it cannot be: CUDA's profiler, or a library without PyTorch.
"""

from collections.abc import Iterator

import pytest

from tests.device.installed import installed, unavailable


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests run that are skipped where there is no CUDA device."""
    if unavailable() is None:
        for item in items:
            marker = item.get_closest_marker("gpu")
            if marker is not None and not marker.kwargs.get("real"):
                item.own_markers = [x for x in item.own_markers if x.name != "skip"]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Call a test on the stand-in, and let it fail for what is wrong there."""
    marker = pyfuncitem.get_closest_marker("gpu")
    if marker is None or marker.kwargs.get("real"):
        return (yield)
    with installed() as machine:
        found = yield
    assert machine.faults == [], "\n".join(machine.faults)  # pytest shortens lists
    return found
