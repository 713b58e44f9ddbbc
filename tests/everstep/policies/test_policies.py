"""Policies and their files."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded

from everstep import Policy
from everstep.core.checkpoints import load_file, save_file
from everstep.distributions import Normal
from everstep.errors import CheckpointError, ConfigError
from everstep.models import DefaultContinuousModel, DefaultDiscreteModel

OBS = Unbounded(4)


def act(policy: Policy, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        sample = policy.act((obs,), (), deterministic=True)
    assert sample.states == ()
    return sample.actions[0], sample.logp, sample.values


@pytest.mark.parametrize(
    ("observation_spec", "action_spec", "config"),
    [
        (OBS, Categorical(3, shape=torch.Size([1])), {}),
        (OBS, Categorical(3, shape=torch.Size([2])), {"hiddens": (8,), "activation_fn": "tanh"}),
        (OBS, MultiCategorical([2, 5]), {}),
        (OBS, Unbounded(2), {"log_std_init": -1.0}),
        (OBS, Unbounded(2), {"state_dependent_std": True}),
        (Unbounded((2, 3), dtype=torch.uint8), Bounded(-2.0, 2.0, shape=(1,)), {"bias": False}),
    ],
)
@pytest.mark.parametrize("suffix", ["policy", "policy.pkl"])
def test_a_saved_policy_acts_the_same(
    observation_spec: Any, action_spec: Any, config: Any, suffix: str, tmp_path: Path
) -> None:
    policy = Policy(observation_spec, action_spec, model_config=config)
    for parameter in policy.model.parameters():
        nn.init.normal_(parameter, std=0.1)
    policy.save(tmp_path / suffix)
    loaded = Policy.load(tmp_path / suffix)
    obs = (10 * torch.rand(16, *observation_spec.shape)).to(observation_spec.dtype)
    for a, b in zip(act(policy, obs), act(loaded, obs), strict=True):
        assert torch.equal(a, b)
    assert loaded.observation_spec == policy.observation_spec
    assert loaded.action_spec == policy.action_spec


class Custom(DefaultDiscreteModel):
    """A model of one's own."""


def test_a_model_of_ones_own_is_named_by_who_loads_it(tmp_path: Path) -> None:
    policy = Policy(OBS, Categorical(3, shape=torch.Size([1])), model_cls=Custom)
    policy.save(tmp_path / "policy")
    with pytest.raises(CheckpointError, match="Custom, which is not one of the defaults"):
        Policy.load(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy", model_cls=Custom)
    assert isinstance(loaded.model, Custom)


def namesake() -> type[DefaultDiscreteModel]:
    """A model of one's own that has the name of a default."""

    class DefaultDiscreteModel(Custom):
        pass

    return DefaultDiscreteModel


def test_a_name_alone_does_not_make_a_model_ours(tmp_path: Path) -> None:
    own = namesake()
    Policy(OBS, Categorical(3, shape=torch.Size([1])), model_cls=own).save(tmp_path / "policy")
    with pytest.raises(
        CheckpointError,
        match=r"test_policies\.DefaultDiscreteModel, which is not",
    ):
        Policy.load(tmp_path / "policy")
    assert type(Policy.load(tmp_path / "policy", model_cls=own).model) is own


def test_files_that_hold_names_alone_can_be_read(tmp_path: Path) -> None:
    policy = Policy(OBS, Categorical(3, shape=torch.Size([1])), model_config={"hiddens": (8,)})
    policy.save(tmp_path / "policy")
    state = load_file(tmp_path / "policy")
    del state["modules"]
    save_file(tmp_path / "older", state)
    loaded = Policy.load(tmp_path / "older")
    assert type(loaded.model) is DefaultDiscreteModel
    obs = torch.randn(5, 4)
    assert torch.equal(act(policy, obs)[2], act(loaded, obs)[2])


class Wide(DefaultDiscreteModel):
    """Hands on less than it takes."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, *, width: int = 4) -> None:
        super().__init__(observation_spec, action_spec, hiddens=(width, width))


def test_a_model_of_ones_own_is_built_as_it_was(tmp_path: Path) -> None:
    spec = Categorical(3, shape=torch.Size([1]))
    policy = Policy(OBS, spec, model_cls=Wide, model_config={"width": 12})
    policy.save(tmp_path / "policy")
    loaded = Policy.load(tmp_path / "policy", model_cls=Wide)
    obs = torch.randn(5, 4)
    assert torch.equal(act(policy, obs)[2], act(loaded, obs)[2])


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    Policy(OBS, Unbounded(2)).save(tmp_path / "policy")
    other = DefaultContinuousModel(OBS, Unbounded(2), hiddens=(8,))
    with pytest.raises(CheckpointError, match="do not fit"):
        Policy.load(tmp_path / "policy", model=other)


def test_a_file_whose_model_has_changed_since_says_what_differs(tmp_path: Path) -> None:
    Policy(OBS, Unbounded(2)).save(tmp_path / "policy")
    state = load_file(tmp_path / "policy")
    state["weights"]["policy.0.weight"] = torch.zeros(3, 4)
    save_file(tmp_path / "policy", state)
    found = r"`policy.0.weight` is \[3, 4\], and \[256, 4\] in the model. Load it with the version"
    with pytest.raises(CheckpointError, match=found):
        Policy.load(tmp_path / "policy")


@pytest.mark.parametrize("kind", ["composite", "unbounded"])
def test_a_size_that_no_machine_has_is_refused_before_memory_is_needed(
    tmp_path: Path, kind: str
) -> None:
    Policy(Unbounded(4), Categorical(2)).save(tmp_path / "policy")
    state = load_file(tmp_path / "policy")
    huge = {"kind": "unbounded", "shape": [2**45], "dtype": "float32"}
    composite = {"kind": "composite", "leaves": {"x": huge}}
    state["observation_spec"] = huge if kind == "unbounded" else composite
    save_file(tmp_path / "policy", state)
    with pytest.raises(CheckpointError, match="weights do not fit"):
        Policy.load(tmp_path / "policy")


def test_a_pickle_is_refused_without_running(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "ran").touch, ())

    (tmp_path / "policy").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(CheckpointError):
        Policy.load(tmp_path / "policy")
    assert not (tmp_path / "ran").exists()


def test_model_and_model_cls_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="mutually exclusive"):
        Policy(OBS, Unbounded(1), model=nn.Linear(1, 1), model_cls=Custom)


@pytest.mark.usefixtures("float64")
def test_orthogonal_weights_and_a_small_policy_head() -> None:
    model = DefaultContinuousModel(OBS, Unbounded(2), hiddens=(32, 32))
    hidden, head, value = model.policy[2].weight, model.policy[-1].weight, model.vf_model[-1].weight
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(32), atol=1e-12, rtol=0)
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(2), atol=1e-12, rtol=0)
    torch.testing.assert_close(value @ value.T, torch.eye(1), atol=1e-12, rtol=0)
    assert all(m.bias.abs().max() == 0 for m in model.modules() if isinstance(m, nn.Linear))


def test_the_standard_deviation_is_a_parameter_or_depends_on_the_observation() -> None:
    def std(config: dict[str, Any]) -> torch.Tensor:
        policy = Policy(OBS, Unbounded(2), model_config=config)
        nn.init.normal_(policy.model.policy[-1].weight)
        distribution, *_ = policy._respond((torch.randn(8, 4),), ())
        assert isinstance(distribution, Normal)
        return distribution.std

    assert (std({"log_std_init": -0.5}) - torch.tensor(-0.5).exp()).abs().max() < 1e-6
    assert std({"state_dependent_std": True}).std(0).min() > 0


def test_widening_the_head_leaves_the_means_alone() -> None:
    torch.manual_seed(0)
    plain = DefaultContinuousModel(OBS, Unbounded(2))
    torch.manual_seed(0)
    wide = DefaultContinuousModel(OBS, Unbounded(2), state_dependent_std=True, log_std_init=-1.5)
    outputs = wide.policy(torch.zeros(1, 4))
    torch.testing.assert_close(outputs, torch.tensor([[0.0, 0.0, -1.5, -1.5]]))
    assert torch.equal(wide.policy[-1].weight[:2], plain.policy[-1].weight)


@pytest.mark.parametrize("argument", ["model_cls", "distribution_cls"])
def test_a_class_of_another_module_is_no_default_of_the_same_name(tmp_path, argument):
    """A file says where its classes are from: one of a default's name is still another class."""
    path = tmp_path / "policy"
    Policy(Unbounded([3]), Categorical(2, shape=[1])).save(path)
    state = load_file(path)
    state["modules"][argument] = "somebody.elses"
    save_file(path, state)
    with pytest.raises(CheckpointError, match=f"somebody.elses.*pass `{argument}`"):
        Policy.load(path)
    del state["modules"]  # older files have the name alone
    save_file(path, state)
    assert isinstance(Policy.load(path), Policy)
