"""Record what rl8 1.0.0's `nn` returns; `test_nn_parity.py` asks ours the same.

    python -m venv rl8 && rl8/bin/pip install torch==2.13.0 rl8==1.0.0
    rl8/bin/python tests/rl8/oracles/record_rl8_nn.py tests/rl8/oracles/rl8_nn.npz

rl8's dependencies conflict with ours, so it lives in an environment of its own. Everything is in
float64. Inputs and weights are computed from their places, so only answers are recorded.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

BATCH, QUERIES, KEYS, WIDTH, ROWS = 3, 4, 5, 4, 16

ATTENTION = {"num_heads": 2, "hidden_dim": 6}

#: How modules are made: their class, what is given by position, and what by name. What is given may
#: be a module that is made likewise.
MODULES: dict[str, list[Any]] = {
    "mlp": ["MLP", [WIDTH, [6, 5, 3]], {"activation_fn": "swish"}],
    "mlp_norm": ["MLP", [WIDTH, [6, 3]], {"norm_layer": torch.nn.LayerNorm}],
    "mlp_without_bias": ["MLP", [WIDTH, [6, 3]], {"bias": False, "inplace": True}],
    "squared_relu": ["SquaredReLU", [], {}],
    "skip_residual": ["SequentialSkipConnection", [WIDTH, "residual"], {}],
    "skip_cat": ["SequentialSkipConnection", [WIDTH], {}],
    "skip_none": ["SequentialSkipConnection", [WIDTH, None], {}],
    "positions": ["PositionalEmbedding", [WIDTH, 7], {}],
    "self_attention": ["SelfAttention", [WIDTH], ATTENTION],
    "self_attention_residual": ["SelfAttention", [WIDTH, 4, 5, "gelu", 0.0, 0.0, "residual"], {}],
    "self_attention_none": ["SelfAttention", [WIDTH], {"skip_kind": None, "hidden_dim": 6}],
    "stack": ["SelfAttentionStack", [["SelfAttention", [WIDTH], ATTENTION], 2], {}],
    "stack_shared": [
        "SelfAttentionStack",
        [["SelfAttention", [WIDTH], ATTENTION], 3],
        {"share_parameters": True},
    ],
    "cross_attention": ["CrossAttention", [WIDTH], ATTENTION],
    "cross_attention_residual": ["CrossAttention", [WIDTH], {**ATTENTION, "skip_kind": "residual"}],
    "perceiver": ["PerceiverLayer", [WIDTH], ATTENTION],
    "perceiver_residual": [
        "PerceiverLayer",
        [WIDTH],
        {**ATTENTION, "skip_kind": "residual", "share_parameters": True, "num_layers": 3},
    ],
    "perceiver_io": ["PerceiverIOLayer", [WIDTH, 2], ATTENTION],
}

Tensors = dict[str, torch.Tensor]


def numbers(*shape: int, start: int = 0) -> torch.Tensor:
    """Numbers between −1 and 1 in no apparent order."""
    places = torch.arange(start, start + torch.Size(shape).numel())
    return torch.sin(places.double() ** 2 + places).reshape(shape)


def make(nn: ModuleType, recipe: list[Any]) -> Any:
    name, args, kwargs = recipe
    nested = [isinstance(arg, list) and isinstance(arg[0], str) for arg in args]
    args = [make(nn, arg) if is_recipe else arg for arg, is_recipe in zip(args, nested)]  # noqa: B905
    return getattr(nn, name)(*args, **kwargs)


def make_filled(nn: ModuleType, case: str) -> Any:
    """The module, with weights of its own at every name."""
    module = make(nn, MODULES[case])
    if case.startswith("skip"):
        module.append(torch.nn.Linear(WIDTH, WIDTH))
        module.append(torch.nn.Tanh())
    with torch.no_grad():
        for i, (_, weight) in enumerate(sorted(module.named_parameters())):
            weight.copy_(numbers(*weight.shape, start=100 * i))
    return module


def calls_of(case: str) -> list[list[torch.Tensor]]:
    """Arguments of the calls of a module: without masks, and with them."""
    x = numbers(BATCH, QUERIES, WIDTH, start=1000)
    kv = numbers(BATCH, KEYS, WIDTH, start=2000)
    if case.startswith(("cross", "perceiver")):
        padding = torch.arange(KEYS) >= torch.tensor([[5], [3], [1]])
        forbidden = torch.tensor([0, 1, 3, 2]).unsqueeze(-1) == torch.arange(KEYS)
        forbidden[:, 0] = False
        return [[x, kv], [x, kv, padding], [x, kv, padding, forbidden]]
    if case.startswith(("self", "stack")):
        padding = torch.arange(QUERIES) >= torch.tensor([[4], [3], [1]])
        causal = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
        return [[x], [x, padding], [x, padding, causal]]
    if case.startswith("skip"):
        return [[x, numbers(BATCH, QUERIES, WIDTH, start=3000)]]
    return [[x]]


def outputs(nn: ModuleType, case: str) -> Tensors:
    module = make_filled(nn, case)
    return {f"{i}": module(*call) for i, call in enumerate(calls_of(case))}


def masked(nn: ModuleType) -> Tensors:
    x = numbers(BATCH, KEYS, WIDTH)
    mask = nn.mask_from_lengths(x, torch.tensor([5, 3, 1]))
    options = numbers(BATCH, KEYS, WIDTH, start=500) > 0
    options[..., 0] = True
    maximum, places = nn.masked_max(x, mask=mask)
    return {
        "mask": mask,
        "float_mask": nn.binary_mask_to_float_mask(mask),
        "binary_mask": nn.float_mask_to_binary_mask(nn.binary_mask_to_float_mask(mask)),
        "avg": nn.masked_avg(x, mask=mask.double()),
        "avg_kept": nn.masked_avg(x, mask=mask, keepdim=True),
        "avg_weighted": nn.masked_avg(x, mask=numbers(BATCH, KEYS).abs()),
        "avg_unmasked": nn.masked_avg(x, dim=2),
        "max": maximum,
        "max_places": places,
        "log_softmax": nn.masked_log_softmax(x, mask=options.double())[options],
        "log_softmax_dim_1": nn.masked_log_softmax(x, mask=mask.double(), dim=1)[mask],
        "log_softmax_weighted": nn.masked_log_softmax(x, mask=numbers(*x.shape, start=9).abs()),
    }


def gae(nn: ModuleType) -> Tensors:
    batch = TensorDict(
        {"rewards": numbers(BATCH, KEYS, 1), "values": numbers(BATCH, KEYS, 1, start=300)},
        batch_size=[BATCH, KEYS],
    )
    options = {"gae_lambda": 0.9, "gamma": 0.97, "reward_scale": 2.5}
    raw = nn.generalized_advantage_estimate(batch.clone(), normalize_advantages=False, **options)
    scaled = nn.generalized_advantage_estimate(batch.clone(), **options)
    return {"raw": raw["advantages"], "scaled": scaled["advantages"], "returns": scaled["returns"]}


def ppo(nn: ModuleType, dual_clip_param: None | float) -> Tensors:
    given = {
        key: numbers(ROWS, 1, start=100 * i)
        for i, key in enumerate(("actions", "advantages", "logp", "returns"))
    }
    logp = (given["logp"] + 2 * numbers(ROWS, 1, start=500)).requires_grad_()
    values = (3 * numbers(ROWS, 1, start=600)).requires_grad_()
    entropy = numbers(ROWS, 1, start=700)
    losses = nn.ppo_losses(
        TensorDict(given, batch_size=[ROWS]),
        TensorDict({"values": values}, batch_size=[ROWS]),
        SimpleNamespace(logp=lambda actions: logp, entropy=lambda: entropy),
        dual_clip_param=dual_clip_param,
        entropy_coeff=0.01,
        vf_clip_param=1e9,  # rl8's clamp of the loss is out of reach
        vf_coeff=0.5,
    )
    losses["total"].backward()
    assert logp.grad is not None
    assert values.grad is not None
    terms = {key: losses[key] for key in ("policy", "vf", "entropy", "total")}
    return {**terms, "logp_grad": logp.grad, "values_grad": values.grad}


def answers(nn: ModuleType) -> dict[str, np.ndarray]:
    """Everything that is compared."""
    found = {f"modules/{case}": outputs(nn, case) for case in MODULES}
    found |= {"masked": masked(nn), "gae": gae(nn)}
    found |= {"ppo": ppo(nn, None), "ppo_dual_clip": ppo(nn, 1.5)}
    return {
        f"{name}/{key}": x.detach().numpy()
        for name, tensors in found.items()
        for key, x in tensors.items()
    }


def parameter_names(nn: ModuleType) -> list[str]:
    """Names in the modules' state dicts, and shapes."""
    return [
        f"{case} {name} {list(x.shape)}"
        for case in MODULES
        for name, x in sorted(make_filled(nn, case).state_dict().items())
    ]


if __name__ == "__main__":
    from rl8 import nn

    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    names = np.asarray("\n".join(parameter_names(nn)))
    np.savez_compressed(sys.argv[1], parameter_names=names, **answers(nn))
