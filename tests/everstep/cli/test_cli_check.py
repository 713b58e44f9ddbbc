"""`everstep check`: what it prints, and what it returns."""

import io
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everstep.__main__ import main
from everstep.env import ContinuousDummyEnv, DiscreteDummyEnv
from everstep.testing import CHECKS

#: Fast, and without the process that a new interpreter would be.
SMALL = ["--num-envs", "2", "--vector-steps", "24", "--horizon", "4"]

Check = Callable[..., tuple[int, str, str]]


class Probed(DiscreteDummyEnv):
    """Says what it is, and what was found out by playing it."""

    default_num_envs = 3

    def describe(self) -> dict[str, str]:
        return {"family": "dummies", "num_envs": str(self.num_envs)}

    autoreset_mode = "NEXT_STEP"
    seen: None | str = "NEXT_STEP"

    def probe(self) -> Any:
        return SimpleNamespace(mode=self.seen, reason="it was seen to")


class Limited(DiscreteDummyEnv):
    """Cannot have more than two environments, and says so."""

    max_num_envs = 2
    max_horizon = 8


class Broken(ContinuousDummyEnv):
    """Its rewards have no column."""

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        return outcome.set("rewards", outcome["rewards"].squeeze(-1))


class Talkative(DiscreteDummyEnv):
    """Returns what training does not read."""

    def step(self, action: Any) -> Any:
        return super().step(action).set("speed", torch.zeros(self.num_envs, 1))


class Unmade(DiscreteDummyEnv):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise RuntimeError("no licence")


MADE = DiscreteDummyEnv(2)


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["check", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def here(cls: Any) -> str:
    return f"{__name__}.{cls.__name__}"


def lines_of(output: str) -> dict[str, str]:
    """Lines by their first word, without the mark."""
    found = {}
    for line in output.splitlines():
        words = line.split()
        if words and words[0] in ("✓", "✗", "–", "ok", "FAILED", "-"):
            found[words[1]] = words[0]
        elif words:
            found.setdefault(words[0], line)
    return found


def test_an_environment_of_a_family(check: Check) -> None:
    code, out, err = check(
        "gymnasium:CartPole-v1",
        *SMALL,
        "--env-kwargs",
        "max_episode_steps=7",
        "autoreset_mode=SAME_STEP",
    )
    lines = lines_of(out)
    assert (code, err) == (0, "")
    assert out.startswith("gymnasium:CartPole-v1\n")
    assert {name for name in CHECKS if lines[name] in ("✓", "–")} == set(CHECKS)
    assert lines["final_obs"] == "✓"
    assert "vector steps/s of 2 environments" in lines["speed"]
    assert "0 failed" in out.splitlines()[-1]


def test_an_environment_by_its_path_says_what_can_be_seen_of_it(check: Check) -> None:
    code, out, _ = check(here(Limited), "--vector-steps", "10", "--horizon", "100")
    lines = lines_of(out)
    assert code == 0
    assert lines["environment"].split()[1] == here(Limited)
    assert "UnboundedContinuous [1] float32" in lines["observation"]
    assert "never end" in lines["episode"]
    assert lines["num_envs"].split()[1] == "2"
    assert "not applicable: the environment declares no `episode_keys`" in out


@pytest.mark.slow
def test_what_training_does_not_read_is_named(check: Check, caplog: Any) -> None:
    code, out, err = check(here(Talkative), *SMALL)
    [line] = [x for x in out.splitlines() if x.startswith("  not read ")]
    assert line.split(maxsplit=2)[2].startswith("`speed`: returned, and training does not read it")
    assert code == 0  # no rule is broken: training warns, too
    assert not caplog.records + err.splitlines()  # nothing names a class of the check's own
    _, out, _ = check(here(Talkative), *SMALL, "--json")
    assert "`speed`" in json.loads(out)["detected"]["not read"]
    assert "not read" not in check(here(Limited), *SMALL)[1]


def test_what_an_adapter_says_of_itself_is_printed(check: Check) -> None:
    _, out, _ = check(here(Probed), "--vector-steps", "10")
    lines = lines_of(out)
    assert lines["family"].split()[1] == "dummies"
    assert lines["num_envs"].split()[1] == "3"
    assert lines["probe"] == "✓"
    assert lines["description"] == "✓"


@pytest.mark.slow
def test_an_adapter_that_is_mistaken_about_resets_is_told(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probed, "seen", "SAME_STEP")
    code, out, _ = check(here(Probed), "--vector-steps", "10")
    assert code == 1
    assert "received  NEXT_STEP, but it looks like SAME_STEP: it was seen to" in out
    assert "--env-kwargs autoreset_mode=SAME_STEP" in out
    monkeypatch.setattr(Probed, "seen", None)
    code, out, _ = check(here(Probed), "--vector-steps", "10")
    assert code == 0
    assert lines_of(out)["probe"] == "–"


def test_a_wrong_autoreset_mode_is_found_out(check: Check) -> None:
    code, out, _ = check(
        *("gymnasium:CartPole-v1", "--num-envs", "3", "--vector-steps", "60", "--env-kwargs"),
        *("vectorization_mode=vector_entry_point", "autoreset_mode=SAME_STEP"),
    )
    assert code == 1
    assert {name for name, mark in lines_of(out).items() if mark == "✗"} == {"probe", "final_obs"}
    assert "--env-kwargs autoreset_mode=NEXT_STEP" in out


def test_a_broken_rule_comes_with_its_fix(check: Check) -> None:
    code, out, _ = check(here(Broken), *SMALL)
    assert code == 1
    assert lines_of(out)["rows"] == "✗"
    told = out.split("\nrows: ", 1)[1]
    assert told.startswith("`rewards`\n")
    assert "rule      Its shape must be [2, 1]." in told
    assert "received  [2]" in told
    assert "fix       Return" in told
    assert "1 failed" in out


def test_an_environment_that_cannot_be_made_fails(check: Check) -> None:
    code, out, _ = check(here(Unmade), *SMALL)
    assert code == 1
    assert "RuntimeError: no licence" in out
    assert lines_of(out)["specs"] == "✗"


def test_json_holds_all_of_it(check: Check) -> None:
    code, out, _ = check(here(Broken), *SMALL, "--json")
    report = json.loads(out)
    assert code == 1
    assert report["environment"] == here(Broken)
    assert set(report["checks"]) == {*CHECKS, "processes"}
    assert report["checks"]["rows"]["received"] == "[2]"
    assert report["checks"]["specs"]["status"] == "passed"
    assert "reason" in report["checks"]["seed"]


@pytest.mark.slow
def test_every_number_of_the_command_line_counts(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    initial = DiscreteDummyEnv.__init__

    def init(self: Any, num_envs: int, /, horizon: Any = None, **options: Any) -> None:
        made.append((num_envs, horizon, str(options["device"])))
        initial(self, num_envs, horizon, **options)

    monkeypatch.setattr(DiscreteDummyEnv, "__init__", init)
    check(
        "everstep.env.DiscreteDummyEnv", "--num-envs", "4", "--horizon", "9", "--vector-steps", "3"
    )
    assert set(made) == {(4, 9, "cpu")}
    made.clear()
    check("everstep.env.DiscreteDummyEnv", "--vector-steps", "3")
    assert {num_envs for num_envs, *_ in made} == {1, 2, 5, 8}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gymnasium:Nope-v1"], "Nope"),
        (["gym:CartPole-v1"], "gymnasium"),
        (["everstep.env.Nope"], "has no 'Nope'"),
        ([f"{__name__}.MADE"], "several are needed"),
        (["everstep.env.DiscreteDummyEnv", "--env-kwargs", "bound=1"], "bound"),
        (["everstep.env.DiscreteDummyEnv", "--env-kwargs", "bounds"], "key=value"),
        (["everstep.env.DiscreteDummyEnv", "--device", "tpu9"], "--device tpu9"),
    ],
)
def test_what_is_not_an_environment_is_told(
    check: Check, arguments: list[str], message: str
) -> None:
    code, out, err = check(*arguments)
    assert code == 2
    assert out == ""
    assert message in err


@pytest.mark.parametrize(
    "arguments", [[], ["x", "--num-envs", "0"], ["x", "--vector-steps", "few"], ["x", "y"]]
)
def test_a_wrong_command_line_ends_with_its_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", *arguments])
    assert caught.value.code == 2
    assert "usage: everstep" in capsys.readouterr().err


def test_terminals_without_unicode_get_words(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "ascii", write_through=True))
    assert main(["check", "everstep.env.DiscreteDummyEnv", *SMALL]) == 0
    assert lines_of(output.getvalue().decode("ascii"))["rows"] == "ok"
