"""Returns and lengths of finished episodes, computed without synchronising."""

from itertools import chain

import torch

from .advantages import masked_moments

#: Number of finished episodes in the running mean.
WINDOW = 100

#: Names of the statistics of finished episodes.
EPISODE_STATISTICS = (
    *("episodes/count", "episodes/return_mean", "episodes/return_std", "episodes/return_min"),
    *("episodes/return_max", "episodes/length_mean", "episodes/return_mean_100"),
)

#: Names of the statistics of rewards.
REWARD_STATISTICS = (
    *("env/steps", "returns/min", "returns/max", "returns/mean", "returns/std"),
    *("rewards/min", "rewards/max", "rewards/mean", "rewards/std"),
)


def episode_sums(x: torch.Tensor, done: torch.Tensor, initial: torch.Tensor) -> torch.Tensor:
    """Sums since each row's episode began, `[T, N, K]`, in float64.

    Args:
        x: Summands, `[T, N, K]`.
        done: Rows that end an episode, bool `[T, N, 1]`.
        initial: Sums of the open episodes before the first row, `[N, K]`.

    """
    # One prefix sum minus its value at the start of the row's episode; row 0 is before all rows.
    total = torch.cat([-initial.unsqueeze(0), x.double().cumsum(0)])
    row = torch.arange(1, len(total), device=x.device).view(-1, 1, 1)
    last_done = (done * row).cummax(0).values  # [T, N, 1]
    previous_done = torch.cat([torch.zeros_like(last_done[:1]), last_done[:-1]])
    return total[1:] - total.gather(0, previous_done.expand_as(x))


class EpisodeTracker:
    """Statistics of finished episodes, across rollouts.

    Args:
        num_envs: Environments.
        device: Device of the rewards.
        processes: Number of processes, each of which has its share of the last episodes.

    """

    #: Return and length of each environment's open episode, `[N, 2]`.
    open: torch.Tensor

    #: Returns of the last finished episodes, a ring buffer `[WINDOW / processes]`.
    recent: torch.Tensor

    #: Number of finished episodes, 0-d.
    finished: torch.Tensor

    def __init__(self, num_envs: int, *, device: torch.device, processes: int = 1) -> None:
        self.open = torch.zeros(num_envs, 2, dtype=torch.float64, device=device)
        self.window = max(1, WINDOW // processes)
        self.recent = torch.zeros(self.window, dtype=torch.float64, device=device)
        self.finished = torch.zeros((), dtype=torch.int64, device=device)

    def reset(self, rows: None | torch.Tensor = None) -> None:
        """Discard the open episodes of environments that were reset: `rows`, bool `[N, 1]`."""
        self.open.zero_() if rows is None else self.open.masked_fill_(rows, 0.0)

    def update(
        self, rewards: torch.Tensor, valid: torch.Tensor, done: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Statistics of the episodes that finished in these rows, 0-d each.

        NaN if a statistic does not exist, such as a mean without an episode.

        Args:
            rewards: `[T, N, 1]`, 0 in invalid rows.
            valid: Rows that count as steps, bool `[T, N, 1]`.
            done: Rows that end an episode, bool `[T, N, 1]`.

        """
        sums = episode_sums(torch.cat([rewards, valid], -1), done, self.open)
        self.open.copy_(sums[-1].masked_fill(done[-1], 0.0))
        returns, lengths = sums.unbind(-1)  # [T, N]
        ended = done.squeeze(-1)
        self._store(returns.flatten(), ended.flatten())
        stored = torch.arange(self.window, device=self.recent.device) < self.finished
        mean = (self.recent * stored).sum() / stored.sum()
        found = *_statistics(returns, lengths, ended), mean
        return dict(zip(EPISODE_STATISTICS, found, strict=True))

    def _store(self, returns: torch.Tensor, ended: torch.Tensor) -> None:
        """Write the newest returns into the ring buffer, in the order in which episodes ended."""
        order = ended.cumsum(0)
        is_recent = ended & (order > order[-1] - self.window)
        slot = torch.where(is_recent, (self.finished + order - 1) % self.window, self.window)
        padded = torch.cat([self.recent, self.recent[:1]])  # the last slot receives all others
        self.recent.copy_(padded.scatter(0, slot, returns)[: self.window])
        self.finished += order[-1]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """State that continues across rollouts."""
        return {"open": self.open, "recent": self.recent, "finished": self.finished}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from `state_dict`."""
        for name, value in self.state_dict().items():
            value.copy_(state[name])


def _statistics(
    returns: torch.Tensor, lengths: torch.Tensor, ended: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """All of `EPISODE_STATISTICS` but the last."""
    count = ended.sum()
    zero = returns.new_zeros(())  # once: converting a Python number costs as much as the operation
    mean = torch.where(ended, returns, zero).sum() / count
    variance = torch.where(ended, returns - mean, zero).square().sum() / count
    one = count / count  # NaN without an episode
    return (
        count * one,
        mean,
        variance.sqrt(),
        torch.where(ended, returns, torch.inf).min() * one,
        torch.where(ended, returns, -torch.inf).max() * one,
        torch.where(ended, lengths, zero).sum() / count,
    )


def reward_statistics(rewards: torch.Tensor, valid: torch.Tensor) -> dict[str, torch.Tensor]:
    """Statistics of rewards, and of their sums over the rollout in each environment, 0-d each.

    Args:
        rewards: `[T, N, 1]`, 0 in invalid rows.
        valid: Rows that count, bool `[T, N, 1]`.

    """
    returns = rewards.sum(0)
    least, most = torch.aminmax(returns)
    # The deviation of one return is 0, not NaN.
    spread, centre = torch.std_mean(returns.double(), correction=min(1, returns.numel() - 1))
    mean, std = masked_moments(rewards, valid)
    found = (
        *(valid.sum(), least, most, centre, spread),
        torch.where(valid, rewards, torch.inf).min(),
        torch.where(valid, rewards, -torch.inf).max(),
        *(mean, std),
    )
    return dict(zip(REWARD_STATISTICS, found, strict=True))


def to_floats(statistics: dict[str, torch.Tensor]) -> dict[str, float]:
    """The statistics as Python numbers, in one transfer."""
    kinds: dict[torch.dtype, list[str]] = {}
    for name, value in statistics.items():
        kinds.setdefault(value.dtype, []).append(name)
    each = [torch.stack([statistics[name] for name in names]) for names in kinds.values()]
    packed = torch.cat([values.double() for values in each])
    found = dict(zip(chain(*kinds.values()), packed.tolist(), strict=True))
    return {name: found[name] for name in statistics}
