"""Advantages, moments and episodes of the rows of a rollout, natively.

A function is the general one of its name, with the same arguments and without gradients. That is
called where the native way is not taken; it has some 200 operations of PyTorch, most of which take
longer to be called than to compute.
"""

from collections.abc import Callable
from typing import Any

import torch

from .. import advantages, episodes, triton
from ..graphs import is_static
from ..normalizers import RunningMoments
from ..ranks import Measured, Moments
from ..rollouts import clean_rows
from .library import present_library


def bootstrap_values(*rows: torch.Tensor) -> torch.Tensor:
    """`advantages.bootstrap_values`."""
    next_values, terminated, _, final_values = rows
    call = _native("bootstrap", next_values, final_values)
    if call is None:
        return advantages.bootstrap_values(*rows)
    out = torch.empty_like(next_values, memory_format=torch.contiguous_format)
    call(terminated.numel(), out.shape[-1], *rows, out)
    return out


def gae(
    *rows: torch.Tensor,
    gamma: float | torch.Tensor,
    gae_lambda: float,
    known: None | torch.Tensor = None,
    passed: None | torch.Tensor = None,
) -> torch.Tensor:
    """`advantages.gae`; on a GPU by Triton."""
    rewards, values, next_values, done = rows
    call = _native("advantages", rewards, values, next_values)
    if call is None:
        return triton.gae(*rows, gamma=gamma, gae_lambda=gae_lambda, known=known, passed=passed)
    flags = (x if x is None else x.expand_as(rewards) for x in (done, known, passed))
    gammas = torch.as_tensor(gamma, dtype=torch.float64).expand(rewards.shape[-1])
    out = rewards.new_empty(rewards.shape)
    call(*rewards.shape, rewards, values, next_values, *flags, gammas, gae_lambda, out)
    return out


def reversed_discounted_returns(
    rewards: torch.Tensor, initial: torch.Tensor, done: torch.Tensor, *, gamma: float
) -> torch.Tensor:
    """`advantages.reversed_discounted_returns`."""
    call = _native("discount", rewards, initial)
    if call is None:
        return advantages.reversed_discounted_returns(rewards, initial, done, gamma=gamma)
    out = rewards.new_empty(rewards.shape)
    call(*rewards.shape[:2], rewards, initial, done, gamma, out)
    return out


def measured(x: torch.Tensor, mask: torch.Tensor) -> Measured:
    """`advantages.moments_of` and `largest_of`, of all rows."""
    call = _native("measure", x)
    if call is None:
        return advantages.moments_of(x, mask), advantages.largest_of(x, mask)
    out = _numbers(4)
    call(x.numel(), x, mask.expand_as(x), out)
    count, mean, squares, largest = out.unbind()
    return (count, mean, squares), largest.to(x.dtype)


def standardize_by(
    x: torch.Tensor, mask: torch.Tensor, moments: Moments, largest: torch.Tensor
) -> torch.Tensor:
    """`advantages.standardize_by`."""
    call = _native("standardize", x, largest)
    if call is None:
        return advantages.standardize_by(x, mask, moments, largest)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    call(x.numel(), x, mask.expand_as(x), *moments, largest, out)
    return out


def aminmax(x: torch.Tensor, *, dim: None | int = None) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.aminmax` of all numbers, or of each element of rows (`dim` is 0)."""
    call = _native("extremes", x) if x.numel() else None
    if call is None:
        least, most = torch.aminmax(x) if dim is None else torch.aminmax(x, dim=dim)
        return least, most
    count, shape = (x.numel(), ()) if dim is None else (len(x), x.shape[1:])
    least, most = x.new_empty(shape), x.new_empty(shape)
    call(count, least.numel(), x, least, most)
    return least, most


def column_moments(running: RunningMoments, rows: torch.Tensor, mask: torch.Tensor) -> Moments:
    """`RunningMoments.moments_of`, of each element of rows."""
    call = _native("measure_columns", rows)
    if call is None:
        return running.moments_of(rows, mask)
    shape = running.mean.shape
    out = _numbers(1 + 2 * shape.numel())
    call(len(rows), shape.numel(), rows, mask, out)
    mean, squares = out[1:].view(2, *shape).unbind()
    return out[0], mean, squares


def clean(x: torch.Tensor, rows: torch.Tensor) -> None:
    """`rollouts.clean_rows`."""
    call = _native("clean", x) if x.is_contiguous() else None
    if call is None:
        clean_rows(x, rows)
    else:
        call(rows.numel(), x.numel() // rows.numel(), rows, x)


def reward_statistics(rewards: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
    """`episodes.reward_statistics`."""
    call = _native("sum_rewards", rewards)
    if call is None:
        return episodes.reward_statistics(rewards, valid)
    steps, envs, _ = rewards.shape
    out = _numbers(len(episodes.REWARD_STATISTICS))
    call(steps, envs, rewards, valid, _numbers(envs), out)
    return dict(zip(episodes.REWARD_STATISTICS, out.unbind(), strict=True))


def update_episodes(
    tracker: episodes.EpisodeTracker,
    rewards: torch.Tensor,
    valid: torch.Tensor,
    done: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """`EpisodeTracker.update`."""
    call = _native("finish_episodes", rewards)
    if call is None:
        return tracker.update(rewards, valid, done)
    state = tracker.open, tracker.recent, tracker.window, tracker.finished
    out = _numbers(len(episodes.EPISODE_STATISTICS))
    call(*rewards.shape[:2], rewards, valid, done, *state, out)
    return dict(zip(episodes.EPISODE_STATISTICS, out.unbind(), strict=True))


def _native(name: str, *rows: torch.Tensor) -> None | Callable[..., None]:
    """A function of the library for rows of one dtype; None if the native way is not taken.

    It takes numbers, tensors and None.
    """
    dtype, device = rows[0].dtype, rows[0].device
    if dtype not in (torch.float32, torch.float64) or device.type != "cpu" or is_static():
        return None
    native = present_library()
    if isinstance(native, str) or any(x.dtype is not dtype for x in rows):
        return None
    function = getattr(native, name)

    def call(*arguments: Any) -> None:
        given = [x.contiguous() if isinstance(x, torch.Tensor) else x for x in arguments]
        addresses = (x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given)
        function(dtype is torch.float64, *addresses)

    return call


def _numbers(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.float64)
