"""Outputs that stay as they are when the moments of observations change."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded

from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.algorithms.recording import Recorder
from everstep.core.graphs import Tape
from everstep.errors import ConfigError
from everstep.models import DefaultDiscreteModel
from everstep.policies import preserving
from everstep.policies._preserving import preserves
from tests.everstep.algorithms.test_critic_warmup import ENVS, HORIZON, env
from tests.everstep.algorithms.test_critic_warmup import built as warmed
from tests.toys import RecordedEnv

PLAIN = Unbounded((3,))
NAMED = Composite(
    {"one": Unbounded((2, 2)), "choice": Categorical(4, shape=[1]), "other": Unbounded((3,))},
    shape=[],
)
IMAGE = Unbounded((3, 40, 40))


def rows(spec: Any, scale: float) -> Any:
    if isinstance(spec, Composite):
        return TensorDict({key: rows(leaf, scale) for key, leaf in spec.items()}, [64])
    if isinstance(spec, Categorical):
        return spec.rand([64])
    return torch.randn(64, *spec.shape).double() * scale + scale


def built(spec: Any, *, recurrent: bool = False, **options: Any) -> Any:
    class Source(RecordedEnv):
        def __init__(self) -> None:
            super().__init__(torch.zeros(HORIZON + 1, ENVS, 3), HORIZON)
            self.observation_spec = spec

        def reset(self, *, config: Any = None) -> Any:
            return rows(spec, 1.0)[:ENVS]

    config: Any = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    return config(normalize_observations=True, seed=0, **options).build(Source())


def outputs(policy: Any, obs: Any) -> list[torch.Tensor]:
    """Features of the distribution and values."""
    leaves = policy.normalizer(policy._observation.flatten(obs))
    seen = policy._observation.unflatten(leaves, [64])
    model = policy.model
    with torch.no_grad():
        if policy.memory.paths:
            batch = TensorDict({"obs": seen.unsqueeze(1)}, [64, 1])
            zeros = model.state_spec.zero([64, 1]).double()
            features, _ = model(batch, zeros)
        else:
            features = model(TensorDict({"obs": seen}, [64]))
        return [*features.values(), model.value_function()]


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def moved(algorithm: Any, spec: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs before and after the moments have moved from one scale to another."""
    policy = algorithm.policy
    torch.manual_seed(1)
    for p in policy.model.parameters():  # heads are small at first
        p.data.copy_(torch.randn_like(p) * 0.3)
    mask, flatten = torch.ones(64, dtype=torch.bool), policy._observation.flatten
    policy.normalizer.update(flatten(rows(spec, 3.0)), mask)
    obs = rows(spec, 2.0)
    before = outputs(policy, obs)
    with preserving(policy):
        policy.normalizer.update(flatten(rows(spec, 0.3)), mask)
    return before, outputs(policy, obs)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (PLAIN, {}),
        (PLAIN, {"model_config": {"shared": True}}),
        (PLAIN, {"model_config": {"shared": True, "hiddens": []}}),
        (PLAIN, {"model_config": {"hiddens": [], "vf_hiddens": [8]}}),
        (NAMED, {}),
        (NAMED, {"model_config": {"actor_obs": ["other", "choice"], "critic_obs": ["one"]}}),
        (PLAIN, {"recurrent": True}),
        (PLAIN, {"recurrent": True, "model_config": {"shared": False, "num_layers": 2}}),
        (NAMED, {"recurrent": True, "model_config": {"actor_obs": ["other"]}}),
    ],
)
def test_outputs_stay(spec: Any, options: dict[str, Any]) -> None:
    algorithm = built(spec, **options)
    before, after = moved(algorithm, spec)
    assert all(float(x.std()) > 0.01 for x in before[-1:])
    for x, y in zip(before, after, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


class Own(DefaultDiscreteModel):
    """Computes something else."""

    def forward(self, batch: Any, /) -> Any:
        return super().forward(batch.apply(lambda x: x * 2))


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (PLAIN, {"model_config": {"bias": False}}),
        (PLAIN, {"model_config": {"frame_stack": 2}}),
        (PLAIN, {"model_cls": Own}),
        (PLAIN, {"recurrent": True, "model_config": {"bias": False}}),
        (IMAGE, {"model_config": {"image_layout": "channels_first"}}),
    ],
)
def test_what_cannot_be_preserved_is_left_alone(spec: Any, options: dict[str, Any]) -> None:
    policy = built(spec, **options).policy
    policy.normalizer.update(
        policy._observation.flatten(rows(spec, 3.0)), torch.ones(64, dtype=torch.bool)
    )
    before = {name: x.clone() for name, x in policy.model.state_dict().items()}
    with preserving(policy):
        policy.normalizer.update(
            policy._observation.flatten(rows(spec, 0.3)), torch.ones(64, dtype=torch.bool)
        )
    assert all(torch.equal(x, before[name]) for name, x in policy.model.state_dict().items())
    with pytest.raises(ConfigError, match=r"`preserve_outputs` is for default models .*; got"):
        built(spec, preserve_outputs=True, **options)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("change", ["frozen weight", "frozen bias", "hook", "parametrization"])
@pytest.mark.parametrize("network", ["policy", "vf_model"])
def test_layers_that_are_frozen_or_computed_are_left_alone(network: str, change: str) -> None:
    policy = built(PLAIN).policy
    layer = getattr(policy.model, network)[0]
    if change.startswith("frozen"):
        getattr(layer, change.removeprefix("frozen ")).requires_grad_(False)
    elif change == "hook":
        torch.nn.utils.weight_norm(layer)
    else:
        torch.nn.utils.parametrizations.weight_norm(layer)
    assert not preserves(policy)
    mask = torch.ones(64, dtype=torch.bool)
    before = {name: x.clone() for name, x in policy.model.state_dict().items()}
    with preserving(policy):
        policy.normalizer.update((rows(PLAIN, 3.0),), mask)
    assert all(torch.equal(x, before[name]) for name, x in policy.model.state_dict().items())


def test_what_was_constant_is_left_alone() -> None:
    policy = built(PLAIN).policy
    mask, seen = torch.ones(64, dtype=torch.bool), rows(PLAIN, 1.0)
    seen[:, 1] = 5.0
    policy.normalizer.update((seen,), mask)
    layers = [policy.model.policy[0], policy.model.vf_model[0]]
    before = [layer.weight.clone() for layer in layers]
    with preserving(policy):
        policy.normalizer.update((rows(PLAIN, 2.0),), mask)
    for layer, weight in zip(layers, before, strict=True):
        assert torch.equal(layer.weight[:, 1], weight[:, 1])
        assert not torch.isclose(layer.weight[:, 0], weight[:, 0]).any()


@pytest.mark.parametrize("way", ["native", "general", "recorded"])
@pytest.mark.parametrize(
    ("options", "source", "expected"),
    [
        ({}, {}, [False, False, True, True]),  # no episode ends, after `critic_warmup`
        ({"critic_warmup": 0}, {}, [False, True, True, True]),
        ({"preserve_outputs": False}, {}, [False] * 4),
        ({}, {"ends": 2}, [False, True, True, True]),
        ({}, {"limit": 10**6}, [False, True, True, True]),
    ],
)
def test_algorithms_preserve_outputs(
    options: Any, source: Any, expected: list[bool], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "native":
        monkeypatch.setenv("EVERSTEP_NATIVE", "0")
    algorithm = warmed(
        env(**source), lr=1e-12, lr_schedule=None, horizons_per_env_reset=-1, **options
    )
    if way == "recorded":
        algorithm.recorder = Recorder(Tape)
    policy, found = algorithm.policy, []
    obs = torch.randn(64, 3)
    for _ in expected:
        algorithm.collect()
        before = outputs(policy, obs)
        algorithm.step()
        found.append(all(map(torch.allclose, before, outputs(policy, obs))))
    assert found == expected
