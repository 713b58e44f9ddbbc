"""Policies outside of training: in MLflow with Everstep, and exported for servers without it."""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from tensordict import TensorDict
from torch import nn
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    Unbounded,
)

import everstep
from everstep.core.normalizers import ObservationNormalizer
from everstep.data import DataKeys
from everstep.distributions import SquashedNormal
from everstep.errors import CheckpointError, ExportError
from everstep.models import DefaultDiscreteModel, Model, RecurrentModel
from everstep.policies import Policy, RecurrentPolicy
from everstep.views import ViewRequirement

# MLflow warns of its own type hints when it is imported.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*type hint:UserWarning"),
]

OBS = Unbounded(3)
CHOICE = Categorical(4, shape=torch.Size([1]))
NESTED = Composite(
    {"body": Unbounded(2), "eyes": Composite({"left": Unbounded((2, 2), dtype=torch.uint8)})}
)
PINNED = ["torch"]  # anything: left out, MLflow spends seconds on finding out


def randomize(model: nn.Module) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)


def make(*specs: Any, cls: Any = Policy, **arguments: Any) -> Any:
    torch.manual_seed(0)
    policy = cls(*specs, **arguments)
    randomize(policy.model)
    return policy


def normalizer() -> ObservationNormalizer:
    made = ObservationNormalizer(OBS)
    rows = 5 + 3 * torch.randn(100, 3)
    made.update((rows,), torch.ones(100, dtype=torch.bool))
    return made


class Spaces(gym.Env):
    """An environment of one observation space."""

    action_space = spaces.Discrete(3)

    def __init__(self, observation_space: spaces.Space) -> None:
        self.observation_space = observation_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}


class Linear(Model):
    """Logits and values that are linear in whatever `seen` makes of the batch."""

    width = 3

    def __init__(self, observation_spec: Any, action_spec: Any, /, **config: Any) -> None:
        super().__init__(observation_spec, action_spec, **config)
        self.head = nn.Linear(self.width, 4)
        self.values = nn.Linear(self.width, 1)

    def seen(self, batch: TensorDict) -> torch.Tensor:
        return batch["obs"]

    def forward(self, batch: TensorDict, /) -> TensorDict:
        seen = self.seen(batch)
        self._value = self.values(seen)
        return TensorDict({"logits": self.head(seen).unsqueeze(1)}, batch_size=[seen.shape[0]])

    def value_function(self) -> torch.Tensor:
        return self._value


class OfNested(Linear):
    width = 6

    def seen(self, batch: TensorDict) -> torch.Tensor:
        obs = batch["obs"]
        return torch.cat([obs["body"], obs["eyes", "left"].flatten(1) / 255], -1)


class Padded(Linear):
    """Sees the sum of the present observation and two past ones, and how many there are."""

    width = 4

    def __init__(self, *specs: Any, **config: Any) -> None:
        super().__init__(*specs, **config)
        self.view_requirements = {"obs": ViewRequirement(shift=2)}

    def seen(self, batch: TensorDict) -> torch.Tensor:
        inputs, mask = batch["obs", DataKeys.INPUTS], batch["obs", DataKeys.PADDING_MASK]
        return torch.cat([inputs.sum(1), mask.sum(1, keepdim=True).to(inputs.dtype)], -1)


class Rolling(Linear):
    """The same of windows without padding: there are zeros before an episode."""

    def __init__(self, *specs: Any, **config: Any) -> None:
        super().__init__(*specs, **config)
        self.view_requirements = {"obs": ViewRequirement(shift=2, method="rolling_window")}

    def seen(self, batch: TensorDict) -> torch.Tensor:
        return batch["obs"].sum(1)


class Memory(RecurrentModel):
    """An LSTM."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, **config: Any) -> None:
        super().__init__(observation_spec, action_spec, **config)
        self.state_spec = Composite(
            {DataKeys.HIDDEN_STATES: Unbounded((1, 8)), DataKeys.CELL_STATES: Unbounded((1, 8))}
        )
        self.lstm = nn.LSTM(3, 8, batch_first=True)
        self.head = nn.Linear(8, 4)
        self.values = nn.Linear(8, 1)

    def forward(self, batch: TensorDict, states: TensorDict, /) -> tuple[TensorDict, TensorDict]:
        before = tuple(
            states[key][:, 0].transpose(0, 1).contiguous()
            for key in (DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES)
        )
        outputs, (hidden, cell) = self.lstm(batch["obs"], before)
        rows = outputs.flatten(0, 1)
        self._value = self.values(rows)
        features = TensorDict({"logits": self.head(rows).unsqueeze(1)}, batch_size=[rows.shape[0]])
        after = {
            DataKeys.HIDDEN_STATES: hidden.transpose(0, 1),
            DataKeys.CELL_STATES: cell.transpose(0, 1),
        }
        return features, TensorDict(after, batch_size=[hidden.shape[1]])

    def value_function(self) -> torch.Tensor:
        return self._value


# ---- in MLflow, with Everstep --------------------------------------------------------------------


def in_mlflow(policy: Any, directory: Path) -> Any:
    """The policy, saved and loaded as rl8 documents."""
    import mlflow

    mlflow.pyfunc.save_model(
        f"{directory}/model",
        python_model=policy.save(f"{directory}/policy.pkl"),
        artifacts={"policy": f"{directory}/policy.pkl"},
        pip_requirements=PINNED,
    )
    return mlflow.pyfunc.load_model(f"{directory}/model")


def sampled(policy: Any, obs: Any, size: list[int], **arguments: Any) -> Any:
    """The policy's sample, with actions as environments take them: within their bounds."""
    flags = {"deterministic": True, "return_logp": True, "return_values": True}
    found = policy.sample(TensorDict({"obs": obs}, batch_size=size), **flags, **arguments)
    if isinstance(spec := policy.action_spec, Bounded):
        found["actions"] = found["actions"].clamp(spec.space.low, spec.space.high)
    return found


def check_rows(frame: Any, expected: TensorDict) -> None:
    assert list(frame.columns) == ["actions", "logp", "values"]
    assert len(frame) == expected.numel()
    for name in frame.columns:
        found = torch.tensor(frame[name].tolist())
        torch.testing.assert_close(found, expected[name].to(found.dtype))


@pytest.mark.parametrize(
    ("specs", "arguments"),
    [
        ((OBS, CHOICE), {}),
        ((OBS, MultiCategorical([2, 3])), {}),
        ((OBS, Unbounded(2)), {"model_config": {"state_dependent_std": True}}),
        ((OBS, Bounded(-2.0, 2.0, shape=(2,))), {}),
        ((OBS, CHOICE), {"normalizer": normalizer()}),
        ((NESTED, CHOICE), {"model_cls": OfNested}),
    ],
)
def test_any_batch_and_time_size_predicts(specs: Any, arguments: Any, tmp_path: Path) -> None:
    policy = make(*specs, **arguments)
    model = in_mlflow(policy, tmp_path)
    for size in ([1, 1], [1, 3], [4, 1], [3, 5]):
        obs = specs[0].rand(size)
        given = obs.numpy() if isinstance(obs, torch.Tensor) else obs.to_dict()
        check_rows(model.predict({"obs": given}), sampled(policy, obs, size, kind="all"))


@pytest.mark.slow  # MLflow imports the model in another process to see what it needs
def test_the_recipe_works_as_it_is_documented_and_pins_what_it_needs(tmp_path: Path) -> None:
    import mlflow

    policy = make(OBS, CHOICE)
    mlflow.pyfunc.save_model(
        tmp_path / "model",
        python_model=policy.save(tmp_path / "policy.pkl"),
        artifacts={"policy": str(tmp_path / "policy.pkl")},
    )
    obs = OBS.rand([1, 1])
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    frame = model.predict({"obs": obs.numpy()})
    check_rows(frame, sampled(policy, obs, [1, 1]))
    assert frame.iloc[0]["logp"][0] == pytest.approx(float(sampled(policy, obs, [1, 1])["logp"]))
    assert "mlflow" in (tmp_path / "model/requirements.txt").read_text()


@pytest.mark.parametrize("model_cls", [Padded, Rolling])
def test_a_window_sees_the_earlier_rows_of_its_own_sequence(model_cls: Any, tmp_path: Path) -> None:
    """Law: what a policy does step by step, carrying the window along, is what is predicted."""
    policy = make(OBS, CHOICE, model_cls=model_cls)
    model = in_mlflow(policy, tmp_path)
    obs = torch.randn(3, 5, 3)
    frame = model.predict({"obs": obs.numpy()})
    window, states = torch.zeros(3, 3, 3), policy.memory.zeros(3, device="cpu")
    with torch.no_grad():
        for t in range(5):
            window = torch.cat([window[:, 1:], obs[:, t : t + 1]], 1)
            sample = policy.act((window,), states, deterministic=True)
            states = sample.states
            found = torch.tensor(frame["values"].tolist()).view(3, 5)[:, t]
            torch.testing.assert_close(found, sample.values.squeeze(1))
    if model_cls is Padded:
        check_rows(frame, sampled(policy, obs, [3, 5], kind="all"))
    alone = model.predict({"obs": obs[1:2].numpy()})
    assert alone["values"].tolist() == frame["values"].tolist()[5:10]


@pytest.fixture
def recurrent(tmp_path: Path) -> tuple[RecurrentPolicy, Any]:
    """A recurrent policy, and the same in MLflow."""
    policy = make(OBS, CHOICE, cls=RecurrentPolicy, model_cls=Memory)
    return policy, in_mlflow(policy, tmp_path)


@pytest.mark.parametrize("size", [[1, 1], [1, 3], [4, 1], [3, 4]])
def test_a_recurrent_policy_returns_rows_and_states(recurrent: Any, size: list[int]) -> None:
    policy, model = recurrent
    obs = torch.randn(*size, 3)
    rows, states = model.predict({"obs": obs.numpy()})
    expected, after = sampled(policy, obs, size)
    check_rows(rows, expected)
    assert list(states.columns) == [DataKeys.HIDDEN_STATES, DataKeys.CELL_STATES]
    assert len(states) == size[0]
    for name in states.columns:
        torch.testing.assert_close(torch.tensor(states[name].tolist()), after[name])


@pytest.mark.parametrize("form", ["DataFrame", "[B, 1, ...]", "[B, ...]"])
def test_states_go_on_where_they_were_left(recurrent: Any, form: str) -> None:
    """Law: two halves of a sequence are the sequence."""
    _, model = recurrent
    obs = torch.randn(3, 4, 3).numpy()
    whole, end = model.predict({"obs": obs})
    first, states = model.predict({"obs": obs[:, :2]})
    if form != "DataFrame":
        states = {name: np.array(states[name].tolist()) for name in states.columns}
    if form == "[B, 1, ...]":
        states = {name: value[:, None] for name, value in states.items()}
    second, end_of_halves = model.predict({"obs": obs[:, 2:], "states": states})
    values = [np.array(f["values"].tolist()).reshape(3, -1) for f in (whole, first, second)]
    np.testing.assert_allclose(values[0], np.concatenate(values[1:], 1), rtol=1e-5)
    for name in end.columns:
        left, expected = end_of_halves[name].tolist(), end[name].tolist()
        np.testing.assert_allclose(left, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model_input", "message"),
    [
        ({}, "observations .* under 'obs'; got"),
        (np.zeros((1, 1, 3)), "observations .* under 'obs'; got"),
        ({"obs": np.zeros((4, 3))}, r"`obs` must be \[B, T, 3\]; got \[4, 3\]"),
        ({"obs": np.zeros((4, 1, 2))}, r"`obs` must be \[B, T, 3\]; got \[4, 1, 2\]"),
        ({"obs": [[["a", "b", "c"]]]}, "`obs` must have the dtype float32 .* got <U1"),
        ({"obs": {"a": 1}}, r"`obs` must have the dtype float32 .* got object \(dict\)"),
        ({"obs": [[[1, 2, 3], [4]]]}, "`obs` cannot be an array"),
        (
            {"obs": np.zeros((2, 1, 3)), "states": {"hidden_states": "zero"}},
            "`states.hidden_states` must have the dtype float32.*got <U4",
        ),
        (
            {"obs": np.zeros((2, 1, 3)), "states": {"hidden_states": np.zeros((2, 1, 8))}},
            "takes cell_states",
        ),
        (
            {"obs": np.zeros((2, 1, 3)), "states": {"hidden_states": np.zeros((3, 1, 1, 8))}},
            r"`states.hidden_states` must hold the states before each of the 2 sequences",
        ),
    ],
)
def test_wrong_inputs_are_told(recurrent: Any, model_input: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recurrent[1].predict(model_input)


def test_leaves_of_an_observation_must_be_there_and_agree(tmp_path: Path) -> None:
    model = in_mlflow(make(NESTED, CHOICE, model_cls=OfNested), tmp_path)
    body = np.zeros((2, 3, 2))
    with pytest.raises(ValueError, match=r"takes eyes; got \['body'\]"):
        model.predict({"obs": {"body": body}})
    with pytest.raises(ValueError, match=r"same \[B, T\]; got \[2, 3\], \[2, 1\]"):
        model.predict({"obs": {"body": body, "eyes": {"left": np.zeros((2, 1, 2, 2), int)}}})


OF_CHOICES = {
    "from 0": spaces.Discrete(4),
    "from 10": spaces.Discrete(4, start=10),
    "several": spaces.MultiDiscrete([4, 2]),
    "grid": spaces.MultiDiscrete([[4, 2], [3, 3]], start=[[0, 0], [0, 5]]),
    "flags": spaces.MultiBinary(2),
    "int8": spaces.Box(-128, 127, (2,), np.int8),
    "uint8": spaces.Box(0, 255, (2,), np.uint8),
    "int64": spaces.Box(-9, 9, (2,), np.int64),
    "float32": spaces.Box(-9, 9, (2,), np.float32),
}


@pytest.mark.parametrize("case", OF_CHOICES)
def test_observations_are_read_as_predict_reads_them(case: str, tmp_path: Path) -> None:
    """Law: a served model answers what `predict` answers, and refuses what it refuses."""
    space = OF_CHOICES[case]
    space.seed(0)
    env = everstep.wrap(SyncVectorEnv([lambda: Spaces(space)] * 2))
    policy = make(env.observation_spec, env.action_spec, env_format=env.env_format)
    model = in_mlflow(policy, tmp_path)
    inside = [np.asarray(space.sample()) for _ in range(6)]
    changes = (0, 1, -1, 4, 90, -140, 300, 2**33, 0.5, 2.7, np.nan)
    kept = refused = 0
    for row, change in ((row, change) for row in inside for change in changes):
        value = np.asarray(row + np.asarray(change))  # in the wider dtype of both
        given = value.reshape(1, 1, *policy._observation.shapes[0])
        try:
            expected, _ = policy.predict(value)
        except ValueError as error:
            with pytest.raises(ValueError, match=f"^{re.escape(str(error))}$"):
                model.predict({"obs": given})
            refused += 1
            continue
        frame = model.predict({"obs": given})
        assert frame["actions"][0] == [expected]
        listed = model.predict({"obs": given.tolist()})
        np.testing.assert_array_equal(listed["values"][0], frame["values"][0])  # NaN of NaN
        kept += 1
    assert kept >= len(inside)
    assert refused >= (0 if case == "float32" else 3 * len(inside))


def test_no_pickle_is_read_from_the_policys_file(tmp_path: Path, monkeypatch: Any) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "ran").touch, ())

    context = SimpleNamespace(artifacts={"policy": str(tmp_path / "policy.pkl")})
    model = make(OBS, CHOICE).save(tmp_path / "policy.pkl")

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was unpickled")

    with monkeypatch.context() as patch:
        for name in ("load", "loads", "Unpickler"):
            patch.setattr(pickle, name, refuse)
        model.load_context(context)
    assert len(model.predict(context, {"obs": np.zeros((1, 2, 3))})) == 2
    (tmp_path / "policy.pkl").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(CheckpointError):
        model.load_context(context)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow  # another process imports PyTorch and MLflow
def test_mlflow_is_imported_where_it_is_asked_for_and_not_before() -> None:
    code = (
        "import sys, everstep.policies as policies\n"
        "assert not {'mlflow', 'pandas'} & set(sys.modules)\n"
        "from everstep.policies import MLflowPolicyModel, MLflowRecurrentPolicyModel\n"
        "assert 'mlflow' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# ---- exported ------------------------------------------------------------------------------------

HALF_BOUNDED = Bounded(low=torch.tensor([0.0, 0.0]), high=torch.tensor([5.0, torch.inf]))


def exported(policy: Any, path: Path) -> Any:
    import mlflow

    policy.export(path)
    return mlflow.pyfunc.load_model(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("specs", "arguments"),
    [
        ((OBS, MultiCategorical([2, 3])), {}),
        ((OBS, Bounded(-2.0, 2.0, shape=(2,))), {"normalizer": normalizer()}),
        ((OBS, Bounded(0.0, 5.0, shape=(2,))), {"distribution_cls": SquashedNormal}),
        ((OBS, HALF_BOUNDED), {"distribution_cls": SquashedNormal}),
        ((NESTED, CHOICE), {"model_cls": OfNested}),
    ],
)
def test_an_exported_policy_does_what_the_policy_does(
    specs: Any, arguments: Any, tmp_path: Path
) -> None:
    policy = make(*specs, **arguments)
    model = exported(policy, tmp_path / "model")
    for rows in (1, 2, 33):
        obs = specs[0].rand([rows, 1])
        expected = sampled(policy, obs, [rows, 1])
        now = obs[:, 0]
        found = model.predict(
            {"obs": now.numpy()}
            if isinstance(now, torch.Tensor)
            else {"obs.body": now["body"].numpy(), "obs.eyes.left": now["eyes", "left"].numpy()}
        )
        for name in ("actions", "logp", "values"):
            torch.testing.assert_close(torch.tensor(found[name]), expected[name])
        if policy.distribution_cls is SquashedNormal:
            assert (found["actions"] >= 0).all()


def test_what_the_policy_remembers_goes_in_and_out(tmp_path: Path) -> None:
    policy = make(OBS, CHOICE, cls=RecurrentPolicy, model_cls=Memory)
    model = exported(policy, tmp_path / "model")
    obs = torch.randn(4, 6, 3)
    expected, after = sampled(policy, obs, [4, 6])
    memory = {name: np.zeros((4, 1, 8), np.float32) for name in after.keys()}  # noqa: SIM118
    for t in range(6):
        found = model.predict({**memory, "obs": obs[:, t].numpy()})
        memory = {name: found[name] for name in memory}
        values = expected["values"].view(4, 6)[:, t : t + 1]
        torch.testing.assert_close(torch.tensor(found["values"]), values)
    for name, array in memory.items():
        torch.testing.assert_close(torch.tensor(array), after[name])


@pytest.mark.slow
@pytest.mark.parametrize("model_cls", [Padded, Rolling])
def test_windows_are_exported(model_cls: Any, tmp_path: Path) -> None:
    policy = make(OBS, CHOICE, model_cls=model_cls)
    model = exported(policy, tmp_path / "model")
    windows, ages = torch.randn(5, 3, 3), torch.tensor([0, 1, 2, 3, 0])
    found = model.predict({"obs": windows.numpy(), "age": ages.numpy()})
    with torch.no_grad():
        expected = policy.act((windows,), (ages,), deterministic=True)
    torch.testing.assert_close(torch.tensor(found["values"]), expected.values)
    assert found["age"].tolist() == [1, 2, 3, 4, 1]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["from 10", "several", "grid", "flags"])
def test_an_exported_model_refuses_choices_that_do_not_exist(case: str, tmp_path: Path) -> None:
    """Its dtypes are MLflow's to check; a choice's range is not in MLflow's signature."""
    space = OF_CHOICES[case]
    env = everstep.wrap(SyncVectorEnv([lambda: Spaces(space)] * 2))
    policy = make(env.observation_spec, env.action_spec, env_format=env.env_format)
    model = exported(policy, tmp_path / "model")
    (shape,), start = policy._observation.shapes, np.asarray(getattr(space, "start", 0))
    dtype = model.metadata.get_input_schema().inputs[0].type
    rows = np.stack([space.sample().reshape(shape) for _ in range(3)]).astype(dtype)
    assert len(model.predict({"obs": rows})["actions"]) == 3
    first = np.broadcast_to(start, space.shape).reshape(shape)
    for wrong in (first - 1, first + 4, first + 99):
        if (wrong.astype(dtype) == wrong).all():
            with pytest.raises(ValueError, match=r"^`obs` of row 1 is .* no choice of its space: "):
                model.predict({"obs": np.stack([rows[0], wrong.astype(dtype), rows[2]])})


def test_only_the_present_row_of_a_window_is_checked(tmp_path: Path) -> None:
    """Those before an episode may have any values."""
    policy = make(CHOICE, CHOICE, model_cls=OfOne)
    model = exported(policy, tmp_path / "model")
    window, ages = np.array([[[9], [-5], [3]]]), np.zeros(1, np.int64)
    assert np.isfinite(model.predict({"obs": window, "age": ages})["values"]).all()
    with pytest.raises(ValueError, match=r"^`obs` of row 0 is 4 in element 0, .*: 0 to 3 are\."):
        model.predict({"obs": window + 1, "age": ages})


class OfOne(Padded):
    width = 2

    def seen(self, batch: TensorDict) -> torch.Tensor:
        return super().seen(batch).float()


EVERYTHING = Composite(
    {
        "numbers": Unbounded(3),
        "image": Bounded(0, 255, shape=(3, 36, 36), dtype=torch.uint8),
        "option": Categorical(5, shape=torch.Size([1])),
        "action_mask": Binary(4, dtype=torch.bool),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
@pytest.mark.parametrize(
    "specs",
    [
        pytest.param((EVERYTHING, CHOICE), marks=pytest.mark.slow),  # convolutions are traced
        (OBS, Binary(3)),
        (OBS, Bounded(-1.0, 2.0, shape=(2,))),
        (OBS, MultiOneHot([2, 3])),
        (OBS, Bounded(low=torch.tensor([-1, 0]), high=torch.tensor([1, 4]), dtype=torch.int64)),
    ],
)
def test_every_default_model_can_be_exported(specs: Any, cls: Any, tmp_path: Path) -> None:
    """The export does the same as the policy, or it is not written."""
    make(*specs, cls=cls).export(tmp_path / "model")
    assert (tmp_path / "model" / "MLmodel").is_file()


WITHOUT_EVERSTEP = """
import json, sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("everstep", "everstep_adapters", "tensordict", "torchrl"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Forbid())
import mlflow, numpy as np

answers = []
for path, request in json.load(sys.stdin):
    model = mlflow.pyfunc.load_model(path)
    types = {spec.name: spec.type for spec in model.metadata.get_input_schema().inputs}
    arrays = {name: np.array(value, types[name]) for name, value in request.items()}
    answers.append({name: x.tolist() for name, x in model.predict(arrays).items()})
print(json.dumps(answers))
"""


@pytest.mark.slow  # another process imports PyTorch and MLflow
def test_everstep_is_not_needed(tmp_path: Path) -> None:
    """Nor tensordict nor torchrl; in a process that cannot import them."""
    plain = make(OBS, CHOICE, normalizer=normalizer())
    plain.export(tmp_path / "plain")
    recurrent = make(OBS, CHOICE, cls=RecurrentPolicy, model_cls=Memory)
    recurrent.export(tmp_path / "recurrent")
    obs = torch.randn(2, 1, 3)
    zeros = {"hidden_states": [[[0.0] * 8]] * 2, "cell_states": [[[0.0] * 8]] * 2}
    requests = [
        (str(tmp_path / "plain"), {"obs": obs[:, 0].tolist()}),
        (str(tmp_path / "recurrent"), {"obs": obs[:, 0].tolist(), **zeros}),
    ]
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_EVERSTEP],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    answers = json.loads(process.stdout)
    for answer, expected in zip(
        answers, [sampled(plain, obs, [2, 1]), sampled(recurrent, obs, [2, 1])[0]], strict=True
    ):
        assert answer["actions"] == expected["actions"].tolist()
        np.testing.assert_allclose(answer["values"], expected["values"].numpy(), rtol=1e-5)
        np.testing.assert_allclose(answer["logp"], expected["logp"].numpy(), rtol=1e-5)


def test_the_directory_says_what_it_takes_and_needs(tmp_path: Path) -> None:
    import mlflow

    make(NESTED, CHOICE, model_cls=OfNested).export(tmp_path / "deep" / "model")
    path = tmp_path / "deep" / "model"
    info = mlflow.models.get_model_info(str(path))
    inputs = {spec.name: (spec.type.name, spec.shape) for spec in info.signature.inputs.inputs}
    assert inputs == {
        "obs.body": ("float32", (-1, 2)),
        "obs.eyes.left": ("uint8", (-1, 2, 2)),
    }
    outputs = {spec.name: (spec.type.name, spec.shape) for spec in info.signature.outputs.inputs}
    assert outputs == {
        "actions": ("int64", (-1, 1)),
        "logp": ("float32", (-1, 1)),
        "values": ("float32", (-1, 1)),
        "distribution.logits": ("float32", (-1, 1, 4)),
    }
    assert info.metadata["model"] == "OfNested"
    needed = [line.split("==")[0] for line in (path / "requirements.txt").read_text().split()]
    assert needed == ["torch", "numpy", "mlflow"]
    example = json.loads((path / "serving_input_example.json").read_text())["inputs"]
    assert np.shape(example["obs.eyes.left"]) == (1, 2, 2)
    assert not list(path.rglob("*.pkl"))
    assert {entry.name for entry in path.parent.iterdir()} == {"model"}


class CountsRows(Linear):
    def seen(self, batch: TensorDict) -> torch.Tensor:
        return batch["obs"] / len(batch["obs"])


class Branches(Linear):
    def seen(self, batch: TensorDict) -> torch.Tensor:
        return batch["obs"] if batch["obs"].sum() > 0 else -batch["obs"]


class UsesNumPy(Linear):
    def seen(self, batch: TensorDict) -> torch.Tensor:
        return torch.from_numpy(np.tanh(batch["obs"].numpy()))


class CountsCalls(Linear):
    calls = 0

    def seen(self, batch: TensorDict) -> torch.Tensor:
        self.calls += 1
        return batch["obs"] + self.calls


class NotCopied(Linear):
    def __init__(self, *specs: Any, **config: Any) -> None:
        super().__init__(*specs, **config)
        self.file = socket.socket

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it holds a connection")


@pytest.mark.parametrize(
    ("model_cls", "reason"),
    [
        (CountsRows, "fixes the number of rows"),
        (Branches, "data-dependent"),
        (UsesNumPy, "numpy"),
        (CountsCalls, "the program's .* differ from the policy's"),
        (NotCopied, "cannot be copied: it holds a connection"),
    ],
)
def test_a_model_that_cannot_be_exported_is_told_why(
    model_cls: Any, reason: str, tmp_path: Path
) -> None:
    policy = make(OBS, CHOICE, model_cls=model_cls)
    with pytest.raises(
        ExportError, match=rf"(?s)^{model_cls.__name__}.* cannot be exported: "
    ) as e:
        policy.export(tmp_path / "model")
    assert re.search(reason, str(e.value))
    assert "python_model=policy.save(file)" in str(e.value)
    assert list(tmp_path.iterdir()) == []


def test_a_normalizer_without_statistics_is_exported(tmp_path: Path) -> None:
    """Before training observations pass as they are; the program holds no other branch."""
    policy = make(OBS, CHOICE, normalizer=ObservationNormalizer(OBS))
    bare = Policy(OBS, CHOICE, model=policy.model)
    obs = 1e3 * torch.randn(4, 1, 3)
    found = exported(policy, tmp_path / "model").predict({"obs": obs[:, 0].numpy()})
    torch.testing.assert_close(torch.tensor(found["values"]), sampled(bare, obs, [4, 1])["values"])


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        make(OBS, CHOICE).export(tmp_path / "model")


def test_exporting_leaves_policy_and_random_numbers_alone(tmp_path: Path) -> None:
    policy = make(OBS, CHOICE, model_cls=Linear)
    policy.model.train()
    policy.model(TensorDict({"obs": torch.randn(5, 3)}, batch_size=[5]))
    kept = policy.model.value_function()
    assert kept.requires_grad  # as after an update: such a tensor cannot be copied
    random = torch.get_rng_state()
    weights = {name: x.clone() for name, x in policy.model.state_dict().items()}
    policy.export(tmp_path / "model")
    assert torch.equal(random, torch.get_rng_state())
    assert policy.model.training
    assert policy.model.value_function() is kept
    assert all(torch.equal(x, weights[name]) for name, x in policy.model.state_dict().items())


class Dropped(DefaultDiscreteModel):
    """Drops what it sees while it trains."""

    def forward(self, batch: TensorDict, /) -> Any:
        obs = nn.functional.dropout(batch["obs"], 0.9, training=self.training)
        return super().forward(TensorDict({"obs": obs}, batch_size=batch.batch_size))


def test_what_is_served_is_in_eval_mode(tmp_path: Path) -> None:
    policy = make(OBS, CHOICE, model_cls=Dropped)
    policy.model.train()
    obs = torch.randn(8, 1, 3)
    expected = sampled(policy, obs, [8, 1])["values"]
    found = exported(policy, tmp_path / "exported").predict({"obs": obs[:, 0].numpy()})
    torch.testing.assert_close(torch.tensor(found["values"]), expected)
    frame = in_mlflow(policy, tmp_path).predict({"obs": obs.numpy()})
    torch.testing.assert_close(torch.tensor(frame["values"].tolist()), expected)


# ---- served --------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def wait_for(process: Any, url: str) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=60):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(process.communicate()[0])


@pytest.mark.long
@pytest.mark.slow  # a server starts
@pytest.mark.skipif(
    not (find_spec("fastapi") and find_spec("uvicorn")),
    reason="`mlflow models serve` needs fastapi and uvicorn",
)
def test_mlflow_serves_it_over_http(tmp_path: Path) -> None:
    policy = make(OBS, CHOICE)
    policy.export(tmp_path / "model")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "model"]
    process = subprocess.Popen(
        [*command, "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(process, f"{url}/ping")
        obs = torch.randn(3, 1, 3)
        answer = post(f"{url}/invocations", {"inputs": {"obs": obs[:, 0].tolist()}})
        example = json.loads((tmp_path / "model/serving_input_example.json").read_text())
        assert len(post(f"{url}/invocations", example)["predictions"]["actions"]) == 1
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(f"{url}/invocations", {"inputs": {"obs": [[1.0, 2.0]]}})
        assert "does not match expected shape (-1, 3)" in refused.value.read().decode()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
    expected = sampled(policy, obs, [3, 1])
    assert answer["predictions"]["actions"] == expected["actions"].tolist()
    np.testing.assert_allclose(answer["predictions"]["values"], expected["values"], rtol=1e-5)
