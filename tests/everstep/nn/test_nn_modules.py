"""Modules: laws of attention first, then numbers by hand, then what is refused."""

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import everstep.nn
from everstep.nn import (
    ACTIVATIONS,
    MLP,
    CrossAttention,
    Module,
    PerceiverIOLayer,
    PerceiverLayer,
    PointerNetwork,
    PositionalEmbedding,
    SelfAttention,
    SelfAttentionStack,
    SequentialSkipConnection,
    SquaredReLU,
    get_activation,
    skip_connection,
)

pytestmark = pytest.mark.usefixtures("float64")

B, Q, K, E = 3, 4, 5, 8
LENGTHS = [5, 3, 1]

Make = Callable[[], nn.Module]


def filled(module: nn.Module) -> nn.Module:
    """The module, with biases and norms that do something."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(std=0.5)
    return module


def self_attention(**options: Any) -> SelfAttention:
    return filled(SelfAttention(E, **{"hidden_dim": 6, **options}))  # type: ignore[return-value]


def cross_attention(**options: Any) -> CrossAttention:
    return filled(CrossAttention(E, **{"hidden_dim": 6, **options}))  # type: ignore[return-value]


def stack() -> SelfAttentionStack:
    return filled(SelfAttentionStack(self_attention(), 2))  # type: ignore[return-value]


def perceiver() -> PerceiverLayer:
    return filled(PerceiverLayer(E, hidden_dim=6))  # type: ignore[return-value]


def perceiver_io() -> PerceiverIOLayer:
    return filled(PerceiverIOLayer(E, 2, hidden_dim=6))  # type: ignore[return-value]


SELVES = [self_attention, lambda: self_attention(skip_kind="residual"), stack]
CROSSES = [cross_attention, lambda: cross_attention(skip_kind=None), perceiver, perceiver_io]


@pytest.fixture(params=["learning", "acting"])
def mode(request: pytest.FixtureRequest) -> Any:
    """Training with gradients, or evaluation without: PyTorch runs different kernels."""
    with torch.set_grad_enabled(request.param == "learning"):
        yield request.param


def in_mode(module: nn.Module, mode: str) -> nn.Module:
    return module.train(mode == "learning")


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(B, Q, E), torch.randn(B, K, E)


def padding_of(lengths: list[int], size: int) -> torch.Tensor:
    return torch.arange(size) >= torch.tensor(lengths).unsqueeze(-1)


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# ---- laws of self-attention ---------------------------------------------------------------------


@pytest.mark.parametrize("make", SELVES)
def test_elements_change_places_with_their_results(make: Make, mode: str) -> None:
    module, (_, x) = in_mode(make(), mode), sequences()
    order, padding = torch.tensor([3, 0, 4, 2, 1]), padding_of(LENGTHS, K)
    found = module(x[:, order], padding[:, order])
    close(found, module(x, padding)[:, order])


@pytest.mark.parametrize("kind", [torch.clone, additive], ids=["bool", "float"])
@pytest.mark.parametrize("make", SELVES)
def test_padded_is_the_shorter_sequence(make: Make, kind: Any, mode: str) -> None:
    module, (_, x) = in_mode(make(), mode), sequences()
    found = module(x, kind(padding_of(LENGTHS, K)))
    for i, length in enumerate(LENGTHS):
        close(found[i, :length], module(x[i : i + 1, :length])[0])


@pytest.mark.parametrize("make", SELVES)
def test_windows_padded_in_front_are_the_shorter_sequence(make: Make, mode: str) -> None:
    """With a causal mask, padding in front leaves elements with nothing to attend to."""
    module, (_, x) = in_mode(make(), mode), sequences()
    causal = torch.ones(K, K, dtype=torch.bool).triu(1)
    found = module(x, padding_of(LENGTHS, K).flip(1), causal)
    assert found.isfinite().all()
    for i, length in enumerate(LENGTHS):
        alone = module(x[i : i + 1, K - length :], None, causal[:length, :length])
        close(found[i, K - length :], alone[0])


@pytest.mark.parametrize("make", SELVES)
def test_causal_attention_knows_no_future(make: Make, mode: str) -> None:
    module, (_, x) = in_mode(make(), mode), sequences()
    causal = torch.ones(K, K, dtype=torch.bool).triu(1)
    changed = x.clone()
    changed[:, 3:] += 1
    found, expected = module(changed, None, causal), module(x, None, causal)
    close(found[:, :3], expected[:, :3])
    assert (found[:, 3:] - expected[:, 3:]).abs().min() > 0


@pytest.mark.parametrize("make", SELVES)
def test_finite_additive_masks_mean_the_same_in_both_modes(make: Make) -> None:
    module, (_, x) = make(), sequences()
    bias, padding = torch.randn(K, K), padding_of(LENGTHS, K)
    with torch.no_grad():
        acting = module.eval()(x, padding, bias)
    close(acting, module.train()(x, padding, bias))


def test_self_attention_is_cross_attention_to_itself(mode: str) -> None:
    mine, other = in_mode(self_attention(), mode), in_mode(cross_attention(), mode)
    weights = mine.state_dict()
    for name in ("weight", "bias"):
        weights[f"q_norm.{name}"] = weights[f"kv_norm.{name}"] = weights.pop(f"x_norm.{name}")
    other.load_state_dict(weights)
    _, x = sequences()
    close(mine(x, padding_of(LENGTHS, K)), other(x, x, padding_of(LENGTHS, K)))


def test_stacks_repeat_their_module() -> None:
    module, (_, x) = self_attention(), sequences()
    twice = module(module(x))
    close(SelfAttentionStack(module, 1)(x), module(x))
    copies, shared = (
        SelfAttentionStack(module, 2),
        SelfAttentionStack(module, 2, share_parameters=True),
    )
    close(copies(x), twice)
    close(shared(x), twice)
    weights = [sum(1 for _ in m.parameters()) for m in (module, copies, shared)]
    assert weights == [weights[0], 2 * weights[0], weights[0]]
    filled(module)
    assert all(a is not b for a in copies.parameters() for b in module.parameters())


# ---- laws of cross-attention --------------------------------------------------------------------


@pytest.mark.parametrize("make", CROSSES)
def test_the_order_of_keys_does_not_matter(make: Make, mode: str) -> None:
    module, (q, kv) = in_mode(make(), mode), sequences()
    order, padding = torch.tensor([3, 0, 4, 2, 1]), padding_of(LENGTHS, K)
    close(module(q, kv[:, order], padding[:, order]), module(q, kv, padding))


@pytest.mark.parametrize("make", CROSSES[:-1])
def test_queries_change_places_with_their_results(make: Make, mode: str) -> None:
    module, (q, kv) = in_mode(make(), mode), sequences()
    order = torch.tensor([2, 0, 3, 1])
    close(module(q[:, order], kv), module(q, kv)[:, order])


@pytest.mark.parametrize("kind", [torch.clone, additive], ids=["bool", "float"])
@pytest.mark.parametrize("make", CROSSES)
def test_padded_keys_are_no_keys(make: Make, kind: Any, mode: str) -> None:
    module, (q, kv) = in_mode(make(), mode), sequences()
    found = module(q, kv, kind(padding_of(LENGTHS, K)))
    for i, length in enumerate(LENGTHS):
        close(found[i], module(q[i : i + 1], kv[i : i + 1, :length])[0])


@pytest.mark.parametrize("make", CROSSES)
def test_forbidden_keys_are_no_keys(make: Make, mode: str) -> None:
    module, (q, kv) = in_mode(make(), mode), sequences()
    forbidden = torch.zeros(Q, K, dtype=torch.bool)
    forbidden[:, 1] = True
    left = kv[:, [0, 2, 3, 4]]
    close(module(q, kv, None, forbidden), module(q, left))


@pytest.mark.parametrize("size", [1, 7])
def test_the_output_array_has_a_length_of_its_own(size: int) -> None:
    q, kv = sequences()
    assert PerceiverIOLayer(E, size)(q, kv).shape == (B, size, E)
    assert perceiver()(q, kv).shape == q.shape


# ---- laws of both -------------------------------------------------------------------------------


def inputs_of(module: nn.Module) -> tuple[torch.Tensor, ...]:
    """A sequence that attends to itself, or queries and keys."""
    is_self = isinstance(module, SelfAttention | SelfAttentionStack)
    return sequences()[1:] if is_self else sequences()


@pytest.mark.parametrize("make", SELVES + CROSSES)
def test_sequences_of_a_batch_do_not_meet(make: Make, mode: str) -> None:
    module = in_mode(make(), mode)
    inputs = inputs_of(module)
    padding = padding_of(LENGTHS, K)
    whole = module(*inputs, padding)
    for i in range(B):
        alone = module(*(x[i : i + 1] for x in inputs), padding[i : i + 1])
        close(whole[i : i + 1], alone)


@pytest.mark.parametrize("make", SELVES + CROSSES)
def test_with_nothing_but_padding_results_are_finite(make: Make) -> None:
    """rl8's are NaN when acting, from the second of two layers on in every element."""
    module, padding = make(), padding_of([0, 3, 5], K)
    with torch.no_grad():
        acting = module.eval()(*inputs_of(module), padding)
    learning = module.train()(*inputs_of(module), padding)
    close(acting, learning)
    learning.square().sum().backward()
    for name, weight in module.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


def test_who_may_attend_to_nothing_receives_zeros(mode: str) -> None:
    module, (q, kv) = in_mode(cross_attention(), mode), sequences()
    nothing = module.skip_connection(q, torch.zeros_like(q))
    close(module(q, kv, torch.ones(B, K, dtype=torch.bool)), nothing)
    # Neither mask leaves out everything; both together do, for the first sequence's first query.
    padding = padding_of([2, 5, 5], K)
    forbidden = torch.zeros(Q, K, dtype=torch.bool)
    forbidden[0, :2] = True
    found = module(q, kv, padding, forbidden)
    close(found[0, 0], nothing[0, 0])
    assert (found - nothing).abs().amax(-1).gt(1e-3).sum() == B * Q - 1


@pytest.mark.parametrize("make", SELVES + CROSSES)
def test_masks_of_different_kinds_go_together(make: Make, mode: str) -> None:
    """PyTorch deprecates it, with a warning."""
    module = in_mode(make(), mode)
    inputs = inputs_of(module)
    padding = padding_of(LENGTHS, K)
    forbidden = torch.zeros(inputs[0].shape[1], K, dtype=torch.bool)
    forbidden[0, 1:] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = module(*inputs, padding, additive(forbidden).float())
        close(found, module(*inputs, additive(padding).float(), forbidden))
    close(found, module(*inputs, padding, forbidden))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("make", SELVES + CROSSES)
def test_modules_keep_the_dtype(make: Make, dtype: torch.dtype, mode: str) -> None:
    module = in_mode(make(), mode)
    inputs = inputs_of(module)
    padding = padding_of(LENGTHS, K)
    expected = module(*inputs, padding)
    found = module.to(dtype)(*(x.to(dtype) for x in inputs), padding)
    assert found.dtype == dtype
    tolerance = 100 * torch.finfo(dtype).eps * float(expected.detach().abs().max())
    assert (found - expected).abs().max() < tolerance


@pytest.mark.parametrize("make", SELVES + CROSSES)
def test_modules_work_under_autocast(make: Make, mode: str) -> None:
    module = in_mode(make().float(), mode)
    inputs = [x.float() for x in inputs_of(module)]
    with torch.autocast("cpu", torch.bfloat16):
        found = module(*inputs, padding_of(LENGTHS, K))
    assert found.isfinite().all()


# ---- attention by hand --------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention_by_hand(heads: int, mode: str) -> None:
    """softmax(q·kᵀ/√d)·v in every head, of what the norms let through."""
    module, (q, kv) = in_mode(cross_attention(num_heads=heads), mode), sequences()
    padding, width = padding_of(LENGTHS, K), E // heads
    attention = module.attention
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    inputs = (module.q_norm(q), module.kv_norm(kv), module.kv_norm(kv))
    received = []
    for h in range(heads):
        rows = slice(h * width, (h + 1) * width)
        query, key, value = (
            x @ weight[rows].T + bias[rows]
            for x, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        scores = query @ key.transpose(1, 2) / math.sqrt(width)
        scores[padding.unsqueeze(1).expand_as(scores)] = -torch.inf
        received.append(scores.softmax(-1) @ value)
    expected = module.skip_connection(q, attention.out_proj(torch.cat(received, -1)))
    close(module(q, kv, padding), expected)


def test_pointers_by_hand() -> None:
    module = filled(PointerNetwork(E))
    q, kv = sequences()
    mask = torch.rand(B, Q, K) < 0.5
    mask[..., 0] = True
    found = module(q, kv, mask)
    close(found.exp().sum(-1), torch.ones(B, Q))
    assert found.exp()[~mask].max() == 0
    b, d, e = 1, 2, 0
    scores = torch.stack(
        [
            module.VT(torch.tanh(module.W1(kv[b, i]) + module.W2(q[b, d]))).squeeze()
            for i in range(K)
            if mask[b, d, i]
        ]
    )
    close(found[b, d, e], scores.log_softmax(0)[0])
    order = torch.tensor([3, 0, 4, 2, 1])
    close(module(q, kv[:, order]), module(q, kv)[..., order])


def test_dropout_is_for_learning_only() -> None:
    module = self_attention(attention_dropout=0.5, hidden_dropout=0.5)
    _, x = sequences()
    assert (module(x) - module(x)).abs().max() > 0
    close(module.eval()(x), module(x))


# ---- embeddings ---------------------------------------------------------------------------------


def test_positions_by_hand() -> None:
    found = PositionalEmbedding(4, 3)(torch.zeros(2, 3, 4))
    expected = [[math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)] for t in range(3)]
    close(found, torch.tensor([expected, expected]))


def test_what_two_positions_have_in_common_is_their_distance() -> None:
    waves = PositionalEmbedding(E, 20).pe[0]
    products = waves @ waves.T
    for distance in range(20):
        diagonal = products.diagonal(distance)
        close(diagonal, diagonal[:1].expand_as(diagonal))


def test_odd_widths_end_in_a_sine() -> None:
    """rl8 cannot make them."""
    waves = PositionalEmbedding(5, 4).pe
    assert waves.shape == (1, 4, 5)
    close(waves[0, :, 4], torch.sin(torch.arange(4) / 10_000 ** (4 / 5)))


@pytest.mark.parametrize("max_len", [1, 3])
def test_longer_sequences_are_refused(max_len: int) -> None:
    """With a `max_len` of 1, rl8 gives all elements the first one's place."""
    with pytest.raises(ValueError, match=rf"`max_len` \({max_len}\); got 4 elements"):
        PositionalEmbedding(E, max_len)(torch.zeros(B, 4, E))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_positions_keep_the_dtype(dtype: torch.dtype) -> None:
    assert PositionalEmbedding(E, K)(torch.zeros(B, K, E, dtype=dtype)).dtype == dtype


def test_dropout_is_of_the_sum() -> None:
    module, x = PositionalEmbedding(E, K, dropout=0.5), torch.full((B, K, E), 5.0)
    dropped = module(x)
    assert ((dropped == 0) | (dropped == 2 * module.eval()(x))).all()
    assert 0 < (dropped == 0).sum() < dropped.numel()


# ---- skip connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["residual", "cat", None])
def test_modules_in_a_row(kind: None | str) -> None:
    module, x, y = SequentialSkipConnection(E, kind), *sequences()
    y = y[:, :Q]
    inner = [nn.Linear(E, E), nn.Tanh()]
    assert [module.append(layer) for layer in inner] == [E, E]
    assert (module.in_features, module.out_features, module.kind) == (E, E, kind)
    filled(module)
    joins = next(module.children())[::2]
    expected = joins[0](skip_connection(x, y, kind=kind))
    for layer, join in zip(inner, joins[1:], strict=True):
        expected = join(skip_connection(expected, layer(expected), kind=kind))
    close(module(x, y), expected)


def test_residual_and_no_connections_by_hand() -> None:
    x, y = torch.tensor([[1.0]]), torch.tensor([[3.0]])
    for kind, expected in (("residual", 4 + 16), (None, 9)):
        module = SequentialSkipConnection(1, kind)
        module.append(Square())
        assert module(x, y).item() == expected


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


# ---- perceptrons and activations ----------------------------------------------------------------


def test_perceptrons_by_hand() -> None:
    module = filled(MLP(3, [4, 2], activation_fn="squared_relu"))
    x = torch.randn(5, 3)
    first, last = module[0], module[-1]
    expected = (x @ first.weight.T + first.bias).clamp(min=0).square() @ last.weight.T + last.bias
    close(module(x), expected)


def test_layers_of_a_perceptron() -> None:
    module = MLP(3, [4, 5, 2], norm_layer=nn.BatchNorm1d, dropout=0.1, inplace=True, bias=False)
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout]
    assert [type(layer) for layer in module] == [*hidden, *hidden, nn.Linear]
    assert all(layer.inplace for layer in module if isinstance(layer, nn.ReLU))
    assert all(layer.bias is None for layer in module if isinstance(layer, nn.Linear))
    assert [type(layer) for layer in MLP(3, [2])] == [nn.Linear]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_keeps_the_shape(name: str) -> None:
    params = {"dim": -1} if "softmax" in name else {}
    assert get_activation(name, **params)(torch.randn(3, 4)).shape == (3, 4)


def test_squared_relu_by_hand() -> None:
    assert SquaredReLU()(torch.tensor([-2.0, 0.0, 3.0])).tolist() == [0, 0, 9]


# ---- modules as such ----------------------------------------------------------------------------

EVERY: list[Make] = [
    *SELVES,
    *CROSSES,
    lambda: MLP(3, [4, 2]),
    lambda: PointerNetwork(E),
    lambda: PositionalEmbedding(E, K),
    lambda: SequentialSkipConnection(E),
    SquaredReLU,
]


@pytest.mark.parametrize("make", EVERY)
def test_modules_are_copied_pickled_and_typed(make: Make) -> None:
    module = make()
    assert isinstance(module, Module)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert other.state_dict().keys() == module.state_dict().keys()
        other.load_state_dict(module.state_dict())


def test_a_module_has_to_say_what_it_computes() -> None:
    class Idle(Module[[torch.Tensor], torch.Tensor]):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Idle()  # type: ignore[abstract]


def test_calls_run_hooks() -> None:
    module, seen = SquaredReLU(), []
    module.register_forward_hook(lambda *args: seen.append(1))
    module(torch.zeros(1))
    assert seen == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SelfAttention(8, num_heads=3),
            r"`num_heads` must divide `embed_dim` \(8\); got 3",
        ),
        (lambda: CrossAttention(8, skip_kind="sum"), r"got 'sum'"),
        (lambda: SequentialSkipConnection(8, "sum"), r"got 'sum'"),
        (lambda: PerceiverLayer(8, activation_fn="rleu"), r"Did you mean 'relu'"),
        (
            lambda: self_attention()(torch.zeros(2, 3, E), None, torch.zeros(4, 3, 3)),
            r"for all heads; got \[4, 3, 3\]",
        ),
    ],
)
def test_mistakes_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_public_names() -> None:
    """Those of rl8's `nn`, and three of ours."""
    assert set(everstep.nn.__all__) == {
        "MLP",
        "CrossAttention",
        "Module",
        "PerceiverIOLayer",
        "PerceiverLayer",
        "PositionalEmbedding",
        "SelfAttention",
        "SelfAttentionStack",
        "SequentialSkipConnection",
        "SquaredReLU",
        "binary_mask_to_float_mask",
        "float_mask_to_binary_mask",
        "generalized_advantage_estimate",
        "get_activation",
        "mask_from_lengths",
        "masked_avg",
        "masked_categorical_sample",
        "masked_log_softmax",
        "masked_max",
        "ppo_losses",
        "skip_connection",
        # Ours
        "ACTIVATIONS",
        "Head",
        "PointerNetwork",
    }
    assert all(getattr(everstep.nn, name).__doc__ for name in everstep.nn.__all__)
