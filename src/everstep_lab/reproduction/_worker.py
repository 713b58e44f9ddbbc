"""One training of a recipe, in a process of its own: `python -m everstep_lab.reproduction._worker`.

Its argument is a JSON object: `file` of the recipe, `overrides`, `run_dir`, and the file `result`.
It trains in `run_dir` or continues the run there, plays complete episodes, and writes the result.
When its standard input ends, the process that started it has ended: the run is saved then, and the
process ends, too.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.callbacks import Callback
from everstep.core.files import append_line, write_file
from everstep.core.interrupts import closing
from everstep.errors import EverstepError

if TYPE_CHECKING:
    from everstep.trainers import TrainConfig

#: Episodes of the evaluation.
EPISODES = 20

#: Points of a curve in a result.
POINTS = 50

#: Seconds to wait for the end of a process that still trains in the run's directory.
PATIENCE_S = 60.0


#: Statistic of a train step: the processor time of its rollout and update, in ms.
PROCESSOR_MS = "profiling/processor_ms"


class ProcessorClock(Callback):
    """Adds its processor time to each train step, and appends that of a process to a file.

    Args:
        path: The file; a line has the number of the process's attempt, and its seconds so far.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attempt = 1 + max((attempt for attempt, _ in self._lines()), default=-1)
        self._zero = self._written = self._before = time.process_time()

    def seconds(self) -> float:
        """Processor seconds of all attempts."""
        return sum(dict(self._lines()).values())  # the last line of each attempt

    def on_start(self, trainer: Any) -> None:
        """Begin the first train step's time."""
        super().on_start(trainer)
        self._before = time.process_time()

    def on_train_step(self, stats: dict[str, Any]) -> None:
        """Add the time since the train step before, and write about once a second."""
        now = time.process_time()
        stats[PROCESSOR_MS] = 1000 * (now - self._before)
        self._before = now
        if time.process_time() - self._written > 1.0:
            self._write()

    def on_end(self, status: str) -> None:
        """Write the total."""
        self._write()

    def _write(self) -> None:
        self._written = time.process_time()
        append_line(self.path, f"{self.attempt} {self._written - self._zero:.2f}")

    def _lines(self) -> list[tuple[int, float]]:
        if not self.path.exists():
            return []
        lines = [x.split() for x in self.path.read_text(encoding="utf-8").splitlines()]
        return [(int(line[0]), float(line[1])) for line in lines if len(line) == 2]


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Train, evaluate, and return the result.

    Args:
        request: The recipe's `file`, `overrides`, and `run_dir`.

    """
    import torch

    from everstep.trainers import TrainConfig

    torch.set_num_threads(1)
    run_dir = Path(request["run_dir"])
    run_dir.mkdir(parents=True, exist_ok=True)
    _wait_for_other(run_dir / "metrics.jsonl")
    config = TrainConfig.from_file(request["file"], request["overrides"])
    clock = ProcessorClock(run_dir / "processor_seconds.txt")
    facts = _train(config, run_dir, clock)
    evaluation = _evaluate(config, run_dir)
    return {**_summary(run_dir), **facts, "processor_seconds": round(clock.seconds(), 1)} | {
        "evaluation": evaluation
    }


def _train(config: "TrainConfig", run_dir: Path, clock: ProcessorClock) -> dict[str, Any]:
    """Train until the budget, and return versions."""
    from everstep.trainers._checkpointing import checkpoints_of
    from everstep.trainers._record import made_with
    from everstep.trainers._resuming import resume

    arguments: dict[str, Any] = {"track": False, "progress": False}
    callbacks = [*(config.callbacks or []), clock]
    if checkpoints_of(run_dir):
        trainer = resume(run_dir, callbacks=callbacks, **arguments)
    else:
        (run_dir / "metrics.jsonl").unlink(missing_ok=True)
        trainer = config.build(run_dir=run_dir, callbacks=callbacks, **arguments)
    with closing(*trainer.envs), trainer:
        trainer.run()
        versions = made_with(trainer.algorithm)
    return {"versions": {k: v for k, v in versions.items() if k not in ("device", "threads")}}


def _evaluate(config: "TrainConfig", run_dir: Path) -> dict[str, Any]:
    """Returns of complete episodes with the most likely actions."""
    import torch

    from everstep.config import load
    from everstep.evaluation import run_episodes
    from everstep.policies import load_policy
    from everstep.trainers.config import EVAL_NUM_ENVS, eval_seed

    resolved = load(run_dir / "config.yaml").values
    config.env_kwargs = {**(config.env_kwargs or {}), **(config.eval_env_kwargs or {})} or None
    source: Any = config.make_env_source()
    env = source(min(EPISODES, EVAL_NUM_ENVS), resolved["horizon"], device="cpu")
    policy = load_policy(
        run_dir / "policy", model_cls=config.model_cls, distribution_cls=config.distribution_cls
    )
    seed = eval_seed(config.seed or 0)
    torch.manual_seed(seed)
    if hasattr(env, "seed"):
        env.seed(seed)
    with closing(env):
        returns, _ = run_episodes(policy, env, episodes=EPISODES, env_config=config.env_config)
    return {
        "mean": _short(float(returns.mean())),
        "std": _short(float(returns.std(correction=0))),
        "returns": [_short(x) for x in returns.tolist()],
    }


def _summary(run_dir: Path) -> dict[str, Any]:
    """Env steps, seconds and processor time, and returns over them."""
    import numpy as np

    from everstep.visualization import read_run

    run = read_run(run_dir)
    key = run.return_key
    records = [record for record in run.records if key in record]
    seconds = _elapsed(run.records, "profiling/collect_ms", "profiling/step_ms")
    processor = _elapsed(run.records, PROCESSOR_MS)
    last = records[-1][key] if key is not None and records else float("nan")
    chosen = [records[i] for i in sorted({*np.linspace(0, len(records) - 1, POINTS).astype(int)})]
    return {
        "env_steps": run.env_steps,
        "seconds": max(seconds.values(), default=0.0),
        "training": _short(last),
        "curve": {
            "env_steps": [int(record["step"]) for record in chosen],
            "seconds": [seconds[record["step"]] for record in chosen],
            "processor_seconds": [processor[record["step"]] for record in chosen],
            "return": [_short(record[key]) for record in chosen if key is not None],
        },
    }


def _elapsed(records: "Sequence[Mapping[str, Any]]", *parts: str) -> dict[int, float]:
    """Seconds until the end of each train step, of statistics in ms, by the run's env steps."""
    steps = [record["step"] for record in records]
    took = (sum(record.get(part, 0.0) for part in parts) / 1000 for record in records)
    return {step: round(x, 1) for step, x in zip(steps, accumulate(took), strict=True)}


def _short(number: float) -> float:
    """A number with five digits, which is what curves and tables need."""
    return float(f"{number:.5g}")


def _wait_for_other(metrics: Path) -> None:
    """Wait until no other process trains there; one that lost its parent ends soon."""
    from everstep.errors import ConfigError
    from everstep.loggers import JsonlLogger

    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            JsonlLogger(metrics).close()
        except ConfigError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            if metrics.stat().st_size == 0:
                metrics.unlink()
            return


def _end_with_parent() -> None:
    """Interrupt this process, so that it saves the run, when the parent's end of a pipe closes."""

    def watch() -> None:
        with suppress(OSError, ValueError):
            while os.read(0, 1024):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Work, write the result, and return the exit code."""
    request = json.loads(sys.argv[1])
    if not sys.stdin.isatty():
        _end_with_parent()
    try:
        result = work(request)
    except EverstepError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(" ".join(str(error).split()))
        return 1
    except KeyboardInterrupt as error:
        print("interrupted; the run goes on with the next `everstep reproduce`")
        return getattr(error, "exit_code", 130)
    write_file(request["result"], json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
