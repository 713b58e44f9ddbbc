"""`everstep check`: facts about an environment, its speed, and checks of the protocol's rules."""

import argparse
import json
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigError
from ._arguments import add_number

if TYPE_CHECKING:
    from ..env import Env
    from ..testing import CheckResult, Violation

HELP = "check that an environment follows the protocol"
DESCRIPTION = (
    "Play an environment with random actions, print what was detected, and check that it follows "
    "the rules of the protocol."
)

_HORIZON, _SIZES, _NUM_ENVS = 16, (1, 2, 5), 8

_MARKS = {"passed": "✓", "failed": "✗", "not applicable": "–"}
_WORDS = {"passed": "ok", "failed": "FAILED", "not applicable": "-"}
_STYLES = {"passed": "green", "failed": "bold red", "not applicable": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "env", metavar="ENV", help="gymnasium:CartPole-v1, or the dotted path of a class or factory"
    )
    parser.add_argument(
        "--env-kwargs",
        nargs="+",
        default=[],
        metavar="key=value",
        help="options of the environment, such as max_episode_steps=200",
    )
    add_number(parser, "--num-envs", "parallel environments (default: 1, 2, 5)")
    add_number(parser, "--horizon", "vector steps between resets (default: 16)")
    parser.add_argument(
        "--device", default="cpu", metavar="DEVICE", help="device of tensors (default: %(default)s)"
    )
    add_number(parser, "--vector-steps", "calls of `step` (default: %(default)s)", default=200)
    parser.add_argument("--steps", type=_renamed, help=argparse.SUPPRESS)
    add_number(
        parser, "--seed", "seed of the environment (default: %(default)s)", least=0, default=0
    )
    parser.add_argument("--digests", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _renamed(value: str) -> str:
    raise argparse.ArgumentTypeError(
        f"counts env steps in other commands; write --vector-steps {value}"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print facts and results; the exit code is 1 if a rule is broken.

    Raises:
        ConfigError: If the command line names no environment.
        AdapterError: If its adapter cannot make it.

    """
    from ..env.attributes import read
    from ..testing import iterate_checks
    from ..testing._facts import inspect_env
    from ..testing._processes import check_processes, digests
    from ..testing._suite import subject_of

    source = _source(arguments)
    max_num_envs = read(source, "max_num_envs")
    sizes = _SIZES if arguments.num_envs is None else (arguments.num_envs,)
    horizon = _at_most(read(source, "max_horizon"), arguments.horizon or _HORIZON)

    def make_env(num_envs: int, horizon: int, device: Any) -> "Env":
        return cast("Env", source(num_envs, horizon, device=device))

    attributes: dict[str, Any] = {
        "num_envs_choices": tuple(sorted({_at_most(max_num_envs, size) for size in sizes})),
        "horizon": horizon,
        "device": arguments.device,
        "num_steps": arguments.vector_steps,
        "seed": arguments.seed,
    }
    subject = subject_of(make_env, **attributes)
    if arguments.digests:  # for a process like this one, with other hashes of texts
        print(json.dumps(digests(subject)))
        return 0
    report = _Report(arguments.env, as_json=arguments.json)
    num_envs = arguments.num_envs or getattr(source, "default_num_envs", _NUM_ENVS)
    num_envs = _at_most(max_num_envs, num_envs)
    facts, probed = inspect_env(
        lambda: make_env(num_envs, horizon, arguments.device), arguments.vector_steps
    )
    report.show_facts(facts)
    results = iterate_checks(make_env, **attributes)
    command = ["-m", "everstep", *arguments.words, "--digests"]
    compared = (check_processes(each, command) for each in (subject,))  # after the others
    return report.show_results(chain(probed, results, compared))


def _source(arguments: argparse.Namespace) -> Any:
    """The factory of the environments that the command line names."""
    from ..config import Document, apply_overrides
    from ..trainers import TrainConfig

    document = Document("command line", {"env_cls": arguments.env})
    assignments = [f"env_kwargs.{assignment}" for assignment in arguments.env_kwargs]
    document = apply_overrides(document, assignments)
    source = TrainConfig.from_document(document).make_env_source()
    if not callable(source):
        raise ConfigError(
            f"command line: {arguments.env} is an environment that exists already, and several are "
            "needed: name its class, or a function that makes one."
        )
    _check_device(arguments.device)
    return source


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"command line: --device {name} cannot be used: {reason}") from None


def _at_most(maximum: None | int, number: int) -> int:
    return number if maximum is None else min(number, maximum)


class _Report:
    """Prints facts and results as they arrive, or as JSON at the end.

    Args:
        name: The environment, as the command line has it.
        as_json: Whether to print JSON.

    """

    def __init__(self, name: str, *, as_json: bool) -> None:
        from rich.console import Console

        self._name, self._as_json = name, as_json
        self._facts: dict[str, str] = {}
        self._console = Console(quiet=as_json, highlight=False, markup=False, soft_wrap=True)
        encodes = (self._console.encoding or "").lower().startswith("utf")
        self._marks = _MARKS if encodes else _WORDS

    def show_facts(self, facts: dict[str, str]) -> None:
        """Show what was detected."""
        self._facts = facts
        self._console.print(self._name, style="bold")
        for name, text in facts.items():
            self._console.print(f"  {name:<20}{text}")

    def show_results(self, results: Iterable["CheckResult"]) -> int:
        """Show the result of each check, then how to fix broken rules; return the exit code."""
        self._console.print()
        seen = []
        for result in results:
            seen.append(result)
            self._show_result(result)
        failures = [result for result in seen if result.violation is not None]
        for result in failures:
            self._show_failure(result)
        counts = [f"{sum(r.status == status for r in seen)} {status}" for status in _STYLES]
        self._console.print("\n" + ", ".join(counts))
        if self._as_json:
            print(json.dumps(self._document(seen), indent=2))
        return 1 if failures else 0

    def _show_result(self, result: "CheckResult") -> None:
        mark, style = self._marks[result.status], _STYLES[result.status]
        text = f"not applicable: {result.reason}" if result.reason else result.rule
        start = f"  {mark:<7}" if self._marks is _WORDS else f"  {mark} "
        self._console.print(f"{start}{result.name:<19}", style=style, end="")
        self._console.print(text, style=style if result.reason else None)

    def _show_failure(self, result: "CheckResult") -> None:
        violation = _shown(result.violation)
        self._console.print(f"\n{result.name}: {violation.pop('what')}", style="bold red")
        for name, text in violation.items():
            self._console.print(f"  {name:<10}{text}")

    def _document(self, results: list["CheckResult"]) -> dict[str, Any]:
        checks = {}
        for result in results:
            checks[result.name] = {"status": result.status, "rule": result.rule}
            if result.reason:
                checks[result.name]["reason"] = result.reason
            if result.violation is not None:
                checks[result.name] |= _shown(result.violation)
        return {"environment": self._name, "detected": self._facts, "checks": checks}


def _shown(violation: "None | Violation") -> dict[str, str]:
    """Texts of a violation, by name."""
    return {name: getattr(violation, name) for name in ("what", "rule", "received", "fix")}
