"""Peers: other libraries that train the same recipe, in an interpreter of their own."""

from pathlib import Path
from typing import Any

from everstep.errors import ConfigError

from ..recipes import Recipe
from ._jobs import Job

#: Peers' modules, and what their interpreters need.
PEERS = {
    "stable-baselines3": ("stable_baselines3", "torch stable-baselines3 gymnasium"),
    "cleanrl": ("cleanrl", "torch gymnasium"),
}

#: Keys that a recipe must say, because peers have no defaults of ours.
REQUIRED = {
    "env_cls",
    "total_env_steps",
    "num_envs",
    "horizon",
    "sgd_minibatch_size",
    "num_sgd_iters",
    "model_config.hiddens",
    "model_config.activation_fn",
    "lr",
    "lr_schedule",
    "gamma",
    "gae_lambda",
    "clip_param",
    "vf_loss",
    "vf_coeff",
    "vf_clip_param",
    "max_grad_norm",
    "normalize_observations",
    "normalize_rewards",
    "normalize_advantages",
    "critic_warmup",
    "staggered_resets",
}

#: Keys that a recipe may say, by peer.
OPTIONAL = {
    "stable-baselines3": {
        "clip_rewards",
        "entropy_coeff",
        "model_config.log_std_init",
        "model_config.use_sde",
        "model_config.sde_sample_freq",
    },
    "cleanrl": {"clip_rewards", "entropy_coeff", "model_config.log_std_init"},
}

#: Values that are a peer's own: a recipe with others is not for it.
FIXED: dict[str, dict[str, Any]] = {
    "stable-baselines3": {
        "vf_loss": "mse",
        "normalize_advantages": "minibatch",
        "critic_warmup": 0,
        "preserve_outputs": False,
        "staggered_resets": False,
    },
    "cleanrl": {
        "vf_loss": "mse",
        "normalize_advantages": "minibatch",
        "critic_warmup": 0,
        "preserve_outputs": False,
        "staggered_resets": False,
        "model_config.activation_fn": "tanh",
        "model_config.log_std_init": 0.0,
    },
}

#: Folder of the package `peers`.
_PROGRAMS = Path(__file__).parents[1] / "benchmarks"


def check_peer(recipe: Recipe, peer: str) -> None:
    """Raise a `ConfigError` if a peer cannot train the recipe as Everstep does."""
    said = dict(recipe.values)
    network = said.pop("model_config", None) or {}
    said |= {f"model_config.{key}": value for key, value in network.items()}
    if said.get("env_kwargs") == {"action_bounds": "clip"}:  # as peers do
        del said["env_kwargs"]
    unknown = sorted(said.keys() - REQUIRED - OPTIONAL[peer] - FIXED[peer].keys())
    if said.get("clip_rewards") and not said.get("normalize_rewards"):
        unknown.append("clip_rewards without normalize_rewards")
    required = REQUIRED | ({"preserve_outputs"} if said.get("normalize_observations") else set())
    missing = sorted(required - said.keys())
    other = [
        f"{key}: {said[key]} ({value} there)"
        for key, value in FIXED[peer].items()
        if said.get(key, value) != value
    ]
    if said.get("lr_schedule") not in (None, "linear"):
        other.append(f"lr_schedule: {said['lr_schedule']} (null or linear there)")
    if not isinstance(said.get("num_sgd_iters", 1), int):
        other.append(f"num_sgd_iters: {said['num_sgd_iters']} (a number there)")
    problems = [
        *([f"{peer} is not given {', '.join(unknown)}"] if unknown else []),
        *([f"the recipe leaves {', '.join(missing)} to Everstep's defaults"] if missing else []),
        *([f"{peer} does not have {', '.join(other)}"] if other else []),
    ]
    if problems:
        raise ConfigError(
            f"{recipe.name}: {peer} cannot train this recipe: {'; '.join(problems)}. Choose other "
            "recipes with --only, or change these keys in a recipe of your own."
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
