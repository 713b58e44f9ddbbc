"""Peers: other libraries that train the same recipe, in an interpreter of their own."""

from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..recipes import Recipe
from ._jobs import Job

#: Peers' modules, and what their interpreters need.
PEERS = {
    "stable-baselines3": ("stable_baselines3", "torch stable-baselines3 gymnasium"),
    "cleanrl": ("cleanrl", "torch gymnasium"),
}

#: Keys of a recipe that peers are given; a recipe with other keys is not for them.
KEYS = {
    "env_cls",
    "total_env_steps",
    "num_envs",
    "horizon",
    "sgd_minibatch_size",
    "num_sgd_iters",
    "model_config",
    "lr",
    "lr_schedule",
    "gamma",
    "gae_lambda",
    "clip_param",
    "clip_rewards",
    "entropy_coeff",
    "vf_loss",
    "vf_coeff",
    "vf_clip_param",
    "max_grad_norm",
    "normalize_observations",
    "normalize_rewards",
    "normalize_advantages",
}

#: Folder of the package `peers`.
_PROGRAMS = Path(__file__).parents[1] / "benchmarks"


def check_peer(recipe: Recipe, peer: str) -> None:
    """Raise a `ConfigError` if a peer cannot train the recipe."""
    unknown = sorted(recipe.values.keys() - KEYS)
    if recipe.values.get("clip_rewards") and not recipe.values.get("normalize_rewards"):
        unknown.append("clip_rewards without normalize_rewards")
    if unknown:
        raise ConfigError(
            f"{recipe.name}: {peer} is not given {', '.join(unknown)}, so it cannot train this "
            "recipe. Choose recipes without these keys with --only."
        )


def peer_command(job: Job, environment: dict[str, str]) -> list[str]:
    """The command of a peer's process."""
    environment["PYTHONPATH"] = str(_PROGRAMS)
    return [job.python, "-m", f"peers.recipes.{PEERS[job.side][0]}"]


def peer_request(job: Job, directory: Path) -> dict[str, Any]:
    """The request to a peer: the recipe's keys, the seed, and the place of the result."""
    return {
        "values": job.recipe.values,
        "seed": job.seed,
        "result": str(directory / "result.json"),
    }
