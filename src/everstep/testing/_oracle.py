"""Advantages by their definition: sums of temporal differences, episode by episode.

A reference implementation that shares nothing with training: no recursion, no masks, and no
tensors except as input of values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..env.specs import Leaves
from ._player import Row

#: Values `[B]` of observations `[B, …]`.
ValueFunction = Callable[[Leaves], torch.Tensor]


@dataclass(frozen=True)
class Transition:
    """One transition of one environment."""

    #: Value of the observation that it was chosen from.
    value: float

    #: The reward.
    reward: float

    #: Value of the next observation before any reset: 0 if the task ended; None if it is lost.
    next_value: None | float

    #: Whether the episode ended.
    ended: bool


def oracle_advantages(
    transitions: Sequence[None | Transition], *, gamma: float, gae_lambda: float
) -> list[float]:
    """Advantage of each transition of one environment's rollout.

        A_t = Σ_k (γλ)^k · (r_{t+k} + γ·V(s_{t+k+1}) − V(s_{t+k}))

    to the end of the episode or of the rollout. A transition whose `next_value` is lost adds
    nothing. The advantage of a row that is not valid, or whose `next_value` is lost, is NaN.

    Args:
        transitions: One per row; None for rows that are not valid.
        gamma: γ, the discount.
        gae_lambda: λ.

    Source: arXiv 1506.02438, eq. 16.

    """
    advantages = [math.nan] * len(transitions)
    for rows in _episodes(transitions):
        for start, row in enumerate(rows):
            if _difference(transitions[row], gamma) is None:
                continue
            advantages[row] = sum(
                (gamma * gae_lambda) ** k * (_difference(transitions[later], gamma) or 0.0)
                for k, later in enumerate(rows[start:])
            )
    return advantages


def _episodes(transitions: Sequence[None | Transition]) -> list[list[int]]:
    """Rows of each episode."""
    episodes: list[list[int]] = [[]]
    for row, transition in enumerate(transitions):
        if transition is None:
            continue
        episodes[-1].append(row)
        if transition.ended:
            episodes.append([])
    return episodes


def _difference(transition: None | Transition, gamma: float) -> None | float:
    """The temporal difference; None if the next value is lost."""
    if transition is None or transition.next_value is None:
        return None
    return transition.reward + gamma * transition.next_value - transition.value


def transitions_of(
    rows: Sequence[Row], env: int, value_of: ValueFunction
) -> list[None | Transition]:
    """The transitions of one environment in the rows of a rollout.

    Args:
        rows: Rows of the rollout.
        env: Index of the environment.
        value_of: Value function of observations.

    """
    return [_transition_of(row, env, value_of) for row in rows]


def _transition_of(row: Row, env: int, value_of: ValueFunction) -> None | Transition:
    def value(leaves: Leaves) -> float:
        return float(value_of(tuple(leaf[env : env + 1] for leaf in leaves)))

    if not row.valid[env]:
        return None
    following: None | float
    if row.terminated[env]:
        following = 0.0
    elif row.truncated[env] and row.first[env]:
        following = value(row.final_obs) if row.final_obs else math.nan
        following = None if math.isnan(following) else following
    else:
        following = value(row.next_obs)
    reward, ended = float(row.rewards[env]), bool(row.done[env])
    return Transition(value(row.obs), reward, following, ended)


def known_values(leaves: Leaves) -> torch.Tensor:
    """Values `[B]` that differ between observations: bounded, smooth, in float64.

    The mean of cos(w_f·x_f + 1) over all numbers x_f of an observation, with fixed weights w_f; the
    value of a row does not depend on other rows.
    """
    numbers = torch.cat([leaf.flatten(1).double() for leaf in leaves], -1)
    positions = torch.arange(numbers.shape[1], dtype=torch.float64, device=numbers.device)
    weights = 0.3 + 1.4 * (positions * 0.6180339887).frac()
    return (numbers * weights + 1.0).cos().mean(-1)
