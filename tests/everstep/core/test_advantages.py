"""Advantages: identities, closed forms, and rl8's recursion."""

import pytest
import torch

from everstep.core.advantages import (
    bootstrap_values,
    gae,
    masked_moments,
    reversed_discounted_returns,
    standardize,
    values_beyond,
)

pytestmark = pytest.mark.usefixtures("float64")

T, N, K = 9, 5, 2


def never() -> torch.Tensor:
    return torch.zeros(T, N, 1, dtype=torch.bool)


def randoms() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(T, N, K), torch.randn(T + 1, N, K)


def test_lambda_1_is_discounted_returns_less_values() -> None:
    rewards, values = randoms()
    found = gae(rewards, values[:-1], values[1:], never(), gamma=0.9, gae_lambda=1.0)
    for t in range(T):
        discounts = 0.9 ** torch.arange(T - t).view(-1, 1, 1)
        returns = (discounts * rewards[t:]).sum(0) + 0.9 ** (T - t) * values[-1]
        torch.testing.assert_close(found[t], returns - values[t])


def test_lambda_0_is_the_temporal_difference() -> None:
    rewards, values = randoms()
    found = gae(rewards, values[:-1], values[1:], never(), gamma=0.9, gae_lambda=0.0)
    torch.testing.assert_close(found, rewards + 0.9 * values[1:] - values[:-1])


def test_closed_form_for_constants() -> None:
    gamma, lam, r, v = 0.95, 0.9, 1.5, 0.7
    rewards, values = torch.full((T, N, 1), r), torch.full((T + 1, N, 1), v)
    found = gae(rewards, values[:-1], values[1:], never(), gamma=gamma, gae_lambda=lam)
    delta, decay = r + gamma * v - v, gamma * lam
    expected = delta * (1 - decay ** (T - torch.arange(T))) / (1 - decay)
    torch.testing.assert_close(found[:, 0, 0], expected, rtol=0, atol=1e-13)


def test_without_episodes_it_is_rl8s_recursion() -> None:
    rewards, values = randoms()
    found = gae(rewards, values[:-1], values[1:], never(), gamma=0.9, gae_lambda=0.8)
    previous: torch.Tensor | float = 0.0
    for t in reversed(range(T)):
        delta = rewards[t] + (0.9 * values[t + 1] - values[t])
        previous = delta + 0.9 * 0.8 * previous
        torch.testing.assert_close(found[t], previous, rtol=0, atol=1e-14)


def test_nothing_crosses_a_boundary() -> None:
    rewards, values = randoms()
    done = never()
    done[4] = True
    before = gae(rewards, values[:-1], values[1:], done, gamma=0.9, gae_lambda=0.8)
    rewards[5:], values[6:] = torch.nan, torch.nan
    after = gae(rewards, values[:-1], values[1:], done, gamma=0.9, gae_lambda=0.8)
    assert torch.equal(after[:5], before[:5])


def test_streams_have_their_own_discount() -> None:
    rewards, values = randoms()
    gamma, lam = torch.tensor([0.9, 0.99]), torch.tensor([0.8, 1.0])
    both = gae(rewards, values[:-1], values[1:], never(), gamma=gamma, gae_lambda=lam)
    for k in range(K):
        column = slice(k, k + 1)
        alone = gae(
            rewards[..., column],
            values[:-1, :, column],
            values[1:, :, column],
            never(),
            gamma=float(gamma[k]),
            gae_lambda=float(lam[k]),
        )
        torch.testing.assert_close(both[..., column], alone)


def test_unknown_rows_bootstrap_their_own_value() -> None:
    # Two rows; the second's outcome is unknown, so the first's advantage ends at V(obs_1).
    rewards, values = torch.tensor([[[1.0]], [[100.0]]]), torch.tensor([[[2.0]], [[3.0]], [[9.0]]])
    done = torch.tensor([[[False]], [[True]]])
    known = torch.tensor([[[True]], [[False]]])
    found = gae(rewards, values[:-1], values[1:], done, gamma=0.5, gae_lambda=1.0, known=known)
    assert found.flatten().tolist() == [1.0 + 0.5 * 3.0 - 2.0, 0.0]


def test_bootstrap_by_hand() -> None:
    following, final_values = torch.full((4, 1, 1), 5.0), torch.full((4, 1, 1), 7.0)
    terminated = torch.tensor([False, True, False, True]).view(4, 1, 1)
    final = torch.tensor([False, False, True, True]).view(4, 1, 1)
    found = bootstrap_values(following, terminated, final, final_values)
    assert found.flatten().tolist() == [5.0, 0.0, 7.0, 0.0]


def test_known_optimum_has_no_advantage() -> None:
    # A chain of two states that alternate: V = (I − γP)⁻¹ r.
    gamma, r = 0.9, torch.tensor([1.0, -0.5])
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    v = torch.linalg.solve(torch.eye(2) - gamma * swap, r)
    states = torch.arange(T + 1) % 2
    values, rewards = v[states].view(-1, 1, 1), r[states[:-1]].view(-1, 1, 1)
    done = torch.zeros(T, 1, 1, dtype=torch.bool)
    found = gae(rewards, values[:-1], values[1:], done, gamma=gamma, gae_lambda=0.95)
    assert found.abs().max() < 1e-14


def test_reversed_returns_by_hand() -> None:
    rewards = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(4, 1, 1)
    done = torch.tensor([False, True, False, False]).view(4, 1, 1)
    found = reversed_discounted_returns(rewards, torch.tensor([[10.0]]), done, gamma=0.5)
    assert found.flatten().tolist() == [6.0, 5.0, 4.0, 10.0]


def test_masked_moments_are_those_of_the_rest() -> None:
    x, mask = torch.randn(40, 3, 1), torch.rand(40, 3, 1) > 0.4
    mean, std = masked_moments(torch.where(mask, x, torch.nan), mask)
    torch.testing.assert_close(mean, x[mask].mean())
    torch.testing.assert_close(std, x[mask].std())


@pytest.mark.parametrize("rows", [0, 1])
def test_moments_of_too_few_rows_are_finite(rows: int) -> None:
    mask = torch.arange(4).view(4, 1, 1) < rows
    mean, std = masked_moments(torch.full((4, 1, 1), 3.0), mask)
    assert mean.item() == 3.0 * rows
    assert std.item() == 0.0


def test_standardized_rows_have_mean_0_and_deviation_1() -> None:
    x, mask = 5 + 3 * torch.randn(40, 3, 1), torch.rand(40, 3, 1) > 0.4
    z = standardize(x, mask)
    assert z[mask].mean().abs() < 1e-12
    assert z[mask].std().item() == pytest.approx(1, abs=1e-7)
    assert z[~mask].abs().max() == 0


@pytest.mark.parametrize("value", [0.0, 3.3, -1e6, 1e12])
@pytest.mark.parametrize("rows", [1, 7, 8])  # the mean of 7 is rounded
def test_equal_rows_are_only_centred(value: float, rows: int) -> None:
    mask = torch.arange(8).view(8, 1, 1) < rows
    z = standardize(torch.full((8, 1, 1), value) / 3, mask)
    assert z.abs().max() <= 8 * torch.finfo(z.dtype).eps * abs(value)


def test_values_beyond_are_those_of_the_next_row_that_counts() -> None:
    """Whatever is in the rows between, even NaN; the last value follows the last row."""
    values = torch.tensor([1.0, 2.0, torch.nan, torch.nan, 5.0, torch.nan, 7.0]).view(7, 1, 1)
    valid = torch.tensor([1, 1, 0, 0, 1, 0], dtype=torch.bool).view(6, 1, 1)
    found = values_beyond(values, valid).flatten()
    assert found[valid.flatten()].tolist() == [2.0, 5.0, 7.0]


def test_rows_that_are_passed_have_the_advantage_of_the_next_row() -> None:
    # The second row is not there: A_0 = δ_0 + γλ·A_2 and A_1 = A_2, whatever δ_1 is.
    rewards = torch.tensor([1.0, 50.0, 4.0]).view(3, 1, 1)
    zeros, done = torch.zeros(3, 1, 1), torch.zeros(3, 1, 1, dtype=torch.bool)
    passed = torch.tensor([False, True, False]).view(3, 1, 1)
    found = gae(rewards, zeros, zeros, done, gamma=0.5, gae_lambda=0.5, passed=passed)
    assert found.flatten().tolist() == [1.0 + 0.25 * 4.0, 4.0, 4.0]


@pytest.mark.parametrize("garbage", [1e300, torch.inf, torch.nan])
def test_what_is_masked_has_no_say_in_whether_rows_are_equal(garbage: float) -> None:
    x = torch.tensor([0.0, 2.0, 4.0, garbage]).view(4, 1, 1)
    z = standardize(x, torch.tensor([1, 1, 1, 0], dtype=torch.bool).view(4, 1, 1))
    torch.testing.assert_close(z.flatten(), torch.tensor([-1.0, 0.0, 1.0, 0.0]))


def test_small_deviations_from_a_large_mean_are_no_rounding() -> None:
    x, mask = 1e6 + 1e-4 * torch.randn(40, 3, 1), torch.ones(40, 3, 1, dtype=torch.bool)
    assert standardize(x, mask).std().item() == pytest.approx(1, abs=1e-3)
