"""Evaluation: complete episodes of a policy, in an environment of their own."""

from typing import Any

import torch

from .algorithms.resolve import check_env, device_problem
from .core.rollouts import Rollout, episode_keys_of
from .core.validation import Count, PositiveInt, explained
from .data import DataKeys
from .env import Env
from .env.calls import EnvCalls, read_metrics
from .env.limits import limits_of
from .env.specs import Leaves, Structure, described
from .errors import ConfigError, EnvError
from .policies import GenericPolicyBase, model_mode


@explained(
    "Write `evaluate(policy, env, episodes={})`.",
    episodes=Count,
    deterministic=bool,
    env_config=None | dict[str, Any],
    max_env_steps=PositiveInt,
)
def evaluate(
    policy: GenericPolicyBase[Any],
    env: Env,
    *,
    episodes: int = 100,
    deterministic: bool = True,
    env_config: None | dict[str, Any] = None,
    max_env_steps: int = 100_000,
) -> dict[str, float]:
    """Statistics of complete episodes, and the environment's own metrics of that time.

    See `run_episodes` for arguments and errors.
    """
    read_metrics(env)  # those of before are discarded
    returns, lengths = run_episodes(
        policy,
        env,
        episodes=episodes,
        deterministic=deterministic,
        env_config=env_config,
        max_env_steps=max_env_steps,
    )
    return episode_stats(returns, lengths) | read_metrics(env)


def episode_stats(returns: torch.Tensor, lengths: torch.Tensor) -> dict[str, float]:
    """Statistics of returns and lengths, `[episodes]` each, by name."""
    return {
        "episodes/count": len(returns),
        "episodes/return_mean": float(returns.mean()),
        "episodes/return_std": float(returns.std(correction=0)),
        "episodes/return_min": float(returns.min()),
        "episodes/return_max": float(returns.max()),
        "episodes/length_mean": float(lengths.mean()),
    }


def run_episodes(
    policy: GenericPolicyBase[Any],
    env: Env,
    *,
    episodes: int,
    deterministic: bool = True,
    env_config: None | dict[str, Any] = None,
    max_env_steps: int = 100_000,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns and lengths of `episodes` complete episodes, float64 `[episodes]` each, on the CPU.

    Every environment plays the same number of episodes (to within one), decided beforehand:
    taking the first that finish would favour short ones. In a non-episodic environment, an episode
    is `env.horizon` env steps from a reset.

    Args:
        policy: The policy, in eval mode.
        env: The environment; it is reset first.
        episodes: Number of episodes.
        deterministic: Whether actions are the distribution's mode rather than samples.
        env_config: Passed to the reset.
        max_env_steps: Env steps in each environment after which to give up.

    Raises:
        ValueError: If `episodes` is not positive.
        ConfigError: If `policy` is not a policy, or does not fit the environment.
        EnvError: If `env` is not an environment, or the episodes did not end within
            `max_env_steps`.

    """
    if episodes < 1:
        raise ValueError(f"`episodes` must be at least 1; got {episodes}.")
    check_env(env)
    check_fit(policy, env)
    player = Player(policy, env, deterministic)
    if not episode_keys_of(env):
        return _run_horizons(player, episodes, env_config, max_env_steps)
    quota = torch.full((env.num_envs,), episodes // env.num_envs)
    quota[: episodes % env.num_envs] += 1
    finished: list[torch.Tensor] = []
    player.reset(env_config)
    for _ in range(max_env_steps):
        ended, sums = player.step()
        counted = ended & (quota > 0)
        finished += sums[counted].unbind(0)
        quota -= counted.long()
        if not bool((quota > 0).any()):
            returns, lengths = torch.stack(finished).unbind(-1)
            return returns, lengths
    raise EnvError(
        f"Only {len(finished)} of {episodes} episodes ended within {max_env_steps} env steps. "
        "Bound them (`max_episode_steps`), or raise `max_env_steps`."
    )


def check_fit(policy: Any, env: Env) -> None:
    """Raise if the environment has other observations or actions than the policy."""
    if not isinstance(policy, GenericPolicyBase):
        raise ConfigError(
            f"`policy` must be a policy, such as `Policy.load(run_dir)` or "
            f"`trainer.algorithm.policy`; got {type(policy).__name__}."
        )
    problems = [x for x in [device_problem(policy.device, env)] if x]
    for name in ("observation_spec", "action_spec"):
        own, other = (described(getattr(x, name)) for x in (policy, env))
        if own != other:
            problems.append(
                f"The policy was trained with the {name.replace('_', ' ')} {own}; that of "
                f"{type(env).__name__} is {other}. Evaluate it in an environment as in training."
            )
    if problems := problems or policy.problems_in(env):
        raise ConfigError(problems)


def _run_horizons(
    player: "Player", episodes: int, env_config: None | dict[str, Any], max_env_steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if not player.env.horizon:
        raise EnvError(
            "The environment's episodes never end and it has no `horizon`: make it with one."
        )
    if player.env.horizon > max_env_steps:
        raise EnvError(
            f"No episode ends within {max_env_steps} env steps: one is {player.env.horizon} env "
            "steps here, the environment's `horizon`. Raise `max_env_steps`, or lower that."
        )
    finished: list[torch.Tensor] = []
    while len(finished) < episodes:
        player.reset(env_config)
        for _ in range(player.env.horizon):
            _, sums = player.step()
        finished += sums.unbind(0)
    returns, lengths = torch.stack(finished[:episodes]).unbind(-1)
    return returns, lengths


class Player:
    """A policy in an environment, with the return and length of each open episode."""

    def __init__(self, policy: GenericPolicyBase[Any], env: Env, deterministic: bool) -> None:
        self.policy, self.env, self.deterministic = policy, env, deterministic
        self.calls = EnvCalls(env)
        #: One vector step, carried over to the next.
        self.rollout = Rollout(
            env.num_envs,
            1,
            observation=Structure.of(env.observation_spec),
            action=Structure.of(env.action_spec),
            memory=policy.memory,
            episode_keys=episode_keys_of(env),
            history=policy.history,
            observation_limits=limits_of(
                env.observation_spec, torch.device(env.device), policy.env_format.observation
            ),
            dtype=torch.get_default_dtype(),
            device=torch.device(env.device),
        )

    @torch.no_grad()
    def reset(self, env_config: None | dict[str, Any]) -> None:
        """Reset the environment, and begin all episodes."""
        policy, num_envs = self.policy, self.env.num_envs
        self.calls.reset(self.rollout, env_config)
        self.states: Leaves = policy.memory.flatten(policy.init_states(num_envs))
        self.sums = torch.zeros(num_envs, 2, dtype=torch.float64)
        self.goes_on = False

    @torch.no_grad()
    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ended episodes, bool `[N]`, and return and length of each so far, `[N, 2]`."""
        rollout, policy = self.rollout, self.policy
        if self.goes_on:
            self.calls.carry(rollout)
        self.goes_on = True
        with model_mode(policy.model, training=False):
            sample = policy.act(rollout.obs_at(0), self.states, deterministic=self.deterministic)
        self.calls.step(rollout, 0, sample.actions)
        rollout.close_rows(bootstraps=False)
        row = rollout.valid[0], rollout.done[0], rollout.rewards[0, :, :1]
        finite = rollout.examine()["finite"].view(1, 1)
        columns = [x.to(rollout.rewards.dtype) for x in (*row, finite)]
        found = torch.cat(columns).cpu().double().squeeze(-1)  # one sync
        *row, finite = found.split([self.env.num_envs] * 3 + [1])
        if not finite:
            rollout.find_fault()
        self.states = sample.states
        if sample.states and DataKeys.FIRST in rollout.episode_keys:
            self.states = policy.next_states(sample.states, rollout.first[0])
        valid, done, rewards = row
        self.sums += torch.stack([torch.where(valid > 0, rewards, 0.0), valid], -1)
        sums, ended = self.sums.clone(), (valid * done).bool()
        self.sums[ended] = 0.0
        return ended, sums
