"""Values of the final observations of rows that were truncated and reset at once."""

from typing import Any

import torch

from ..graphs import is_static
from ..policies import GenericPolicyBase
from ..rollouts import Rollout
from ..specs import Leaves

#: Final observations are valued that many rows at a time.
CHUNK = 2048

#: And that many where all rows are valued, on devices that are fast with many.
DENSE_CHUNK = 65536


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
    if is_static():
        return _value_densely(policy, rollout, on_missing_final)
    # Looking for the few rows that are truncated synchronises, once a rollout.
    t, n = rollout.final.squeeze(-1).nonzero(as_tuple=True)
    if not len(t):
        return rollout.final.sum()  # 0
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


def _value_densely(
    policy: GenericPolicyBase[Any], rollout: Rollout, on_missing_final: str
) -> torch.Tensor:
    """`value_final_obs` without looking where there are any: all rows are valued."""
    flat = tuple(leaf.flatten(0, 1) for leaf in rollout.final_obs)
    rows = len(rollout.final.flatten())
    finite = _finite_rows(flat, rows, rollout.device).view_as(rollout.final)
    seen, lost = rollout.final & finite, rollout.final & ~finite
    values = rollout.final_values
    if flat and not policy.memory.paths:
        is_seen = seen.flatten()
        known = tuple(_zero_elsewhere(leaf, is_seen) for leaf in flat)
        pieces = zip(*(leaf.split(DENSE_CHUNK) for leaf in known), strict=True)
        values = torch.cat([policy.values(piece, ()) for piece in pieces]).view_as(values)
    instead = rollout.values[:-1] if on_missing_final == "approximate" else 0.0
    rollout.final_values.copy_(torch.where(seen, values, torch.where(lost, instead, 0.0)))
    if on_missing_final == "mask":
        rollout.known.copy_(~lost)
    return lost.sum()


def _zero_elsewhere(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`x` `[R, …]` with zeros but in these rows, bool `[R]`: what is there may be anything."""
    return x.where(rows.view(-1, *(1,) * (x.ndim - 1)), torch.zeros_like(x[:1]))


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
    if is_static():
        every = policy.values(rollout.final_obs_at(t, slice(None)), states)
        rollout.final_values[t] = torch.where(final, every, 0.0)
        return
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
