"""Advantages that are computed anew before each epoch, with the values as they are then."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

import everstep
from everstep import AlgorithmConfig, RecurrentAlgorithmConfig
from everstep.algorithms.recording import Recorder
from everstep.bonuses import RandomNetworkDistillation
from everstep.core.fast import Learner
from everstep.core.graphs import Tape
from everstep.errors import ConfigError
from everstep.trainers._resuming import resume
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.everstep.algorithms.test_bootstrap_oracle import GAMMA, HORIZON, LAMBDA, SCRIPTS
from tests.toys import oracle_advantages, scripted_vector_env, stream

EPOCHS = 3


def env(scripts: str = "mixed", mode: AutoresetMode = AutoresetMode.SAME_STEP) -> GymnasiumEnv:
    return GymnasiumEnv(scripted_vector_env(SCRIPTS[scripts], mode), horizon=HORIZON)


def config(**options: Any) -> AlgorithmConfig:
    plain = {
        "recompute_advantages": True,
        "num_sgd_iters": EPOCHS,
        "sgd_minibatch_size": HORIZON,
        "gamma": GAMMA,
        "gae_lambda": LAMBDA,
        "lr": 0.05,
        "lr_schedule": None,
        "normalize_advantages": False,
        "normalize_observations": False,
        "normalize_rewards": False,
        "critic_warmup": 0,
        "horizons_per_env_reset": -1,
        "seed": 0,
    }
    return AlgorithmConfig(**(plain | options))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("scripts", SCRIPTS)
def test_advantages_of_each_epoch_equal_the_oracle(scripts: str, mode: AutoresetMode) -> None:
    algorithm = config().build(env(scripts, mode))
    policy, rollout = algorithm.policy, algorithm.rollout
    next_step = mode is AutoresetMode.NEXT_STEP
    streams = [stream(s, 2 * HORIZON, with_reset_rows=next_step) for s in SCRIPTS[scripts]]
    for start in (0, HORIZON):
        algorithm.collect()
        values = []
        for i, minibatch in enumerate(algorithm.minibatches()):
            if i % len(SCRIPTS[scripts]) == 0:  # of an epoch the first
                values.append(rollout.values.clone())
                for n, script in enumerate(SCRIPTS[scripts]):
                    expected = torch.tensor(
                        oracle_advantages(
                            n,
                            script,
                            streams[n][start : start + HORIZON],
                            gamma=GAMMA,
                            gae_lambda=LAMBDA,
                            value_of=lambda obs: policy.values((obs[-1:],), ()).detach(),
                        )
                    )
                    valid = ~expected.isnan()
                    found = (x[:-1, n, 0][valid] for x in (rollout.advantages, rollout.returns))
                    of_rows = rollout.values[:-1, n, 0][valid]
                    for x, y in zip(
                        found, (expected[valid], expected[valid] + of_rows), strict=True
                    ):
                        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
            algorithm.compute_gradients(minibatch)
            algorithm.apply_gradients()
        assert len(values) == EPOCHS
        assert not any(map(torch.allclose, values, values[1:]))


def trained(way: str, monkeypatch: pytest.MonkeyPatch, updates: int = 3, **options: Any) -> Any:
    """The algorithm after updates natively, by autograd, or as recorded work."""
    monkeypatch.setenv("EVERSTEP_NATIVE", "1" if way == "native" else "0")
    algorithm = config(**options).build(env())
    if way == "recorded":
        algorithm.recorder = Recorder(Tape)
    for _ in range(updates):
        algorithm.collect()
        algorithm.step()
    assert isinstance(algorithm._fast, Learner) is (way == "native")
    assert bool(algorithm.recorder.revisions.replays) is (way == "recorded")
    return algorithm


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_observations": True, "normalize_rewards": "running"},
        {"normalize_advantages": "minibatch", "accumulate_grads": False},
        {"normalize_values": True, "vf_clip_param": 0.1},
        {"target_kl_div": 0.02, "num_sgd_iters": 8, "updates": 1, "lr": 3.5e-3},
        {"critic_warmup": 20, "normalize_advantages": True},
        {"accumulate_grads": True},
        {"shuffle_minibatches": False, "model_config": {"shared": True}},
    ],
    ids=lambda options: ", ".join(options) or "plain",
)
def test_all_ways_compute_the_same(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    native, general = (trained(way, monkeypatch, **options) for way in ("native", "general"))
    recorded = trained("recorded", monkeypatch, **options)
    once = trained("general", monkeypatch, **options, recompute_advantages=False)
    for x, y, z in zip(
        native.policy.model.parameters(),
        general.policy.model.parameters(),
        recorded.policy.model.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(z, y, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(native.rollout.values, general.rollout.values, rtol=1e-7, atol=1e-9)
    assert not torch.allclose(once.rollout.returns, general.rollout.returns)


def test_values_of_intrinsic_rewards_are_computed_anew() -> None:
    algorithm = config(bonuses=[RandomNetworkDistillation()]).build(env())
    algorithm.collect()
    before = algorithm.rollout.values.clone()
    algorithm.step()
    moved = (algorithm.rollout.values - before).abs().amax((0, 1))
    assert moved.shape == (2,)
    assert (moved > 0).all()


class Mixing(everstep.models.DefaultDiscreteModel):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.norm = nn.BatchNorm1d(3)


PPO_CASES: list[tuple[Any, dict[str, Any], bool]] = [
    (AlgorithmConfig, {}, True),
    (AlgorithmConfig, {"num_sgd_iters": 10}, False),
    (AlgorithmConfig, {"objective": "a2c"}, False),
    (AlgorithmConfig, {"model_config": {"frame_stack": 2}}, False),
    (AlgorithmConfig, {"model_cls": Mixing}, False),
    (RecurrentAlgorithmConfig, {}, False),
]


@pytest.mark.parametrize(("kind", "options", "expected"), PPO_CASES)
def test_what_the_default_is(kind: Any, options: dict[str, Any], expected: bool) -> None:
    algorithm = kind(**options).build(env())
    assert algorithm.hparams.recompute_advantages is expected
    algorithm.update_algorithm_parameter("num_sgd_iters", 7)
    assert algorithm.hparams.recompute_advantages is expected
    unending = kind(**options).build(everstep.DiscreteDummyEnv(4, 8))
    assert unending.hparams.recompute_advantages is False


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (AlgorithmConfig, {"model_config": {"frame_stack": 2}}, "without windows"),
        (AlgorithmConfig, {"model_cls": Mixing}, "got Mixing. Drop it"),
        (RecurrentAlgorithmConfig, {}, "feedforward models"),
    ],
)
def test_what_it_cannot_be_asked_for(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(recompute_advantages=True, **options).build(env())
    algorithm = kind(**options).build(env())
    with pytest.raises(ConfigError, match=message):
        algorithm.update_algorithm_parameter("recompute_advantages", True)


@pytest.mark.parametrize(
    "options", [{"num_sgd_iters": 1}, {"num_sgd_iters": [(0, 1)]}, {"objective": "a2c"}]
)
def test_where_it_has_no_effect_it_says_so(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    AlgorithmConfig(**options).build(env())
    assert not caplog.text
    AlgorithmConfig(recompute_advantages=True, **options).build(env())
    assert "`recompute_advantages` has no effect: there is a single epoch" in caplog.text


def test_a_run_whose_epochs_were_set_to_one_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_envs": 2, "horizon": 8, "progress": False, "loggers": []}
    with everstep.Trainer("CartPole-v1", run_dir=tmp_path / "run", **options) as trainer:
        trainer.run(total_env_steps=32)
        trainer.algorithm.update_algorithm_parameter("num_sgd_iters", 1)
        trainer.run(total_env_steps=64)
    with resume(tmp_path / "run") as trainer:
        trainer.run(total_env_steps=96)
        assert trainer.algorithm.hparams.recompute_advantages is True


def test_minibatches_after_an_update_that_ended_have_advantages_of_their_epochs() -> None:
    algorithm = config(target_kl_div=1e-9).build(env())
    algorithm.recorder = Recorder(Tape)
    algorithm.collect()
    algorithm.step()
    algorithm.collect()
    values = []
    for minibatch in algorithm.minibatches():
        values.append(algorithm.rollout.values.clone())
        algorithm.compute_gradients(minibatch)
        algorithm.apply_gradients()
    assert not torch.allclose(values[0], values[-1])


def test_an_objective_of_ones_own_may_learn_from_them() -> None:
    class Mean:
        default_num_sgd_iters = episodic_num_sgd_iters = 4

        def __init__(self, config: Any, *, entropy_coeff: torch.Tensor) -> None:
            self.entropy_coeff = entropy_coeff

        def __call__(self, minibatch: Any, distribution: Any, values: Any) -> Any:
            error = ((values - minibatch.returns).square() * minibatch.weight).sum()
            return {"total": error}

    assert AlgorithmConfig(objective=Mean).build(env()).hparams.recompute_advantages is False
    algorithm = config(objective=Mean).build(env())
    algorithm.collect()
    before = algorithm.rollout.values.clone()
    algorithm.step()
    assert not torch.allclose(before, algorithm.rollout.values)
