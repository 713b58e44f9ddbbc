"""Wrap every environment of Gymnasium's registry in every way, and write a page of the results.

    python examples/adapters/gymnasium_registry.py --out docs/evidence/gymnasium_registry.md
    python examples/adapters/gymnasium_registry.py --only CartPole --steps 200

Each environment is made as Gymnasium makes it by default, as a `SyncVectorEnv` and as an
`AsyncVectorEnv`, the latter two in each autoreset mode. In each way it has to obey the rules of
`everstep.testing`, in episodes cut to a few env steps, and to take random env steps. Every
environment has a process of its own, so that a crash does not end the others.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from gymnasium.wrappers import TimeLimit

import everstep
from everstep.errors import EverstepError
from everstep.testing import run_checks

MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")

#: Environments in a batch.
NUM_ENVS = 2

#: Env steps of the episodes that rules are checked with, so that several end.
SHORT = 7

#: Seconds that one environment may take.
PATIENCE = 1800


class Way(NamedTuple):
    """A way of making an environment, and its column in the table."""

    column: str
    options: dict[str, Any]


def ways(name: str) -> list[Way]:
    """Every way in which the environment can be made."""
    found = [Way("default", {})]
    # Forking a process in which JAX has started its threads can hang.
    context = "spawn" if is_jax(name) else "fork"
    for kind in ("sync", "async"):
        kwargs = {"context": context} if kind == "async" else {}
        for mode in MODES:
            options = {"vectorization_mode": kind, "autoreset_mode": mode, "vector_kwargs": kwargs}
            found.append(Way(f"{kind} {mode}", options))
    return found


def is_jax(name: str) -> bool:
    return name.startswith(("phys2d/", "tabular/"))


def made(name: str, way: Way, num_envs: int = NUM_ENVS, **options: Any) -> everstep.Env:
    """A new environment."""
    return everstep.make(f"gymnasium:{name}", num_envs, **way.options, **options)


def shortened(name: str, way: Way, num_envs: int, horizon: int, device: Any) -> everstep.Env:
    """A new environment whose episodes are short, though it ends them itself."""
    spec = gymnasium.spec(name)
    if way.column == "default" and spec.vector_entry_point is not None:
        limit: dict[str, Any] = {"max_episode_steps": SHORT}
    else:
        limit = {"wrappers": [partial(TimeLimit, max_episode_steps=SHORT)]}
    return made(name, way, num_envs, horizon=horizon, device=device, **limit)


def broken_rules(name: str, way: Way) -> Iterator[str]:
    """The rules of the protocol that the environment breaks."""
    # A choice among few does not always change what is observed next.
    results = run_checks(
        partial(shortened, name, way),
        num_envs_choices=(NUM_ENVS,),
        num_steps=3 * SHORT,
        resets_draw_new_states=False,
    )
    for result in results:
        if result.violation is not None:
            broken = result.violation
            yield f"{result.name}: {broken.rule} Received: {broken.received}."


def walk(name: str, way: Way, steps: int) -> None:
    """Take random env steps, those of a whole batch at once."""
    env = made(name, way)
    try:
        env.seed(0)
        env.reset()
        for _ in range(steps // NUM_ENVS):
            row = env.step(env.action_spec.rand(torch.Size([NUM_ENVS])))
            if not row["rewards"].isfinite().all():
                raise ArithmeticError("a reward is not finite")
    finally:
        env.close()


def examine(name: str, steps: int) -> dict[str, Any]:
    """Results of an environment: its spaces, and its fault in each way, if any."""
    env = made(name, Way("sync", {"vectorization_mode": "sync"}), 1)
    found: dict[str, Any] = {
        "observation": shown(env.env.single_observation_space),
        "action": shown(env.env.single_action_space),
    }
    env.close()
    found["ways"] = {way.column: fault(name, way, steps) for way in ways(name)}
    return found


def fault(name: str, way: Way, steps: int) -> str:
    """Fault of a way of making an environment; empty if there is none."""
    slow = is_jax(name)
    try:
        walk(name, way, steps // 10 if slow else steps)
        return "" if slow and way.column != "default" else "; ".join(broken_rules(name, way))
    except Exception as error:
        return error_text(error)


def shown(space: gymnasium.Space[Any]) -> str:
    """A space, briefly."""
    if isinstance(space, gymnasium.spaces.Box):
        return f"Box {list(space.shape)} {space.dtype}"
    if isinstance(space, gymnasium.spaces.Tuple):
        return f"Tuple of {len(space.spaces)}"
    return str(space)


def error_text(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, EverstepError) and error.__cause__ else error
    plain = re.sub(r"\x1b\[\d+m|,? for more information https?://\S+", "", str(cause))
    return re.sub(r"\s+", " ", plain).strip() or type(cause).__name__


def refusal(name: str) -> str:
    """Reason why an environment cannot be made here; empty if it can."""
    try:
        made(name, Way("sync", {"vectorization_mode": "sync"}), 1).close()
    except Exception as error:
        return error_text(error)
    return ""


def in_a_process(name: str, steps: int) -> dict[str, Any]:
    """The result of `examine`, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--steps", str(steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"refused": f"took longer than {PATIENCE} s"}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"refused": f"ended with exit code {done.returncode}: {last}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


PAGE = """# Evidence: Gymnasium's registry

Every environment that is registered with Gymnasium {gymnasium}, made in every way, {count} in all.
In each way that has a check mark it obeyed the rules of `everstep.testing`, with episodes cut to
{short} env steps, and took {steps:,} random env steps, {num_envs} at once, as it is. A number in
parentheses leads to what was wrong. `python examples/adapters/gymnasium_registry.py` wrote this
page, with {libraries}.

Environments in JAX, whose names begin with `phys2d/` and `tabular/`, compile anew as they go and
took a tenth of the env steps; only the default way was held to the rules. In an env step that
resets one row, Gymnasium's vector classes for them leave the others where they were (1.4): make
them with `vectorization_mode="sync"`.

"Default" is what `gymnasium.make_vec` makes where it is told nothing: a class of the environment's
own, if it has one, else a `SyncVectorEnv`. N, S and D are the autoreset modes `NEXT_STEP`,
`SAME_STEP` and `DISABLED`.

| environment | observation | action | default | sync N S D | async N S D |
|---|---|---|---|---|---|
{rows}

{notes}
## Refused

| environments | why |
|---|---|
{refused}
"""

LIBRARIES = ("mujoco", "box2d", "jax", "flax", "pygame-ce")


def page(results: dict[str, dict[str, Any]], steps: int) -> str:
    """The page of documentation that shows `results`."""
    notes: list[str] = []
    rows = [row_of(name, result, notes) for name, result in results.items() if "ways" in result]
    reasons: dict[str, list[str]] = {}
    for name, result in results.items():
        if "refused" in result:
            reasons.setdefault(result["refused"], []).append(name)
    refused = [
        f"| {', '.join(f'`{name}`' for name in names)} | {escaped(reason)} |"
        for reason, names in reasons.items()
    ]
    return PAGE.format(
        gymnasium=version("gymnasium"),
        count=len(rows),
        short=SHORT,
        steps=steps,
        num_envs=NUM_ENVS,
        libraries=", ".join(installed(LIBRARIES)),
        rows="\n".join(rows),
        notes="".join(f"{i}. {escaped(note)}\n" for i, note in enumerate(notes, 1)),
        refused="\n".join(refused),
    )


def row_of(name: str, result: dict[str, Any], notes: list[str]) -> str:
    """The row of an environment; its faults are added to the notes."""

    def mark(column: str) -> str:
        wrong = result["ways"][column]
        if not wrong:
            return "✓"
        if wrong not in notes:
            notes.append(wrong)
        return f"({notes.index(wrong) + 1})"

    kinds = [" ".join(mark(f"{kind} {mode}") for mode in MODES) for kind in ("sync", "async")]
    cells = [f"`{name}`", result["observation"], result["action"], mark("default"), *kinds]
    return f"| {' | '.join(escaped(cell) for cell in cells)} |"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def installed(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        with contextlib.suppress(ImportError):  # PackageNotFoundError is one
            yield f"{name} {version(name)}"


def examined(only: str, steps: int, keep: Path | None) -> dict[str, dict[str, Any]]:
    """Results of each environment, from the file `keep` if it has them."""
    known = json.loads(keep.read_text()) if keep is not None and keep.exists() else {}
    results = {}
    for name in gymnasium.registry:
        if only in name:
            results[name] = known.get(name) or in_a_process(name, steps)
            print(name, results[name], file=sys.stderr, flush=True)
            if keep is not None:
                keep.write_text(json.dumps(known | results))
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="environments whose name contains this")
    parser.add_argument("--one", help="examine this environment and print the result")
    parser.add_argument("--steps", type=int, default=2000, help="random env steps in each way")
    parser.add_argument("--out", type=Path, help="file to write the page to")
    parser.add_argument("--keep", type=Path, help="JSON file of earlier results to continue from")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # Gymnasium says of most that there is a newer version
    torch.set_num_threads(1)
    if options.one:
        reason = refusal(options.one)
        found = {"refused": reason} if reason else examine(options.one, options.steps)
        print(json.dumps(found))
        return
    text = page(examined(options.only, options.steps, options.keep), options.steps)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
