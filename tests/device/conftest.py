"""A pretended device for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.device.installed import installed, unavailable
from tests.device.machine import Machine


def pytest_collection_modifyitems() -> None:
    """Autograd has to know of the device before the first backward pass of the process."""
    unavailable()


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The device; a test fails if something is wrong that it has not taken from `faults`."""
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    with installed() as machine:
        yield machine
    assert machine.faults == [], "\n".join(machine.faults)  # pytest shortens lists
