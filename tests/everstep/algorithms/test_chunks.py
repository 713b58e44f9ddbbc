"""Minibatches in chunks: what a processor's cache holds at once, with the gradient of the whole."""

from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from everstep import AlgorithmConfig, DiscreteDummyEnv, RecurrentAlgorithmConfig
from everstep.adapters import GymnasiumEnv
from everstep.algorithms.build import CHUNK_ROWS
from everstep.models import DefaultDiscreteModel
from everstep.objectives import A2C, PPO
from tests.toys import TRUNCATED, Episode, scripted_vector_env

#: More rows than are taken at once.
LARGE: dict[str, Any] = {"num_envs": 512, "horizon": 16, "model_config": {"hiddens": (8,)}}


def uneven_env() -> GymnasiumEnv:
    """Eight environments whose rollouts have different numbers of invalid rows."""
    script = [[Episode(1 + n % 3, TRUNCATED)] for n in range(8)]
    return GymnasiumEnv(scripted_vector_env(script, AutoresetMode.NEXT_STEP), horizon=16)


def train(chunk: None | int, config: Any = AlgorithmConfig, **options: Any) -> list[torch.Tensor]:
    """Weights and statistics after two updates."""
    algorithm = config(
        seed=1, model_config={"hiddens": (16,)} if config is AlgorithmConfig else None, **options
    ).build(uneven_env())
    algorithm.chunk_size = chunk
    found: list[torch.Tensor] = []
    for _ in range(2):
        algorithm.collect()
        assert not algorithm.rollout.valid.all()
        stats = algorithm.step()
        found += [torch.tensor(v) for k, v in stats.items() if not k.startswith("profiling")]
    return [*found, *(p.detach().clone() for p in algorithm.policy.model.parameters())]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("chunk", [11, 32])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"entropy_coeff": 0.1, "objective": "a2c"},
        {"sgd_minibatch_size": 64},
        {"sgd_minibatch_size": 64, "shuffle_minibatches": False},
        {"sgd_minibatch_size": 64, "accumulate_grads": True},
        {"target_kl_div": 1e-4, "sgd_minibatch_size": 32},
        {"bonuses": [{"rnd": {"pre_normalization_steps": 0}}]},
    ],
    ids=["whole", "a2c", "shuffled", "in order", "accumulated", "stopped", "rnd"],
)
def test_chunks_add_up_to_the_minibatch(chunk: int, options: dict[str, Any]) -> None:
    for whole, parts in zip(train(None, **options), train(chunk, **options), strict=True):
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("chunk", [3])
def test_chunks_of_sequences_add_up(chunk: int) -> None:
    options = {"seq_len": 4, "sgd_minibatch_size": 8}
    whole = train(None, RecurrentAlgorithmConfig, **options)
    parts = train(chunk, RecurrentAlgorithmConfig, **options)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)


def test_an_update_is_taken_in_chunks_on_a_cpu() -> None:
    algorithm = AlgorithmConfig(**LARGE).build(DiscreteDummyEnv)
    seen: list[int] = []
    algorithm.policy.model.register_forward_hook(
        lambda module, args, out: seen.append(args[0].batch_size[0])
    )
    algorithm.collect()
    seen.clear()
    algorithm.step()
    assert seen == [CHUNK_ROWS] * (4 * 512 * 16 // CHUNK_ROWS)


def test_a_sequence_counts_as_many_rows_as_it_has() -> None:
    algorithm = RecurrentAlgorithmConfig(num_envs=8, horizon=32, seq_len=8).build(DiscreteDummyEnv)
    assert algorithm.chunk_size == CHUNK_ROWS // 8


class Standardizing(DefaultDiscreteModel):
    """A model whose rows depend on each other, and that says so."""

    mixes_rows = True


class WithBatchNorm(DefaultDiscreteModel):
    """A model with statistics of its batch."""

    def __init__(self, *args: Any, **config: Any) -> None:
        super().__init__(*args, **config)
        self.policy.insert(0, nn.BatchNorm1d(self.policy[0].in_features))


class OfItsOwn:
    """An objective of which nothing is known."""

    def __init__(self, config: Any, *, entropy_coeff: torch.Tensor) -> None:
        self.inner, self.entropy_coeff = PPO(config, entropy_coeff=entropy_coeff), entropy_coeff

    def __call__(self, *args: Any) -> dict[str, torch.Tensor]:
        return self.inner(*args)


def decay(minibatch: Any, distribution: Any, values: torch.Tensor) -> torch.Tensor:
    """An add-on that is no sum over rows."""
    return values.new_ones(())


decay.name = "decay"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options",
    [
        {"model_cls": Standardizing},
        {"model_cls": WithBatchNorm},
        {"objective": OfItsOwn},
        {"policy_loss_addons": [decay]},
    ],
    ids=["mixes rows", "batch norm", "objective", "add-on"],
)
def test_what_may_depend_on_the_whole_minibatch_gets_it(options: dict[str, Any]) -> None:
    algorithm = AlgorithmConfig(**LARGE, **options).build(DiscreteDummyEnv)
    assert algorithm.chunk_size is None
    seen: list[int] = []
    algorithm.policy.model.register_forward_hook(
        lambda module, args, out: seen.append(args[0].batch_size[0])
    )
    algorithm.collect()
    seen.clear()
    algorithm.step()
    assert seen == [512 * 16] * 4


def test_objectives_that_refine_ours_are_taken_in_chunks() -> None:
    class Mine(A2C):
        """Another gain, row by row."""

    algorithm = AlgorithmConfig(num_envs=8, horizon=8, objective=Mine).build(DiscreteDummyEnv)
    assert algorithm.chunk_size == CHUNK_ROWS


def test_weights_are_cast_once_an_optimizer_step() -> None:
    """And cast anew after it: they have changed."""

    class Casts(TorchDispatchMode):
        """Counts copies of 256 × 256 weights into half precision."""

        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            is_cast = (kwargs or {}).get("dtype") == torch.bfloat16
            if is_cast and func is torch.ops.aten._to_copy.default:
                self.count += args[0].shape == (256, 256)
            return func(*args, **(kwargs or {}))

    def casts(chunk: int) -> int:
        algorithm = AlgorithmConfig(num_envs=8, horizon=8, enable_amp=True, seed=1).build(
            DiscreteDummyEnv
        )
        algorithm.chunk_size = chunk
        algorithm.collect()
        with Casts() as counter:
            algorithm.step()
        return counter.count

    assert casts(64) == casts(8) == 2 * 4  # two networks, four optimizer steps
