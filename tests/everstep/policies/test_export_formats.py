"""Exported policies as ONNX files and PyTorch programs: they do what `predict` does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import everstep
from everstep.__main__ import main
from everstep.core.normalizers import ObservationNormalizer
from everstep.errors import ConfigError, ExportError
from everstep.policies import Policy, RecurrentPolicy
from tests.everstep.policies.test_deployment import CHOICE, OBS, Linear, Padded, make
from tests.test_docs import DOCS, blocks

pytestmark = pytest.mark.slow

FORMATS = ("onnx", "torch-export")


def loaded(path: Path, format: str) -> Any:
    """An exported file as a function of arrays by name, as its readers run it."""
    if format == "torch-export":
        program = torch.export.load(path).module()

        def run_program(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            outputs = program({name: torch.tensor(x) for name, x in inputs.items()})
            return {name: x.detach().numpy() for name, x in outputs.items()}

        return run_program
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]
    taken = {x.name for x in session.get_inputs()}

    def run_session(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = {name: x for name, x in inputs.items() if name in taken}
        found = dict(zip(names, session.run(names, arrays), strict=True))
        return {name.removeprefix("next."): x for name, x in found.items()}

    return run_session


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    if request.param == "onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    return str(request.param)


class Of(gym.Env):
    """An environment with given spaces."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


VECTOR = spaces.Box(-5, 5, (3,))
SPACES = {
    "continuous, rescaled": (VECTOR, spaces.Box(-1, np.array([4, 9], np.float32))),
    "discrete, from 3": (VECTOR, spaces.Discrete(4, start=3)),
    "multi-discrete": (VECTOR, spaces.MultiDiscrete([2, 3])),
    "mapping": (
        spaces.Dict({"body": VECTOR, "flag": spaces.Discrete(3, start=1)}),
        spaces.Discrete(2),
    ),
    "image": (spaces.Box(0, 255, (3, 36, 36), np.uint8), spaces.Discrete(4)),
}


def policy_of(observed: spaces.Space, acted: spaces.Space, cls: Any) -> Any:
    """A policy with random weights for an environment with these spaces, and a normaliser."""
    options = {"action_bounds": "rescale"} if isinstance(acted, spaces.Box) else {}
    env = everstep.wrap(SyncVectorEnv([lambda: Of(observed, acted)] * 2), **options)
    normalizer = ObservationNormalizer(env.observation_spec)
    rows = [
        3 + 2 * torch.randn(100, *leaf.shape)
        for leaf in ([env.observation_spec] if observed is VECTOR else [])
    ]
    if rows:
        normalizer.update(tuple(rows), torch.ones(100, dtype=torch.bool))
    torch.manual_seed(0)
    policy = cls(
        env.observation_spec,
        env.action_spec,
        env_format=env.env_format,
        normalizer=normalizer if rows else None,
    )
    for parameter in policy.model.parameters():  # not so small that all actions are the same
        parameter.data += 0.1 * torch.randn_like(parameter) * (parameter.ndim == 2)
    return policy


def batch_of(space: spaces.Space, rows: int) -> Any:
    """Observations as the environment returns them, and as the exported program takes them."""
    samples = [space.sample() for _ in range(rows)]
    if not isinstance(space, spaces.Dict):
        obs = np.stack(samples)
        return obs, {"obs": obs}
    batch = {key: np.stack([sample[key] for sample in samples]) for key in space}
    columns = {f"obs.{key}": x.reshape(rows, -1) for key, x in batch.items()}
    return batch, columns


@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
@pytest.mark.parametrize("case", SPACES)
def test_an_exported_file_acts_as_predict_does(
    case: str, cls: Any, format: str, tmp_path: Path
) -> None:
    observed, acted = SPACES[case]
    observed.seed(0)
    policy = policy_of(observed, acted, cls)
    parity = policy.export(tmp_path / "policy", format=format)
    assert parity.observations >= 1000
    assert parity.difference < 1e-2
    run = loaded(tmp_path / "policy", format)
    for rows in (1, 5):
        state: Any = None
        states = {
            name: np.zeros((rows, *spec.shape), np.float32)
            for name, spec in policy.state_spec.items()
        }
        for _ in range(3):
            obs, inputs = batch_of(observed, rows)
            expected, state = policy.predict(obs, state)
            found = run(inputs | states)
            np.testing.assert_allclose(found["actions"].reshape(expected.shape), expected, 1e-4)
            states = {name: found[name] for name in states}
            for name, tensor in zip(states, state or (), strict=True):
                np.testing.assert_allclose(states[name], tensor, 1e-3, 1e-5)


def test_the_distribution_can_be_sampled_outside(format: str, tmp_path: Path) -> None:
    """Log-probabilities are those of the distribution whose parameters are returned."""
    policy = make(OBS, CHOICE)
    policy.export(tmp_path / "policy", format=format)
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    found = loaded(tmp_path / "policy", format)({"obs": obs})
    logits = torch.tensor(found["distribution.logits"]).reshape(7, 4)
    logp = logits.log_softmax(-1).gather(-1, torch.tensor(found["actions"]))
    torch.testing.assert_close(torch.tensor(found["logp"]), logp)


def test_a_window_goes_in(format: str, tmp_path: Path) -> None:
    policy = make(OBS, CHOICE, model_cls=Padded)
    policy.export(tmp_path / "policy", format=format)
    windows, ages = torch.randn(5, 3, 3), torch.tensor([0, 1, 2, 3, 0])
    inputs = {"obs": windows.numpy(), "age": ages.numpy()}
    found = loaded(tmp_path / "policy", format)(inputs)
    with torch.no_grad():
        expected = policy.act((windows,), (ages,), deterministic=True)
    np.testing.assert_allclose(found["values"], expected.values, 1e-4, 1e-5)
    assert found["age"].tolist() == [1, 2, 3, 4, 1]


def signature(path: Path, format: str) -> Any:
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        return json.loads(session.get_modelmeta().custom_metadata_map["everstep"])
    files = {"signature.json": ""}
    torch.export.load(path, extra_files=files)
    return json.loads(files["signature.json"])


def test_the_file_has_its_signature(format: str, tmp_path: Path) -> None:
    make(OBS, CHOICE, cls=RecurrentPolicy).export(tmp_path / "policy", format=format)
    found = signature(tmp_path / "policy", format)
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "policy")
        [obs] = [x for x in session.get_inputs() if x.name == "obs"]
        assert (obs.type, obs.shape[1:]) == ("tensor(float)", [3])
        assert isinstance(obs.shape[0], str)  # the number of rows is free
    assert found["choices"] == {}
    assert found["inputs"]["obs"] == {"dtype": "float32", "shape": ["batch", 3]}
    assert found["outputs"]["actions"] == {"dtype": "int64", "shape": ["batch", 1]}
    prefix = "next." if format == "onnx" else ""
    states = {name: f"{prefix}{name}" for name in ("hidden_states", "cell_states")}
    assert found["states"] == states
    assert set(states.values()) < set(found["outputs"])
    assert found["policy"] == "RecurrentPolicy"


class Wavering(Linear):
    """Does something else when it is traced."""

    def seen(self, batch: Any) -> torch.Tensor:
        return batch["obs"] + (1.0 if torch.compiler.is_exporting() else 0.0)


class Solving(Linear):
    """Uses an operation that ONNX does not have."""

    def seen(self, batch: Any) -> torch.Tensor:
        return torch.linalg.eigvalsh(batch["obs"].unsqueeze(-1) * batch["obs"].unsqueeze(-2))


def test_a_program_that_does_something_else_is_not_written(format: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"Wavering .*: the program's .* differ"):
        make(OBS, CHOICE, model_cls=Wavering).export(tmp_path / "policy", format=format)
    assert not list(tmp_path.iterdir())


def test_what_onnx_lacks_is_told(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(ExportError, match=r"Solving .* cannot be exported: .*ONNX"):
        make(OBS, CHOICE, model_cls=Solving).export(tmp_path / "policy", format="onnx")
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of mlflow, onnx, torch-export; got 'onxx'"):
        make(OBS, CHOICE).export(tmp_path / "policy", format="onxx")


@pytest.mark.parametrize(
    ("name", "format", "named"),
    [
        ("p.onnx", "mlflow", "onnx"),
        ("p.pt2", "mlflow", "torch-export"),
        ("p.pt2", "onnx", "torch-export"),
        ("p.onnx", "torch-export", "onnx"),
    ],
)
def test_a_file_of_one_format_is_not_named_as_of_another(
    name: str, format: Any, named: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    with pytest.raises(
        ConfigError, match=f"a file of the format {named}, and `format` is {format}"
    ):
        make(OBS, CHOICE).export(path, format=format)
    assert not path.exists()


def test_a_link_that_leads_nowhere_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError):
        make(OBS, CHOICE).export(path, format="torch-export")
    assert path.is_symlink()


def test_the_command_and_the_documented_program(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The program of the documentation plays an episode, with onnxruntime and Gymnasium alone."""
    monkeypatch.chdir(tmp_path)
    with everstep.Trainer(
        "CartPole-v1", num_envs=4, horizon=64, seed=0, run_dir="runs/pole", track=False
    ) as trainer:
        trainer.run(total_env_steps=2048)
    assert main(["export", "runs/pole", "--format", format]) == 0
    name = {"onnx": "policy.onnx", "torch-export": "policy.pt2"}[format]
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"Model   runs/pole/{name}"
    assert out[1].startswith("Parity  largest difference")
    assert main(["export", "runs/pole", "--format", format]) == 2  # nothing is overwritten
    if format == "onnx":
        page = blocks(DOCS / "guides" / "deployment.md")
        [program] = [x.text for x in page if x.caption == "play_onnx.py"]
        assert len([line for line in program.splitlines() if line]) <= 20
        Path("play_onnx.py").write_text(program, encoding="utf-8")
        forbid = "import sys\nfor name in ('everstep', 'torch'): sys.modules[name] = None\n"
        code = forbid + "exec(open('play_onnx.py').read())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert 8 <= float(done.stdout) <= 500


@pytest.mark.parametrize(
    ("observed", "choices", "absent"),
    [
        (spaces.Discrete(4), [[0], [1], [2], [3]], [[4], [99], [-1]]),
        (spaces.Discrete(4, start=10), [[10], [11], [12], [13]], [[14], [9], [0]]),
        (spaces.MultiDiscrete([4, 2]), [[x, 1] for x in range(4)], [[4, 1], [99, 1], [-1, 1]]),
    ],
    ids=["from 0", "from 10", "several"],
)
def test_choices_that_do_not_exist_are_encoded_as_none_of_them(
    observed: Any, choices: list[Any], absent: list[Any], format: str, tmp_path: Path
) -> None:
    """A file cannot raise: what it answers is documented, and never that of a neighbour."""
    policy_of(observed, spaces.Discrete(3), Policy).export(tmp_path / "policy", format=format)
    listed = signature(tmp_path / "policy", format)["choices"]["obs"]
    assert listed == [choices[0] if len(choices[0]) == 1 else [0, 0], choices[-1]]
    run = loaded(tmp_path / "policy", format)
    logits = run({"obs": np.array([*choices, *absent])})["distribution.logits"]
    first, *others = logits[len(choices) :]
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5)
    assert all(not np.allclose(existing, first, rtol=1e-3) for existing in logits[: len(choices)])
