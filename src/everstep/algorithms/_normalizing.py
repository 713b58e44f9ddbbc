"""When observations are taken into the statistics that they are normalised by."""

from typing import Any

import torch

from ..policies import GenericPolicyBase
from ..rollouts import Rollout


def warm_up(policy: GenericPolicyBase[Any], rollout: Rollout) -> int:
    """Normalise the first rollout of all by its own first observations: better than by none.

    Returns:
        How many of the rollout's rows the statistics hold now, 0 or 1.

    """
    normalizer = policy.normalizer
    if normalizer is None or normalizer.has_seen_any():
        return 0
    seen = tuple(leaf[0] for leaf in rollout.obs)
    normalizer.update(seen, torch.ones_like(rollout.valid[0, :, 0]))
    return 1


def take_in(policy: GenericPolicyBase[Any], rollout: Rollout, *, start: int) -> None:
    """Take a rollout's observations into the statistics, from row `start` on.

    After the update, so that an update evaluates what was collected.
    """
    if policy.normalizer is not None:
        seen = tuple(leaf[start:-1].flatten(0, 1) for leaf in rollout.obs)
        policy.normalizer.update(seen, rollout.valid[start:].flatten())
