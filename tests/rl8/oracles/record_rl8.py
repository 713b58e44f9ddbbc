"""Record what rl8 1.0.0 does in three updates; `test_rl8_parity.py` compares with it.

    python -m venv rl8 && rl8/bin/pip install torch==2.13.0 rl8==1.0.0
    rl8/bin/python tests/rl8/oracles/record_rl8.py tests/rl8/oracles/rl8_updates.npz

rl8's dependencies conflict with ours, so it lives in an environment of its own. Everything is in
float64 and on its terms: nothing is shuffled, and its clamp of the value loss is out of reach.
"""

import sys
from typing import Any

import numpy as np
import torch
from rl8 import AlgorithmConfig, RecurrentAlgorithmConfig
from rl8.env import ContinuousDummyEnv, DiscreteDummyEnv

COMMON: dict[str, Any] = {
    "num_envs": 16,
    "horizon": 8,
    "horizons_per_env_reset": 1,
    "model_config": {"hiddens": (16, 16)},
    "shuffle_minibatches": False,
    "vf_clip_param": 1e9,
    "optimizer_config": {"lr": 3e-3},
    "device": "cpu",
}

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": (DiscreteDummyEnv, {"entropy_coeff": 0.01, "sgd_minibatch_size": 32}),
    "continuous": (ContinuousDummyEnv, {"gamma": 0.99, "sgd_minibatch_size": 64}),
    "full_batch": (DiscreteDummyEnv, {"num_sgd_iters": 6, "max_grad_norm": 0.3}),
    "accumulated": (
        ContinuousDummyEnv,
        {"accumulate_grads": True, "sgd_minibatch_size": 32, "entropy_coeff": 0.02},
    ),
    "dual_clip": (
        ContinuousDummyEnv,
        {"dual_clip_param": 1.2, "clip_param": 0.05, "num_sgd_iters": 8, "vf_coeff": 0.5},
    ),
    "unscaled": (
        DiscreteDummyEnv,
        {"normalize_rewards": False, "normalize_advantages": False, "gae_lambda": 1.0},
    ),
    "carried_over": (
        DiscreteDummyEnv,
        {"normalize_rewards": False, "horizons_per_env_reset": 2, "sgd_minibatch_size": 32},
    ),
}

#: Options of recurrent cases beside `COMMON`. rl8's states leak over resets of environments where
#: `seqs_per_state_reset` is negative, so it is only where there are none.
RECURRENT: dict[str, Any] = {"model_config": {"hidden_size": 8}, "seq_len": 4}

CASES |= {
    "recurrent_discrete": (
        DiscreteDummyEnv,
        {**RECURRENT, "seqs_per_state_reset": 2, "entropy_coeff": 0.01, "sgd_minibatch_size": 8},
    ),
    "recurrent_continuous": (
        ContinuousDummyEnv,
        {**RECURRENT, "seq_len": 2, "seqs_per_state_reset": 2, "sgd_minibatch_size": 16},
    ),
    "recurrent_full_batch": (
        DiscreteDummyEnv,
        {**RECURRENT, "seq_len": 8, "seqs_per_state_reset": 1, "num_sgd_iters": 6},
    ),
    "recurrent_accumulated": (
        ContinuousDummyEnv,
        {
            **RECURRENT,
            "seqs_per_state_reset": 2,
            "accumulate_grads": True,
            "sgd_minibatch_size": 8,
            "entropy_coeff": 0.02,
        },
    ),
    "recurrent_carried_over": (
        DiscreteDummyEnv,
        {
            **RECURRENT,
            "seqs_per_state_reset": 4,
            "horizons_per_env_reset": 2,
            "normalize_rewards": False,
            "sgd_minibatch_size": 16,
        },
    ),
    "recurrent_endless": (
        ContinuousDummyEnv,
        {
            **RECURRENT,
            "seqs_per_state_reset": -1,
            "horizons_per_env_reset": -1,
            "normalize_rewards": False,
        },
    ),
}

UPDATES = 3


def record(env_cls: Any, options: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(7)
    config_cls = RecurrentAlgorithmConfig if "seq_len" in options else AlgorithmConfig
    algorithm = config_cls(**{**COMMON, **options}).build(env_cls)
    out: dict[str, Any] = {}

    def keep_weights(update: int) -> None:
        for name, weight in algorithm.policy.model.state_dict().items():
            out[f"{update}/weights/{name}"] = weight.numpy().copy()

    keep_weights(0)
    for update in range(UPDATES):
        algorithm.collect()
        for key in ("obs", "actions", "rewards", "logp", "values"):
            out[f"{update}/{key}"] = algorithm.buffer[key].numpy().copy()
        stats = algorithm.step()
        for key in ("losses/policy", "losses/vf", "losses/total", "monitors/kl_div"):
            out[f"{update}/stats/{key}"] = np.asarray(stats[key])
        keep_weights(update + 1)
    return out


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    arrays = {
        f"{case}/{key}": value
        for case, (env_cls, options) in CASES.items()
        for key, value in record(env_cls, options).items()
    }
    np.savez_compressed(sys.argv[1], **arrays)
