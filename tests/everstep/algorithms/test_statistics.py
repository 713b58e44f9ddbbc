"""Statistics of training: restored after errors and evaluations, and means over steps taken."""

from typing import Any

import pytest
import torch
from torch import nn

from everstep import AlgorithmConfig, DiscreteDummyEnv
from everstep.algorithms.recording import Recorder
from everstep.core.graphs import Tape
from everstep.errors import DivergedError, NonFiniteError, NotBufferedError
from everstep.models import Model
from tests.everstep.algorithms.test_frozen import SMALL
from tests.toys import ConstantEnv


class Normalized(Model):
    """Layers with running statistics of their inputs."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.norm = nn.BatchNorm1d(3)
        self.policy, self.vf_model = nn.Linear(3, 2), nn.Linear(3, 1)

    def forward(self, batch: Any, /) -> Any:
        x = self.norm(batch["obs"])
        self.values = self.vf_model(x)
        return {"logits": self.policy(x).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self.values


class Failing(ConstantEnv):
    """Random observations; one env step fails."""

    failure: None | str = None

    def step(self, action: Any) -> Any:
        row = {**super().step(action), "obs": torch.randn(4, 3)}
        if self.failure == "NaN" and self.steps % 8 == 5:
            row["obs"][1, 1] = torch.nan
        if self.failure == "error" and self.steps % 8 == 5:
            raise ZeroDivisionError("in the middle")
        return row


def normalized() -> Any:
    algorithm: Any = AlgorithmConfig(model_cls=Normalized, seed=0).build(Failing())
    algorithm.collect()
    algorithm.step()
    return algorithm


def buffers(algorithm: Any) -> list[torch.Tensor]:
    found = [x.clone() for x in algorithm.policy.model.buffers()]
    assert int(found[-1]) > 8  # batches that were tracked
    return found


@pytest.mark.parametrize(
    ("failure", "error"), [("NaN", NonFiniteError), ("error", ZeroDivisionError)]
)
def test_a_rollout_that_fails_leaves_the_models_statistics(failure: str, error: Any) -> None:
    algorithm = normalized()
    before = buffers(algorithm)
    algorithm.env.failure = failure
    with pytest.raises(error):
        algorithm.collect()
    assert all(map(torch.equal, algorithm.policy.model.buffers(), before))
    algorithm.env.failure = None
    algorithm.collect()
    assert not any(map(torch.equal, algorithm.policy.model.buffers(), before))


def test_an_update_that_diverges_leaves_the_models_statistics() -> None:
    algorithm = normalized()
    algorithm.collect()
    before = buffers(algorithm)
    algorithm.rollout.logp[3, 2] = -torch.inf
    with pytest.raises(DivergedError):
        algorithm.step()
    assert all(map(torch.equal, algorithm.policy.model.buffers(), before))


def test_evaluating_leaves_the_models_statistics() -> None:
    algorithm = normalized()
    before = buffers(algorithm)
    with algorithm.evaluating():
        algorithm.collect()
        assert not any(map(torch.equal, algorithm.policy.model.buffers(), before))
        algorithm.collect(deterministic=True)
    assert all(map(torch.equal, algorithm.policy.model.buffers(), before))


# ---- norms of gradients ------------------------------------------------------------------------


def norms_of(algorithm: Any) -> list[float]:
    """Norms of the gradients of each optimizer step, as they are made."""
    norms, norm = [], algorithm.updater._norm

    def recorded() -> torch.Tensor:
        found = norm()
        norms.append(found.clone())
        return found

    algorithm.updater._norm = recorded
    return norms  # type: ignore[return-value]


@pytest.mark.usefixtures("general")
@pytest.mark.parametrize("recorded", [False, True], ids=["host", "tape"])
def test_the_norm_of_gradients_is_a_mean_over_steps_that_were_taken(recorded: bool) -> None:
    options: Any = {"num_sgd_iters": 8, "optimizer_config": {"lr": 0.02}, **SMALL}

    def built(**more: Any) -> Any:
        algorithm: Any = AlgorithmConfig(**options, **more, cuda_graphs=False).build(
            DiscreteDummyEnv
        )
        algorithm.recorder = Recorder(Tape) if recorded else Recorder()
        return algorithm

    plain = built()
    norms = norms_of(plain)
    plain.collect()
    plain.step()
    assert len(norms) == 8
    stopping = built(target_kl_div=1e-3)
    stopping.collect()
    stats = stopping.step()
    means = {n: float(torch.stack(norms[:n]).mean()) for n in range(1, 8)}  # type: ignore[arg-type]
    taken = [n for n, x in means.items() if stats["monitors/grad_norm"] == pytest.approx(x, 1e-6)]
    # `kl_div` is a mean over those steps and the one that was refused.
    (count,) = taken
    assert 1 <= count < 7
    if not recorded:
        assert stopping.optimizer.state[next(stopping.policy.model.parameters())]["step"] == count


@pytest.mark.usefixtures("general")
@pytest.mark.parametrize("recorded", [False, True], ids=["host", "tape"])
def test_the_norm_of_gradients_leaves_out_steps_that_were_skipped(recorded: bool) -> None:
    algorithm: Any = AlgorithmConfig(
        **SMALL, sgd_minibatch_size=12, shuffle_minibatches=False, num_sgd_iters=1
    ).build(DiscreteDummyEnv)
    if recorded:
        algorithm.recorder = Recorder(Tape)
    norms = norms_of(algorithm)
    algorithm.collect()
    algorithm.rollout.logp[0, 0] = -torch.inf
    stats = algorithm.step()
    assert len(norms) == 4
    finite = [float(x) for x in norms if torch.as_tensor(x).isfinite()]
    assert len(finite) == 3
    assert stats["monitors/skipped_updates"] == 1
    assert stats["monitors/grad_norm"] == pytest.approx(sum(finite) / 3, 1e-6)


@pytest.mark.usefixtures("general")
def test_the_norm_of_gradients_is_of_this_update_alone() -> None:
    algorithm: Any = AlgorithmConfig(**SMALL, num_sgd_iters=2).build(DiscreteDummyEnv)
    norms = norms_of(algorithm)
    for _ in range(2):
        norms.clear()
        algorithm.collect()
        found = algorithm.step()["monitors/grad_norm"]
        assert found == pytest.approx(sum(map(float, norms)) / 2, 1e-6)


# ---- minibatches -------------------------------------------------------------------------------


def test_minibatches_that_nobody_asks_for_leave_the_rollout() -> None:
    algorithm: Any = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    algorithm.collect()
    iterator = algorithm.minibatches()
    algorithm.step()
    with pytest.raises(NotBufferedError):
        next(iterator)


def test_a_rollout_is_of_one_iterator() -> None:
    algorithm: Any = AlgorithmConfig(**SMALL).build(DiscreteDummyEnv)
    algorithm.collect()
    first, second = algorithm.minibatches(), algorithm.minibatches()
    next(first)
    with pytest.raises(NotBufferedError):
        next(second)
    with pytest.raises(NotBufferedError):
        algorithm.step()
    assert algorithm.state.env_steps == 0
    list(first)
    assert algorithm.state.env_steps == 48
    with pytest.raises(NotBufferedError):
        algorithm.minibatches()
