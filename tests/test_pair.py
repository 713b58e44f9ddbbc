"""Two perceptrons computed as one: the same numbers."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torchrl.data import Categorical, Unbounded

from everstep.models import DefaultContinuousModel, DefaultDiscreteModel
from everstep.models._pair import MAX_ROWS, Pair

pytestmark = pytest.mark.usefixtures("float64")


def model(actions: int = 3, **config: Any) -> DefaultDiscreteModel:
    torch.manual_seed(1)
    found = DefaultDiscreteModel(Unbounded(4), Categorical(actions), **config)
    for p in found.parameters():
        nn.init.normal_(p)
    return found.train()


def apart(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return model.policy(x), model.vf_model(x)


CASES = [
    {"activation_fn": "tanh"},
    {"activation_fn": "relu", "hiddens": (8, 5, 6)},
    {"activation_fn": "sigmoid", "hiddens": (7,)},
    {"activation_fn": "tanh", "bias": False},
    {"activation_fn": "tanh", "hiddens": (), "num_values": 2},
    {"activation_fn": "tanh", "actions": 2, "num_values": 4, "hiddens": (5, 5)},
    {"actions": 1, "hiddens": (5, 5)},
]


@pytest.mark.parametrize("config", CASES, ids=str)
@torch.no_grad()
def test_a_pair_gives_what_its_networks_give(config: dict[str, Any]) -> None:
    whole = model(**config)
    assert whole._pair is not None
    x = torch.randn(9, 4)
    expected = apart(whole, x)
    for found in (whole._pair(x), whole._perceptrons(x)):
        for a, b in zip(expected, found, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(b, a, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [MAX_ROWS, MAX_ROWS + 1])
def test_many_rows_and_gradients_take_the_networks_themselves(rows: int) -> None:
    whole, x, seen = model(), torch.randn(rows, 4), []
    whole.policy.register_forward_hook(lambda *_: seen.append("policy"))
    assert whole._pair is not None  # of before the hook
    with torch.no_grad():
        whole._perceptrons(x)
    assert bool(seen) == (rows > MAX_ROWS)
    seen.clear()
    whole._perceptrons(x)
    assert seen


def test_what_is_packed_follows_the_parameters() -> None:
    whole, x = model(), torch.randn(9, 4)

    def check(of: Any) -> None:
        with torch.no_grad():
            for a, b in zip(apart(of, x), of._perceptrons(x), strict=True):
                torch.testing.assert_close(b, a, rtol=0, atol=1e-12)

    check(whole)
    optimizer = torch.optim.Adam(whole.parameters(), fused=True)  # leaves no trace in versions
    sum(y.sum() for y in whole._perceptrons(x)).backward()
    optimizer.step()
    check(whole)
    whole.load_state_dict({k: torch.randn_like(v) for k, v in whole.state_dict().items()})
    check(whole)
    twin = copy.deepcopy(whole)
    with torch.no_grad():
        twin.policy[0].weight.zero_()
    check(whole)
    check(twin)
    whole.policy[0] = nn.Linear(4, 256)
    check(whole.train())


@pytest.mark.parametrize("change", ["hook", "norm", "width", "other activation", "unknown"])
def test_networks_that_are_not_alike_are_computed_apart(change: str) -> None:
    whole = model(activation_fn="softmax" if change == "unknown" else "tanh")
    if change == "hook":
        whole.policy[2].register_forward_hook(lambda *_: None)
    elif change == "norm":
        whole.policy.insert(1, nn.LayerNorm(256))
    elif change == "width":
        whole.policy[0], whole.policy[2] = nn.Linear(4, 8), nn.Linear(8, 256)
    elif change == "other activation":
        whole.policy[1], whole.policy[3] = nn.ReLU(), nn.ReLU()
    assert not Pair.matches([whole.policy, whole.vf_model])
    assert whole.train()._pair is None


def test_continuous_models_are_pairs() -> None:
    assert DefaultContinuousModel(Unbounded(4), Unbounded(2)).train()._pair is not None
