"""Trainers of runs that go on: built from the run's `config.yaml`, with some keys changed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..algorithms import LIVE
from ..config import Document, apply_overrides, dotted_name, import_name, load
from ..core.validation import Problem
from ..env.registry import SpecFactory
from ..errors import ConfigError
from ._checkpointing import checkpoints_of
from ._config_checks import is_dotted
from ._options import SAVING
from ._trainers import RecurrentTrainer, Trainer
from ._trust import check_trust, without_programs
from .config import HYPERPARAMETERS, TrainConfig

#: Learning rates, which the checkpoint's optimizer has too.
_RATES = ("lr", "lr_pi", "lr_v")

#: Keys that may differ from the run's `config.yaml` when it is resumed. The state in a checkpoint
#: belongs to one value of each other key.
CHANGEABLE = frozenset(
    {
        *("total_env_steps", "stop", "steps_per_eval", "eval_episodes", "eval_env_config"),
        "eval_env_kwargs",
        *("device", "cuda_graphs"),
        *("env_config", "experiment_name", "video_every", *SAVING, *LIVE, *_RATES),
    }
)


def resume(
    run_dir: str | os.PathLike[str],
    /,
    overrides: Sequence[str] = (),
    *,
    changes: None | Mapping[str, Any] = None,
    trust: bool = False,
    **trainer_arguments: Any,
) -> Trainer | RecurrentTrainer:
    """A trainer that continues a run from its newest checkpoint.

    Args:
        run_dir: Directory of the run.
        overrides: Assignments such as `"total_env_steps=2_000_000"`.
        changes: Values by key.
        trust: Whether to import the code that a run from elsewhere names; see `check_trust`.
        **trainer_arguments: Arguments of `Trainer` that files do not have, such as `loggers`.

    Raises:
        ConfigError: If the directory has no run, or a key cannot be changed.
        CheckpointError: If no checkpoint can be read.

    """
    path = Path(run_dir)
    changes = dict(changes or {})
    document = _document(path, overrides, changes)
    kept = {key: value for key, value in document.values.items() if key not in changes}
    check_trust(path, replace(document, values=kept), trust=trust)
    config = TrainConfig.from_document(document)
    given = config.algorithm_config | {"total_env_steps": config.total_env_steps}
    trainer = config.build(run_dir=path, resume=True, **trainer_arguments)
    named = {assignment.partition("=")[0] for assignment in overrides} | changes.keys()
    for name in sorted(named.intersection(_RATES)):  # the checkpoint's optimizer had the old one
        trainer.algorithm.update_algorithm_parameter(name, given[name])
    return trainer


def _document(run_dir: Path, overrides: Sequence[str], changes: dict[str, Any]) -> Document:
    """The run's configuration with its changes.

    Raises:
        ConfigError: Lists the keys that cannot be changed.

    """
    file = run_dir / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{run_dir}: not the directory of a run: no config.yaml in it. Name the one that "
            "`everstep train` prints."
        )
    if not checkpoints_of(run_dir):
        raise ConfigError(
            f"{run_dir}: no checkpoint in it: the run ended before its first one. Train it anew: "
            f"everstep train -f {file}"
        )
    before = load(file, within=run_dir).hoist("algorithm_config", HYPERPARAMETERS)
    bare = [override.removeprefix("algorithm_config.") for override in overrides]
    after = apply_overrides(before, bare)
    after.values.update(changes)
    if after.values.get("env_cls") is None:
        raise ConfigError(
            f"{run_dir}: the program made the environment, so a file cannot. Build the trainer as "
            "before, with `resume=True`, or name the environment: env_cls=my_module.MyEnv"
        )
    changed = [k for k, value in after.values.items() if value != before.values.get(k)]
    if "device" in changed and "cuda_graphs" not in changed:
        after.values["cuda_graphs"] = "auto"  # that of the record is the other device's
    refused = [k for k in changed if k not in CHANGEABLE and not _is_same(k, before, after)]
    after.check(
        [Problem((key,), _REFUSED.format(before.values.get(key))) for key in refused if key]
    )
    return after


def _is_same(key: str, before: Document, after: Document) -> bool:
    """Whether a key has the same meaning: an id is its spec, a class may have several paths, and
    what was not named may be. Programs of an environment, such as another Python, may have moved.
    """
    if key == "env_kwargs":
        own, given = without_programs(before.values), without_programs(after.values)
        # Runs that are older than its default name it; the checkpoint says whether it fits.
        return own == {k: x for k, x in given.items() if k in own or k != "action_bounds"}
    if key != "env_cls":
        return False
    old, new = before.values.get(key), after.values[key]
    if old is None or not isinstance(new, str):
        return old is None
    return bool(old == (dotted_name(import_name(new)) if is_dotted(new) else SpecFactory(new).spec))


_REFUSED = (
    "cannot change in a run that is resumed: the checkpoint was made with {!r}; start a new run, "
    "or leave it out"
)
