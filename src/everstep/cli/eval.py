"""`everstep eval`: evaluate the policy of a run."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..core.interrupts import closing
from ._arguments import add_number, add_overrides, add_trust
from ._runs import device_of, read_config, read_policy

if TYPE_CHECKING:
    from ..env import Env
    from ..trainers import TrainConfig

HELP = "evaluate the policy of a run"
DESCRIPTION = "Evaluate the policy of a run in the environment that it was trained in, made anew."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run, or policy file")
    add_overrides(parser, "env_kwargs.max_episode_steps=200")
    add_number(parser, "--episodes", "episodes to play (default: %(default)s)", default=100)
    add_number(
        parser, "--seed", "seed of the episodes (default: derived from the run's seed)", least=0
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="sample actions (default: the most likely)"
    )
    add_number(parser, "--num-envs", "parallel environments")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the policy and print statistics; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run, or its environment cannot be made.
        CheckpointError: If the policy cannot be read.

    """
    import torch

    from ..core.intervals import mean_interval
    from ..core.rollouts import episode_keys_of
    from ..env.calls import read_metrics
    from ..evaluation import episode_stats, run_episodes
    from ..trainers.config import eval_seed

    run_dir = Path(arguments.run_dir)
    config = read_config(run_dir, arguments)
    device = device_of(config)
    policy = read_policy(run_dir, config, device)
    seed = eval_seed(config.seed or 0) if arguments.seed is None else arguments.seed
    env = _make_env(config, arguments, device)
    with closing(env):
        torch.manual_seed(seed)
        if hasattr(env, "seed"):
            env.seed(seed)
        returns, lengths = run_episodes(
            policy,
            env,
            episodes=arguments.episodes,
            deterministic=not arguments.stochastic,
            env_config=config.eval_env_config or config.env_config,
        )
        metrics = read_metrics(env)
    # One episode has no interval.
    interval = mean_interval(returns.numpy())[1:] if len(returns) > 1 else None
    result = {
        "run_dir": str(run_dir),
        "seed": seed,
        "deterministic": not arguments.stochastic,
        "episodic": bool(episode_keys_of(env)),
        **episode_stats(returns, lengths),
        "episodes/return_mean_interval": interval,
        **metrics,
    }
    print(json.dumps(result, indent=2) if arguments.json else _text(result))
    return 0


def _text(result: dict[str, Any]) -> str:
    number = {name: f"{value:.1f}" for name, value in result.items() if isinstance(value, float)}
    intervals = filter(None, [result["episodes/return_mean_interval"]])
    how = "most likely" if result["deterministic"] else "sampled"
    # Without episodes, returns are sums of rewards over `horizon` env steps from a reset.
    played, label = ("episode", "return") if result["episodic"] else ("rollout", "rollout return")
    return "\n".join(
        [
            f"{result['run_dir']}: {result['episodes/count']} {played}s, {how} actions, "
            f"seed {result['seed']}",
            f"  {label:<16}{number['episodes/return_mean']} ± {number['episodes/return_std']}",
            *(f"  {'95 % of mean':<16}{low:.1f} to {high:.1f}" for low, high in intervals),
            f"  {'min, max':<16}{number['episodes/return_min']}, {number['episodes/return_max']}",
            f"  {f'{played} length':<16}{number['episodes/length_mean']}",
            *(f"  {name:<15} {x:.4g}" for name, x in result.items() if name.startswith("env/")),
        ]
    )


def _make_env(config: "TrainConfig", arguments: argparse.Namespace, device: str) -> "Env":
    from ..trainers.config import EVAL_NUM_ENVS

    source: Any = config.make_env_source(evaluating=True)
    trained_with = config.num_envs if isinstance(config.num_envs, int) else EVAL_NUM_ENVS
    num_envs = arguments.num_envs or min(arguments.episodes, trained_with, EVAL_NUM_ENVS)
    horizon = config.horizon if isinstance(config.horizon, int) else None
    return cast("Env", source(num_envs, horizon, device=device))
