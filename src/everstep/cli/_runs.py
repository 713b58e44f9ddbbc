"""Configuration and policy of a run, for the commands that play it."""

import argparse
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import ConfigError
from ._arguments import check_run_dir

if TYPE_CHECKING:
    from ..env import Env
    from ..policies import GenericPolicyBase
    from ..trainers import TrainConfig

#: Keys of a run's configuration that playing it depends on.
_KEYS = (
    "env_cls",
    "env_kwargs",
    "env_config",
    "eval_env_config",
    "eval_env_kwargs",
    "num_envs",
    "horizon",
    "device",
    "seed",
    "model_cls",
    "distribution_cls",
)


def read_config(
    run_dir: Path, arguments: argparse.Namespace, *, is_shown: bool = False
) -> "TrainConfig":
    """The configuration of a run that has a policy, as far as playing it depends on it.

    Args:
        run_dir: Directory of the run, or file of a policy, which names its environment.
        arguments: Arguments of the command.
        is_shown: Whether it plays in one environment that shows itself.

    Raises:
        ConfigError: If this is not the directory of such a run, or its environment is not named.

    """
    from ..config import Document, apply_overrides, load
    from ..core.validation import unknown_name
    from ..trainers import TrainConfig
    from ..trainers._trust import check_trust

    overrides = arguments.overrides
    if run_dir.is_file():
        from ..policies import env_of

        document = Document(str(run_dir), env_of(run_dir))
    else:
        check_run_dir(run_dir)
        document = load(run_dir / "config.yaml", within=run_dir)
    document = apply_overrides(document, overrides)
    names = [override.split("=")[0].split(".")[0] for override in overrides]
    if unused := [name for name in names if name not in _KEYS]:
        known = unknown_name("key", unused[0], _KEYS)
        takes = f"{arguments.command} takes {', '.join(_KEYS)}"
        raise ConfigError(f"command line: {unused[0]}: {known}; {takes}")
    if idle := list(_idle(arguments, document.values, is_shown)):
        raise ConfigError([f"command line: {problem}" for problem in idle])
    values = {key: value for key, value in document.values.items() if key in _KEYS}
    document = replace(document, values=values)
    check_trust(run_dir, document, trust=arguments.trust)
    try:
        return TrainConfig.from_document(document)
    except ConfigError as error:
        place = f"everstep {arguments.command} {shlex.quote(str(run_dir))}"
        hint = f"Name the environment if no file can: {place} env_cls=gymnasium:CartPole-v1"
        hints = [hint] if any(": env_cls: " in problem for problem in error.problems) else []
        raise ConfigError([*error.problems, *hints]) from None


def _idle(
    arguments: argparse.Namespace, values: Mapping[str, Any], is_shown: bool
) -> Iterator[str]:
    """Assignments of the command line that have no effect, each with the reason."""
    from ..visualization._playing import MANY

    named = [override.split("=")[0] for override in arguments.overrides]
    of_many = {f"{key}.{name}" for key in ("env_kwargs", "eval_env_kwargs") for name in MANY}
    for name in named:
        if name in ("seed", "num_envs") and getattr(arguments, name, None) is not None:
            flag = name.replace("_", "-")
            yield f"{name}: given by --{flag}, too. Drop one of them."
        elif is_shown and name in {"num_envs", "device", *of_many}:
            yield (
                f"{name}: has no effect: everstep {arguments.command} plays in one environment, on "
                "the CPU, and sets how it shows itself. Drop it."
            )
        elif name.split(".")[0] == "env_config" and values.get("eval_env_config"):
            yield f"{name}: has no effect beside the run's eval_env_config. Set that one."


def beside(file: Path, ending: str) -> Path:
    """The path of a file with another ending; with both, if that is the file itself."""
    other = file.with_suffix(ending)
    return other if other != file else file.with_name(file.name + ending)


def device_of(config: "TrainConfig") -> str:
    """The run's device, or the CPU if that device is not available."""
    import torch

    device = str(config.device or "cpu")
    return device if device.startswith("cuda") and torch.cuda.is_available() else "cpu"


def read_policy(run_dir: Path, config: "TrainConfig", device: str) -> "GenericPolicyBase[Any]":
    """The policy of a run, or of a file.

    Raises:
        CheckpointError: If it cannot be read.

    """
    from ..policies import load_policy

    return load_policy(
        run_dir,
        model_cls=config.model_cls,
        distribution_cls=config.distribution_cls,
        device=device,
    )


class RenderedRun(NamedTuple):
    """The policy of a run, and one environment that shows itself."""

    config: "TrainConfig"
    policy: "GenericPolicyBase[Any]"
    env: "Env"

    #: How it is played: keyword arguments of `play_episodes`.
    options: dict[str, Any]


def player_of(arguments: argparse.Namespace, mode: Literal["rgb_array", "human"]) -> RenderedRun:
    """The policy and a seeded environment of the run that the command line names.

    Raises:
        ConfigError: If this is not the directory of a run.
        CheckpointError: If the policy cannot be read.
        AdapterError: If the environment cannot be made, or does not render.

    """
    import torch

    from ..trainers.config import eval_seed
    from ..visualization.videos import make_rendering_env

    run_dir = Path(arguments.run_dir)
    config = read_config(run_dir, arguments, is_shown=True)
    policy = read_policy(run_dir, config, "cpu")
    seed = eval_seed(config.seed or 0) if arguments.seed is None else arguments.seed
    env = make_rendering_env(config, mode)
    torch.manual_seed(seed)
    if hasattr(env, "seed"):
        env.seed(seed)
    options = {
        "deterministic": not arguments.stochastic,
        "env_config": config.eval_env_config or config.env_config,
        "max_env_steps": arguments.max_env_steps,
    }
    return RenderedRun(config, policy, env, options)


def env_name(env_cls: Any) -> str:
    """The name of an environment without its adapter's prefix, or the name of its class."""
    return str(getattr(env_cls, "__name__", str(env_cls).partition(":")[2]))
