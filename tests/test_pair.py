"""Two perceptrons computed as one: the same numbers."""

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Categorical, Unbounded

from everstep import AlgorithmConfig, DiscreteDummyEnv
from everstep.models import DefaultContinuousModel, DefaultDiscreteModel
from everstep.models._pair import MAX_ROWS, Pair

pytestmark = pytest.mark.usefixtures("float64")


def model(actions: int = 3, **config: Any) -> DefaultDiscreteModel:
    torch.manual_seed(1)
    found = DefaultDiscreteModel(Unbounded(4), Categorical(actions), **config)
    for p in found.parameters():
        nn.init.normal_(p)
    return found


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
    whole, x = model(**config), torch.randn(9, 4)
    expected = apart(whole, x)
    with whole.keep_weights():
        assert whole._pair is not None
        for a, b in zip(expected, whole._perceptrons(x), strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(b, a, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [MAX_ROWS, MAX_ROWS + 1])
@torch.no_grad()
def test_many_rows_take_the_networks_themselves(rows: int) -> None:
    whole, x, seen = model(), torch.randn(rows, 4), []
    with whole.keep_weights():
        whole.policy.register_forward_hook(lambda *_: seen.append("policy"))
        whole._perceptrons(x)
    assert bool(seen) == (rows > MAX_ROWS)


def test_gradients_are_those_of_the_networks() -> None:
    whole = model()
    with whole.keep_weights():
        sum(y.sum() for y in whole._perceptrons(torch.randn(9, 4))).backward()
    assert all(p.grad is not None for p in whole.parameters())


@torch.no_grad()
def test_nothing_is_kept_of_weights_that_may_change() -> None:
    """However they do: fused optimizers and `.data` leave no trace in a parameter's version."""
    whole, x = model(), torch.randn(9, 4)

    def check() -> None:
        assert whole._pair is None
        for a, b in zip(apart(whole, x), whole._perceptrons(x), strict=True):
            assert a.equal(b)

    with pytest.raises(RuntimeError), whole.keep_weights():
        whole._perceptrons(x[:, :1])
    check()
    for p in whole.parameters():
        p.data.mul_(0.5)
    check()
    with whole.keep_weights():
        for a, b in zip(apart(whole, x), whole._perceptrons(x), strict=True):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-12)
    for twin in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        assert twin._pair is None
    new = {k: torch.randn_like(v) for k, v in whole.state_dict().items()}
    swapped = torch.func.functional_call(whole, new, (TensorDict({"obs": x}, [9]),))
    whole.load_state_dict(new)
    assert swapped["logits"].equal(apart(whole, x)[0])


class Own(nn.Module):
    """A network that is no chain."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(x), 3)


def test_rollouts_are_collected_by_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = AlgorithmConfig(num_envs=8, horizon=4).build(DiscreteDummyEnv)
    calls, call = [], Pair.__call__
    monkeypatch.setattr(Pair, "__call__", lambda self, x: (calls.append(1), call(self, x))[1])
    algorithm.collect()
    assert len(calls) == 4 + 1  # the last values
    algorithm.step()
    assert len(calls) == 4 + 1


@pytest.mark.parametrize(
    "change", ["hook", "norm", "width", "other activation", "unknown", "no chain"]
)
@torch.no_grad()
def test_networks_that_are_not_alike_are_computed_apart(change: str) -> None:
    whole = model(activation_fn="squared_relu" if change == "unknown" else "tanh")
    if change == "hook":
        whole.policy[2].register_forward_hook(lambda *_: None)
    elif change == "norm":
        whole.policy.insert(1, nn.LayerNorm(256))
    elif change == "width":
        whole.policy[0], whole.policy[2] = nn.Linear(4, 8), nn.Linear(8, 256)
    elif change == "other activation":
        whole.policy[1], whole.policy[3] = nn.ReLU(), nn.ReLU()
    elif change == "no chain":
        whole.policy = Own()
    with whole.keep_weights():
        assert whole._pair is None
        whole._perceptrons(torch.randn(9, 4))


@torch.no_grad()
def test_continuous_models_are_pairs() -> None:
    whole = DefaultContinuousModel(Unbounded(4), Unbounded(2))
    with whole.keep_weights():
        assert whole._pair is not None
