"""Where a training ends: at its budget, at a condition on totals, or where schedules end in 0."""

from collections.abc import Mapping
from typing import Any

from ..conditions import And, HitsUpperBound, Or


def end_of(algorithm: Any, totals: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """The limit that a training has reached before its next train step; empty if it can go on.

    Conditions on other statistics than totals are known after a train step only.

    Args:
        algorithm: The algorithm, whose linear schedules end at the budget already.
        totals: Env steps and train steps so far.
        arguments: Arguments of `Trainer.run`.

    """
    limit = arguments.get("total_env_steps")
    if limit is not None and totals["env/steps"] >= limit:
        return f"total_env_steps: {limit:,}"
    if (ended := schedule_end(algorithm)) is not None:
        return f"a schedule that ends in 0 at {ended:,} env steps"
    for condition in arguments.get("stop_conditions") or ():
        if _is_met(condition, totals):
            config = getattr(condition, "as_config", None)
            key = getattr(condition, "key", None)
            at = f"{key} of {condition.upper_bound}" if key else f"{config() if config else ''}"
            return f"stop: {at}"
    return ""


def schedule_end(algorithm: Any) -> None | int:
    """Where the schedules ended in 0, if they did: another train step would learn nothing."""
    end: None | int = algorithm.schedule_end
    return end if end is not None and algorithm.state.env_steps >= end else None


def _is_met(condition: Any, totals: Mapping[str, Any]) -> bool:
    """Whether totals alone meet a condition."""
    if isinstance(condition, And | Or):
        return bool(condition._rule([_is_met(each, totals) for each in condition.conditions]))
    known = isinstance(condition, HitsUpperBound) and condition.key in totals
    return known and totals[condition.key] >= condition.upper_bound
