"""One thing has one name in pages, docstrings, comments, messages and help texts.

An env step is a step of one environment; a vector step is a call of `env.step`, for all of them.
"""

import contextlib
import importlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from everstep import DiscreteDummyEnv, Trainer
from everstep.__main__ import parse
from everstep.cli import commands
from everstep.trainers.progress import summary
from tests.test_docs import DOCS, ROOT, section

TEXTS = [
    ROOT / "README.md",  # not the changelog, which names what was renamed
    ROOT / "CONTRIBUTING.md",
    *DOCS.rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
    *(
        path
        for folder in ("src", "adapters", "examples")
        for suffix in ("py", "yaml")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ),
    *(DOCS / "images").glob("*.svg"),
]

#: What a vector step was called, and an env step, before each had one name.
WRONG = (
    r"env steps? (?:of (?:few|all) rows|in all environments)|an env step of all environments",
    r"env steps, added up",
    r"(?i)environment transitions",
    r"transitions (?:learned from|collected|per second|a second|/s)|transitions/s",
    r"\bcount(?:s|ed)?(?: in)? transitions",
    r"(?i)rollout(?: of|:) `?horizon`? env steps|\bhorizon: env steps (?:of a rollout|between)",
    r"(?i)env steps of a rollout",
    r"(?i)env steps between (?:resets|\w+ resets)",
    r"microseconds of (?:an|one) env step",
    r"\[N(?:, 1)?\]`[^.]{0,20} of an env step|of env step `t`",
    r"(?:sync|synchroni[sz]ation|collective|call) (?:an|each|every) env step",
)


@pytest.mark.parametrize("pattern", WRONG)
def test_no_text_calls_a_vector_step_an_env_step(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}"
        for path in TEXTS
        for match in re.finditer(pattern, joined(path), re.MULTILINE)
    ]
    assert not found, "\n".join(found)


def joined(path: Path) -> str:
    """The text of a file, without the line breaks of paragraphs, docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"(?<=[\w,·])\n *(?:#:? )?(?=[\w`])", " ", text)


def test_the_glossary_defines_each_kind_of_step_once() -> None:
    defined = re.findall(
        r"^\* \*\*([\w ]+)\*\*: ((?:.|\n  )+)", section("guides/concepts.md", "Glossary"), re.M
    )
    meanings = dict(defined)
    assert len(meanings) == len(defined)
    assert meanings["env step"].startswith("a step of one environment")
    assert "`num_envs` env steps" in meanings["vector step"]
    assert meanings["transition"].startswith("the data of one env step")
    others = [page for page in DOCS.rglob("*.md") if page.name != "concepts.md"]
    for word in meanings:
        assert not [page for page in others if f"**{word}**:" in page.read_text(encoding="utf-8")]


def test_counts_are_env_steps_of_all_environments(tmp_path: Path) -> None:
    """Statistic, state, budget, record and summary count the same."""
    env = DiscreteDummyEnv(4, 8)
    with Trainer(env, run_dir=tmp_path / "run", track=False) as trainer:
        stats = trainer.run(total_env_steps=33)
    assert stats["env/steps"] == trainer.state["env/steps"] == 64  # rollouts of 4 x 8
    assert trainer.algorithm.state.env_steps == 64
    assert '"step": 64,' in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    shown: dict[str, Any] = {**stats}
    assert summary(shown, None, None, 1.0).startswith("Trained 64 env steps")


def test_statistics_of_env_steps_have_their_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    rows = importlib.import_module("statistics_rows").statistics()
    units = {name: meaning.unit for meaning, names in rows.items() for name in names}
    assert units["env/steps"] == units["episodes/length_mean"] == "env steps"
    assert not any("transition" in unit for unit in units.values())


def test_flags_that_count_steps_say_which() -> None:
    """`--steps` is a number of env steps of all environments in every command that has it."""
    expected = {"--max-steps": "train steps", "--vector-steps": "calls of `step`"}
    found = set()
    for command in commands():
        with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
            parse([command, "--help"])
        text = re.sub(r"\s+", " ", printed.getvalue())
        for name, description in re.findall(r" (--(?:\w+-)?steps) N (.*?)(?= --|$)", text):
            found.add(name)
            assert expected.get(name, "env steps") in description, (command, name)
    assert found >= {"--steps", *expected}
