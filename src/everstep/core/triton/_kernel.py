"""The kernel of `gae`: imports Triton, and is imported when it is needed."""

from typing import Any

import torch
import triton
import triton.language as tl

#: Env steps, and columns of rows, that a program of the kernel works on together.
ROWS, COLUMNS = 32, 32


@triton.jit
def joined(reach, total, decay, delta):  # type: ignore[no-untyped-def]
    """Later rows, and the row before them; where `decay` is 0 they are ignored, even NaN."""
    return reach * decay, tl.where(decay == 0, delta, delta + decay * total)


@triton.jit  # type: ignore[untyped-decorator]
def advantages(  # type: ignore[no-untyped-def]
    found,
    rewards,
    values,
    next_values,
    done,
    known,
    passed,
    gammas,
    steps,
    count,
    GAMMA: tl.constexpr,
    LAMBDA: tl.constexpr,
    STREAMS: tl.constexpr,
    DONE: tl.constexpr,
    KNOWN: tl.constexpr,
    PASSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Advantages of some columns, from the last env steps to the first ones.

    `DONE`, `KNOWN` and `PASSED` are the columns that share a flag; 0 where there are no flags.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    kind = found.dtype.element_ty
    after = tl.zeros([1, COLUMNS], kind)
    for begin in range(0, steps, ROWS):
        t = steps - begin - ROWS + row
        mask = (t >= 0) & (column < count)
        place = t * count + column
        if STREAMS:
            gamma = tl.load(gammas + column % STREAMS)
            trace = gamma * tl.full([1, 1], LAMBDA, kind)
        else:  # numbers would be of 32 bits
            gamma = tl.full([1, 1], GAMMA, kind)
            trace = tl.full([1, 1], GAMMA * LAMBDA, kind)
        delta = tl.load(rewards + place, mask=mask, other=0.0)
        delta += gamma * tl.load(next_values + place, mask=mask, other=0.0)
        delta -= tl.load(values + place, mask=mask, other=0.0)
        decay = tl.zeros_like(delta) + trace
        if KNOWN:
            flags = tl.load(known + t * (count // KNOWN) + column // KNOWN, mask=mask, other=1)
            delta = tl.where(flags != 0, delta, 0.0)
        if PASSED:
            flags = tl.load(passed + t * (count // PASSED) + column // PASSED, mask=mask, other=0)
            delta = tl.where(flags != 0, 0.0, delta)
            decay = tl.where(flags != 0, 1.0, decay)
        flags = tl.load(done + t * (count // DONE) + column // DONE, mask=mask, other=1)
        decay = tl.where(flags != 0, 0.0, decay)
        reach, total = tl.associative_scan((decay, delta), 0, joined, reverse=True)
        total = tl.where(reach == 0, total, total + reach * after)
        tl.store(found + place, total, mask=mask)
        after = tl.sum(tl.where(row == 0, total, 0.0), 0)[None, :]


def launch(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    done: torch.Tensor,
    known: None | torch.Tensor,
    passed: None | torch.Tensor,
    gammas: None | torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Advantages `[T, N, K]`, in one launch on the current stream; see `advantages.gae`."""
    steps, _, streams = rewards.shape
    found = torch.empty_like(rewards, memory_format=torch.contiguous_format)
    count = found[0].numel()
    rows: list[Any] = [x.contiguous() for x in (rewards, values, next_values)]
    flags = [None if x is None else x.contiguous().view(torch.uint8) for x in (done, known, passed)]
    shared = [0 if x is None else streams // x.shape[-1] for x in (done, known, passed)]
    grid = (triton.cdiv(count, COLUMNS),)
    with torch.cuda.device_of(rewards):
        advantages[grid](
            *(found, *rows, *flags, gammas, steps, count),
            *(gamma, gae_lambda, 0 if gammas is None else streams, *shared, ROWS, COLUMNS),
        )
    return found
