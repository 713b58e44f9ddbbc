"""Values of final observations, the scale of rewards, advantages and returns of a rollout."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..bonuses import Stream, write_reward
from ..core.advantages import deviation, values_beyond, vanishes, variance
from ..core.fast import rows
from ..core.graphs import is_static
from ..core.hyperparameters import Resolved
from ..core.normalizers import RunningMoments, divisor_of
from ..core.ranks import Reducer
from ..core.rollouts import Rollout
from ..env.specs import Leaves
from ..policies import GenericPolicyBase
from .build import Parts, mixes_rows

#: Terms of the loss that are reported as monitors.
_MONITORS = ("kl_div", "clip_fraction", "grad_norm")

#: Final observations valued at a time, if only truncated rows are.
FINAL_ROWS = 2048

#: Observations valued at a time if all rows are, on devices that are fast with many.
DENSE_FINAL_ROWS = 65536


# ---- values of final observations -------------------------------------------------------------


def value_final_obs(
    policy: GenericPolicyBase[Any], rollout: Rollout, on_missing_final: str
) -> torch.Tensor:
    """Fill in `final`, `final_values` and `known`; the number of lost final observations, 0-d.

    Args:
        policy: Policy whose values bootstrap.
        rollout: Complete rollout.
        on_missing_final: The hyperparameter: how to treat lost final observations.

    """
    rollout.final.copy_(rollout.truncated & rollout.first & ~rollout.terminated)
    rollout.known.fill_(True)
    if not rollout.episode_keys:
        return rollout.final.sum()
    if is_static():
        return _value_all_rows(policy, rollout, on_missing_final)
    # One sync a rollout: only the few truncated rows are valued.
    t, n = rollout.final.squeeze(-1).nonzero(as_tuple=True)
    if not len(t):
        return torch.zeros((), dtype=torch.int64, device=rollout.device)
    parts = zip(t.split(FINAL_ROWS), n.split(FINAL_ROWS), strict=True)
    present = torch.cat([_value_rows(policy, rollout, *part) for part in parts]).unsqueeze(-1)
    values = rollout.final_values[t, n]
    instead = rollout.values[t, n] if on_missing_final == "approximate" else 0.0
    rollout.final_values[t, n] = torch.where(present, values, instead)
    if on_missing_final == "mask":
        rollout.known[t, n] = present
    return (~present).sum()


def _value_rows(
    policy: GenericPolicyBase[Any], rollout: Rollout, t: torch.Tensor, n: torch.Tensor
) -> torch.Tensor:
    """Fill in `final_values` of rows `(t, n)`; whether they have final observations, bool `[R]`."""
    final_obs = tuple(leaf[t, n] for leaf in rollout.final_obs)
    present = _finite_rows(final_obs, len(t), rollout.device)
    if policy.memory.paths or not final_obs:
        return present  # `value_final_row` has valued them in their vector steps, or all are lost
    if rollout.device.type == "cpu" or mixes_rows(policy.model):
        rows = present.nonzero().squeeze(-1)
        if not len(rows):
            return present
        t, n, final_obs = t[rows], n[rows], tuple(leaf[rows] for leaf in final_obs)
    else:  # to ask which rows are lost would be another sync
        final_obs = _zeroed(final_obs, present)
    rollout.final_values[t, n] = policy.values(final_obs, ()).to(rollout.dtype)
    return present


def _value_all_rows(
    policy: GenericPolicyBase[Any], rollout: Rollout, on_missing_final: str
) -> torch.Tensor:
    """`value_final_obs` with static shapes: every row is valued."""
    flat = tuple(leaf.flatten(0, 1) for leaf in rollout.final_obs)
    rows = len(rollout.final.flatten())
    finite = _finite_rows(flat, rows, rollout.device).view_as(rollout.final)
    present, lost = rollout.final & finite, rollout.final & ~finite
    values = rollout.final_values
    if flat and not policy.memory.paths:
        zeroed = _zeroed(flat, present.flatten())
        parts = zip(*(leaf.split(DENSE_FINAL_ROWS) for leaf in zeroed), strict=True)
        values = torch.cat([policy.values(part, ()) for part in parts]).view_as(values)
    instead = rollout.values[:-1] if on_missing_final == "approximate" else 0.0
    rollout.final_values.copy_(torch.where(present, values, torch.where(lost, instead, 0.0)))
    if on_missing_final == "mask":
        rollout.known.copy_(~lost)
    return lost.sum()


def value_final_row(
    policy: GenericPolicyBase[Any], rollout: Rollout, t: int, states: Leaves
) -> None:
    """Fill in `final_values` of vector step `t` for a recurrent policy.

    Args:
        policy: Policy whose values bootstrap.
        rollout: Rollout, complete up to this vector step.
        t: Vector step.
        states: Recurrent states after it, `[N, …]`, before they are reset.

    """
    final = rollout.truncated[t] & rollout.first[t] & ~rollout.terminated[t]
    if is_static():
        values = policy.values(rollout.final_obs_at(t, slice(None)), states)
        rollout.final_values[t] = torch.where(final, values, 0.0)
        return
    rows = final.squeeze(-1).nonzero().squeeze(-1)  # one sync a vector step
    if len(rows):
        obs = rollout.final_obs_at(t, rows)
        values = policy.values(obs, tuple(x[rows] for x in states))
        rollout.final_values[t, rows] = values.to(rollout.dtype)


def _zeroed(leaves: Leaves, kept: torch.Tensor) -> Leaves:
    """Leaves `[R, …]`, 0 in rows that are not `kept`, bool `[R]`, which may hold anything."""
    return tuple(
        x.where(kept.view(-1, *(1,) * (x.ndim - 1)), torch.zeros_like(x[:1])) for x in leaves
    )


def _finite_rows(leaves: Leaves, count: int, device: torch.device) -> torch.Tensor:
    """Rows whose leaves are finite, bool `[count]`; none if there are no leaves."""
    finite = torch.full((count,), bool(leaves), dtype=torch.bool, device=device)
    for leaf in leaves:
        finite &= leaf.isfinite().flatten(1).all(-1)
    return finite


def value_obs(policy: GenericPolicyBase[Any], rollout: Rollout, size: int) -> None:
    """Fill in the values of all observations anew, for a policy without recurrent states.

    Args:
        policy: Policy whose values they are.
        rollout: Complete rollout.
        size: Observations at a time on a CPU.

    """
    size = size if rollout.device.type == "cpu" else DENSE_FINAL_ROWS
    values = rollout.values.flatten(0, 1)
    obs = tuple(leaf.flatten(0, 1) for leaf in rollout.obs)
    with policy.keep_casts():
        for start in range(0, len(values), size):
            rows = slice(start, start + size)
            values[rows] = policy.values(tuple(x[rows] for x in obs), ()).to(values.dtype)


# ---- advantages and returns -------------------------------------------------------------------


def scale_rewards(
    rollout: Rollout, running: None | RunningMoments, reducer: Reducer
) -> torch.Tensor:
    """Standard deviation of discounted sums of rewards, 0-d: the scale of rewards.

    Args:
        rollout: Rollout whose `reversed_returns` are filled in.
        running: Moments of all rollouts' sums, which this one's are added to; None for the
            deviation within this rollout.
        reducer: The processes, whose rollouts have one scale.

    """
    own, largest = rows.measured(rollout.reversed_returns[1:], rollout.valid)
    (moments,), (largest,) = reducer.moments([own], [largest])
    if running is None:
        scale = deviation(moments).to(largest.dtype)
    else:
        running.add(*moments)
        scale = running.std.to(largest.dtype)
    return torch.where(vanishes(scale, largest), 1.0, scale)


@torch.no_grad()
def estimate_advantages(
    rollout: Rollout,
    config: Resolved,
    streams: Sequence[Stream],
    learnable: torch.Tensor,
    reward_scale: None | torch.Tensor,
    reducer: Reducer,
    *,
    explains: bool = True,
) -> None | torch.Tensor:
    """Fill in advantages and returns; the values' explained variance of the returns, 0-d.

    Args:
        rollout: Complete rollout.
        config: Hyperparameters.
        streams: Columns of rewards and values.
        learnable: Rows that enter the losses, bool `[T, N, 1]`.
        reward_scale: Divisor of the environment's rewards, 0-d; None for none.
        reducer: The processes whose rows are standardised together.
        explains: Whether to compute the explained variance; None otherwise.

    """
    values = rollout.values[:-1]
    advantages = _advantages(rollout, config, streams, _scaled(rollout, config, reward_scale))
    torch.add(advantages, values, out=rollout.returns[:-1])
    errors, targets = advantages[..., :1], rollout.returns[:-1, :, :1]
    combined, weights = errors, [stream.weight for stream in streams]
    if weights != [1.0]:
        combined = (advantages * _filled(weights, rollout.values)).sum(-1, keepdim=True)
    standardizes = config.normalize_advantages is True  # over a minibatch, `Sequences` does
    needed = [errors, targets] * explains + [combined] * standardizes  # some are one tensor
    own = {x: rows.measured(x, learnable) for x in dict.fromkeys(needed)}
    moments, largest = reducer.moments([x for x, _ in own.values()], [x for _, x in own.values()])
    found = dict(zip(own, zip(moments, largest, strict=True), strict=True))
    if standardizes:
        combined = rows.standardize_by(combined, learnable, *found[combined])
    rollout.advantages[:-1] = combined
    if not explains:
        return None
    unexplained, whole = (variance(found[x][0]) for x in (errors, targets))
    return 1 - unexplained / whole.clamp(min=1e-12)


def _filled(numbers: list[float], like: torch.Tensor) -> torch.Tensor:
    """A tensor of numbers, filled on the device: a copy from the host would synchronise."""
    return torch.cat([like.new_full((1,), number) for number in numbers])


def _scaled(rollout: Rollout, config: Resolved, scale: None | torch.Tensor) -> torch.Tensor:
    """Rewards `[T, N, K]`; the environment's are divided by `scale`, scaled and clipped."""
    rewards = rollout.rewards[:-1]
    if scale is None and config.reward_scale == 1 and config.clip_rewards is None:
        return rewards
    scaled = rewards[..., :1]
    if scale is not None:
        scaled = scaled / divisor_of(scale)
    if config.reward_scale != 1:
        scaled = scaled * config.reward_scale
    if config.clip_rewards is not None:
        scaled = scaled.clamp(-config.clip_rewards, config.clip_rewards)
    return scaled if rewards.shape[-1] == 1 else torch.cat([scaled, rewards[..., 1:]], -1)


def _advantages(
    rollout: Rollout, config: Resolved, streams: Sequence[Stream], rewards: torch.Tensor
) -> torch.Tensor:
    """Advantages of every stream, `[T, N, K]`."""
    next_values = rows.bootstrap_values(
        rollout.values[1:], rollout.terminated, rollout.final, rollout.final_values
    )
    done, known, passed = rollout.done, rollout.known & rollout.valid, None
    gamma: float | torch.Tensor = config.gamma
    if len(streams) > 1:
        gamma = _filled([stream.gamma for stream in streams], rewards)
        episodic = _filled([stream.episodic for stream in streams], done)
        beyond = values_beyond(rollout.values, rollout.valid)
        next_values = torch.where(episodic, next_values, beyond)
        done, known = done & episodic, known | ~episodic
        passed = ~rollout.valid & ~episodic
    return rows.gae(
        rewards,
        rollout.values[:-1],
        next_values,
        done,
        gamma=gamma,
        gae_lambda=config.gae_lambda,
        known=known,
        passed=passed,
    )


def complete(
    parts: Parts, *, evaluating: bool
) -> tuple[dict[str, torch.Tensor], None | torch.Tensor]:
    """Fill in final values and intrinsic rewards; statistics of a rollout, and its reward scale."""
    rollout, config = parts.rollout, parts.config
    rollout.close_rows(bootstraps=not evaluating, clean=rows.clean)
    lost = value_final_obs(parts.policy, rollout, config.on_missing_final)
    means = {}
    if not evaluating:
        for column, bonus in enumerate(parts.bonuses, start=1):
            means[f"bonuses/{bonus.name}_mean"] = write_reward(bonus, column, rollout)
    rewards = rollout.rewards[:-1, :, :1]
    statistics = {
        **rollout.examine(rows.aminmax),
        "lost": lost,
        **rows.reward_statistics(rewards, rollout.valid),
        **means,
    }
    if rollout.episode_keys:
        statistics |= rows.update_episodes(parts.episodes, rewards, rollout.valid, rollout.done)
    if not config.normalize_rewards:
        return statistics, None
    rollout.reversed_returns[1:] = rows.reversed_discounted_returns(
        rewards, rollout.reversed_returns[0], rollout.done, gamma=config.gamma
    )
    running = parts.discounted_returns if config.normalize_rewards == "running" else None
    scale = scale_rewards(rollout, running, parts.reducer)
    return {**statistics, "reward_scale": scale}, scale


# ---- statistics -------------------------------------------------------------------------------


def stopwatch() -> Callable[[], float]:
    """A function that returns the milliseconds since this call."""
    start = time.perf_counter_ns()
    return lambda: (time.perf_counter_ns() - start) / 1e6


def statistic(term: str) -> str:
    """Name under which a term of the loss is reported: `losses/vf`."""
    return f"{'monitors' if term in _MONITORS else 'losses'}/{term}"


def update_statistics(parts: Parts, lr: float, stats: dict[str, float]) -> dict[str, float | int]:
    """Statistics of an update, and its coefficients, before schedules move on.

    Args:
        parts: The algorithm's parts.
        lr: Learning rate of the update.
        stats: Sums over its optimizer steps, and their counts.

    """
    steps, refused, skipped = (stats.pop(name) for name in ("steps", "refused", "skipped"))
    taken = max(1, steps - refused - skipped)
    found: dict[str, float | int] = {
        "coefficients/clip_param": parts.clip_scheduler.coeff,
        "coefficients/entropy": parts.entropy_scheduler.coeff,
        "coefficients/vf": parts.config.vf_coeff,
        "coefficients/lr": lr,
        "monitors/explained_variance": stats.pop("explained_variance"),
        "monitors/skipped_updates": int(skipped),
        "monitors/grad_norm": stats.pop("grad_norm") / taken,
    }
    return found | {statistic(name): total / steps for name, total in stats.items()}
