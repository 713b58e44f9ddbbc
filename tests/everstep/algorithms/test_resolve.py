"""Values of `"auto"`: rl8's defaults without episodes, measured ones where episodes end."""

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
import torch
from torchrl.data import Bounded, Composite, MultiCategorical, Unbounded
from torchrl.envs import GymEnv, GymWrapper, SerialEnv, StepCounter, TransformedEnv

import everstep
from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentAlgorithmConfig,
    RecurrentTrainer,
    Trainer,
    factory,
    wrap,
)
from everstep.algorithms.resolve import build_env
from everstep.distillation import Distillation
from everstep.errors import ConfigError, EnvError
from everstep.models import DefaultContinuousModel
from tests.toys import RecordedEnv

#: What rl8 documents.
RL8 = {
    "gamma": 0.95,
    "gae_lambda": 0.95,
    "horizons_per_env_reset": 1,
    "lr": 1e-3,
    "lr_schedule": None,
    "max_grad_norm": 5.0,
    "model_config": None,
    "normalize_observations": False,
    "normalize_rewards": True,
    "num_sgd_iters": 4,
    "sgd_minibatch_size": 64,
    "vf_clip_param": 5.0,
    "vf_coeff": 1.0,
    "vf_loss": "smooth_l1",
}

EPISODIC = {
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "horizon": 256,
    "horizons_per_env_reset": -1,
    "lr": 3e-4,
    "lr_schedule": "constant_then_linear",
    "max_grad_norm": 0.5,
    "model_config": {"hiddens": [64, 64], "activation_fn": "tanh"},
    "normalize_observations": True,
    "normalize_rewards": "running",
    "num_envs": 8,
    "num_sgd_iters": [(0, 20), (100_000, 10)],
    "optimizer_config": {"eps": 1e-5},
    "sgd_minibatch_size": 64,
    "vf_clip_param": None,
    "vf_coeff": 1.0,
    "vf_loss": "mse",
}

CARTPOLE = "gymnasium:CartPole-v1"


@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, ContinuousDummyEnv])
def test_environments_without_episodes_get_the_defaults_of_rl8(env_cls: type) -> None:
    hparams = AlgorithmConfig(num_envs=2).build(env_cls).hparams
    assert {name: hparams[name] for name in RL8} == RL8


def test_environments_whose_episodes_end_get_measured_ones() -> None:
    hparams = AlgorithmConfig().build(factory(CARTPOLE)).hparams
    assert {name: hparams[name] for name in EPISODIC} == EPISODIC


def acting(shape: tuple[int, ...], **attributes: Any) -> type[ContinuousDummyEnv]:
    """A class with real actions of a shape, whose episodes end unless `attributes` say other."""
    keys = {"episode_keys": frozenset({"terminated", "truncated", "first"})}

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        ContinuousDummyEnv.__init__(self, *args, **kwargs)
        self.action_spec = Bounded(-1.0, 1.0, shape)

    return type("Acting", (ContinuousDummyEnv,), {**keys, "__init__": make, **attributes})


@pytest.mark.parametrize("shape", [(1,), (2,), (17,), (3, 4), (1, 1)])
def test_the_noise_of_several_numbers_is_together_as_long_as_that_of_one(shape: Any) -> None:
    policy = AlgorithmConfig(num_envs=2).build(acting(shape)).policy
    deviations = policy.model.outputs.log_std.detach().exp()
    assert float(deviations.norm()) == pytest.approx(1)
    assert len(deviations.unique()) == 1


@pytest.mark.parametrize(
    ("config", "source"),
    [
        (AlgorithmConfig(), acting((4,), episode_keys=frozenset())),
        (AlgorithmConfig(model_config={"log_std_init": 0.0}), acting((4,))),
        (AlgorithmConfig(model_config={"use_sde": True}), acting((4,))),
        (AlgorithmConfig(model_cls=DefaultContinuousModel), acting((4,))),
        (RecurrentAlgorithmConfig(), acting((4,))),
    ],
)
def test_the_noise_is_the_models_own_elsewhere(config: Any, source: Any) -> None:
    built = replace(config, num_envs=2).build(source)
    assert (built.hparams.model_config or {}).get("log_std_init", 0.0) == 0.0


def test_a_file_has_the_noise_that_was_chosen() -> None:
    hparams = AlgorithmConfig(num_envs=2).build(acting((4,))).hparams
    assert hparams.model_config == {"log_std_init": -math.log(4) / 2, **EPISODIC["model_config"]}


class Episodes(DiscreteDummyEnv):
    """A class that declares that its episodes end."""

    episode_keys = frozenset({"terminated", "truncated", "first"})


def test_a_class_whose_episodes_end_is_made_with_fewer_environments() -> None:
    """A rollout of 8192 · 32 env steps would be one of the few, or the only one, of a budget."""
    env, config = build_env(Episodes, AlgorithmConfig(device="cpu"))
    assert (env.num_envs, config.horizon) == (64, 32)
    env, config = build_env(DiscreteDummyEnv, AlgorithmConfig(device="cpu"))
    assert (env.num_envs, config.horizon) == (8192, 32)


def function(**options: Any) -> Any:
    return lambda: gym.make("CartPole-v1", **options)


def endless() -> Any:
    return GymWrapper(gym.make("CartPole-v1", max_episode_steps=-1))


def episodes(**attributes: Any) -> type[Episodes]:
    return type("Two", (Episodes,), {"default_horizon": (64, 40), **attributes})


@pytest.mark.parametrize(
    ("make_source", "asked", "horizon"),
    [
        (lambda: factory(CARTPOLE), "auto", 256),
        (lambda: factory("gymnasium:Blackjack-v1"), "auto", 128),
        (lambda: function(), "auto", 256),
        (lambda: function(max_episode_steps=-1), "auto", 128),
        (lambda: function(max_episode_steps=-1), 100, 100),
        (lambda: factory(function(max_episode_steps=-1), max_episode_steps=30), "auto", 256),
        (lambda: everstep.make(CARTPOLE, 2), "auto", 256),
        (lambda: everstep.make("gymnasium:Blackjack-v1", 2, horizon=40), "auto", 40),
        (lambda: GymEnv("CartPole-v1"), "auto", 256),
        (lambda: SerialEnv(2, lambda: GymEnv("CartPole-v1")), "auto", 256),
        (lambda: endless(), "auto", 128),
        (lambda: TransformedEnv(endless(), StepCounter(30)), "auto", 256),
        (lambda: Episodes, "auto", 32),
        (lambda: episodes(), "auto", 40),
        (lambda: episodes(max_episode_steps=9), "auto", 64),
        (lambda: episodes(max_horizon=50, max_episode_steps=9), "auto", 50),
        (lambda: episodes(max_horizon=30), "auto", 30),
        (lambda: episodes()(2), "auto", 40),
    ],
)
def test_rollouts_are_shorter_where_no_limit_of_episodes_is_known(
    make_source: Any, asked: Any, horizon: int
) -> None:
    env, config = build_env(make_source(), AlgorithmConfig(horizon=asked, device="cpu"))
    assert config.horizon == horizon
    assert env.horizon in (horizon, None)


def test_nothing_is_left_to_resolve() -> None:
    for config in (AlgorithmConfig(), RecurrentAlgorithmConfig()):
        for source in (DiscreteDummyEnv, factory(CARTPOLE)):
            config.num_envs = 2
            values = config.build(source).hparams.values()
            assert not [x for x in values if isinstance(x, str) and x == "auto"]


def test_given_values_are_not_replaced() -> None:
    given = {**RL8, "sgd_minibatch_size": 32, "horizons_per_env_reset": -1}
    del given["model_config"]
    hparams = AlgorithmConfig(**given, num_envs=2).build(factory(CARTPOLE)).hparams
    assert {name: hparams[name] for name in given} == given


@pytest.mark.parametrize(
    ("options", "eps"),
    [
        ({}, 1e-5),
        ({"lr": 1e-2}, 1e-5),
        ({"optimizer_cls": torch.optim.AdamW}, 1e-5),
        ({"optimizer_config": {"eps": 1e-3}}, 1e-3),
        ({"optimizer_config": {"weight_decay": 0.0}}, 1e-5),
        ({"optimizer_config": {"lr": 1e-2}}, 1e-8),
        ({"optimizer_config": {"lr_pi": 1e-2, "lr_v": 1e-3}}, 1e-8),
        ({"optimizer_cls": torch.optim.RMSprop}, 1e-8),
    ],
)
def test_epsilon_of_adam_where_episodes_end(options: dict[str, object], eps: float) -> None:
    algorithm = AlgorithmConfig(num_envs=2, horizon=4, **options).build(factory(CARTPOLE))
    assert algorithm.optimizer.param_groups[0]["eps"] == eps


def test_epsilon_of_adam_without_episodes() -> None:
    hparams = AlgorithmConfig(num_envs=2).build(DiscreteDummyEnv).hparams
    assert hparams.optimizer_config is None


@pytest.mark.parametrize(
    ("options", "lr"),
    [
        ({}, 3e-4),
        ({"lr": 1e-2}, 1e-2),
        ({"optimizer_config": {"eps": 1e-5}}, 3e-4),
        ({"optimizer_config": {"lr": 1e-2}}, 1e-2),
    ],
)
def test_the_learning_rate(options: dict[str, object], lr: float) -> None:
    algorithm = AlgorithmConfig(num_envs=2, horizon=4, **options).build(factory(CARTPOLE))
    assert algorithm.optimizer.param_groups[0]["lr"] == lr


def test_two_learning_rates_are_not_annealed() -> None:
    rates = {"lr_pi": 1e-3, "lr_v": 2e-3}
    config = AlgorithmConfig(num_envs=2, horizon=4, optimizer_config=rates)
    assert config.build(factory(CARTPOLE)).hparams.lr_schedule is None


def test_options_of_a_default_model_are_completed_but_not_replaced() -> None:
    config = AlgorithmConfig(num_envs=2, horizon=4, model_config={"hiddens": [8]})
    expected = {"hiddens": [8], "activation_fn": "tanh"}
    assert config.build(factory(CARTPOLE)).hparams.model_config == expected


def test_a_model_of_ones_own_gets_its_own_options_only() -> None:
    model = AlgorithmConfig(num_envs=2, horizon=4).build(factory(CARTPOLE)).policy.model
    config = AlgorithmConfig(num_envs=2, horizon=4, model=model)
    assert config.build(factory(CARTPOLE)).hparams.model_config is None


def recorded(obs: torch.Tensor) -> RecordedEnv:
    """An environment whose episodes end, with observations `[T + 1, N, …]`."""
    flags = torch.zeros(*obs.shape[:2], 1, dtype=torch.bool)[1:]
    return RecordedEnv(
        obs, len(flags), rewards=flags.float(), terminated=flags, truncated=flags, first=flags
    )


@pytest.mark.parametrize(
    ("obs", "expected"),
    [
        (torch.rand(5, 2, 3), True),
        (torch.rand(5, 2, 40, 40, 3), False),
        (torch.zeros(5, 2, 40, 40, 3, dtype=torch.uint8), False),
        (torch.zeros(5, 2, 3, dtype=torch.int64), True),
    ],
    ids=["numbers", "float images", "uint8 images", "integers"],
)
def test_images_are_not_normalised(obs: torch.Tensor, expected: bool) -> None:
    hparams = AlgorithmConfig().build(recorded(obs)).hparams
    assert hparams.normalize_observations is expected
    assert (hparams.model_config is None) is (obs.ndim == 5)


def test_images_are_learned_from_less_often() -> None:
    images = recorded(torch.zeros(65, 16, 40, 40, 3, dtype=torch.uint8))
    hparams = AlgorithmConfig().build(images).hparams
    assert hparams.num_sgd_iters == [(0, 10), (50_000, 4)]
    assert hparams.sgd_minibatch_size == 1024 // 8
    hparams = AlgorithmConfig(objective="a2c").build(images).hparams
    assert (hparams.num_sgd_iters, hparams.sgd_minibatch_size) == (1, 1024)


@pytest.mark.parametrize(
    ("num_envs", "horizon", "size"),
    [(1, 8, 8), (8, 256, 64), (1024, 32, 1024), (7, 31, 217), (3, 100, 75)],
)
def test_minibatches(num_envs: int, horizon: int, size: int) -> None:
    """A 32nd of the rollout, at least 64 transitions, and a divisor."""
    config = AlgorithmConfig(num_envs=num_envs, horizon=horizon)
    assert config.build(factory(CARTPOLE)).hparams.sgd_minibatch_size == size


def test_a2c_makes_one_step_of_the_whole_rollout() -> None:
    config = AlgorithmConfig(num_envs=4, horizon=64, objective="a2c")
    hparams = config.build(factory(CARTPOLE)).hparams
    assert (hparams.sgd_minibatch_size, hparams.num_sgd_iters) == (256, 1)


@pytest.mark.parametrize(("horizon", "length"), [(256, 16), (128, 16), (30, 15), (7, 7), (34, 2)])
def test_sequences(horizon: int, length: int) -> None:
    config = RecurrentAlgorithmConfig(num_envs=2, horizon=horizon)
    assert config.build(factory(CARTPOLE)).hparams.seq_len == length


# ---- annealing over the budget ----------------------------------------------------------------


def trainer() -> Trainer:
    env = wrap(gym.make_vec("CartPole-v1", 4), horizon=8)
    return Trainer(env, seed=0, lr=1e-3, run_dir=None)


def test_the_learning_rate_falls_to_zero_over_the_budget() -> None:
    """In the last quarter of N transitions, after n of them, it is lr·(1 - n/N)·4."""
    with trainer() as run:
        assert run.algorithm.hparams.lr_schedule == "constant_then_linear"
        stats = run.run(total_env_steps=256)
        expected = min(1e-3, 4e-3 * (1 - run.algorithm.state.env_steps / 256))
        assert stats["env/steps"] >= 256
        assert run.algorithm.optimizer.param_groups[0]["lr"] == pytest.approx(max(expected, 0.0))
        # A larger budget starts from the same learning rate.
        run.run(total_env_steps=1024)
        assert run.algorithm.lr_scheduler.step(768) == pytest.approx(1e-3)
        assert run.algorithm.lr_scheduler.step(896) == pytest.approx(0.5e-3)


def test_without_a_budget_the_learning_rate_stays() -> None:
    with trainer() as run:
        for _ in range(3):
            run.step()
        assert run.algorithm.optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.usefixtures("float64")
def test_clip_param_falls_to_zero_over_the_budget() -> None:
    env = wrap(gym.make_vec("CartPole-v1", 4), horizon=8)
    options: dict[str, Any] = {"clip_param_schedule": "linear", "sgd_minibatch_size": 32}
    with Trainer(env, seed=0, clip_param=0.4, run_dir=None, **options) as run:
        stats = run.run(total_env_steps=256)
        done = run.algorithm.state.env_steps
        collected = int(stats["env/steps"])
        assert float(run.algorithm.objective.clip_param) == pytest.approx(  # type: ignore[attr-defined]
            max(0.4 * (1 - done / 256), 0.0)
        )
        assert 0 < stats["coefficients/clip_param"] < 0.4
        assert collected >= 256
        # Values of now count from the same beginning.
        run.algorithm.update_algorithm_parameter("gamma", 0.9)
        assert run.algorithm.clip_scheduler.step(128) == pytest.approx(0.2)


def test_an_objective_without_clip_param_refuses_a_schedule() -> None:
    class Own:
        entropy_coeff = torch.tensor(0.0)

        def __init__(self, config: Any, *, entropy_coeff: torch.Tensor) -> None: ...

    config = AlgorithmConfig(objective=Own, clip_param_schedule=[(0, 0.1)], num_envs=2)
    with pytest.raises(ConfigError, match="got Own"):
        config.build(DiscreteDummyEnv)


def test_another_hyperparameter_leaves_the_annealing_alone() -> None:
    with trainer() as run:
        run.run(total_env_steps=64)
        run.algorithm.update_algorithm_parameter("gamma", 0.9)
        assert run.algorithm.lr_scheduler.step(56) == pytest.approx(0.5e-3)
        run.algorithm.update_algorithm_parameter("lr", 4e-3)
        assert run.algorithm.lr_scheduler.step(56) == pytest.approx(2e-3)


# ---- options without effect -------------------------------------------------------------------

IDLE: dict[str, dict[str, Any]] = {
    "clip_param": {"objective": "a2c", "clip_param": 0.1},
    "dual_clip_param": {"objective": "a2c", "dual_clip_param": 3.0},
    "clip_param_schedule": {"objective": "a2c", "clip_param_schedule": "linear"},
    "entropy_coeff": {"entropy_coeff": 0.1, "entropy_coeff_schedule": [[0, 0.0], [9, 1.0]]},
    "lr": {"lr": 0.1, "lr_schedule": [[0, 0.01]]},
    "entropy_coeff_schedule_kind": {"entropy_coeff_schedule_kind": "interp"},
    "clip_param_schedule_kind": {"clip_param_schedule_kind": "interp"},
    "lr_schedule_kind": {"lr_schedule_kind": "interp", "lr_schedule": None},
    "lr of both rates": {"lr": 0.1, "optimizer_config": {"lr_pi": 1e-4, "lr_v": 1e-3}},
    "amp_dtype": {"amp_dtype": "float16"},
    "clip_observations": {"clip_observations": 3.0, "normalize_observations": False},
}


def test_what_distillation_leaves_out_is_named(caplog: pytest.LogCaptureFixture) -> None:
    policy = AlgorithmConfig(num_envs=4, horizon=4).build(DiscreteDummyEnv).policy
    given: dict[str, Any] = {"clip_param": 0.1, "normalize_advantages": "minibatch"}
    config = AlgorithmConfig(num_envs=4, horizon=4, objective=Distillation(policy), **given)
    config.build(DiscreteDummyEnv)
    named = [record.getMessage().split()[0].strip("`") for record in caplog.records]
    assert sorted(named) == sorted(given)


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    AlgorithmConfig(num_envs=4, horizon=4, **IDLE[name]).build(DiscreteDummyEnv)
    texts = [record.getMessage() for record in caplog.records]
    assert [text.startswith(f"`{name.split()[0]}` has no effect: ") for text in texts] == [True]


def test_options_that_work_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    schedule = {"clip_param": 0.1, "clip_param_schedule": "linear", "lr": 1e-4}
    AlgorithmConfig(num_envs=4, horizon=4, clip_observations=3.0, **schedule).build(recorded_any())
    AlgorithmConfig(num_envs=4, horizon=4, objective="a2c").build(DiscreteDummyEnv)
    assert caplog.records == []


def recorded_any() -> Any:
    return recorded(torch.rand(5, 4, 3))


def test_options_of_a_noise_that_is_off_are_refused() -> None:
    for options in ({"sde_sample_freq": 4}, {"full_std": False}):
        with pytest.raises(ConfigError, match="options of `use_sde`, which is off"):
            AlgorithmConfig(num_envs=4, model_config=options).build(ContinuousDummyEnv)


NOTHING: list[tuple[str, Any]] = [
    ("obs", Unbounded(0)),
    ("obs.camera", Composite(camera=Unbounded((0, 84, 84), dtype=torch.uint8), x=Unbounded(3))),
    ("obs.a.b", Composite(a=Composite(b=Unbounded((2, 0))))),
    ("action", Unbounded(0)),
    ("action", MultiCategorical([])),
]


@pytest.mark.parametrize(("where", "spec"), NOTHING, ids=[where for where, _ in NOTHING])
@pytest.mark.parametrize("trainer_cls", [Trainer, RecurrentTrainer])
def test_specs_without_numbers_are_refused(trainer_cls: Any, where: str, spec: Any) -> None:
    """Policies with such a leaf acted on nothing, or could not be read again."""
    env = DiscreteDummyEnv(2)
    name, _, path = where.partition(".")
    attribute = {"obs": "observation_spec", "action": "action_spec"}[name]
    setattr(env, attribute, spec)
    named = f"{attribute}.{path}".rstrip(".")
    with pytest.raises(EnvError, match=rf"`{named}` of DiscreteDummyEnv holds no numbers: .*0"):
        trainer_cls(env, horizon=4, run_dir=None)


def test_a_spec_without_leaves_is_refused() -> None:
    env = DiscreteDummyEnv(2)
    env.observation_spec = Composite()  # type: ignore[assignment]
    with pytest.raises(EnvError, match=r"DiscreteDummyEnv.observation_spec .* without entries"):
        Trainer(env, horizon=4, run_dir=None)
