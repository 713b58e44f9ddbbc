"""Statistics over several rollouts: of all ranks, or of an evaluation."""

import math
from collections.abc import Mapping, Sequence


def reduce_stats(rollouts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Statistics over rollouts of equal length; a key may be absent from some of them.

    Minima and maxima are reduced by min and max. Means are averaged and standard deviations are
    the root of the mean square, weighted by the number of episodes for `episodes/*`. The
    environment's own metrics are averaged. Everything else is a sum.
    """
    keys = dict.fromkeys(key for stats in rollouts for key in stats)
    return {key: _reduce(key, [stats for stats in rollouts if key in stats]) for key in keys}


def _reduce(key: str, rollouts: Sequence[Mapping[str, float]]) -> float:
    values = [stats[key] for stats in rollouts]
    kind = key.split("/")[-1].split("_")[-1]
    if kind == "100":  # a moving window over episodes: the newest value
        return values[-1]
    about_episodes = key.startswith("episodes/")
    weights = [stats["episodes/count"] if about_episodes else 1.0 for stats in rollouts]
    is_own = key.startswith("env/") and key not in ("env/steps", "env/resets")
    if kind in ("min", "max") and not is_own:
        return min(values) if kind == "min" else max(values)
    if kind == "mean" or is_own:
        return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
    if kind == "std":
        squares = sum(v * v * w for v, w in zip(values, weights, strict=True))
        return math.sqrt(squares / sum(weights))
    return sum(values)
