"""Commands that repeat a run, or why there are none."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ._records import RunRecord


def commands_of(run: RunRecord, config: str) -> tuple[list[str], list[str]]:
    """Commands that repeat a run one after the other, and reasons why they do not.

    Args:
        run: The run.
        config: Path of its configuration, for the first command.

    """
    if len(run.history) < 2:
        commands, reasons = [f"everstep train -f {shlex.quote(config)}"], []
        for stretch in run.history:
            commands = [command + _processes(stretch) for command in commands]
            reasons += _reasons(stretch, None)
    else:
        place = f"{run.run_dir}-repeated"
        pairs = list(zip(run.history, [*run.history[1:], None], strict=True))
        commands, reasons = [], []
        before: Mapping[str, Any] = run.history[-1]["settings"]  # those of the file
        previous: None | dict[str, Any] = None
        for stretch, following in pairs:
            reasons += _reasons(stretch, previous)
            limit = _limit(stretch, following)
            changes = _changes(before, stretch["settings"])
            if previous is None:
                words = ["train", "-f", config, *changes, "--run-dir", place]
            else:
                words = ["resume", place, *changes]
                if previous.get("limited") and not any(x.startswith("stop=") for x in changes):
                    words.append(f"stop={json.dumps(stretch['settings'].get('stop'))}")
            commands.append(f"everstep {shlex.join([*words, *limit])}{_processes(stretch)}")
            before, previous = stretch["settings"], {**stretch, "limited": bool(limit)}
    reasons += [line for line in run.comments if "the program" in line]
    return commands, list(dict.fromkeys(reasons))


def stretch_rows(run: RunRecord) -> list[list[str]]:
    """A table of the stretches of a run; the first row is its head."""
    rows, before = [["from env step", "made by", "settings", "ended"]], None
    for stretch in run.history:
        settings = stretch["settings"]
        shown = {k: settings.get(k) for k in ("total_env_steps", "stop") if settings.get(k)}
        if before is not None:
            shown |= {k: settings.get(k) for k in _differing(before, settings)}
        text = ", ".join(f"{key}: {json.dumps(value)}" for key, value in shown.items())
        by = "a resumed run" if stretch["resumed"] else f"`{stretch['by']}`"
        rows.append([f"{stretch['env/steps']:,}", by, text, str(stretch.get("status") or "open")])
        before = settings
    return rows


def _reasons(stretch: Mapping[str, Any], previous: None | Mapping[str, Any]) -> list[str]:
    """Reasons why a command cannot repeat a stretch."""
    at = f"at {stretch['env/steps']:,} env steps"
    if stretch["by"] == "step":
        return [f"{at} the program made train steps itself, with `Trainer.step`"]
    if stretch["by"] == "program":
        return [f"{at} the program changed hyperparameters while it trained"]
    if previous is None:
        return [f"its first stretch begins {at}"] if stretch["algorithm/steps"] else []
    from ..trainers._resuming import CHANGEABLE  # imports PyTorch

    reasons = []
    if not stretch["resumed"] and not stretch["restorable"]:
        reasons.append(
            f"{at} `run` was called again in the same process, where environments went on whose "
            "state checkpoints do not hold"
        )
    changed = _differing(previous["settings"], stretch["settings"])
    if fixed := [key for key in changed if key not in CHANGEABLE]:
        reasons.append(f"{at} the program changed {', '.join(fixed)}")
    evaluates = any(previous["settings"].get(key) for key in ("steps_per_eval", "test_every"))
    if previous.get("status") is None and evaluates and not stretch["restorable"]:
        reasons.append(f"{at} the process had been killed, between evaluations")
    return reasons


def _limit(stretch: Mapping[str, Any], following: None | Mapping[str, Any]) -> list[str]:
    """The train steps after which a stretch that was interrupted is to end."""
    if following is None or stretch.get("status") == "FINISHED":
        return []
    return ["--max-steps", str(following["algorithm/steps"])]


def _processes(stretch: Mapping[str, Any]) -> str:
    return f" --processes {stretch['processes']}" if stretch["processes"] > 1 else ""


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(after.get(key))}" for key in _differing(before, after)]


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]
