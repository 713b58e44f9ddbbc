"""Pages for users of other libraries: their programs run, and their defaults are what is said.

`EVERSTEP_PEER_PYTHONS` names interpreters that have the other libraries, in the form that
`everstep bench` takes: `EVERSTEP_PEER_PYTHONS="skrl=venvs/skrl/bin/python rl8=…"`.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep import AlgorithmConfig
from everstep_lab.benchmarks import PEERS
from tests.test_docs import DOCS, blocks, section, tables

PAGES = sorted((DOCS / "coming_from").glob("*.md"))

#: Libraries whose programs need only what Everstep itself needs.
OWN = ("cleanrl", "torchrl")

#: Expressions for a library's defaults by name, evaluated in its interpreter.
DEFAULTS = {
    "stable_baselines3": """
import inspect
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
found = {name: p.default for name, p in inspect.signature(PPO).parameters.items()}
found["n_envs"] = inspect.signature(make_vec_env).parameters["n_envs"].default
model = PPO("MlpPolicy", "CartPole-v1")
found['policy_kwargs["net_arch"]'] = model.policy.net_arch["pi"]
eps = model.policy.optimizer.defaults["eps"]
found['policy_kwargs["optimizer_kwargs"]'] = {"eps": eps}
""",
    "skrl": """
import dataclasses
from skrl.agents.torch.ppo import PPO_CFG
found = {f.name: f.default for f in dataclasses.fields(PPO_CFG)}
""",
    "rsl_rl": """
import inspect
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
found = {name: p.default for name, p in inspect.signature(PPO).parameters.items()}
model = {name: p.default for name, p in inspect.signature(MLPModel).parameters.items()}
found["hidden_dims"], found["activation"] = model["hidden_dims"], model["activation"]
found["obs_normalization"] = model["obs_normalization"]
""",
    "torchrl": """
import inspect
import torch
from torchrl.modules import ProbabilisticActor, ValueOperator
from tensordict.nn import TensorDictModule
from torchrl.objectives import ClipPPOLoss
found = {name: p.default for name, p in inspect.signature(ClipPPOLoss).parameters.items()}
actor = ProbabilisticActor(
    TensorDictModule(torch.nn.Linear(1, 2), ["observation"], ["logits"]),
    ["logits"],
    distribution_class=torch.distributions.Categorical,
    return_log_prob=True,
)
loss = ClipPPOLoss(actor, ValueOperator(torch.nn.Linear(1, 1), in_keys=["observation"]))
found["entropy_coeff"] = round(float(loss.entropy_coeff), 6)
found["critic_coeff"] = round(float(loss.critic_coeff), 6)
""",
}


def python_of(library: str) -> str:
    """The interpreter that has a library; the test is skipped where none is named."""
    named = dict(item.split("=", 1) for item in os.environ.get("EVERSTEP_PEER_PYTHONS", "").split())
    if library in named:
        return named[library]
    if library in OWN:
        return sys.executable
    needs = PEERS[library].needs if library in PEERS else "torch pytorchrl gym==0.26.2"
    pytest.skip(
        f'set EVERSTEP_PEER_PYTHONS="{library}=/path/to/python", an interpreter with: {needs}'
    )


def peer_of(page: Path) -> str:
    return page.stem.replace("stable_baselines3", "stable-baselines3")


def run(program: str, python: str, directory: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = str(directory)
    done = subprocess.run(
        [python, "-c", program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shorter(program: str) -> str:
    """The program with a budget of a few rollouts."""
    name = r"(total_timesteps=|\"timesteps\": |num_learning_iterations=|total_frames=|range\()"
    return re.sub(rf"{name}([\d_]{{2,}})", lambda m: m[1] + str(min(int(m[2]), 2048)), program)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_programs_of_other_libraries_run(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    programs = [block for block in found if block.mark.startswith("runs with ")]
    assert len(programs) == 1
    assert programs[0].mark == f"runs with {peer_of(page)}"
    python = python_of(peer_of(page))
    for block in found:
        if block.caption.endswith(".py"):
            (tmp_path / block.caption).write_text(block.text, encoding="utf-8")
    run(shorter(programs[0].text), python, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_of_other_libraries_are_those_of_the_page(name: str, tmp_path: Path) -> None:
    page = DOCS / "coming_from" / f"{name}.md"
    program = "import json\n" + DEFAULTS[name] + "print(json.dumps(found, default=str))"
    printed = run(program, python_of(peer_of(page)), tmp_path)
    found = json.loads(printed.strip().splitlines()[-1])
    rows = hyperparameters(page)
    assert sum(len(code(row[1])) for row in rows) >= 5
    assert differences(rows, found) == []


def test_a_renamed_name_and_another_default_are_seen() -> None:
    rows = [["`a`, `b` of `C`", "`1`, `None`"], ["`c`", "`(2, 3)`"], ["`d` of `D`", ""]]
    found = {"a": 1, "b": None, "c": [2, 3]}
    assert differences(rows, found) == []
    assert differences(rows, {**found, "b": 2}) == ["b is 2, not None"]
    assert differences(rows, {"z": 1, "b": None, "c": 2}) == ["a is gone", "c is 2, not [2, 3]"]
    assert differences([["`a`, `b`", "`1`"]], found) == ["`a`, `b`: 2 names, 1 defaults"]


def differences(rows: list[list[str]], found: dict[str, Any]) -> list[str]:
    """Defaults of a page that are not those that a library has, by name."""
    wrong = []
    for row in rows:
        names, defaults = code(row[0].partition(" of ")[0]), code(row[1])
        if defaults and len(names) != len(defaults):
            wrong.append(f"{row[0]}: {len(names)} names, {len(defaults)} defaults")
            continue
        for name, text in zip(names, defaults, strict=False):  # no default: nothing to compare
            expected = json.loads(json.dumps(ast.literal_eval(text)))
            if name not in found:
                wrong.append(f"{name} is gone")
            elif found[name] != expected:
                wrong.append(f"{name} is {found[name]!r}, not {expected!r}")
    return wrong


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.stem not in ("rl8", "pytorchrl")],
    ids=lambda page: page.stem,
)
def test_the_same_in_everstep_is_a_configuration(page: Path) -> None:
    given: dict[str, Any] = {}
    for row in hyperparameters(page):
        for text in code(row[2]):
            name, _, value = text.partition("=")
            assert name not in given, row
            given[name] = eval(value, {"torch": torch})
    assert len(given) > 8
    config = AlgorithmConfig(**given).validate()
    rows = (config.num_envs if "num_envs" in given else 64) * config.horizon
    if page.stem == "skrl":
        rows = 8 * config.horizon
    assert rows % config.sgd_minibatch_size == 0


def hyperparameters(page: Path) -> list[list[str]]:
    [rows] = tables(section(f"coming_from/{page.name}", "Hyperparameters"))
    return rows


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)
