"""Updates of the statistics that observations are normalised by."""

from typing import Any

from ..policies import GenericPolicyBase
from ..rollouts import Rollout


def take_in(policy: GenericPolicyBase[Any], rollout: Rollout) -> None:
    """Update the statistics with a rollout's observations.

    After the update, so that an update evaluates what was collected.
    """
    if policy.normalizer is not None:
        seen = tuple(leaf[:-1].flatten(0, 1) for leaf in rollout.obs)
        policy.normalizer.update(seen, rollout.valid.flatten())
