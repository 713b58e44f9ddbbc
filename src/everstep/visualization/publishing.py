"""A folder for the Hugging Face hub: policy, configuration, curves, video and model card."""

import json
import logging
import re
import shutil
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from .._version import __version__
from ..core.files import replacing, write_file
from ..core.plain_files import open_plain, printable, read_plain
from ..errors import ConfigError
from ..loggers.history import HISTORY
from ._comparison import result_of, shown
from ._pages import MAX_VIDEO
from ._plot import plot_runs
from ._records import RunRecord, read_run

__all__ = ["publish_run"]

_log = logging.getLogger(__name__)

_USE = """## Use

Everstep is installed from a copy of its repository:

```sh
pip install path/to/everstep
```

```python
import everstep

policy = everstep.{kind}.load("policy")
action, state = policy.predict(obs)  # obs as the environment returns it
```

`everstep eval .` plays complete episodes in the folder, and `everstep video .` records them.
{repeat}
"""

_REPEATED = "`everstep train -f config.yaml` trains it again."

_NOT_REPEATED = (
    "`everstep train -f config.yaml` trains another one: this one was trained in {count} stretches "
    "with settings of their own, which `history.jsonl` has."
)


def publish_run(run_dir: str | Path, out: str | Path) -> Path:
    """Write a folder that can be uploaded to the Hugging Face hub, and return the model card.

    It has the policy (the best one, if the run has kept it), `config.yaml`, `metrics.jsonl`,
    `results.json`, `curves.png` if matplotlib is installed, the video of the run if there is one,
    and `README.md`, a model card with the results. Nothing is sent anywhere.

    Args:
        run_dir: The run's directory.
        out: Folder to create.

    Raises:
        ConfigError: If this is not the directory of a run with a policy, or `out` exists.
        EverstepError: If the run has no records.

    """
    run, out = read_run(run_dir), Path(out)
    if not (run.run_dir / "policy").is_file():
        raise ConfigError(f"{run.run_dir}: no policy in it: the run ended before its first one.")
    if out.exists():
        raise ConfigError(f"{out} exists already: name another folder, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as place:
        _publish(run, place)
    return out / "README.md"


def _publish(run: RunRecord, out: Path) -> None:
    out.mkdir()
    best = run.run_dir / "best"
    is_best = (best / "policy").exists()
    _copy(run, "best/policy" if is_best else "policy", out / "policy")
    for name in ("config.yaml", "metrics.jsonl", *([HISTORY] if len(run.history) > 1 else [])):
        _copy(run, name, out / name)
    results = _results(run, best if is_best else None)
    text = json.dumps(results, indent=1)
    write_file(out / "results.json", text + "\n")
    pictures = [*_curves(run, out), *_video(run, out)]
    card = out / "README.md"
    write_file(card, _card(run, results, pictures, is_best=is_best))


def _results(run: RunRecord, best: None | Path) -> dict[str, Any]:
    """Results of the run, and of the best policy under `best`."""
    found: dict[str, Any] = dict(result_of(run))
    if best is not None and (best / "best.json").exists():
        found["best"] = _read_best(best / "best.json", run.run_dir)
    return found


def _read_best(path: Path, run_dir: Path) -> dict[str, Any]:
    """Names and numbers of the best policy.

    Raises:
        ConfigError: If the file has anything else.

    """
    try:
        found = json.loads(read_plain(path, within=run_dir))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(x) in (int, float, str) for x in found.values()):
        raise ConfigError(f"{path}: expected a mapping of names to numbers, as a run writes it.")
    return {printable(k): printable(x) if isinstance(x, str) else x for k, x in found.items()}


def _copy(run: RunRecord, name: str, target: Path, limit: int = 2**32) -> None:
    """Copy a file of the run, which must be a plain one of at most so many bytes."""
    source = open_plain(run.run_dir / name, within=run.run_dir, limit=limit)
    with source as file, target.open("xb") as copy:
        shutil.copyfileobj(file, copy)


def _curves(run: RunRecord, out: Path) -> list[str]:
    try:
        plot_runs([run.run_dir], out / "curves.png")
    except Exception as error:  # matplotlib is missing, or broken
        _log.warning("The folder has no curves: %s", error)
        return []
    return ["## Curves", "", "![Statistics over env steps](curves.png)", ""]


def _video(run: RunRecord, out: Path) -> list[str]:
    """Copy the newest video, under the name that the hub plays."""
    made = [path for name in ("play.mp4", "play.gif") if (path := run.run_dir / name).exists()]
    made += sorted((run.run_dir / "videos").glob("*.mp4"), reverse=True)
    if not made:
        return []
    name = f"replay{made[0].suffix}"
    _copy(run, str(made[0].relative_to(run.run_dir)), out / name, MAX_VIDEO)
    if made[0].suffix == ".gif":
        return ["## Video", "", f"![The policy, playing]({name})", ""]
    return ["## Video", "", f'<video controls src="{name}"></video>', ""]


def _card(run: RunRecord, results: Mapping[str, Any], pictures: list[str], *, is_best: bool) -> str:
    """The model card: what the hub reads between two lines of dashes, and a page."""
    env = str(run.config.get("env_cls") or "").partition(":")[2][:_MAX_CELL] or "custom"
    algorithm = run.objective or "custom"
    title = f"{algorithm} in {_cell(env)}"
    head = yaml.safe_dump(_head(results, env, algorithm), sort_keys=False, allow_unicode=True)
    which = "the best policy of the run" if is_best else "the policy at the end of the run"
    rows = [
        f"| {_cell(key)} | {_cell(shown(value))} |"
        for key, value in results.items()
        if not isinstance(value, dict)
    ]
    rows.append(_deviation_row(run, results))
    kind = "RecurrentPolicy" if run.config.get("recurrent") else "Policy"
    lines = [
        f"---\n{head}---\n",
        f"# {title}\n",
        f"Trained with Everstep {__version__} for "
        f"{run.env_steps:,} env steps; `policy` is {which}.\n",
        "## Results\n",
        "| statistic | value |",
        "|---|---|",
        *rows,
        "",
        *pictures,
        _USE.format(kind=kind, repeat=_repeat(run)),
        "## Made with\n",
        *(f"    {comment}" for comment in run.comments),
        "",
    ]
    return "\n".join(lines)


def _repeat(run: RunRecord) -> str:
    count = len(run.history)
    return _REPEATED if count < 2 else _NOT_REPEATED.format(count=count)


def _cell(text: str) -> str:
    """`text` of a stranger in a line of Markdown: no HTML, no link, no end of a cell."""
    shown = printable(text[:_MAX_CELL]).replace("\n", " ").replace("\t", " ")
    return re.sub(r"[\\`*\[\]|~]", lambda found: f"&#{ord(found[0])};", escape(shown))


#: Characters of a name in a card.
_MAX_CELL = 200


def _deviation_row(run: RunRecord, results: Mapping[str, Any]) -> str:
    """The row of the deviation of the return between the episodes of the evaluation shown."""
    key, value = _return_of(results)
    deviation = deviation_of(run, key, value)
    if deviation is None:
        return "| standard deviation of the return | not recorded: `everstep eval .` measures it |"
    return f"| standard deviation of `{_cell(key)}` over its episodes | {shown(deviation)} |"


def deviation_of(run: RunRecord, key: str, value: None | float) -> None | float:
    """Standard deviation over the episodes of the evaluation with that mean return, if known."""
    if value is None or not key.endswith("return_mean"):
        return None
    steps, means = run.curve(key)
    places, deviations = run.curve(key.removesuffix("mean") + "std")
    at = [step for step, mean in zip(steps, means, strict=True) if mean == value]
    found = [x for place, x in zip(places, deviations, strict=True) if at and place == at[-1]]
    return float(found[-1]) if found else None


def _return_of(results: Mapping[str, Any]) -> tuple[str, None | float]:
    """The mean return of the policy in the folder, and its name."""
    best = results.get("best", {})
    if str(best.get("key", "")).removeprefix("eval/").startswith("episodes/return_mean"):
        return str(best["key"]), best["value"]
    keys = ("eval/episodes/return_mean", "episodes/return_mean_100", "episodes/return_mean")
    key = next((key for key in keys if key in results), "")
    return key, results.get(key)


def _head(results: Mapping[str, Any], env: str, algorithm: str) -> dict[str, Any]:
    """Front matter as the hub reads it: the index of results has the mean return."""
    _, value = _return_of(results)
    metric = {"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": env, "name": env},
        "metrics": [metric],
    }
    return {
        "library_name": "everstep",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning", "everstep", env],
        "model-index": [{"name": algorithm, "results": [] if value is None else [result]}],
    }
