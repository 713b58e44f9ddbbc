"""The conversation between `everstep bench` and a program that trains: one JSON object a line.

The first line from the bench is the work: what to train, with how many threads. Then:

| request | answer |
|---|---|
| – | `{"ready": {"versions": …}}`, once the libraries are imported |
| `{"warm": n}` | `{"warm_s"}`: seconds for making the program and n iterations |
| `{"run": n}` | `{"env_steps", "collect_s", "update_s", "total_s", "memory"}` |
| `{"count": n}` | `{"kernels", "launches", "waits", "copies", "busy_ms"}` of an iteration of n |
| `{"learn": {"seed", "env_steps", "metric"}}` | `{"return", "env_steps", "total_s"}` |
| `{"solve": {"seed", "threshold", "max_env_steps", "metric"}}` | the same, and `"solved"` |

It ends with its input. Between requests a program waits for the next line, so that it leaves the
processor to the others. This file needs Python and PyTorch alone.
"""

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TextIO

import torch

#: Calls of CUDA that give the device work, and calls that wait for it; the profiler itself waits
#: for the whole device.
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")


class Iteration(NamedTuple):
    """Env steps and seconds of one rollout and one update."""

    #: Env steps of all environments.
    env_steps: int

    #: Seconds for the rollout.
    collect_s: float

    #: Seconds for the update; 0 where there is none.
    update_s: float


class Program(Protocol):
    """Something that trains."""

    def iterate(self) -> Iteration:
        """Collect a rollout and learn from it."""
        ...

    def score(self, metric: str) -> float | None:
        """How good the policy is by now; None where nothing is known yet.

        `"return"` is the mean return of the last 100 episodes, `"reward"` the mean reward of an env
        step of the last rollout.
        """
        ...

    def close(self) -> None:
        """End what the environment needs: processes, threads."""
        ...


class Stopwatch:
    """Seconds between calls."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def __call__(self) -> float:
        """Seconds since the last call."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def serve(make: Callable[[dict[str, Any]], Program], packages: tuple[str, ...]) -> None:
    """Answer requests until there are no more.

    Args:
        make: A new program for the work.
        packages: Distributions whose versions belong to a result.

    """
    answers = _take_stdout()
    work = json.loads(sys.stdin.readline())
    torch.set_num_threads(work["threads"])
    if work["precision"] == "tf32":
        torch.set_float32_matmul_precision("high")
    _answer(answers, {"ready": {"versions": versions_of(packages)}})
    program: Program | None = None
    for line in iter(sys.stdin.readline, ""):
        ((request, argument),) = json.loads(line).items()
        if request == "warm":
            elapsed = Stopwatch()
            program = _made(make, work, seed=0)
            for _ in range(argument):
                program.iterate()
            _synchronize(work)
            _answer(answers, {"warm_s": elapsed()})
        elif request == "run":
            assert program is not None
            _answer(answers, _run(program, work, argument))
        elif request == "count":
            assert program is not None
            _answer(answers, _count(program, argument))
        else:
            _answer(answers, _train(make, work, **argument))
    if program is not None:
        program.close()


def _take_stdout() -> TextIO:
    """The standard output for answers alone; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _answer(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def versions_of(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of Python, PyTorch and some distributions."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), "torch": torch.__version__, **versions}


def _made(make: Callable[[dict[str, Any]], Program], work: dict[str, Any], seed: int) -> Program:
    torch.manual_seed(seed)
    return make({**work, "seed": seed})


def _run(program: Program, work: dict[str, Any], iterations: int) -> dict[str, Any]:
    """Phases are the host's time, without a synchronisation between them; the total is exact."""
    elapsed = Stopwatch()
    found = [program.iterate() for _ in range(iterations)]
    _synchronize(work)
    return {
        "total_s": elapsed(),
        "env_steps": sum(iteration.env_steps for iteration in found),
        "collect_s": sum(iteration.collect_s for iteration in found),
        "update_s": sum(iteration.update_s for iteration in found),
        "memory": _memory(work),
    }


def _count(program: Program, iterations: int) -> dict[str, float]:
    """Counts of CUDA's profiler for some iterations, on average."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as seen:
        for _ in range(iterations):
            program.iterate()
    # Its names are of the host's calls, and of work on the device, which has times of its own.
    rows = [(x.name, "CUDA" in str(x.device_type), x.device_time) for x in seen.events()]
    return {name: value / iterations for name, value in totals(rows).items()}


def totals(rows: list[tuple[str, bool, float]]) -> dict[str, float]:
    """Kernels, launches, waits and copies between host and device, and milliseconds of kernels.

    Args:
        rows: Name, whether it is work on the device, and its microseconds there.

    """
    found = {"kernels": 0.0, "launches": 0.0, "waits": 0.0, "copies": 0.0, "busy_ms": 0.0}
    for name, is_work, micros in rows:
        if is_work and name.startswith(("Memcpy HtoD", "Memcpy DtoH")):
            found["copies"] += 1
        elif is_work:
            found["kernels"] += 1
            found["busy_ms"] += micros / 1e3
        elif name.startswith(_LAUNCHES):
            found["launches"] += 1
        elif name in _WAITS:
            found["waits"] += 1
    return found


def _train(
    make: Callable[[dict[str, Any]], Program],
    work: dict[str, Any],
    *,
    seed: int,
    metric: str,
    env_steps: float = float("inf"),
    threshold: float = float("inf"),
) -> dict[str, Any]:
    """Train anew until so many env steps were seen, or the score reaches the threshold."""
    elapsed = Stopwatch()
    program = _made(make, work, seed)
    seen, score = 0, None
    while seen < env_steps and not (score is not None and score >= threshold):
        seen += program.iterate().env_steps
        score = program.score(metric)
    _synchronize(work)
    solved = score is not None and score >= threshold
    found = {"return": score, "env_steps": seen, "total_s": elapsed(), "solved": solved}
    program.close()
    return found


def _synchronize(work: dict[str, Any]) -> None:
    if work["device"] == "cuda":
        torch.cuda.synchronize()


def _memory(work: dict[str, Any]) -> dict[str, int]:
    """Largest memory so far, in bytes."""
    memory = {"rss": _resident()}
    if work["device"] == "cuda":
        memory["cuda"] = torch.cuda.max_memory_allocated()
        memory["cuda_reserved"] = torch.cuda.max_memory_reserved()
    return memory


def _resident() -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            # getrusage's number is not below that of the process that started this one.
            lines = [line.split() for line in status if line.startswith("VmHWM:")]
        return int(lines[0][1]) * 1024
    except (OSError, IndexError):
        import resource  # not on Windows

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
