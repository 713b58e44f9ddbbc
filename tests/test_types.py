"""The public interface as mypy and pyright see it, each in strict mode."""

import dataclasses
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium.vector
import pytest

from everstep import DiscreteDummyEnv, Trainer
from everstep.data import TrainStats, WrapOptions
from everstep.env.plugins import own_adapters
from everstep.trainers import GenericTrainerBase
from everstep.trainers._keywords import TrainerArguments
from tests.test_docs import PAGES, blocks

ROOT = Path(__file__).parents[1]
SOURCES = [str(ROOT / "src"), str(ROOT / "adapters")]

#: TensorDict and TorchRL are untyped: `py.typed` is missing.
MYPY = """
[mypy]
strict = true
follow_imports = silent
allow_redefinition = true

[mypy-tensordict.*,torchrl.*]
ignore_missing_imports = true
"""

#: What pyright infers of them is no interface, so it is left out.
PYRIGHT = {
    "reportMissingTypeStubs": False,
    "reportMissingModuleSource": False,
    "reportUnknownArgumentType": False,
    "reportUnknownMemberType": False,
    "reportUnknownVariableType": False,
}

#: Calls with mistakes. The lines that end in `# error` are the ones to report.
MISTAKES = """
from dataclasses import dataclass
from typing import Any

import everstep
from everstep import AlgorithmConfig, DiscreteDummyEnv, RecurrentTrainer, TrainConfig, Trainer

trainer = Trainer(DiscreteDummyEnv, gamma=0.9, horizon=8, run_dir=None, track=False)
trainer = Trainer(DiscreteDummyEnv, horizon="auto", lr_schedule=[(0, 1e-3), (100, 0)])
Trainer(trainer.algorithm, run_dir=None)
RecurrentTrainer(DiscreteDummyEnv, seq_len=4, sgd_minibatch_size=None)
AlgorithmConfig(gamma=0.9, model_config={"hiddens": [64]})
TrainConfig("gymnasium:CartPole-v1", gamma=0.9, seq_len=4, total_env_steps=100)
TrainConfig(env_cls=DiscreteDummyEnv, algorithm_config={"gamma": 0.9})

Trainer(DiscreteDummyEnv, gama=0.9)  # error
Trainer(DiscreteDummyEnv, gamma="0.9")  # error
Trainer(DiscreteDummyEnv, horizon="x")  # error
Trainer(DiscreteDummyEnv, seq_len=4)  # error
Trainer(DiscreteDummyEnv, track=None)  # error
Trainer()  # error
Trainer("MlpPolicy", DiscreteDummyEnv)  # error
trainer.run(100)  # error
trainer.run(total_timesteps=100)  # error
RecurrentTrainer(DiscreteDummyEnv, seqs_len=4)  # error
AlgorithmConfig(gama=0.9)  # error
AlgorithmConfig(on_missing_final="ignore")  # error
TrainConfig("gymnasium:CartPole-v1", gama=0.9)  # error
TrainConfig("gymnasium:CartPole-v1", total_env_steps="1M")  # error
TrainConfig(gamma=0.9)  # error
everstep.Trainr  # error

env = everstep.make("gymnasium:CartPole-v1", 4, horizon=8, max_episode_steps=9)
everstep.make("CartPole-v1", 4, vectorization_mode="async", env_kwargs={"gravity": 1.0})
everstep.make(DiscreteDummyEnv, 4, device="cpu", seed=3)
everstep.factory("gymnasium:CartPole-v1", action_bounds="clip", env_kwargs={"gravity": 1.0})
everstep.wrap(object(), horizon=8, device="cpu", observation_keys=["policy"])
options: dict[str, Any] = {"stride": 2}
everstep.wrap(object(), **options)
everstep.make("walks:line", 4, **options)

everstep.make("gymnasium:CartPole-v1")  # error
everstep.make("gymnasium:CartPole-v1", 4, horizon="8")  # error
everstep.make("gymnasium:CartPole-v1", 4, max_episode_step=9)  # error
everstep.make("gymnasium:CartPole-v1", 4, action_bounds="clipped")  # error
everstep.factory("gymnasium:CartPole-v1", vectorisation_mode="async")  # error
everstep.wrap(object(), action_bounds="clipped")  # error
everstep.wrap(object(), horizn=8)  # error
everstep.wrap(object(), horizon="8")  # error


@dataclass
class MyConfig(AlgorithmConfig):
    shuffle_minibatches: bool = False
    temperature: float = 1.0


MyConfig(temperature=2.0, num_envs=8).build(DiscreteDummyEnv).step()
MyConfig(temprature=2.0)  # error


class MyTrainer(Trainer):
    def __init__(self, run_name: str) -> None:
        super().__init__(DiscreteDummyEnv, gamma=0.9, run_name=run_name)


class BadTrainer(Trainer):
    def __init__(self, run_name: str) -> None:
        super().__init__(DiscreteDummyEnv, gama=0.9, run_name=run_name)  # error
"""


def reported_by_mypy(directory: Path) -> list[str]:
    """Errors as `file:line: message`."""
    api = pytest.importorskip("mypy.api")
    (directory / "mypy.ini").write_text(MYPY, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", os.pathsep.join([*SOURCES, str(directory)]))
        patch.chdir(directory)
        cache = ROOT / ".mypy_cache" / "programs"
        found, errors, _ = api.run(["--config-file=mypy.ini", f"--cache-dir={cache}", "."])
    assert not errors, errors
    return [line for line in found.splitlines() if ": error: " in line]


def reported_by_pyright(directory: Path) -> list[str]:
    """Errors as `file:line: message`."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    pyright = shutil.which("pyright", path=places)
    if pyright is None or shutil.which("node") is None:
        pytest.skip("pyright or Node is not installed")
    started = subprocess.run([pyright, "--version"], capture_output=True, text=True)
    if started.returncode:  # the package fetches the program when it is first called
        pytest.skip(f"pyright does not start: {(started.stdout + started.stderr)[-200:]}")
    config = {"typeCheckingMode": "strict", "extraPaths": SOURCES, **PYRIGHT}
    (directory / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        f"{Path(found['file']).relative_to(directory)}:{found['range']['start']['line'] + 1}: "
        f"{found['message']} ({found.get('rule')})"
        for found in json.loads(done.stdout)["generalDiagnostics"]
    ]


def is_torchrls(line: str, directory: Path) -> bool:
    """Whether an error is about `Compose`: its metaclass hides the constructor from pyright."""
    file, number, _ = line.split(":", 2)
    return (
        "Compose(" in (directory / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    )


CHECKERS = [reported_by_mypy, reported_by_pyright]


def test_arguments_of_trainers_are_declared_alike() -> None:
    """Type checkers know the arguments that the constructor takes."""
    taken = [
        (name, parameter.annotation, parameter.default)
        for name, parameter in inspect.signature(GenericTrainerBase.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    declared = [(x.name, x.type, x.default) for x in dataclasses.fields(TrainerArguments)]
    source = inspect.getsource(GenericTrainerBase.__init__).split("*,\n")[1].split("    ) ->")[0]
    fields = re.sub(r"^ {8}(.*),$", r"    \1", source, flags=re.MULTILINE)
    assert declared == taken, f"In trainers/_keywords.py, the fields must be:\n{fields}"


def test_options_of_wrap_are_those_of_the_adapters() -> None:
    taken: dict[str, Any] = {}
    for adapter in own_adapters():
        hints: dict[str, Any] = {}
        for base in reversed(adapter.__mro__):  # options of a parent are annotated there
            if "__init__" in vars(base):
                hints |= get_type_hints(base.__init__, localns=vars(gymnasium.vector))
        for name in list(inspect.signature(adapter.__init__).parameters)[2:]:
            # Python 3.10 makes `Any = None` an `Optional[Any]`, which is the same.
            hint = Any if hints[name] == (None | Any) else hints[name]
            taken[name] = taken.get(name, hint) | hint
    assert get_type_hints(WrapOptions, localns=vars(gymnasium.vector)) == taken


@pytest.mark.slow
@pytest.mark.parametrize("reported", CHECKERS)
def test_mistakes_are_reported(reported: Any, tmp_path: Path) -> None:
    (tmp_path / "mistakes.py").write_text(MISTAKES.lstrip(), encoding="utf-8")
    lines = MISTAKES.lstrip().splitlines()
    expected = {i for i, line in enumerate(lines, start=1) if line.endswith("# error")}
    found = reported(tmp_path)
    assert {int(line.split(":")[1]) for line in found} == expected, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("reported", CHECKERS)
def test_programs_of_the_documentation_pass(reported: Any, tmp_path: Path) -> None:
    """The blocks of a page are one program; those with a caption are modules."""
    for page in PAGES:
        program = []
        for block in blocks(page):
            if block.language == "python" and not block.mark:
                if block.caption:
                    module = tmp_path / block.caption
                    assert not module.exists(), f"{page}: another page has a {block.caption}"
                    module.parent.mkdir(exist_ok=True)
                    module.write_text(block.text, encoding="utf-8")
                else:
                    program.append(block.text)
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
        (tmp_path / f"{name}.py").write_text("\n".join(program), encoding="utf-8")
    assert [line for line in reported(tmp_path) if not is_torchrls(line, tmp_path)] == []


def test_a_train_step_has_the_required_statistics() -> None:
    """Type checkers let programs read them without `get`; no episode ends here."""
    stats = Trainer(DiscreteDummyEnv, num_envs=2, horizon=2, run_dir=None).step()
    assert TrainStats.__required_keys__ <= set(stats)
    optional = {key for key in TrainStats.__optional_keys__ if "/" in key}
    others = {key for key in optional if key.split("/")[0] not in ("episodes", "memory")}
    assert others == {"profiling/env_ms"}  # a graph that is replayed does not tell
