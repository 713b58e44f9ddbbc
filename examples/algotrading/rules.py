"""Returns of simple rules, to compare policies with: `python -m examples.algotrading.rules`."""

from collections.abc import Callable

import torch

from everstep_lab.recipes.envs.algotrading import CHANGE, Action, AlgoTrading

#: An action for every environment `[num_envs, 1]`, from the world and the env step.
Rule = Callable[[AlgoTrading, int], torch.Tensor]


def hold(env: AlgoTrading, t: int) -> torch.Tensor:
    """Never buy."""
    return torch.full_like(env.obs["invested"], Action.HOLD)


def uniform(env: AlgoTrading, t: int) -> torch.Tensor:
    """Anything that can be done."""
    return env.obs["action_mask"].float().multinomial(1)


def buy_and_hold(env: AlgoTrading, t: int) -> torch.Tensor:
    """Buy at once, and never sell."""
    return _own(env, torch.ones_like(env.obs[CHANGE], dtype=torch.bool))


def follow(env: AlgoTrading, t: int) -> torch.Tensor:
    """Own what has risen, and nothing else."""
    return _own(env, env.obs[CHANGE] > 0)


def know(env: AlgoTrading, t: int) -> torch.Tensor:
    """Own what grows in the long run, which cannot be seen."""
    return _own(env, env.growth > 0)


def know_and_sell(env: AlgoTrading, t: int) -> torch.Tensor:
    """The same, but sell every ninth env step, and buy again."""
    return _own(env, (env.growth > 0) & (t % 9 != 8))


def _own(env: AlgoTrading, wanted: torch.Tensor) -> torch.Tensor:
    """Buy what is wanted and not owned, sell what is owned and not wanted."""
    owned = env.obs["invested"].bool()
    actions = torch.full_like(env.obs["invested"], Action.HOLD)
    actions[wanted & ~owned] = Action.BUY
    actions[~wanted & owned] = Action.SELL
    return actions


RULES: tuple[Rule, ...] = (hold, uniform, buy_and_hold, follow, know, know_and_sell)


def mean_return(rule: Rule, *, num_envs: int = 20_000, horizon: int = 32) -> float:
    """Mean over environments of what a rule earns in an episode."""
    env = AlgoTrading(num_envs)
    env.reset()
    rewards = [env.step(rule(env, t))["rewards"] for t in range(horizon)]
    return float(torch.stack(rewards).sum(0).mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    for rule in RULES:
        print(f"{rule.__name__:<14} {mean_return(rule):6.2f}")
