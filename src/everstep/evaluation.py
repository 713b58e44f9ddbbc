"""Complete episodes with a policy, in an environment of their own."""

from typing import Any

import torch

from .data import DataKeys
from .env import Env
from .errors import EnvError
from .policies import Policy, model_mode
from .specs import Structure


def evaluate(
    policy: Policy,
    env: Env,
    *,
    episodes: int = 100,
    deterministic: bool = True,
    env_config: None | dict[str, Any] = None,
    max_env_steps: int = 100_000,
) -> dict[str, float]:
    """Statistics of complete episodes; see `run_episodes` for arguments and errors."""
    returns, lengths = run_episodes(
        policy,
        env,
        episodes=episodes,
        deterministic=deterministic,
        env_config=env_config,
        max_env_steps=max_env_steps,
    )
    return {
        "episodes/count": len(returns),
        "episodes/return_mean": float(returns.mean()),
        "episodes/return_std": float(returns.std(correction=0)),
        "episodes/return_min": float(returns.min()),
        "episodes/return_max": float(returns.max()),
        "episodes/length_mean": float(lengths.mean()),
    }


def run_episodes(
    policy: Policy,
    env: Env,
    *,
    episodes: int,
    deterministic: bool = True,
    env_config: None | dict[str, Any] = None,
    max_env_steps: int = 100_000,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns and lengths of `episodes` complete episodes, float64 `[episodes]` each, on the CPU.

    Every environment plays the same number of episodes (to within one), decided beforehand:
    taking the first that finish would favour short ones. Where episodes never end, one is
    `env.horizon` env steps from a reset.

    Args:
        policy: Who plays, in eval mode.
        env: Where; it is reset first.
        episodes: How many.
        deterministic: Whether actions are the distribution's mode rather than samples.
        env_config: Passed to the reset.
        max_env_steps: Env steps in each environment after which to give up.

    Raises:
        ValueError: Where `episodes` is not positive.
        EnvError: Where the episodes did not end within `max_env_steps`.

    """
    if episodes < 1:
        raise ValueError(f"`episodes` must be at least 1; got {episodes}.")
    if not env.episode_keys:
        return _run_horizons(policy, env, episodes, deterministic, env_config)
    player = _Player(policy, env, deterministic)
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


def _run_horizons(
    policy: Policy,
    env: Env,
    episodes: int,
    deterministic: bool,
    env_config: None | dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    if not env.horizon:
        raise EnvError(
            "The environment's episodes never end and it has no `horizon`: make it with one."
        )
    player = _Player(policy, env, deterministic)
    finished: list[torch.Tensor] = []
    while len(finished) < episodes:
        player.reset(env_config)
        for _ in range(env.horizon):
            _, sums = player.step()
        finished += sums.unbind(0)
    returns, lengths = torch.stack(finished[:episodes]).unbind(-1)
    return returns, lengths


class _Player:
    """A policy in an environment, with the return and length of each open episode."""

    def __init__(self, policy: Policy, env: Env, deterministic: bool) -> None:
        self.policy, self.env, self.deterministic = policy, env, deterministic
        self.observation = Structure.of(env.observation_spec)
        self.action = Structure.of(env.action_spec)

    def reset(self, env_config: None | dict[str, Any]) -> None:
        self.obs = self.observation.flatten(self.env.reset(config=env_config))
        self.states = self.policy.init_states(self.env.num_envs)
        self.sums = torch.zeros(self.env.num_envs, 2, dtype=torch.float64)

    @torch.no_grad()
    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Whose episode ended, bool `[N]`, and return and length of each so far, `[N, 2]`."""
        with model_mode(self.policy.model, training=False):
            actions, _, _, states = self.policy.act(
                self.obs, self.states, deterministic=self.deterministic
            )
        outcome = self.env.step(self.action.unflatten(actions, [self.env.num_envs]))
        self.obs = self.observation.flatten(outcome[DataKeys.OBS])

        def flag(key: str, default: bool) -> torch.Tensor:
            if key in self.env.episode_keys:
                return outcome[key].cpu().squeeze(-1)  # type: ignore[no-any-return]
            return torch.full((self.env.num_envs,), default)

        valid = flag(DataKeys.VALID, True)
        done = valid & (flag(DataKeys.TERMINATED, False) | flag(DataKeys.TRUNCATED, False))
        rewards = outcome[DataKeys.REWARDS].cpu().double().squeeze(-1)
        self.sums += torch.stack([torch.where(valid, rewards, 0.0), valid.double()], -1)
        sums = self.sums.clone()
        self.sums[done] = 0.0
        if states:
            first = flag(DataKeys.FIRST, False).unsqueeze(-1).to(self.policy.device)
            states = self.policy.next_states(states, first)
        self.states = states
        return done, sums
