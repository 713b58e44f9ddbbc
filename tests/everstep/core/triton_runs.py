"""Triton's kernel of advantages beside the general way, on inputs that are drawn.

`python -m tests.everstep.core.triton_runs` runs it in Triton's interpreter on the CPU.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch

from everstep.core.triton import _general


def draws(count: int, device: str = "cpu") -> Iterator[list[Any]]:
    """Arguments of the operation `everstep::gae`."""
    generator = torch.Generator().manual_seed(0)

    def drawn(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    for i in range(count):
        dtype = (torch.float32, torch.float64)[i % 2]
        steps, envs, streams = 1 + drawn(80), 1 + drawn(50), 1 + drawn(3)
        rows = [torch.randn(steps, envs, streams, generator=generator).to(dtype) for _ in range(3)]

        def flags(chance: float, shape: Any = rows[0].shape) -> torch.Tensor:
            shared = (*shape[:2], (1, shape[2])[drawn(2)])
            return torch.rand(shared, generator=generator) < chance

        done = flags(0.15)
        known = flags(0.9) if i % 3 else None
        passed = flags(0.1) if i % 4 == 0 else None
        rows[2][done.expand_as(rows[2])] = 0.0
        for x in rows:  # beyond what is cut, anything
            if known is not None:
                x[~known.expand_as(x)] = torch.nan
        gammas = 0.8 + 0.2 * torch.rand(streams, generator=generator) if i % 5 == 0 else None
        tensors = [*rows, done, known, passed, None if gammas is None else gammas.to(dtype)]
        placed = [None if x is None else x.to(device) for x in tensors]
        yield [*placed, 0.987654321, (0.0, 0.95, 1.0)[i % 3]]


def check(count: int, device: str = "cpu") -> None:
    """Compare the kernel with the general way."""
    from everstep.core.triton import _kernel

    for arguments in draws(count, device):
        found, expected = _kernel.launch(*arguments), _general(*arguments)
        tolerance = 2e-5 if found.dtype is torch.float32 else 1e-12
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    check(18)
