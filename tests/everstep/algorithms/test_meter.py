"""The meter of an update: on the host and in recorded work, it sums and ends alike."""

import pytest
import torch

from everstep.algorithms.updates import Meter
from everstep.core.graphs import static_shapes

NAN, INF = float("nan"), float("inf")

LOSSES = [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("kl_divs", "steps", "refused", "skipped"),
    [
        ([0.0, 0.01, 0.02, 0.01], 4, 0, 0),  # the target itself is not exceeded
        ([0.0, 0.03, 0.01, 0.01], 2, 1, 0),
        ([0.0, NAN, 0.01, 0.01], 2, 0, 1),
        ([NAN, 0.01, 0.01, 0.01], 1, 0, 1),
        ([0.0, 0.01, NAN, 0.03], 3, 0, 1),
        ([0.0, INF, NAN, 0.0], 2, 1, 0),
    ],
)
def test_the_kl_divergence_ends_an_update_alike_on_host_and_device(
    kl_divs: list[float], steps: int, refused: int, skipped: int, device: str
) -> None:
    """NaN ends it, too, and is a step that was skipped, not one that was refused."""
    terms = [
        {"loss": torch.tensor(loss, device=device), "kl_div": torch.tensor(kl_div, device=device)}
        for loss, kl_div in zip(LOSSES, kl_divs, strict=True)
    ]
    ends = refused + skipped > 0
    host, recorded = (Meter(torch.device(device)) for _ in range(2))
    host.begin(0.02, None, recorded=False)
    for i, each in enumerate(terms[:steps]):
        host.add(each)
        assert host.has_ended() is (ends and i == steps - 1)
    recorded.begin(0.02, None, recorded=True)
    with static_shapes():
        for i, each in enumerate(terms):
            recorded.add(each)
            assert recorded.mask is not None
            assert bool(recorded.mask) is (ends and i >= steps - 1)
    for meter in (host, recorded):
        found = meter.read({"skipped": torch.zeros((), device=device)})
        assert found["loss"] == sum(LOSSES[:steps])
        assert (found["steps"], found["refused"], found["skipped"]) == (steps, refused, skipped)
