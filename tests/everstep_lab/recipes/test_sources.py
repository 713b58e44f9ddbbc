"""Settings of recipes beside those of their sources, translated by each source's own rules.

The numbers are of RL Baselines3 Zoo's `hyperparams/*.yml`, CleanRL's arguments, IsaacGymEnvs'
`cfg/train/*PPO.yaml` and legged_gym's configurations.
"""

from dataclasses import fields
from typing import Any

import pytest

from everstep import AlgorithmConfig
from everstep_lab.recipes import read_recipe

DEFAULTS = {field.name: field.default for field in fields(AlgorithmConfig)}

Settings = dict[str, Any]


def stable_baselines3(
    n_envs: int = 1,
    n_steps: int = 2048,
    batch_size: int = 64,
    n_epochs: int = 10,
    learning_rate: float = 3e-4,
    *,
    linear: bool = False,
    clip_range: float = 0.2,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    vf_coef: float = 0.5,
    max_grad_norm: float = 0.5,
    normalize: bool = False,
    policy: Settings = {},  # noqa: B006
    **others: Any,
) -> Settings:
    """PPO's arguments, with its defaults. Its value loss is the squared error, not half of it."""
    return {
        "num_envs": n_envs,
        "horizon": n_steps,
        "sgd_minibatch_size": min(batch_size, n_envs * n_steps),
        "num_sgd_iters": n_epochs,
        "lr": learning_rate,
        "lr_schedule": "linear" if linear else None,
        "clip_param": clip_range,
        "clip_param_schedule": "linear" if linear else None,
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "entropy_coeff": 0.0,
        "vf_loss": "mse",
        "vf_coeff": 2 * vf_coef,
        "vf_clip_param": None,
        "max_grad_norm": max_grad_norm,
        "normalize_observations": normalize,
        "normalize_rewards": "running" if normalize else False,
        "clip_rewards": 10.0 if normalize else None,
        "normalize_advantages": "minibatch",
        "model_config": {"hiddens": [64, 64], "activation_fn": "tanh", **policy},
        **others,
    }


def a2c(horizon: int, *, vf_coef: float, policy: Settings, **others: Any) -> Settings:
    """A2C's, of 8 environments; a gradient step takes the whole rollout."""
    given = stable_baselines3(8, horizon, 8 * horizon, 1, vf_coef=vf_coef, policy=policy)
    optimizer = {"lr": 7e-4, "alpha": 0.99, "eps": 1e-5}
    given |= {"optimizer_cls": "torch.optim.RMSprop", "optimizer_config": optimizer}
    given |= {"objective": "a2c", "normalize_advantages": False, **others}
    for of_ppo in (
        "lr",
        "clip_param",
        "clip_param_schedule",
        "sgd_minibatch_size",
        "num_sgd_iters",
    ):
        del given[of_ppo]
    return given


def recurrent(minibatch: int, **options: Any) -> Settings:
    """RecurrentPPO's, of a policy of 64 units; minibatches are counted in sequences."""
    network = {"hidden_size": 64, "hiddens": [64], "activation_fn": "relu", "shared": False}
    network |= {"ortho_init": False, **options.pop("policy", {})}
    given = stable_baselines3(**options)
    return {**given, "model_config": network, "sgd_minibatch_size": minibatch, "seq_len": 32}


def cleanrl(*, horizon: int, minibatch: int, clip: float = 0.2, **others: Any) -> Settings:
    """The scripts' arguments. The value loss is half the squared error, clipped as ratios are."""
    return {
        "horizon": horizon,
        "sgd_minibatch_size": minibatch,
        "lr_schedule": "linear",
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_param": clip,
        "vf_loss": "mse",
        "vf_coeff": 0.5,
        "vf_clip_param": clip,
        "max_grad_norm": 0.5,
        "normalize_advantages": "minibatch",
        **others,
    }


DISCRETE = cleanrl(
    **{"num_envs": 4, "horizon": 128, "minibatch": 128, "num_sgd_iters": 4, "lr": 2.5e-4},
    **{"entropy_coeff": 0.01, "normalize_observations": False, "normalize_rewards": False},
    model_config={"hiddens": [64, 64], "activation_fn": "tanh"},
)
CONTINUOUS = cleanrl(  # one environment for 2,048 env steps; here 8 for 256
    **{"num_envs": 8, "horizon": 256, "minibatch": 64, "num_sgd_iters": 10, "lr": 3e-4},
    **{"entropy_coeff": 0.0, "normalize_observations": True, "clip_observations": 10.0},
    **{"normalize_rewards": "running", "clip_rewards": 10.0},
    model_config={"hiddens": [64, 64], "activation_fn": "tanh", "log_std_init": 0.0},
)
ATARI = cleanrl(
    **{"num_envs": 8, "horizon": 128, "minibatch": 256, "num_sgd_iters": 4, "lr": 2.5e-4},
    **{"clip": 0.1, "entropy_coeff": 0.01, "normalize_rewards": False},
    env_kwargs={"episodic_life": True, "reward_clip": True, "stack_num": 4},
)


def simulated(
    lr: float, coefficient: float, hiddens: list[int], *, grad_norm: float | None, **others: Any
) -> Settings:
    """The settings that rl_games and rsl_rl share: an adaptive learning rate, clipped values."""
    network = {"hiddens": hiddens, "activation_fn": "elu", "ortho_init": False, "log_std_init": 0.0}
    return {
        "optimizer_config": {"lr": lr, "eps": 1e-8},
        "lr_schedule_kind": "adaptive",
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_param": 0.2,
        "vf_loss": "mse",
        "vf_coeff": coefficient,
        "vf_clip_param": 0.2,
        "max_grad_norm": grad_norm,
        "normalize_rewards": False,
        "normalize_advantages": True,
        "on_missing_final": "approximate",
        "model_config": network,
        **others,
    }


def rl_games(
    lr: float, critic_coef: float, units: list[int], scale: float, bounds: float, **others: Any
) -> Settings:
    """Its loss has half of `critic_coef` times the squared error; observations are within ±5."""
    given = simulated(lr, critic_coef, units, grad_norm=others.pop("grad_norm", 1.0))
    return {
        **given,
        "model_config": {**given["model_config"], "shared": True},
        "target_kl_div": 0.008,
        "normalize_observations": True,
        "clip_observations": 5.0,
        "normalize_values": True,
        "reward_scale": scale,
        "bounds_loss_coeff": bounds,
        **others,
    }


def rsl_rl(hiddens: list[int]) -> Settings:
    """Its value loss is the squared error, not half of it."""
    rows = {"num_envs": 4096, "horizon": 24, "sgd_minibatch_size": 24576, "num_sgd_iters": 5}
    more = {"target_kl_div": 0.01, "entropy_coeff": 0.01, "normalize_observations": False}
    return simulated(1e-3, 2.0, hiddens, grad_norm=1.0, **rows, **more)


def rows(envs: int, horizon: int, minibatch: int, epochs: int) -> Settings:
    names = ("num_envs", "horizon", "sgd_minibatch_size", "num_sgd_iters")
    return dict(zip(names, (envs, horizon, minibatch, epochs), strict=True))


SDE = {"use_sde": True, "sde_sample_freq": 4}
MUJOCO = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "Reacher", "Pusher")
PENDULUMS = ("InvertedPendulum", "InvertedDoublePendulum")

SOURCES: dict[str, Settings] = {
    "classic/CartPole-v1": DISCRETE,
    "classic/Acrobot-v1": DISCRETE,
    "classic/MountainCar-v0": stable_baselines3(
        16, 16, n_epochs=4, gae_lambda=0.98, normalize=True, total_env_steps=1_000_000
    ),
    "classic/Pendulum-v1": stable_baselines3(
        4, 1024, learning_rate=1e-3, gamma=0.9, policy=SDE, total_env_steps=100_000
    ),
    "classic/MountainCarContinuous-v0": stable_baselines3(
        *(1, 8, 256, 10, 7.77e-5),
        **{"clip_range": 0.1, "gamma": 0.9999, "gae_lambda": 0.9, "vf_coef": 0.19},
        **{"max_grad_norm": 5.0, "normalize": True, "entropy_coeff": 0.00429},
        policy={"use_sde": True, "log_std_init": -3.29, "ortho_init": False},
        total_env_steps=20_000,
    ),
    "classic/LunarLander-v3": stable_baselines3(
        16, 1024, 64, 4, gamma=0.999, gae_lambda=0.98, entropy_coeff=0.01, total_env_steps=1_000_000
    ),
    "a2c/Pendulum-v1": a2c(
        8,
        **{"vf_coef": 0.4, "gamma": 0.9, "gae_lambda": 0.9, "lr_schedule": "linear"},
        **{"normalize_observations": True, "normalize_rewards": "running", "clip_rewards": 10.0},
        policy={"use_sde": True, "log_std_init": -2.0, "ortho_init": False},
        total_env_steps=1_000_000,
    ),
    "memory/CartPoleNoVel-v1": recurrent(
        8,
        **{"n_envs": 8, "n_steps": 32, "n_epochs": 20, "learning_rate": 1e-3, "linear": True},
        **{"gamma": 0.98, "gae_lambda": 0.8, "normalize": True, "total_env_steps": 100_000},
    ),
    "memory/PendulumNoVel-v1": recurrent(
        4,
        **{"n_envs": 4, "n_steps": 1024, "learning_rate": 1e-3, "gamma": 0.9, "normalize": True},
        policy=SDE,
        total_env_steps=100_000,
    ),
    **{f"mujoco/{name}-v4": CONTINUOUS for name in (*MUJOCO, *PENDULUMS)},
    **{f"mujoco-v5/{name}-v5": CONTINUOUS for name in (*MUJOCO, *PENDULUMS)},
    **{
        name: stable_baselines3(
            *(4, 1024, 256, 10, 6e-4),
            **{"gamma": 0.9999, "gae_lambda": 0.98, "normalize": True},
            policy={"log_std_init": 0.0},
        )
        for name in ("mujoco/Swimmer-v4", "mujoco-v5/Swimmer-v5")
    },
    **{f"atari/{name}-v5": ATARI for name in ("Pong", "Breakout", "BeamRider")},
    "isaacgym/Ant": rl_games(
        *(3e-4, 2.0, [256, 128, 64], 0.01, 1e-4), grad_norm=None, **rows(4096, 16, 32768, 4)
    ),
    "isaacgym/Humanoid": rl_games(
        *(5e-4, 4.0, [400, 200, 100], 0.01, 1e-4), **rows(4096, 32, 32768, 5)
    ),
    "isaacgym/Cartpole": rl_games(
        *(3e-4, 4.0, [32, 32], 0.1, 1e-4), on_missing_final="terminate", **rows(512, 16, 8192, 8)
    ),
    "isaacgym/Anymal": rl_games(
        *(3e-4, 2.0, [256, 128, 64], 1.0, 1e-3), **rows(4096, 24, 32768, 5)
    ),
    "rsl_rl/anymal_c_flat": rsl_rl([128, 64, 32]),
    "rsl_rl/anymal_c_rough": rsl_rl([512, 256, 128]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_recipes_have_the_settings_of_their_sources(name: str) -> None:
    given = read_recipe(name).values
    theirs = SOURCES[name]
    ours = {key: given.get(key, DEFAULTS.get(key)) for key in theirs}
    assert ours == theirs


def test_all_recipes_that_name_a_source_are_compared_with_it() -> None:
    from everstep.config import recipe_names

    named = {x for x in recipe_names() if not read_recipe(x).header.source.startswith("Everstep")}
    assert named == SOURCES.keys()
