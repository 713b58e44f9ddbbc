"""Values of the final observations of rows that were truncated and reset at once."""

from typing import Any

import torch

from ..policies import GenericPolicyBase
from ..rollouts import Rollout
from ..specs import Leaves

#: Final observations are valued that many rows at a time.
CHUNK = 2048


def value_final_obs(
    policy: GenericPolicyBase[Any], rollout: Rollout, on_missing_final: str
) -> torch.Tensor:
    """Fill in `final`, `final_values` and `known`; how many final observations are lost, 0-d.

    Args:
        policy: Whose values.
        rollout: Complete but for these.
        on_missing_final: What a lost final observation leads to; see the hyperparameter.

    """
    rollout.final.copy_(rollout.truncated & rollout.first & ~rollout.terminated)
    rollout.known.fill_(True)
    if not rollout.episode_keys:
        return rollout.final.sum()
    # Looking for the few rows that are truncated synchronises, once a rollout.
    t, n = rollout.final.squeeze(-1).nonzero(as_tuple=True)
    pieces = zip(t.split(CHUNK), n.split(CHUNK), strict=True)
    seen = torch.cat([_value(policy, rollout, rows) for rows in pieces])
    lost_t, lost_n = t[~seen], n[~seen]
    if on_missing_final == "approximate":
        rollout.final_values[lost_t, lost_n] = rollout.values[lost_t, lost_n]
    else:
        rollout.final_values[lost_t, lost_n] = 0.0
    rollout.known[lost_t, lost_n] = on_missing_final != "mask"
    return (~seen).sum()


def _value(
    policy: GenericPolicyBase[Any], rollout: Rollout, rows: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Fill in `final_values` of some rows; whether their final observations are there, bool `[R]`.

    Args:
        policy: Whose values.
        rollout: The rollout.
        rows: Env steps and environments, `[R]` each.

    """
    t, n = rows
    final_obs = tuple(leaf[t, n] for leaf in rollout.final_obs)
    seen = _finite_rows(final_obs, len(t), rollout.device)
    # A policy that remembers has valued them in their env steps, by `value_final_row`.
    known = seen.nonzero().squeeze(-1)[: None if not policy.memory.paths else 0]
    if len(known):
        values = policy.values(tuple(leaf[known] for leaf in final_obs), ())
        rollout.final_values[t[known], n[known]] = values
    return seen


def value_final_row(
    policy: GenericPolicyBase[Any], rollout: Rollout, t: int, states: Leaves
) -> None:
    """Fill in `final_values` of env step `t`, with what the policy remembers of what ends there.

    Args:
        policy: Whose values.
        rollout: Complete up to this env step.
        t: The env step.
        states: What the policy remembers after it, `[N, …]`, before any episode opens.

    """
    final = rollout.truncated[t] & rollout.first[t] & ~rollout.terminated[t]
    rows = final.squeeze(-1).nonzero().squeeze(-1)  # one sync an env step
    if len(rows):
        seen = rollout.final_obs_at(t, rows)
        values = policy.values(seen, tuple(x[rows] for x in states))
        rollout.final_values[t, rows] = values


def _finite_rows(leaves: Leaves, count: int, device: torch.device) -> torch.Tensor:
    """Which rows are there and finite, bool `[count]`."""
    finite = torch.full((count,), bool(leaves), dtype=torch.bool, device=device)
    for leaf in leaves:
        finite &= leaf.isfinite().flatten(1).all(-1)
    return finite
