"""Recorded work: what a graph holds, and that replaying it is what doing it would have been.

Without a GPU a tape takes the place of a CUDA graph: it has the same rules, and the same logic is
around it.
"""

import contextlib
import copy
import gc
import logging
import random
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from everstep import (
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentAlgorithmConfig,
)
from everstep.algorithms import recording
from everstep.algorithms.recording import Recorder
from everstep.core.graphs import CaptureError, CUDAGraph, Replayed, Tape, is_compiled
from everstep.core.graphs._base import refuse, watching
from everstep.core.hyperparameters import LIVE
from everstep.core.restoring import Snapshot
from everstep.distillation import Distillation
from everstep.errors import ConfigError
from tests.everstep.core.graphs.graph_toys import (
    Counting,
    Late,
    Looking,
    Losing,
    Moving,
    Seeing,
    Walk,
)

on_every_device = pytest.mark.parametrize(
    ("device", "graph_cls"),
    [
        pytest.param("cpu", Tape, id="tape"),
        pytest.param("cuda", CUDAGraph, id="cuda", marks=pytest.mark.gpu),
    ],
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("float64", "as_on_a_gpu", "general", "exact_rates"),
]

DUMMIES = [DiscreteDummyEnv, ContinuousDummyEnv]

#: The second epoch is of other minibatches than the first.
MINIBATCHES: dict[str, Any] = {"sgd_minibatch_size": 32, "num_sgd_iters": 2}


@pytest.fixture
def exact_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptive rates are powers of 2: CUDA's fused optimizers take rates in tensors as float32."""
    for name, value in {"FACTOR": 2.0, "MIN": 2**-16, "MAX": 2**-6}.items():
        monkeypatch.setattr(f"everstep.schedulers.ADAPTIVE_{name}", value)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rollout is acted in blocks: a tape takes the place of a CUDA graph."""
    monkeypatch.setattr("everstep.algorithms.algorithm.actor", lambda *_, **__: None)


def build(env_cls: Any, device: str, graph_cls: Any, config: Any, **options: Any) -> Any:
    small = {"num_envs": 8, "horizon": 8, "seed": 0, "optimizer_config": {"lr": 2**-8}}
    if config is AlgorithmConfig:
        small["model_config"] = {"hiddens": (16,)}
    else:
        small["model_config"] = {"hidden_size": 16}
    small |= {"device": device, "cuda_graphs": False, "recompute_advantages": False, **options}
    algorithm = config(**small).build(env_cls)
    algorithm.recorder = Recorder(graph_cls)
    return algorithm


Change = Callable[[Any, int], None]


def train(
    algorithm: Any, iterations: int = 6, *, change: None | Change = None
) -> list[dict[str, float]]:
    """Statistics of every iteration, without times; `change` is called before each."""
    found = []
    for i in range(iterations):
        torch.manual_seed(i)
        if change is not None:
            change(algorithm, i)
        stats = {**algorithm.collect(), **algorithm.step()}
        if not algorithm.objective.uses_entropy:  # recorded updates measure it more often
            stats.pop("losses/entropy", None)
        found.append({k: v for k, v in stats.items() if not k.startswith("profiling/")})
    return found


def check_replayed_is_eager(
    env_cls: Any,
    device: str,
    graph_cls: Any,
    *,
    config: Any = AlgorithmConfig,
    iterations: int = 6,
    change: None | Change = None,
    **options: Any,
) -> Any:
    """Train twice; the algorithm that had graphs."""
    eager = build(env_cls, device, None, config, **options)
    graphed = build(env_cls, device, graph_cls, config, **options)
    expected = train(eager, iterations, change=change)
    found = train(graphed, iterations, change=change)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if device == "cuda" else {"rtol": 0, "atol": 1e-11}
    for one, other in zip(expected, found, strict=True):
        near = {"rel": 1e-5, "abs": 1e-6} if device == "cuda" else {"rel": 1e-9, "abs": 1e-9}
        assert one == pytest.approx(other, **near)
    weights = (a.policy.model.parameters() for a in (graphed, eager))
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    torch.testing.assert_close(graphed.rollout.rewards, eager.rollout.rewards, **tolerance)
    return graphed


class Keeping(Walk):
    """Cannot be recorded, keeps actions to the next env step, and rewards those of the last one."""

    capturable = False
    kept: Any = None

    def step(self, action: Any) -> Any:
        row, before = super().step(action), self.kept
        self.kept = action
        return row if before is None else row.set("rewards", before.float().mean(-1, keepdim=True))


# A tape.


@on_every_device
def test_a_replay_does_the_work_again_with_other_random_numbers(
    device: str, graph_cls: Any
) -> None:
    total = torch.zeros(3, device=device)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.rand(3, device=device)
        total.add_(drawn)
        return drawn, drawn.view(3, 1) * 2

    torch.manual_seed(0)
    expected = [work()[0].clone() for _ in range(4)]
    total.zero_()
    torch.manual_seed(0)
    graph = graph_cls()
    drawn, doubled = graph.capture(work)
    for once in expected:
        assert torch.equal(drawn, once)
        assert torch.equal(doubled, 2 * once.view(3, 1))
        graph.replay()
    torch.testing.assert_close(total, sum(expected) + drawn)


@on_every_device
def test_python_values_and_addresses_are_those_of_the_recording(
    device: str, graph_cls: Any
) -> None:
    x = nn.Parameter(torch.ones(2, device=device))
    factor = [3.0]
    graph = graph_cls()
    y = graph.capture(lambda: x.detach() * factor[0])
    there = x.data
    factor[0] = 5.0
    x.data = torch.zeros(2, device=device)
    there.fill_(2.0)
    graph.replay()
    assert y.tolist() == [6.0, 6.0]


@on_every_device
def test_gradients_and_optimizer_steps_are_replayed(device: str, graph_cls: Any) -> None:
    def make() -> tuple[nn.Linear, Callable[[], torch.Tensor]]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 1).to(device)
        rate = torch.tensor(0.1, dtype=torch.float32, device=device)
        options = {"capturable": True} if device == "cuda" else {}
        optimizer = torch.optim.Adam(layer.parameters(), lr=rate, fused=True, **options)
        optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]
        for p in layer.parameters():
            p.grad = torch.zeros_like(p)

        def work() -> torch.Tensor:
            for p in layer.parameters():
                p.grad.zero_()
            loss = layer(torch.randn(8, 3, device=device)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return layer, work

    eager, work = make()
    losses = [float(work()) for _ in range(5)]
    replayed, work = make()
    graph_cls.warm_up(work)
    graph = graph_cls()
    loss = graph.capture(work)
    found = [float(loss)]
    for _ in range(3):
        graph.replay()
        found.append(float(loss))
    assert found == pytest.approx(losses[1:])
    torch.testing.assert_close(replayed.weight, eager.weight)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.unique(),
        lambda x: x + torch.tensor([1.0, 2.0]),
        lambda x: x * x.new_tensor(2.0),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: torch.linalg.inv(x.diag()),
    ],
    ids=[
        *("item", "bool", "tolist", "numpy", "nonzero", "mask", "select", "equal", "unique"),
        *("tensor", "new_tensor", "repeat", "inverse"),
    ],
)
def test_what_needs_the_host_is_refused_and_seen_beforehand(work: Any) -> None:
    x = torch.ones(2)
    with pytest.raises(CaptureError, match="host"):
        Tape().capture(lambda: work(x))
    _, waiting = Tape.warm_up(lambda: work(x))
    assert len(waiting) == 1


def test_what_needs_the_host_is_refused_before_it_is_done() -> None:
    """CUDA ends a capture in which it is done."""
    x, done = torch.ones(2), []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            done.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    for work in (x.nonzero, x.sum().item, lambda: torch.tensor([1.0]), lambda: x.new_tensor(1.0)):
        with Noting(), pytest.raises(CaptureError), watching("cpu", refuse):
            work()
    assert done == []
    with Noting(), watching("cuda", refuse):  # none of it is that device's
        x.nonzero(), torch.tensor([1.0]), torch.as_tensor([1.0], device="cpu")
    assert "nonzero" in done


@pytest.mark.gpu
def test_what_waits_for_a_gpu_is_seen_beforehand() -> None:
    x = torch.ones(2, device="cuda")
    for work in (x.sum().item, x.tolist, x.nonzero, lambda: torch.ones(2).to("cuda")):
        assert CUDAGraph.warm_up(work)[1]
    assert not CUDAGraph.warm_up(lambda: torch.ones(2).sum().item())[1]


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_random_numbers_as_they_were() -> None:
    torch.cuda.manual_seed(0)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(0)

    def work() -> float:
        return float(torch.rand(3, device="cuda").sum())

    with pytest.raises(CaptureError):
        CUDAGraph().capture(work)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
    torch.cuda.empty_cache()  # which asserts that no capture is under way


@pytest.mark.slow
def test_compiled_models_are_compiled_before_they_are_recorded() -> None:
    """PyTorch compiles nothing while its operations are looked at."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    algorithm = build(DiscreteDummyEnv, "cpu", Tape, AlgorithmConfig, compile="eager")
    algorithm.recorder.begin(algorithm.parts)
    assert not any(work.watched for work in algorithm.recorder.graphs)
    torch._dynamo.reset()  # what the check has compiled
    torch._dynamo.utils.counters.clear()
    algorithm.collect()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    plain = build(DiscreteDummyEnv, "cpu", Tape, AlgorithmConfig)
    plain.collect()
    assert all(work.watched for work in plain.recorder.graphs)


def test_scripted_parts_of_a_model_are_not_compiled_ones() -> None:
    class Left(nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Valued(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        @torch.compile(backend="eager")
        def value(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(2, 2))
    assert not is_compiled(nn.Sequential(scripted, Left()))
    assert is_compiled(nn.Sequential(nn.ReLU(), Valued()))
    assert is_compiled(torch.compile(nn.ReLU(), backend="eager"))


def test_a_copy_of_an_algorithm_learns_for_itself() -> None:
    algorithm = build(Walk, "cpu", Tape, AlgorithmConfig)
    train(algorithm, 1)
    copied = copy.deepcopy(algorithm)
    weights = [
        torch.cat([p.detach().flatten() for p in each.policy.model.parameters()])
        for each in (algorithm, copied)
    ]
    train(copied, 2)
    after = [
        torch.cat([p.detach().flatten() for p in each.policy.model.parameters()])
        for each in (algorithm, copied)
    ]
    assert torch.equal(after[0], weights[0])
    assert not torch.equal(after[1], weights[1])


def test_an_algorithm_that_is_dropped_leaves_nothing_behind() -> None:
    """Memory of a GPU that only the garbage collector finds is missed by whoever trains next."""
    algorithm = build(Walk, "cpu", Tape, AlgorithmConfig)
    train(algorithm, 3)
    weight = weakref.ref(next(algorithm.policy.model.parameters()))
    gc.collect()
    gc.disable()
    try:
        del algorithm
        assert weight() is None
    finally:
        gc.enable()


# When work is recorded.


class Work:
    """Adds a number to a sum, and counts how often Python has done it."""

    def __init__(self, graph_cls: Any = Tape) -> None:
        self.total, self.key = torch.zeros(()), {"number": 1}
        self.calls = 0
        self.waits: tuple[int, ...] = ()
        self.version: None | int = None
        self.work = Replayed("work", graph_cls)

    def __call__(self) -> torch.Tensor:
        return self.work(
            self._add,
            version=self.version,
            key=lambda: dict(self.key),
            snapshots=lambda: [Snapshot.of_tensors([self.total])],
        )

    def _add(self) -> torch.Tensor:
        self.calls += 1
        self.total += self.key["number"]
        if self.calls in self.waits:
            float(self.total)
        return self.total


def test_work_is_done_once_recorded_then_and_replayed_from_then_on() -> None:
    work = Work()
    assert [float(work()) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert (work.calls, work.work.replays) == (2, 3)


def test_work_is_recorded_anew_where_what_it_depends_on_has_changed() -> None:
    work = Work()
    for _ in range(3):
        work()
    work.key["number"] = 10
    assert [float(work()) for _ in range(3)] == [13, 23, 33]
    assert (work.calls, work.work.replays) == (4, 2)


def test_what_work_depends_on_is_looked_at_where_its_version_has_changed() -> None:
    work = Work()
    looked: list[int] = []
    for version in (1, 1, 1, 2, 2, 3):
        work.version = version
        before, key = len(looked), dict(work.key)
        work.work(
            work._add,
            version=version,
            key=lambda key=key: looked.append(1) or key,  # type: ignore[misc]
            snapshots=lambda: [Snapshot.of_tensors([work.total])],
        )
        if work.work.replays > 1:
            assert len(looked) - before == (version != 2 or work.work.replays == 2)
    work.key["number"] = 10
    work.version = 4
    assert [float(work()) for _ in range(3)] == [16, 26, 36]


def test_work_that_waits_is_never_recorded(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.waits = (1, 2, 3)
    assert [float(work()) for _ in range(3)] == [1, 2, 3]
    assert work.work.refused == "_local_scalar_dense would wait for the device"
    assert [record.getMessage() for record in caplog.records] == [
        "No graph of the work, which continues eagerly: "
        "_local_scalar_dense would wait for the device"
    ]


def test_work_that_fails_while_it_is_recorded_is_taken_back_and_done_eagerly() -> None:
    work = Work()
    work.waits = (2,)
    assert [float(work()) for _ in range(4)] == [1, 2, 3, 4]
    assert work.work.has_failed
    assert "CaptureError: _local_scalar_dense" in work.work.refused
    assert work.calls == 5


class Unequal:
    """Cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("no")

    __hash__ = None  # type: ignore[assignment]


UNEQUAL = [Unequal(), np.arange(3), torch.arange(3)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: np.float32("nan"),
        lambda: UNEQUAL[0],
        lambda: UNEQUAL[1],
        lambda: UNEQUAL[2],
    ],
    ids=["NaN", "NumPy's NaN", "unequal", "array", "tensor"],
)
def test_constants_that_are_not_equal_to_themselves_are_constants(make: Any) -> None:
    work = Work()
    for _ in range(3):
        work.key["constant"] = make()
        work()
    assert (work.work.refused, work.work.replays) == (None, 1)


def test_what_changes_before_every_call_is_not_recorded_for_ever() -> None:
    work = Work()
    for i in range(8):
        work.key["number"] = i
        work()
    assert work.work.refused == "number changed before every one of some calls"
    assert float(work.total) == sum(range(8))


# The update.


@pytest.mark.slow
@on_every_device
@pytest.mark.parametrize("env_cls", DUMMIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        MINIBATCHES,
        {"lr_schedule": [(0, 2**-7), (2048, 2**-12)], "lr_schedule_kind": "interp"},
        {"entropy_coeff_schedule": [(0, 0.1), (800, 0.0)], "entropy_coeff_schedule_kind": "interp"},
        {**MINIBATCHES, "target_kl_div": 1e-4, "shuffle_minibatches": False},
        {**MINIBATCHES, "target_kl_div": 3e-3, "lr_schedule_kind": "adaptive"},
    ],
    ids=["whole", "shuffled", "lr", "entropy", "stopped", "adaptive"],
)
def test_twenty_updates_of_which_most_are_replayed_are_eager_ones(
    env_cls: Any, options: dict[str, Any], device: str, graph_cls: Any
) -> None:
    graphed = check_replayed_is_eager(env_cls, device, graph_cls, iterations=20, **options)
    assert graphed.recorder.update.replays == 18
    assert graphed.recorder.estimates.replays == 18
    assert graphed.recorder.collection.replays == 18


@on_every_device
@pytest.mark.parametrize("env_cls", DUMMIES)
@pytest.mark.parametrize(
    "options",
    [
        {**MINIBATCHES, "shuffle_minibatches": False},
        {**MINIBATCHES, "accumulate_grads": True},
        {"objective": "a2c"},
        {"normalize_rewards": "running", "normalize_observations": True},
        {"optimizer_cls": torch.optim.AdamW},
        {"optimizer_cls": torch.optim.SGD, "optimizer_config": {"lr": 2**-7, "momentum": 0.9}},
        {"optimizer_config": {"lr_pi": 2**-10, "lr_v": 2**-7}},
    ],
    ids=["in order", "accumulated", "a2c", "normalized", "adamw", "sgd", "two rates"],
)
def test_replayed_updates_are_eager_ones(
    env_cls: Any, options: dict[str, Any], device: str, graph_cls: Any
) -> None:
    graphed = check_replayed_is_eager(env_cls, device, graph_cls, iterations=5, **options)
    assert graphed.recorder.update.replays == 3


@on_every_device
@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_replayed_updates_learn_from_mirrored_rows_and_from_a_teacher(
    config: Any, device: str, graph_cls: Any
) -> None:
    """Labels and mirrored states change with every rollout, in memory that stays where it is."""
    teacher = build(ContinuousDummyEnv, device, None, config, seed=7).policy
    symmetry = {"observation": [-1], "action": [-1], "mirror_coeff": 0.5}
    for objective in ("ppo", Distillation(teacher)):
        options = {**MINIBATCHES, "symmetry": symmetry, "objective": objective}
        if config is RecurrentAlgorithmConfig:
            options |= {"seq_len": 2, "sgd_minibatch_size": 16}
        graphed = check_replayed_is_eager(
            ContinuousDummyEnv, device, graph_cls, config=config, iterations=5, **options
        )
        assert graphed.recorder.update.replays == 3


@pytest.mark.slow
@on_every_device
@pytest.mark.parametrize(
    "options",
    [
        {"sgd_minibatch_size": 16},
        {"sgd_minibatch_size": 16, "shuffle_minibatches": False},
        {"sgd_minibatch_size": 32, "accumulate_grads": True},
        {"target_kl_div": 1e-4},
        {"sgd_minibatch_size": 32, "target_kl_div": 3e-3, "lr_schedule_kind": "adaptive"},
    ],
    ids=["shuffled", "in order", "accumulated", "stopped", "adaptive"],
)
def test_long_updates_replay_a_graph_for_each_optimizer_step(
    options: dict[str, Any], device: str, graph_cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_STEPS", 3)
    options = {"num_sgd_iters": 4, **options}
    graphed = check_replayed_is_eager(Walk, device, graph_cls, **options)
    per_epoch = 1 if "accumulate_grads" in options else graphed.hparams.num_minibatches
    assert graphed.recorder.update.replays == 6 * 4 * per_epoch - 2


class Overwriting(Tape):
    """A tape whose results are lost when another one of its pool is replayed."""

    results: Any = ()

    @classmethod
    def shared_pool(cls) -> Any:
        return []

    def capture(self, function: Any) -> Any:
        self.pool.append(self)
        self.results = super().capture(function)
        return self.results

    def replay(self) -> None:
        for other in self.pool:
            if other is not self:
                tensors = [x for x in tree_leaves(other.results) if isinstance(x, torch.Tensor)]
                for x in tensors:
                    x.fill_(float("nan") if x.is_floating_point() else 0)
        super().replay()


@pytest.mark.parametrize("max_steps", [3, 32])
@pytest.mark.parametrize("options", [{}, {"normalize_rewards": "running"}])
def test_results_are_read_before_another_graph_writes_into_the_memory_that_they_share(
    options: dict[str, Any], max_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_STEPS", max_steps)
    graphed = check_replayed_is_eager(Walk, "cpu", Overwriting, **MINIBATCHES, **options)
    assert replays(graphed) > 2


def replays(algorithm: Any) -> int:
    """How often its rollouts, estimates and updates were replayed, at least."""
    recorder = algorithm.recorder
    return min(x.replays for x in (recorder.collection, recorder.estimates, recorder.update))


def test_updates_have_stopped_early_and_learning_rates_adapted() -> None:
    """So that the comparisons above are of something."""
    options = {**MINIBATCHES, "shuffle_minibatches": False, "target_kl_div": 1e-4}
    stopping = build(DiscreteDummyEnv, "cpu", Tape, AlgorithmConfig, **options)
    skipped: list[float] = []
    for _ in range(6):
        stopping.collect()
        stopping.step()
        skipped.append(4 - stopping.meter.read({"skipped": stopping.updater.skipped})["steps"])
    assert max(skipped) > 0
    options = {**MINIBATCHES, "target_kl_div": 3e-3, "lr_schedule_kind": "adaptive"}
    rates = train(build(DiscreteDummyEnv, "cpu", Tape, AlgorithmConfig, **options))
    assert len({stats["coefficients/lr"] for stats in rates}) > 1


@on_every_device
def test_a_replayed_update_skips_what_is_not_finite(device: str, graph_cls: Any) -> None:
    algorithm = build(DiscreteDummyEnv, device, graph_cls, AlgorithmConfig)
    train(algorithm, 3)
    algorithm.collect()
    algorithm.rollout.values[0, 0] = torch.nan
    before = [p.detach().clone() for p in algorithm.policy.model.parameters()]
    with pytest.raises(RuntimeError, match="finite"):
        algorithm.step()
    for p, weight in zip(algorithm.policy.model.parameters(), before, strict=True):
        assert torch.equal(p, weight)
    assert algorithm.recorder.update.replays == 2


@on_every_device
@pytest.mark.parametrize("env_cls", [DiscreteDummyEnv, Keeping])
def test_half_precision_is_recorded_with_its_casts(
    env_cls: Any, device: str, graph_cls: Any
) -> None:
    """A cast of weights that was kept from before would be of old weights."""
    torch.set_default_dtype(torch.float32)  # autocast leaves float64 alone
    eager, graphed = (
        build(env_cls, device, cls, AlgorithmConfig, enable_amp=True) for cls in (None, graph_cls)
    )
    before = torch.cat([p.detach().flatten() for p in eager.policy.model.parameters()])
    expected, found = train(eager), train(graphed)
    after = [
        torch.cat([p.detach().flatten() for p in algorithm.policy.model.parameters()])
        for algorithm in (eager, graphed)
    ]
    assert graphed.recorder.update.replays == 4
    tolerance = 1e-2 * (after[0] - before).norm()
    assert (after[0] - after[1]).norm() <= tolerance, (expected[-1], found[-1])


def test_add_ons_are_part_of_the_graph() -> None:
    def spread(minibatch: Any, distribution: Any, values: torch.Tensor) -> Any:
        square = (values.square() * minibatch.weight).sum()
        return 0.01 * square, {"square": square.detach()}

    spread.name = "spread"  # type: ignore[attr-defined]
    graphed = check_replayed_is_eager(Walk, "cpu", Tape, policy_loss_addons=[spread], **MINIBATCHES)
    assert graphed.recorder.update.replays == 4


# The collection.


@pytest.mark.slow
@on_every_device
@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize(
    ("env_cls", "options"),
    [
        (Walk, {}),
        (Losing, {}),
        (Losing, {"on_missing_final": "approximate"}),
        (Losing, {"on_missing_final": "terminate"}),
        (Walk, {"horizons_per_env_reset": 1}),
        (Walk, {"normalize_observations": True, "normalize_rewards": False}),
        (DiscreteDummyEnv, {"horizons_per_env_reset": -1}),
    ],
    ids=["episodes", "masked", "approximate", "terminate", "reset", "normalized", "endless"],
)
def test_replayed_rollouts_are_eager_ones(
    env_cls: Any, options: dict[str, Any], config: Any, device: str, graph_cls: Any
) -> None:
    graphed = check_replayed_is_eager(env_cls, device, graph_cls, config=config, **options)
    assert graphed.recorder.collection.replays == 4
    assert graphed.state.horizons == 6


@on_every_device
def test_windows_are_replayed(device: str, graph_cls: Any) -> None:
    graphed = check_replayed_is_eager(Walk, device, graph_cls, model_cls=Seeing, model_config={})
    assert graphed.policy.history == 2
    assert graphed.recorder.collection.replays == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_cls", "config", "env_step", "optimizer_step"),
    [
        (DiscreteDummyEnv, AlgorithmConfig, 23, 120),
        (ContinuousDummyEnv, AlgorithmConfig, 25, 137),
        (Walk, AlgorithmConfig, 46, 128),  # 3 an env step normalise observations
        (Walk, RecurrentAlgorithmConfig, 91, 359),  # 4 scale numbers of any size
    ],
)
def test_graphs_stay_small(env_cls: Any, config: Any, env_step: int, optimizer_step: int) -> None:
    """Operations are about what a CUDA graph has as nodes, and each takes a microsecond or two."""
    plain: Any = {"num_sgd_iters": 4, "sgd_minibatch_size": None}
    if config is RecurrentAlgorithmConfig:
        plain["seq_len"] = 4
    short, long = (
        build(env_cls, "cpu", Tape, config, horizon=horizon, **plain) for horizon in (8, 16)
    )
    for algorithm in (short, long):
        train(algorithm, 2)
    held = [len(algorithm.recorder.collection._graph.calls) for algorithm in (short, long)]
    assert (held[1] - held[0]) / 8 <= env_step
    assert len(long.recorder.update._graph.calls) / 4 <= optimizer_step
    assert len(long.recorder.estimates._graph.calls) <= 113


def test_recurrent_states_that_start_anew_are_counted_in_replays() -> None:
    options = {"seq_len": 4, "seqs_per_state_reset": 2, "horizons_per_env_reset": 3}
    graphed = check_replayed_is_eager(
        DiscreteDummyEnv, "cpu", Tape, config=RecurrentAlgorithmConfig, **options
    )
    assert graphed.recorder.collection.replays == 4
    assert graphed.state.seqs == 6 * 2


@pytest.mark.parametrize(("every", "rollouts"), [(3, 3), (4, 2), (6, 3)])
def test_sequences_that_reset_states_may_be_others_in_every_rollout(
    every: int, rollouts: int
) -> None:
    options = {"seq_len": 4, "seqs_per_state_reset": every, "horizons_per_env_reset": rollouts}
    graphed = check_replayed_is_eager(
        DiscreteDummyEnv, "cpu", Tape, config=RecurrentAlgorithmConfig, **options
    )
    assert graphed.recorder.collection.replays == 4


def test_minibatches_that_come_to_be_standardised_over_several_ranks_are_eager_from_then_on() -> (
    None
):
    algorithm = build(DiscreteDummyEnv, "cpu", Tape, AlgorithmConfig)
    algorithm.parts.reducer.size = 2
    train(algorithm, 3)
    assert algorithm.recorder.update.refused is None
    algorithm.update_algorithm_parameter("normalize_advantages", "minibatch")
    train(algorithm, 1)
    assert "standardised over all ranks" in algorithm.recorder.update.refused


@pytest.mark.parametrize("size", [1, 2])
def test_minibatches_that_are_standardised_over_several_ranks_are_not_recorded(size: int) -> None:
    options = {"normalize_advantages": "minibatch"}
    algorithm = build(DiscreteDummyEnv, "cpu", Tape, AlgorithmConfig, **options)
    algorithm.parts.reducer.size = size  # still a reducer that changes nothing
    train(algorithm, 4)
    refused = algorithm.recorder.update.refused
    expected = "each minibatch's advantages are standardised over all ranks"
    assert refused == (None if size == 1 else expected)
    assert (algorithm.recorder.update.replays > 0) is (size == 1)


@pytest.mark.parametrize(
    ("env_cls", "name"), [(Moving, "env.place"), (Counting, "env.steps")], ids=["moves", "counts"]
)
def test_an_environment_that_is_not_capturable_is_found_out(env_cls: Any, name: str) -> None:
    """And put back to where it was, so that nothing is lost."""
    graphed = check_replayed_is_eager(env_cls, "cpu", Tape)
    assert graphed.recorder.collection.refused == (
        f"CaptureError: it changes {name} other than in place"
    )
    assert graphed.recorder.update.replays > 0


@pytest.mark.slow
@on_every_device
def test_evaluations_in_between_are_eager_and_leave_no_trace(device: str, graph_cls: Any) -> None:
    def look(algorithm: Any, i: int) -> None:
        with algorithm.evaluating():
            algorithm.collect(deterministic=i % 2 == 0)

    for config in (AlgorithmConfig, RecurrentAlgorithmConfig):
        graphed = check_replayed_is_eager(Walk, device, graph_cls, config=config, change=look)
        assert graphed.recorder.collection.replays == 4


@on_every_device
@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_observations": True, "normalize_values": True},
        {"horizons_per_env_reset": 1},
    ],
    ids=["plain", "normalised", "reset"],
)
def test_what_acts_in_other_environments_is_replayed_without_a_word(
    options: Any, config: Any, device: str, graph_cls: Any, caplog: pytest.LogCaptureFixture
) -> None:
    graphed = check_replayed_is_eager(Keeping, device, graph_cls, config=config, **options)
    assert graphed.recorder.acting.replays == 6 * graphed.rollout.horizon - 2
    assert graphed.recorder.update.replays == 4
    assert not caplog.records


class KeepingNumbers(ContinuousDummyEnv):
    """Cannot be recorded."""

    capturable = False


@on_every_device
@pytest.mark.parametrize("env_cls", [ContinuousDummyEnv, KeepingNumbers])
def test_noise_of_several_vector_steps_is_drawn_eagerly_and_named(
    env_cls: Any, device: str, graph_cls: Any, caplog: pytest.LogCaptureFixture
) -> None:
    noise = {"hiddens": (16,), "use_sde": True, "sde_sample_freq": 3}
    graphed = check_replayed_is_eager(env_cls, device, graph_cls, model_config=noise)
    reason = "state-dependent exploration keeps its noise for several vector steps"
    assert graphed.recorder.acting.refused == reason
    warnings = [record.getMessage() for record in caplog.records]
    named = f"No graph of the acting, which continues eagerly: {reason}"
    assert warnings == ([] if env_cls is ContinuousDummyEnv else [named])


@on_every_device
def test_windows_of_other_environments_are_acted_on(device: str, graph_cls: Any) -> None:
    graphed = check_replayed_is_eager(Keeping, device, graph_cls, model_cls=Seeing, model_config={})
    assert graphed.policy.history == 2
    assert graphed.recorder.acting.replays == 6 * graphed.rollout.horizon - 2


@on_every_device
def test_what_acts_is_eager_in_evaluations(device: str, graph_cls: Any) -> None:
    def look(algorithm: Any, i: int) -> None:
        with algorithm.evaluating():
            algorithm.collect(deterministic=i % 2 == 0)

    for config in (AlgorithmConfig, RecurrentAlgorithmConfig):
        graphed = check_replayed_is_eager(Keeping, device, graph_cls, config=config, change=look)
        assert graphed.recorder.acting.replays == 6 * graphed.rollout.horizon - 2


# What is changed in between.


@on_every_device
def test_a_checkpoint_is_loaded_in_between(device: str, graph_cls: Any) -> None:
    import copy

    kept: dict[int, Any] = {}

    def save_and_load(algorithm: Any, i: int) -> None:
        if i == 3:
            kept[id(algorithm)] = copy.deepcopy(algorithm.state_dict())
        if i == 5:
            algorithm.load_state_dict(kept[id(algorithm)])

    options = {"iterations": 8, "lr_schedule": [(0, 1e-2), (800, 1e-4)], **MINIBATCHES}
    graphed = check_replayed_is_eager(Walk, device, graph_cls, change=save_and_load, **options)
    assert graphed.recorder.update.replays == 3 + 1


@on_every_device
def test_checkpoints_are_the_same_with_and_without_graphs(device: str, graph_cls: Any) -> None:
    eager = build(Walk, device, None, AlgorithmConfig)
    graphed = build(Walk, device, graph_cls, AlgorithmConfig)
    train(eager)
    train(graphed)
    states = [algorithm.state_dict()["optimizer"]["param_groups"] for algorithm in (eager, graphed)]
    assert [type(groups[0]["lr"]) for groups in states] == [float, float]
    eager.load_state_dict(graphed.state_dict())
    assert isinstance(train(eager, 1)[0]["coefficients/lr"], float)


@on_every_device
def test_weights_are_set_in_between(device: str, graph_cls: Any) -> None:
    def halve(algorithm: Any, i: int) -> None:
        if i == 4:
            halved = {name: x / 2 for name, x in algorithm.get_weights().items()}
            algorithm.set_weights(halved)

    graphed = check_replayed_is_eager(Walk, device, graph_cls, change=halve)
    assert graphed.recorder.update.replays == 4


@pytest.mark.slow
@on_every_device
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 1e-2),
        ("entropy_coeff", 0.05),
        ("clip_param", 0.05),
        ("gamma", 0.5),
        ("sgd_minibatch_size", 16),
        ("num_sgd_iters", 3),
        ("shuffle_minibatches", False),
        ("max_grad_norm", 0.1),
        ("on_missing_final", "terminate"),
    ],
)
def test_hyperparameters_are_changed_in_between(
    name: str, value: Any, device: str, graph_cls: Any
) -> None:
    def change(algorithm: Any, i: int) -> None:
        if i == 3:
            algorithm.update_algorithm_parameter(name, value)

    graphed = check_replayed_is_eager(
        Losing, device, graph_cls, change=change, iterations=7, **MINIBATCHES
    )
    assert graphed.recorder.update.replays > 2
    assert graphed.recorder.collection.replays > 2


#: Values of every hyperparameter that may change while training.
LIVE_VALUES: dict[str, list[Any]] = {
    "accumulate_grads": [True, False],
    "bounds_loss_coeff": [0.5, 0.0],
    "clip_param": [0.05, 0.3],
    "clip_param_schedule": [None, [(0, 0.2), (128, 0.05)], "linear"],
    "clip_param_schedule_kind": ["interp", "step"],
    "clip_rewards": [None, 0.1],
    "dual_clip_param": [None, 1.5],
    "entropy_coeff": [0.0, 0.05],
    "entropy_coeff_schedule": [None, [(0, 0.0), (128, 0.1)]],
    "entropy_coeff_schedule_kind": ["interp", "step"],
    "gae_lambda": [0.0, 0.5, 1.0],
    "gamma": [0.5, 1.0],
    "lr_schedule": [None, [(0, 1e-3), (192, 1e-2)], "linear"],
    "lr_schedule_kind": ["interp", "step", "adaptive"],
    "max_grad_norm": [None, 0.01],
    "normalize_advantages": [True, False, "minibatch"],
    "num_sgd_iters": [1, 2, [(0, 3), (128, 1)]],
    "num_test_episodes": [1, 2],
    "on_missing_final": ["mask", "approximate", "terminate"],
    "recompute_advantages": [True, False],
    "reward_scale": [1.0, 3.0],
    "sgd_minibatch_size": [16, 32, None],
    "shuffle_minibatches": [True, False],
    "target_kl_div": [None, 1e-4, 0.1],
    "test_every": [None, 2],
    "vf_clip_param": [None, 0.01],
    "vf_coeff": [0.1, 2.0],
    "vf_loss": ["mse", "smooth_l1"],
}


class Drawn:
    """Changes two hyperparameters before every fourth train step; those that rules forbid stay."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def __call__(self, algorithm: Any, i: int) -> None:
        for name in self.random.sample(sorted(LIVE_VALUES), 2) if i % 4 == 3 else ():
            with contextlib.suppress(ConfigError):
                algorithm.update_algorithm_parameter(name, self.random.choice(LIVE_VALUES[name]))


@pytest.mark.parametrize("seed", range(6))
def test_drawn_changes_of_hyperparameters_are_those_of_eager_training(seed: int) -> None:
    assert LIVE_VALUES.keys() == LIVE
    options: dict[str, Any] = {"num_envs": 4, "cuda_graphs": False, "normalize_observations": True}
    algorithms = [
        build(ContinuousDummyEnv, "cpu", cls, AlgorithmConfig, **options) for cls in (None, Tape)
    ]
    eager, found = (train(x, 24, change=Drawn(seed)) for x in algorithms)
    for one, other in zip(eager, found, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)
    assert replays(algorithms[1]) > 5


@pytest.mark.parametrize("values", [(0.5, 0.0, 0.5), (0.0, 0.5, 0.0)])
@pytest.mark.parametrize("max_steps", [3, 32])
def test_a_term_of_the_loss_comes_and_goes(
    values: tuple[float, ...], max_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_STEPS", max_steps)

    def change(algorithm: Any, i: int) -> None:
        if i % 3 == 2:
            algorithm.update_algorithm_parameter("bounds_loss_coeff", values[i // 3])

    check_replayed_is_eager(
        ContinuousDummyEnv, "cpu", Tape, change=change, iterations=9, **MINIBATCHES
    )


@on_every_device
def test_a_learning_rate_that_somebody_writes_into_the_optimizer_is_followed(
    device: str, graph_cls: Any
) -> None:
    def write(algorithm: Any, i: int) -> None:
        if i == 3:
            algorithm.optimizer.param_groups[0]["lr"] = 1e-2

    graphed = check_replayed_is_eager(Walk, device, graph_cls, change=write)
    assert graphed.recorder.update.replays == 4  # filled where the graph reads it


@on_every_device
def test_the_environment_is_configured_in_between(device: str, graph_cls: Any) -> None:
    eager, graphed = (build(Walk, device, cls, AlgorithmConfig) for cls in (None, graph_cls))
    for algorithm in (eager, graphed):
        train(algorithm, 3)
        algorithm.states = None  # so that it is reset
        algorithm.collect(env_config={"noise": 2.0})
        algorithm.step()
        train(algorithm, 3)
    torch.testing.assert_close(graphed.rollout.rewards, eager.rollout.rewards)
    assert graphed.recorder.collection.replays == 1 + 2


@on_every_device
def test_frozen_weights_are_a_change(device: str, graph_cls: Any) -> None:
    def freeze(algorithm: Any, i: int) -> None:
        if i == 3:
            algorithm.policy.model.policy[-1].weight.requires_grad_(False)

    check_replayed_is_eager(Walk, device, graph_cls, change=freeze)


@on_every_device
def test_addresses_stay_what_they_are(device: str, graph_cls: Any) -> None:
    algorithm = build(Walk, device, graph_cls, AlgorithmConfig, lr_schedule=[(0, 1e-2), (250, 0)])
    train(algorithm, 2)

    def addresses() -> list[int]:
        tensors = [*algorithm.policy.model.parameters(), *algorithm.buffer.values()]
        tensors += [p.grad for p in algorithm.policy.model.parameters()]
        for state in algorithm.optimizer.state.values():
            tensors += state.values()
        tensors += [algorithm.optimizer.param_groups[0]["lr"], algorithm.env.place]
        return [x.data_ptr() for x in tensors]

    before = addresses()
    train(algorithm, 4)
    assert addresses() == before
    assert float(algorithm.optimizer.param_groups[0]["lr"]) == 0.0


# What cannot be recorded.


@on_every_device
def test_a_model_that_waits_is_trained_eagerly(
    device: str, graph_cls: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    graphed = check_replayed_is_eager(Walk, device, graph_cls, model_cls=Looking, model_config={})
    reason = "_local_scalar_dense would wait for the device"
    assert graphed.recorder.collection.refused == graphed.recorder.update.refused == reason
    assert [record.getMessage() for record in caplog.records] == [
        f"No graph of the {work}, which continues eagerly: {reason}"
        for work in ("collection", "update", "acting")
    ]


@on_every_device
def test_a_capture_that_fails_leaves_weights_moments_and_random_numbers_untouched(
    device: str, graph_cls: Any
) -> None:
    graphed = check_replayed_is_eager(Walk, device, graph_cls, model_cls=Late, model_config={})
    assert graphed.recorder.update.refused is not None
    assert graphed.recorder.collection.replays > 0


@pytest.mark.parametrize(
    ("options", "what", "reason"),
    [
        ({"optimizer_cls": torch.optim.RMSprop}, "update", "without `fused`"),
        ({"optimizer_config": {"lr": 1e-3, "foreach": True}}, "update", "without `fused`"),
        ({"enable_amp": True, "amp_dtype": "float16"}, "update", "gradient scaling"),
        ({"bonuses": [{"rnd": {"pre_normalization_steps": 0}}]}, "update", "`bonuses`"),
        ({"bonuses": [{"rnd": {"pre_normalization_steps": 0}}]}, "collection", "`bonuses`"),
    ],
    ids=["rmsprop", "foreach", "float16", "bonus", "bonus' rewards"],
)
def test_what_is_known_to_be_impossible_is_not_tried(
    options: dict[str, Any], what: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = build(Walk, "cpu", Tape, AlgorithmConfig, **options)
    train(algorithm, 3)
    assert reason in getattr(algorithm.recorder, what).refused
    assert reason in caplog.text


def test_a_long_rollout_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_HORIZON", 7)
    graphed = check_replayed_is_eager(Walk, "cpu", Tape)
    assert "`horizon` is 8" in graphed.recorder.collection.refused


# Configuration.


def test_graphs_are_for_cuda() -> None:
    assert AlgorithmConfig(device="cpu").build(DiscreteDummyEnv).hparams.cuda_graphs is False
    with pytest.raises(ConfigError, match="`cuda_graphs` True needs a CUDA device"):
        AlgorithmConfig(device="cpu", cuda_graphs=True).validate()
    with pytest.raises(ConfigError, match="cuda_graphs"):
        AlgorithmConfig(cuda_graphs="yes").validate()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="`cuda_graphs` True needs a CUDA device"):
        AlgorithmConfig(cuda_graphs=True, num_envs=2).build(DiscreteDummyEnv(2, device="cpu"))


@pytest.mark.gpu
def test_graphs_are_what_cuda_has() -> None:
    algorithm = AlgorithmConfig(num_envs=64, horizon=16, device="cuda").build(DiscreteDummyEnv)
    assert algorithm.hparams.cuda_graphs is True
    train(algorithm)
    assert algorithm.recorder.update.replays == algorithm.recorder.collection.replays == 4


def test_matrices_are_multiplied_as_the_config_says() -> None:
    """Those of the model; the environment runs in the settings of its caller."""
    seen: list[str] = []
    env_saw: list[str] = []

    class Noticing(Walk):
        """Notices how matrices are multiplied."""

        def step(self, action: Any) -> Any:
            env_saw.append(torch.get_float32_matmul_precision())
            return super().step(action)

    before = torch.get_float32_matmul_precision()
    algorithm = build(Noticing, "cpu", None, AlgorithmConfig, matmul_precision="medium")
    algorithm.policy.model.register_forward_hook(
        lambda *_: seen.append(torch.get_float32_matmul_precision())
    )
    algorithm.collect()
    algorithm.step()
    assert set(seen) == {"medium"}
    assert set(env_saw) == {before}
    assert torch.get_float32_matmul_precision() == before == "highest"
    with pytest.raises(ConfigError, match="matmul_precision"):
        AlgorithmConfig(matmul_precision="low").validate()  # type: ignore[arg-type]
