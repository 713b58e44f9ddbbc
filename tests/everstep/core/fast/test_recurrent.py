"""LSTM and GRU natively: values and derivatives, resets inside of sequences, and when they are."""

import copy
import math
import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from everstep import RecurrentAlgorithmConfig
from everstep.algorithms.recording import optimizer_steps
from everstep.core.fast import SWITCH, eligible, recurrence
from everstep.core.fast.recurrent import TILE, Recurrence
from everstep.core.graphs import static_shapes
from everstep.models import DefaultDiscreteRecurrentModel
from tests.everstep.core.fast.test_kernel import level as level
from tests.golden import runs

pytestmark = pytest.mark.usefixtures("native")

LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Stand:
    """Stands for a policy, of which a `Recurrence` sets one attribute."""

    resetting: Any = None


def natively(*layers: nn.RNNBase) -> Any:
    policy: Any = Stand()
    return Recurrence(policy, layers, resets=False)


def results(
    layer: Any, x: torch.Tensor, states: list[torch.Tensor], weights: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Latents and states after them, and derivatives by all that they depend on."""
    x, states = x.clone().requires_grad_(), [y.clone().requires_grad_() for y in states]
    layer.zero_grad()
    latents, after = layer(x, tuple(states) if len(states) == 2 else states[0])
    after = after if isinstance(after, tuple) else (after,)
    loss = sum((y * w).sum() for y, w in zip((latents, *after), weights, strict=True))
    assert isinstance(loss, torch.Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    found = [latents, *after, x.grad, *(y.grad for y in states)]
    return [
        y.detach().clone() for y in (*found, *(p.grad for p in layer.parameters())) if y is not None
    ]


def drawn(
    rng: random.Random, kind: str, dtype: torch.dtype, **fixed: Any
) -> tuple[Any, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """A layer of drawn sizes, its arguments, and weights of its results in a loss."""
    sizes = {
        "rows": rng.choice([1, 2, 7, 40]),
        "steps": rng.choice([1, 2, 9]),
        "inputs": rng.choice([1, 3, 64]),
        "size": rng.choice([1, 2, 7, 8, 31, 64, 257]),
        "layers": rng.choice([1, 1, 2, 3]),
        "bias": rng.random() < 0.7,
        "batch_first": rng.random() < 0.7,
    } | fixed
    rows, steps, size, layers = (sizes[key] for key in ("rows", "steps", "size", "layers"))
    layer = LAYERS[kind](
        sizes["inputs"], size, layers, bias=sizes["bias"], batch_first=sizes["batch_first"]
    ).to(dtype)
    count = 2 if kind == "lstm" else 1

    def numbers(width: int) -> torch.Tensor:
        x = torch.randn(rows, steps, width, dtype=dtype)
        return x if sizes["batch_first"] else x.transpose(0, 1)

    states = [torch.randn(layers, rows, size, dtype=dtype) for _ in range(count)]
    weights = [numbers(size), *(torch.randn_like(y) for y in states)]
    return layer, 3 * numbers(sizes["inputs"]), states, weights


# ---- values and derivatives -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", list(LAYERS))
def test_it_computes_what_pytorch_does(kind: str, seed: int, level: str) -> None:
    torch.manual_seed(seed)
    arguments = drawn(random.Random(seed), kind, torch.float64)
    general = results(*arguments)
    with natively(arguments[0]).running():
        native = results(*arguments)
    for one, other in zip(native, general, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * float(other.abs().max()))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", list(LAYERS))
def test_it_does_in_float32_within_rounding(kind: str, seed: int, level: str) -> None:
    torch.manual_seed(seed)
    arguments = drawn(random.Random(seed), kind, torch.float32)
    layer, *rest = arguments
    wide = copy.deepcopy(layer).double()
    exact = results(wide, *(_double(x) for x in rest))
    with natively(layer).running():
        native = results(*arguments)
    for one, other in zip(native, exact, strict=True):
        scale = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=0, atol=3e-6 * scale)


def _double(x: Any) -> Any:
    return [y.double() for y in x] if isinstance(x, list) else x.double()


def test_one_step_of_one_cell_by_hand() -> None:
    """With weights of 0 and biases b, c' = σ(b_f)·c + σ(b_i)·tanh(b_g), h = σ(b_o)·tanh(c')."""
    lstm, gru = nn.LSTM(1, 1).double(), nn.GRU(1, 1).double()
    for p in (*lstm.parameters(), *gru.parameters()):
        nn.init.zeros_(p)
    with torch.no_grad():
        lstm.bias_ih_l0.copy_(torch.tensor([0.5, -1.0, 0.3, 2.0], dtype=torch.float64))
        gru.bias_ih_l0.copy_(torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64))
        gru.bias_hh_l0.copy_(torch.tensor([0.0, 0.0, 0.4], dtype=torch.float64))
    x, state = torch.zeros(1, 1, 1).double(), torch.full((1, 1, 1), 0.7, dtype=torch.float64)
    with natively(lstm, gru).running(), torch.no_grad():
        latent, (_, cell) = lstm(x, (state, state))
        other, _ = gru(x, state)

    def sigmoid(y: float) -> float:
        return 1 / (1 + math.exp(-y))

    expected = sigmoid(-1.0) * 0.7 + sigmoid(0.5) * math.tanh(0.3)
    assert cell.item() == pytest.approx(expected, rel=1e-14)
    assert latent.item() == pytest.approx(sigmoid(2.0) * math.tanh(expected), rel=1e-14)
    candidate, update = math.tanh(0.3 + sigmoid(0.5) * 0.4), sigmoid(-1.0)
    assert other.item() == pytest.approx((1 - update) * candidate + update * 0.7, rel=1e-14)


@pytest.mark.parametrize("kind", list(LAYERS))
def test_tiles_and_threads_change_nothing(kind: str) -> None:
    """A batch of several tiles has the results of each of its rows; threads give the same bits."""
    rows, steps, size = 700, 8, 64
    assert rows * steps * 3 * size > TILE
    arguments = drawn(
        *(random.Random(0), kind, torch.float64),
        **{"rows": rows, "steps": steps, "size": size, "layers": 1, "batch_first": True},
    )
    general = results(*arguments)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3, 1):
            torch.set_num_threads(threads)
            with natively(arguments[0]).running():
                found.append(results(*arguments))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found[0], general, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * float(other.abs().max()))
    assert all(torch.equal(x, y) for x, y in zip(found[0], found[2], strict=True))
    # Threads of the library: results of rows; products are MKL's, whose threads round otherwise.
    for one, other in zip(found[0], found[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10 * float(other.abs().max()))


@pytest.mark.parametrize("kind", list(LAYERS))
def test_no_row_and_odd_numbers(kind: str, level: str) -> None:
    """No sequence, and numbers that are not finite, or huge: in their rows as PyTorch has them."""
    arguments = drawn(random.Random(0), kind, torch.float32, rows=0)
    with natively(arguments[0]).running():
        assert results(*arguments)[0].numel() == 0
    for size in (1, 5, 8, 33):
        layer, x, states, _ = drawn(
            *(random.Random(1), kind, torch.float32),
            **{"rows": 6, "steps": 3, "size": size, "layers": 1, "batch_first": True},
        )
        for i, odd in enumerate((math.nan, math.inf, -math.inf, 3e38, 1e-45)):
            x[i, 1, 0] = odd
        given = tuple(states) if kind == "lstm" else states[0]
        with torch.no_grad():
            general, _ = layer(x, given)
            with natively(layer).running():
                native, _ = layer(x, given)
        torch.testing.assert_close(native, general, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kind", list(LAYERS))
def test_derivatives_can_be_differentiated(kind: str) -> None:
    layer, x, states, _ = drawn(
        *(random.Random(0), kind, torch.float64),
        **{"rows": 2, "steps": 3, "inputs": 2, "size": 3, "layers": 1, "batch_first": True},
    )

    def compute(x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        latents, after = layer(x, states if len(states) == 2 else states[0])
        after = torch.cat(after) if isinstance(after, tuple) else after
        return torch.cat([latents.flatten(), after.flatten()])

    inputs = [y.requires_grad_() for y in (x, *states)]
    with natively(layer).running():
        assert torch.autograd.gradcheck(compute, inputs)
        assert torch.autograd.gradgradcheck(compute, inputs)


def test_results_that_are_changed_and_a_second_backward_change_no_derivative() -> None:
    layer, x, states, weights = drawn(random.Random(2), "lstm", torch.float64, layers=1)
    with natively(layer).running():
        expected = results(layer, x, states, weights)[-len([*layer.parameters()]) :]
        latents, after = layer(x, tuple(states))
        loss = sum((y * w).sum() for y, w in zip((latents, *after), weights, strict=True))
        with torch.no_grad():
            for y in (latents, *after):
                y.zero_()
        for _ in range(2):
            found = torch.autograd.grad(loss, [*layer.parameters()], retain_graph=True)
            for one, other in zip(found, expected, strict=True):
                assert torch.equal(one, other)


# ---- resets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0], ids=["never", "some", "every step"])
@pytest.mark.parametrize("kind", list(LAYERS))
def test_resets_are_new_sequences(
    kind: str, share: float, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are zeros where an episode starts, and nothing of what was before has a derivative."""
    monkeypatch.setattr("everstep.core.fast.recurrent.TILE", 1)
    monkeypatch.setattr("everstep.core.fast.recurrent.LEAST_ROWS", 2)  # in tiles of two rows
    rows, steps = 5, 7
    layer, x, states, weights = drawn(
        *(random.Random(3), kind, torch.float64),
        **{"rows": rows, "steps": steps, "size": 9, "layers": 2, "batch_first": True},
    )
    first = torch.rand(rows, steps, 1) < share
    first[:, 0] = True  # states that are given are those of the first step
    x[0, 2] = math.nan if share == 1 else 1.0

    def pieces(x: torch.Tensor, given: Any) -> Any:
        latents, given = [], given if isinstance(given, tuple) else (given,)
        for t in range(steps):
            if t:
                given = [torch.where(first[:, t], 0.0, y) for y in given]
            latent, given = layer.forward(
                x[:, t : t + 1], tuple(given) if kind == "lstm" else given[0]
            )
            given = given if isinstance(given, tuple) else (given,)
            latents.append(latent)
        return torch.cat(latents, 1), given

    class InPieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        forward = staticmethod(pieces)

    general = results(InPieces(), x, states, weights)
    native = natively(layer)
    with native.running(), native.resetting(first):
        found = results(layer, x, states, weights)
    for one, other in zip(found, general, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, equal_nan=True)


def built(**options: Any) -> Any:
    small = {"num_envs": 6, "horizon": 16, "seq_len": 8, "sgd_minibatch_size": 4, "device": "cpu"}
    small |= {"model_config": {"hidden_size": 9, "num_layers": 2}, "num_sgd_iters": 2, "seed": 0}
    return RecurrentAlgorithmConfig(**(small | options)).build(runs.Game)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model_config": {"hidden_size": 9, "shared": False}},
        {"normalize_observations": True, "seqs_per_state_reset": 3},
        {"model_cls": runs.Gated, "model_config": None},
        {"accumulate_grads": True, "seq_len": 16, "sgd_minibatch_size": 3},
    ],
    ids=["two layers", "two LSTMs", "normalised", "GRU", "accumulated"],
)
def test_training_comes_to_the_weights_of_the_general_way(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv(SWITCH, switch)
        algorithm = built(**options)
        for i in range(3):
            torch.manual_seed(i)
            algorithm.collect()
            assert bool(algorithm.rollout.first[1:].any())  # inside of sequences, too
            stats = algorithm.step()
        found.append((algorithm.get_weights(), algorithm.rollout.logp, stats["losses/total"]))
    (general, logp, loss), (native, native_logp, native_loss) = found
    for name, weights in general.items():
        torch.testing.assert_close(native[name], weights, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(native_logp, logp, rtol=1e-9, atol=1e-10)
    assert native_loss == pytest.approx(loss, rel=1e-8)


@pytest.mark.usefixtures("float64")
def test_resets_are_those_of_the_general_way_where_calls_are_watched() -> None:
    """A mode that looks at operations is not shown less than there is: pieces are computed."""
    algorithm = built()
    algorithm.collect()
    minibatch = next(iter(next(iter(optimizer_steps(algorithm.parts, 1, None)))))
    with torch.no_grad():
        expected = algorithm.policy.evaluate(minibatch)[1]
        with recurrence(algorithm.policy):
            native = algorithm.policy.evaluate(minibatch)[1]
            with Watching():
                watched = algorithm.policy.evaluate(minibatch)[1]
    assert bool(minibatch.first[:, 1:].any())
    torch.testing.assert_close(native, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(watched, expected)


class Watching(TorchDispatchMode):
    """Sees operations, and does them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


# ---- when it is taken ---------------------------------------------------------------------------


class Counting(DefaultDiscreteRecurrentModel):
    """Counts its calls, and carries something of its own if `forward` is overridden."""

    calls = 0

    def forward(self, batch: Any, states: Any, /) -> Any:
        type(self).calls += 1
        return super().forward(batch, states)


class Known(DefaultDiscreteRecurrentModel):
    """A default model with another name."""


@pytest.mark.parametrize(("model_cls", "resets"), [(Known, True), (Counting, False)])
def test_a_model_of_ones_own_is_called_for_each_piece(model_cls: Any, resets: bool) -> None:
    algorithm = built(model_cls=model_cls)
    with recurrence(algorithm.policy):
        assert (algorithm.policy.resetting is not None) == resets
        assert "forward" in vars(algorithm.policy.model.lstm)
    assert algorithm.policy.resetting is None
    assert "forward" not in vars(algorithm.policy.model.lstm)


def test_an_error_in_the_block_leaves_the_model_as_it_was() -> None:
    algorithm = built()
    with pytest.raises(ZeroDivisionError), recurrence(algorithm.policy):
        1 / 0  # noqa: B018
    assert "forward" not in vars(algorithm.policy.model.lstm)
    assert algorithm.policy.resetting is None


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: setattr(m.lstm, "dropout", 0.5), "has dropout between its layers"),
        (lambda m: setattr(m.lstm, "bidirectional", True), "is bidirectional, or has projections"),
        (lambda m: setattr(m.lstm, "forward", m.lstm.forward), "`LSTM.forward` is overridden"),
        (lambda m: m.lstm.to(torch.bfloat16), "weights of LSTM are not in float32"),
        (lambda m: m.compile(backend="eager"), "a part of the model is compiled"),
        (lambda m: setattr(m, "lstm", nn.Linear(1, 1)), "no nn.LSTM and no nn.GRU"),
    ],
    ids=["dropout", "both directions", "patched", "bfloat16", "compiled", "none"],
)
def test_there_is_a_reason_where_it_is_not_taken(spoil: Any, reason: str) -> None:
    algorithm = built()
    assert eligible(algorithm.policy) == "of a recurrent policy LSTMs and GRUs alone are native"
    spoil(algorithm.policy.model)
    found = eligible(algorithm.policy)
    assert found is not None
    assert found.startswith("nothing of the recurrent policy is native: ")
    assert reason in found
    before = dict(vars(algorithm.policy.model.lstm))
    with recurrence(algorithm.policy):
        assert vars(algorithm.policy.model.lstm) == before
        assert algorithm.policy.resetting is None


def test_it_is_not_taken_while_work_is_recorded_or_if_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm = built()
    with static_shapes(), recurrence(algorithm.policy):
        assert "forward" not in vars(algorithm.policy.model.lstm)
    monkeypatch.setenv(SWITCH, "0")
    assert eligible(algorithm.policy) == f"`{SWITCH}` is 0"
    with recurrence(algorithm.policy):
        assert "forward" not in vars(algorithm.policy.model.lstm)


def test_other_arguments_are_those_of_pytorch() -> None:
    """One sequence without a batch, packed ones, other dtypes, transforms, and errors."""
    layer, x = nn.LSTM(3, 4, batch_first=True), torch.randn(2, 5, 3)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 2]), batch_first=True)
    calls: list[Any] = [
        lambda: layer(x[0])[0],
        lambda: layer(packed)[0].data,
        lambda: torch.func.grad(lambda y: layer(y)[0].sum())(x),
        lambda: layer(x)[0],
    ]
    general = [call().detach() for call in calls]
    with natively(layer).running():
        for call, expected in zip(calls, general, strict=True):
            torch.testing.assert_close(call().detach(), expected)
        assert layer.forward._fits(x, None)
        with torch.autocast("cpu", torch.bfloat16):
            assert not layer.forward._fits(x, None)
        for wrong in (torch.zeros(1, 3, 4), torch.zeros(2, 2, 4)):
            with pytest.raises(RuntimeError, match="Expected hidden"):
                layer(x, (wrong, wrong))
        with pytest.raises((RuntimeError, ValueError)):
            layer(x.double())
        with pytest.raises(RuntimeError, match="Expected sequence length"):
            layer(x[:, :0])
