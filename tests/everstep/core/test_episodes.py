"""Episode statistics against a list of episodes kept by hand."""

import pytest
import torch

from everstep.core.episodes import WINDOW, EpisodeTracker, reward_statistics, to_floats


class ByHand:
    """The same statistics, one env step at a time."""

    def __init__(self, num_envs: int) -> None:
        self.open = [(0.0, 0)] * num_envs
        self.returns: list[float] = []

    def update(self, rewards: torch.Tensor, valid: torch.Tensor, done: torch.Tensor) -> dict:
        returns, lengths = [], []
        for t in range(len(rewards)):
            for n in range(len(self.open)):
                total, length = self.open[n]
                total, length = total + rewards[t, n].item(), length + int(valid[t, n])
                if done[t, n]:
                    returns.append(total)
                    lengths.append(length)
                    total, length = 0.0, 0
                self.open[n] = (total, length)
        self.returns += returns
        if not returns:
            return {}
        x = torch.tensor(returns, dtype=torch.float64)
        return {
            "episodes/count": len(returns),
            "episodes/return_mean": x.mean().item(),
            "episodes/return_std": x.std(correction=0).item(),
            "episodes/return_min": x.min().item(),
            "episodes/return_max": x.max().item(),
            "episodes/length_mean": sum(lengths) / len(lengths),
            "episodes/return_mean_100": sum(self.returns[-WINDOW:]) / len(self.returns[-WINDOW:]),
        }


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize(("horizon", "num_envs"), [(1, 1), (7, 3), (40, 8)])
def test_statistics_equal_those_by_hand(rate: float, horizon: int, num_envs: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def random() -> torch.Tensor:
        return torch.rand(horizon, num_envs, 1, generator=generator)

    tracker = EpisodeTracker(num_envs, device=torch.device("cpu"))
    by_hand = ByHand(num_envs)
    for _ in range(6):
        valid = random() > 0.1
        rewards = torch.where(valid, random() - 0.3, 0.0)
        done = (random() < rate) & valid
        found = to_floats(tracker.update(rewards, valid, done))
        expected = by_hand.update(rewards, valid, done)
        known = {key: value for key, value in found.items() if value == value}
        if by_hand.returns:
            expected.setdefault("episodes/return_mean_100", known["episodes/return_mean_100"])
        assert known == pytest.approx(expected, abs=1e-6)


def test_a_reset_forgets_open_episodes() -> None:
    tracker = EpisodeTracker(1, device=torch.device("cpu"))
    one, yes = torch.ones(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool)
    tracker.update(one, yes, ~yes)
    tracker.reset()
    assert to_floats(tracker.update(one, yes, yes))["episodes/return_mean"] == 1.0


def test_reward_statistics_leave_invalid_rows_out() -> None:
    rewards = torch.tensor([[1.0, 2.0], [0.0, 4.0]]).unsqueeze(-1)
    valid = torch.tensor([[True, True], [False, True]]).unsqueeze(-1)
    found = to_floats(reward_statistics(rewards, valid))
    assert found["env/steps"] == 3
    assert found["rewards/min"] == 1.0
    assert found["rewards/mean"] == pytest.approx(7 / 3)
    assert found["returns/mean"] == pytest.approx(3.5)
    assert found["returns/std"] == pytest.approx(torch.tensor([1.0, 6.0]).std().item())


def test_one_environment_has_no_deviation_rather_than_nan() -> None:
    rewards = torch.ones(1, 1, 1)
    found = to_floats(reward_statistics(rewards, rewards.bool()))
    assert found["returns/std"] == 0.0
    assert found["rewards/std"] == 0.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_least_and_the_largest_reward_are_of_valid_rows(sign: float) -> None:
    """The zeros of invalid rows are below all rewards, or above."""
    rewards = sign * torch.tensor([[1.0, 2.0], [0.0, 4.0]]).unsqueeze(-1)
    valid = torch.tensor([[True, True], [False, True]]).unsqueeze(-1)
    found = to_floats(reward_statistics(rewards, valid))
    assert (found["rewards/min"], found["rewards/max"]) == tuple(sorted([sign * 1.0, sign * 4.0]))


def test_everything_goes_on_from_a_state() -> None:
    one, yes = torch.ones(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool)
    tracker, other = (EpisodeTracker(1, device=torch.device("cpu")) for _ in range(2))
    tracker.update(one, yes, yes)
    tracker.update(3 * one, yes, ~yes)
    other.load_state_dict({name: x.clone() for name, x in tracker.state_dict().items()})
    for _ in range(2):
        expected = to_floats(tracker.update(one, yes, yes))
        assert to_floats(other.update(one, yes, yes)) == expected
    assert expected["episodes/return_mean_100"] == (1 + 4 + 1) / 3


def test_small_rewards_count_beside_large_ones() -> None:
    """Sums are in float64, whatever rewards are: 1e8 + 1 is 1e8 in float32."""
    tracker = EpisodeTracker(1, device=torch.device("cpu"))
    rewards = torch.tensor([1e8, 1.0, 1.0, 1.0]).view(4, 1, 1)
    valid = torch.ones(4, 1, 1, dtype=torch.bool)
    done = torch.tensor([0, 0, 0, 1], dtype=torch.bool).view(4, 1, 1)
    assert to_floats(tracker.update(rewards, valid, done))["episodes/return_mean"] == 1e8 + 3


def test_processes_share_the_window() -> None:
    """Each of four remembers the last 25 of its own episodes."""
    tracker = EpisodeTracker(1, device=torch.device("cpu"), processes=4)
    rewards = torch.arange(40.0).view(-1, 1, 1)
    ends = torch.ones_like(rewards, dtype=torch.bool)
    found = tracker.update(rewards, ends, ends)
    assert float(found["episodes/return_mean_100"]) == sum(range(15, 40)) / 25
