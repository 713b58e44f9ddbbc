"""`everstep check`: what an environment is, how fast it is, and whether it keeps the rules."""

import argparse
import json
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torchrl.data import TensorSpec

from .config import Document, apply_overrides
from .env import Env
from .errors import ConfigError, EverstepError
from .specs import leaf_specs
from .testing import CheckResult, Violation, iterate_checks, random_actions
from .trainers import TrainConfig

#: Env steps before the clock starts: libraries warm up.
_WARM_UP = 10

_HORIZON, _SIZES, _NUM_ENVS = 16, (1, 2, 5), 8

_MARKS = {"passed": "✓", "failed": "✗", "not applicable": "–"}
_WORDS = {"passed": "ok", "failed": "FAILED", "not applicable": "-"}
_STYLES = {"passed": "green", "failed": "bold red", "not applicable": "dim"}


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; the exit code is 1 where a rule is broken.

    Raises:
        ConfigError: Where the command line names no environment.
        AdapterError: Where its adapter cannot make it.

    """
    source = _source(arguments)
    sizes = _sizes(source, arguments.num_envs)
    horizon = _at_most(getattr(source, "max_horizon", None), arguments.horizon or _HORIZON)

    def make_env(num_envs: int, horizon: int, device: Any) -> Env:
        env: Env = source(num_envs, horizon, device=device)
        return env

    report = _Report(arguments.env, as_json=arguments.json)
    num_envs = arguments.num_envs or getattr(source, "default_num_envs", _NUM_ENVS)
    num_envs = _at_most(getattr(source, "max_num_envs", None), num_envs)
    facts, probed = _look_at(lambda: make_env(num_envs, horizon, arguments.device), arguments)
    report.show_facts(facts)
    results = iterate_checks(
        make_env,
        num_envs_choices=sizes,
        horizon=horizon,
        device=arguments.device,
        num_steps=arguments.steps,
        seed=arguments.seed,
    )
    return report.show_results(chain(probed, results))


def _source(arguments: argparse.Namespace) -> Any:
    """What makes the environments that the command line names."""
    document = Document("command line", {"env_cls": arguments.env})
    assignments = [f"env_kwargs.{assignment}" for assignment in arguments.env_kwargs]
    document = apply_overrides(document, assignments)
    source = TrainConfig.from_document(document).make_env_source()
    if not callable(source):
        raise ConfigError(
            f"command line: {arguments.env} is an environment already made, and several are "
            "needed: name its class, or a function that makes one."
        )
    _check_device(arguments.device)
    return source


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"command line: --device {name} cannot be used: {reason}") from None


def _sizes(source: Any, num_envs: None | int) -> tuple[int, ...]:
    maximum = getattr(source, "max_num_envs", None)
    sizes = _SIZES if num_envs is None else (num_envs,)
    return tuple(sorted({_at_most(maximum, size) for size in sizes}))


def _at_most(maximum: None | int, number: int) -> int:
    return number if maximum is None else min(number, maximum)


# ---- what the environment is ---------------------------------------------------------------------


def _look_at(
    make_env: Any, arguments: argparse.Namespace
) -> tuple[dict[str, str], list[CheckResult]]:
    """What was detected, by name, and what came out of the adapter's own check, if it has one.

    Up to where something fails, as the checks will say.

    Raises:
        EverstepError: Where its adapter says why it cannot be made.

    """
    try:
        env = make_env()
    except EverstepError:
        raise
    except Exception:  # whatever an environment may raise; the checks meet it again
        return {}, []
    facts: dict[str, str] = {}
    probed: list[CheckResult] = []
    with suppress(Exception):
        facts |= _described(env)
    with suppress(Exception):
        probed += _probed(env)
    with suppress(Exception):
        facts |= _speed(env, arguments.steps)
    with suppress(Exception):
        env.close()
    return facts, probed


def _described(env: Env) -> dict[str, str]:
    """What the environment says of itself; else what can be seen of it."""
    if hasattr(env, "describe"):
        described: dict[str, str] = env.describe()
        return described
    return {
        "environment": f"{type(env).__module__}.{type(env).__qualname__}",
        "num_envs": str(env.num_envs),
        "observation": _spec_text(env.observation_spec),
        "action": _spec_text(env.action_spec),
        "episode keys": ", ".join(sorted(env.episode_keys)) or "none: episodes never end",
        "hand-off": f"tensors of its own on {env.device}",
    }


def _spec_text(spec: TensorSpec) -> str:
    leaves = [
        f"{'.'.join(path)}{': ' if path else ''}{type(leaf).__name__} {list(leaf.shape)} "
        f"{str(leaf.dtype).removeprefix('torch.')}"
        for path, leaf in leaf_specs(spec).items()
    ]
    return "; ".join(leaves)


def _probed(env: Any) -> list[CheckResult]:
    """Whether an environment resets itself when its adapter takes it to do so.

    An adapter that can find out has `probe()`: it plays the environment, and returns the `mode`
    that was seen, None where none was, and a `reason`. What it goes by is `autoreset_mode`.
    """
    if not hasattr(env, "probe"):
        return []
    rule = "The environment resets itself when its adapter takes it to do so."
    evidence, taken = env.probe(), _mode_name(env.autoreset_mode)
    if evidence.mode is None:
        return [CheckResult("probe", rule, "not applicable", reason=evidence.reason)]
    seen = _mode_name(evidence.mode)
    if seen == taken:
        return [CheckResult("probe", rule, "passed")]
    violation = Violation(
        "`autoreset_mode`",
        rule,
        f"{taken}, but it looks like {seen}: {evidence.reason}",
        f"Pass `autoreset_mode='{seen}'`: on this command line, --env-kwargs autoreset_mode={seen}",
    )
    return [CheckResult("probe", rule, "failed", violation=violation)]


def _mode_name(mode: Any) -> str:
    return str(getattr(mode, "name", mode))


def _speed(env: Env, num_steps: int) -> dict[str, str]:
    """Env steps and transitions a second, with random actions that were drawn before."""
    obs = env.reset()
    actions = [random_actions(env.action_spec, obs, env.num_envs) for _ in range(_WARM_UP)]
    with torch.no_grad():
        for action in actions:
            obs = env.step(action)["obs"]
        masked = not isinstance(obs, torch.Tensor) and "action_mask" in obs.keys()  # noqa: SIM118
        _synchronize(env)
        start = time.perf_counter()
        for t in range(num_steps):
            # What is allowed changes from row to row, so drawing counts where there is a mask.
            action = random_actions(env.action_spec, obs, env.num_envs) if masked else None
            obs = env.step(actions[t % _WARM_UP] if action is None else action)["obs"]
        _synchronize(env)
    rate = num_steps / (time.perf_counter() - start)
    return {
        "speed": f"{rate:,.0f} env steps/s of {env.num_envs} environments, "
        f"{rate * env.num_envs:,.0f} transitions/s"
    }


def _synchronize(env: Env) -> None:
    if torch.device(env.device).type == "cuda":
        torch.cuda.synchronize(env.device)


# ---- what is printed -----------------------------------------------------------------------------


class _Report:
    """Prints what was found as it is found, or as JSON at the end.

    Args:
        name: The environment, as the command line has it.
        as_json: Whether to print JSON.

    """

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name, self._as_json = name, as_json
        self._facts: dict[str, str] = {}
        self._console = Console(quiet=as_json, highlight=False, soft_wrap=True)
        encodes = (self._console.encoding or "").lower().startswith("utf")
        self._marks = _MARKS if encodes else _WORDS

    def show_facts(self, facts: dict[str, str]) -> None:
        """Show what was detected."""
        self._facts = facts
        self._print(Text(self._name, style="bold"))
        for name, text in facts.items():
            self._print(Text(f"  {name:<20}{text}"))

    def show_results(self, results: Iterable[CheckResult]) -> int:
        """Show what comes out of each check, and then how to mend what is broken; the exit code."""
        self._print(Text())
        found = []
        for result in results:
            found.append(result)
            self._show_result(result)
        failures = [result for result in found if result.violation is not None]
        for result in failures:
            self._show_failure(result)
        counts = {
            status: sum(result.status == status for result in found)
            for status in ("passed", "failed", "not applicable")
        }
        self._print(Text("\n" + ", ".join(f"{n} {status}" for status, n in counts.items())))
        if self._as_json:
            print(json.dumps(self._document(found), indent=2))
        return 1 if failures else 0

    def _show_result(self, result: CheckResult) -> None:
        mark = self._marks[result.status]
        text = f"not applicable: {result.reason}" if result.reason else result.rule
        line = Text(f"  {mark:<7}" if mark in _WORDS.values() else f"  {mark} ")
        line.append(f"{result.name:<19}{text}")
        line.stylize(_STYLES[result.status], 0, None if result.reason else len(line) - len(text))
        self._print(line)

    def _show_failure(self, result: CheckResult) -> None:
        violation = result.violation
        assert violation is not None
        self._print(Text(f"\n{result.name}: {violation.what}", style="bold red"))
        parts = (("rule", violation.rule), ("received", violation.received), ("fix", violation.fix))
        for name, text in parts:
            self._print(Text(f"  {name:<10}{text}"))

    def _document(self, found: list[CheckResult]) -> dict[str, Any]:
        checks = {}
        for result in found:
            checks[result.name] = {"status": result.status, "rule": result.rule}
            if result.reason:
                checks[result.name]["reason"] = result.reason
            if result.violation is not None:
                names = ("what", "rule", "received", "fix")
                checks[result.name] |= {name: getattr(result.violation, name) for name in names}
        return {"environment": self._name, "detected": self._facts, "checks": checks}

    def _print(self, text: Text) -> None:
        self._console.print(text)
