"""Several processes compute what one process computes."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torchrl.data import Categorical, Unbounded

from everstep import AlgorithmConfig, Env, RecurrentAlgorithmConfig
from everstep.algorithms.resolve import resolve_update
from everstep.bonuses import _rnd
from everstep.core.ranks import Reducer, current_reducer
from everstep.core.ranks._collectives import _DIRECT_BYTES, Collectives
from everstep.core.ranks._group import CHECK_EVERY, GroupReducer
from everstep.errors import ConfigError, NonFiniteError
from everstep.models import Model
from everstep.views import ViewRequirement
from tests.ranks import run_ranks

NUM_ENVS, HORIZON = 8, 8


class Walks(Env):
    """Walks whose steps and ends depend on the number of the row among all processes.

    A row after an end is not valid: the environment resets in it, as Gymnasium's next-step mode.
    """

    episode_keys = frozenset({"terminated", "truncated", "first", "valid"})

    def __init__(self, num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3, dtype=torch.float64)
        self.action_spec = Categorical(2, shape=[1])
        start = current_reducer().rank * num_envs
        self.row = torch.arange(start, start + num_envs, dtype=torch.float64).view(-1, 1)

    def reset(self, *, config: Any = None) -> torch.Tensor:
        self.t = torch.zeros(self.num_envs, 1, dtype=torch.float64)
        self.ended = torch.zeros(self.num_envs, 1, dtype=torch.bool)
        return self._obs()

    def step(self, action: Any) -> TensorDict:
        resets = self.ended
        self.t = torch.where(resets, 0.0, self.t + 1)
        limit = 2 + self.row.remainder(5)
        terminated = (self.t >= limit) & (self.row.remainder(2) == 0) & ~resets
        truncated = (self.t >= limit) & (self.row.remainder(2) == 1) & ~resets
        self.ended = terminated | truncated
        rewards = (self.row + 1).sin() + self.t * 0.1 + action.double() * 0.3
        return TensorDict(
            {
                "obs": self._obs(),
                "rewards": torch.where(resets, 0.0, rewards),
                "terminated": terminated,
                "truncated": truncated,
                "first": resets,
                "valid": ~resets,
            },
            batch_size=self.num_envs,
        )

    def _obs(self) -> torch.Tensor:
        return torch.cat([self.t, (self.row + self.t).cos(), self.row * 0.1], -1)


class Windowed(Model):
    """Sees the mean of the last three observations."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.view_requirements["obs"] = ViewRequirement(shift=2)
        self.policy, self.value = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)

    def forward(self, batch: Any, /) -> Any:
        self.seen = batch["obs", "inputs"].mean(1)
        return {"logits": self.policy(self.seen).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        values: torch.Tensor = self.value(self.seen)
        return values


#: Options of the algorithms that are compared.
CASES: dict[str, dict[str, Any]] = {
    "feedforward": {},
    "minibatches": {"sgd_minibatch_size": 2 * NUM_ENVS, "shuffle_minibatches": False},
    "accumulation": {
        "sgd_minibatch_size": 2 * NUM_ENVS,
        "shuffle_minibatches": False,
        "accumulate_grads": True,
    },
    "minibatches standardised": {
        "sgd_minibatch_size": 2 * NUM_ENVS,
        "shuffle_minibatches": False,
        "normalize_advantages": "minibatch",
    },
    "accumulation of minibatches standardised": {
        "sgd_minibatch_size": 2 * NUM_ENVS,
        "shuffle_minibatches": False,
        "normalize_advantages": "minibatch",
        "accumulate_grads": True,
    },
    "general": {"model_config": {"activation_fn": "gelu"}},
    "everything normalised": {"normalize_rewards": "running", "normalize_observations": True},
    "rewards of a rollout": {"normalize_rewards": True, "normalize_advantages": False},
    "a2c": {"objective": "a2c"},
    "rnd": {"bonuses": [{"rnd": {}}], "normalize_observations": True},
    "adaptive rate": {"lr_schedule_kind": "adaptive", "target_kl_div": 0.01},
    "early stop": {"target_kl_div": 1e-4},
    "lstm": {"recurrent": True},
    "lstm, minibatches standardised": {
        "recurrent": True,
        "seq_len": 4,
        "normalize_advantages": "minibatch",
        "sgd_minibatch_size": NUM_ENVS,
        "shuffle_minibatches": False,
    },
    "recomputed": {"recompute_advantages": True},
    "recomputed, not standardised": {
        "recompute_advantages": True,
        "normalize_advantages": False,
    },
    "recomputed, minibatches standardised": {
        "recompute_advantages": True,
        "sgd_minibatch_size": 2 * NUM_ENVS,
        "shuffle_minibatches": False,
        "normalize_advantages": "minibatch",
    },
    "windows": {"model_cls": Windowed},
    "normalised values": {"normalize_values": True},
}


def counts(reducer: Reducer) -> tuple[int, int]:
    """Collectives so far, and their bytes."""
    if isinstance(reducer, GroupReducer):
        return reducer.collectives.count, reducer.collectives.bytes
    return 0, 0


def trained(options: dict[str, Any]) -> dict[str, Any]:
    """Parameters, statistics and collectives of three updates with deterministic actions."""
    torch.set_default_dtype(torch.float64)
    options = dict(options)
    config_cls: Any = RecurrentAlgorithmConfig if options.pop("recurrent", 0) else AlgorithmConfig
    config = config_cls(
        **{
            "num_envs": NUM_ENVS,
            "horizon": HORIZON,
            "seed": 3,
            "device": "cpu",
            "sgd_minibatch_size": None,
            "num_sgd_iters": 3,
            "lr": 1e-2,
            **options,
        }
    )
    algorithm = config.build(Walks)
    reducer = algorithm.parts.reducer
    for _ in range(3):
        before = counts(reducer)
        collected = algorithm.collect(deterministic=True)
        stats = algorithm.step()
        collectives, sent = (x - y for x, y in zip(counts(reducer), before, strict=True))
    parameters = [*algorithm.policy.model.parameters()]
    parameters += [p for bonus in algorithm.bonuses for p in bonus.parameters()]
    return {
        "parameters": torch.cat([p.detach().flatten() for p in parameters]),
        "stats": {**collected, **stats},
        "collectives": collectives,
        "bytes": sent,
        "weights": sum(len(flat) for flat in algorithm.parts.updater.flats),
        "env_steps": algorithm.state.env_steps,
    }


def trained_in_all_cases() -> dict[str, Any]:
    _rnd.CHUNK = 16  # observations are counted in several pieces
    return {name: trained(options) for name, options in CASES.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Results of each rank, of 1 and 2."""
    directory = tmp_path_factory.mktemp("ranks")
    return {size: run_ranks(size, trained_in_all_cases, directory / str(size)) for size in (1, 2)}


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Results of each rank of 4."""
    return run_ranks(4, trained_in_all_cases, tmp_path_factory.mktemp("ranks"))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_two_processes_compute_what_one_computes(results: dict[int, Any], case: str) -> None:
    """Rows that are not valid and episodes are not equally many on the ranks."""
    compare(results[1][0], results[2], case)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_four_processes_compute_what_one_computes(
    results: dict[int, Any], of_four: list[Any], case: str
) -> None:
    compare(results[1][0], of_four, case)


def compare(one: dict[str, Any], ranks: list[Any], case: str) -> None:
    for rank in ranks:
        error = (rank[case]["parameters"] - one[case]["parameters"]).abs().max()
        assert float(error) <= 1e-12
        assert rank[case]["env_steps"] == one[case]["env_steps"]
        for key, value in one[case]["stats"].items():
            if key.split("/")[0] in ("losses", "monitors", "coefficients") or key == "env/steps":
                assert rank[case]["stats"][key] == pytest.approx(value, rel=1e-9, abs=1e-12), key


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_parameters_of_all_ranks_are_equal(results: dict[int, Any], case: str) -> None:
    first, second = (rank[case]["parameters"] for rank in results[2])
    assert torch.equal(first, second)


def minibatches_of(case: str) -> int:
    """Optimizer steps of an epoch."""
    options = CASES[case]
    if options.get("accumulate_grads") or "sgd_minibatch_size" not in options:
        return 1
    sequences = NUM_ENVS * HORIZON // options.get("seq_len", 1)
    return int(sequences // options["sgd_minibatch_size"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_collectives_are_few(results: dict[int, Any], case: str) -> None:
    """One an optimizer step, and at most seven an update beside it: two say which call begins.

    Advantages that are computed again are standardised in one more each time.
    """
    minibatches = minibatches_of(case)
    again = 2 if "recompute_advantages" in CASES[case] else 0
    for rank in results[2]:
        steps = 1 if case == "early stop" else 3 * minibatches
        assert steps <= rank[case]["collectives"] <= steps + 7 + again


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_gradients_and_a_few_numbers(results: dict[int, Any], case: str) -> None:
    """A float64 a weight and a term of the loss, each optimizer step; statistics of 8 KiB."""
    minibatches = minibatches_of(case)
    for rank in results[2]:
        least, most = (1 if case == "early stop" else 3 * minibatches), 3 * minibatches
        step = 8 * rank[case]["weights"]
        assert least * step < rank[case]["bytes"] <= most * (step + 8 * 16) + 8200 + 2048


def diverged() -> dict[str, str]:
    """The error of a rank whose weights were changed."""
    config = AlgorithmConfig(num_envs=NUM_ENVS, horizon=HORIZON, seed=3, device="cpu")
    algorithm = config.build(Walks)
    algorithm.collect()
    algorithm.step()
    if current_reducer().rank == 1:
        with torch.no_grad():
            next(algorithm.policy.model.parameters()).view(-1)[0].add_(1e-7)
    algorithm.collect()  # compared after every second rollout
    return {}


@pytest.mark.long
def test_models_that_differ_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECK_EVERY, "2")
    with pytest.raises(AssertionError, match="rank 1 is not that of rank 0 after 2 rollouts"):
        run_ranks(2, diverged, tmp_path)
    monkeypatch.setenv(CHECK_EVERY, "often")
    with pytest.raises(AssertionError, match="must be a number of rollouts; got 'often'"):
        run_ranks(2, diverged, tmp_path / "other")


class Extreme(Walks):
    """Returns extreme numbers where it is not rank 0."""

    #: What observations and rewards are multiplied by.
    factors = (1.0, 1.0)

    def __init__(self, num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec = Unbounded(3, dtype=torch.float32)

    def _obs(self) -> torch.Tensor:
        factor = self.factors[0] if current_reducer().rank else 1.0
        return super()._obs().sign().float() * factor

    def step(self, action: Any) -> TensorDict:
        outcome = super().step(action)
        factor = self.factors[1] if current_reducer().rank else 1.0
        return outcome.set("rewards", outcome["rewards"].float().sign() * factor)


class Signs(Model):
    """Sees the signs of observations."""

    def __init__(self, observation_spec: Any, action_spec: Any, /) -> None:
        super().__init__(observation_spec, action_spec)
        self.policy, self.value = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)

    def forward(self, batch: Any, /) -> Any:
        self.seen = batch["obs"].sign()
        return {"logits": self.policy(self.seen).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self.value(self.seen)


#: Factors of observations and rewards, and whether all are finite.
EXTREMES = {
    "observations whose sum is not": ((3e38, 1.0), True),
    "rewards whose sum is not": ((1.0, 3e38), True),
    "an infinite observation": ((math.inf, 1.0), False),
    "NaN as reward": ((1.0, math.nan), False),
}


def collected_extremes() -> dict[str, str]:
    """The error of a rollout, and how many collectives there were until then."""
    found = {}
    for case, (factors, _) in EXTREMES.items():
        env = Extreme(NUM_ENVS // current_reducer().size, HORIZON)
        env.factors = factors
        options: dict[str, Any] = {"normalize_rewards": False, "model_cls": Signs, "seed": 0}
        algorithm = AlgorithmConfig(horizon=HORIZON, device="cpu", **options).build(env)
        try:
            algorithm.collect()
            found[case] = ""
        except NonFiniteError as error:
            found[case] = str(error)
    return found


@pytest.mark.slow
def test_all_ranks_refuse_numbers_that_are_not_finite_and_none_those_that_are(
    tmp_path: Path,
) -> None:
    first, second = run_ranks(2, collected_extremes, tmp_path)
    for case, (_, is_finite) in EXTREMES.items():
        if is_finite:
            assert (first[case], second[case]) == ("", ""), case
        else:
            assert first[case].startswith("The environments of rank 1 returned NaN"), case
            assert "is not finite at" in second[case], case


def objects_of_ranks() -> list[Any]:
    """Objects that the first rank gets of all ranks, and each rank of the first."""
    reducer = GroupReducer()
    own = {"key": torch.full((2,), reducer.rank, dtype=torch.uint32), "rank": reducer.rank}
    gathered = reducer.gather("objects", own)
    first = reducer.from_first("objects", lambda: own)
    keys = [x["key"].tolist() for x in (*gathered, first)]
    return [keys, first["key"].dtype, first["rank"]]


@pytest.mark.slow
def test_objects_with_tensors_of_any_dtype_are_exchanged(tmp_path: Path) -> None:
    """States of JAX's environments have keys of uint32."""
    first, second = run_ranks(2, objects_of_ranks, tmp_path)
    assert first == [[[0, 0], [1, 1], [0, 0]], torch.uint32, 0]
    assert second == [[[0, 0]], torch.uint32, 0]


def sums_of_every_size() -> list[list[float]]:
    """First and last number of sums of few and of many bytes, of ranks that hold 1, 2, …"""
    collectives = Collectives()
    found = []
    for elements in (1, 1000, 2**17):
        total = collectives.sum(torch.full((elements,), dist.get_rank() + 1.0))
        found.append([float(total[0]), float(total[-1]), len(total)])
    return found


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_tensors_of_every_size_are_summed(tmp_path: Path, size: int) -> None:
    """Small ones are sent to every rank at once, large ones of more than two ranks in a ring."""
    total = float(sum(range(1, size + 1)))
    assert 4 * 2**17 > _DIRECT_BYTES > 4000
    expected = [[total, total, elements] for elements in (1, 1000, 2**17)]
    assert run_ranks(size, sums_of_every_size, tmp_path) == size * [expected]


def asks_for_ends(*cores: list[int]) -> bool:
    """Whether a rank that may use the cores of its number asks whether collectives have ended."""
    os.sched_setaffinity(0, cores[dist.get_rank()])
    collectives = Collectives()
    collectives.choose_waiting()
    return collectives.polling > 0


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_ranks_that_share_a_core_do_not_poll(tmp_path: Path) -> None:
    one, *others = sorted(os.sched_getaffinity(0))
    assert run_ranks(2, asks_for_ends, tmp_path / "shared", [one], [one]) == [False, False]
    if not others:
        pytest.skip("there is one core")
    assert run_ranks(2, asks_for_ends, tmp_path / "own", [one], others[:1]) == [True, True]


def schedulers_of_threads() -> dict[str, list[int]]:
    """Scheduling policies of this process's threads, by name."""
    Collectives().sum(torch.ones(1))
    found: dict[str, set[int]] = {}
    for thread in Path("/proc/self/task").iterdir():
        name = (thread / "comm").read_text().strip()
        found.setdefault(name, set()).add(os.sched_getscheduler(int(thread.name)))
    return {name: sorted(policies) for name, policies in found.items()}


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has this policy")
@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch 2.9 does not name gloo's threads")
def test_threads_of_gloo_do_not_interrupt_others(tmp_path: Path) -> None:
    for found in run_ranks(2, schedulers_of_threads, tmp_path):
        gloo = {name: policies for name, policies in found.items() if "gloo" in name}
        assert gloo.keys() >= {"gloo_tcp_loop", "pt_gloo_runloop"}, found
        assert set(map(tuple, gloo.values())) == {(os.SCHED_BATCH,)}
        assert [os.SCHED_OTHER] in [found[name] for name in found.keys() - gloo.keys()]


def test_one_process_is_a_reducer_that_changes_nothing() -> None:
    assert type(current_reducer()) is Reducer
    assert not dist.is_initialized()
    assert Reducer().share("num_envs", 7) == 7
    assert Reducer().agree("train", True, False) == (True, False)


def test_sizes_that_do_not_divide_are_refused() -> None:
    reducer = Reducer()
    reducer.size = 4
    assert reducer.share("num_envs", 8) == 2
    with pytest.raises(ConfigError, match=r"`num_envs`.*\(4\); got 10. Try 8 or 12"):
        reducer.share("num_envs", 10)


def test_minibatches_of_default_size_have_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 of 192 transitions are the default, which three processes cannot share."""
    config = AlgorithmConfig(num_envs=6, horizon=32, sgd_minibatch_size="auto", device="cpu")
    one = resolve_update(config, Walks(6), sequences=192).sgd_minibatch_size
    reducer = Reducer()
    reducer.size = 3
    monkeypatch.setattr("everstep.algorithms.resolve.current_reducer", lambda: reducer)
    three = resolve_update(config, Walks(6), sequences=192).sgd_minibatch_size
    assert (one, three) == (64, 96)


# ---- the reductions themselves -----------------------------------------------------------------

#: Rows of each rank, the largest numbers of two kinds, and a gradient with its number of rows.
ROWS = ([1.0, 2.0, 6.0], [10.0])
LARGEST = ([3.0, 50.0], [40.0, 5.0])
GRADIENTS = ((2.0, 3), (6.0, 1))
STATISTICS: Any = (
    {"returns/min": 1.0, "returns/max": 5.0, "returns/mean": 2.0, "returns/std": 3.0}
    | {"env/steps": 30, "episodes/count": 3, "episodes/return_mean": 1.0, "env/speed": 2.0}
    | {"episodes/return_std": 2.0, "episodes/return_max": 9.0, "episodes/return_min": -1.0},
    {"returns/min": -2.0, "returns/max": 4.0, "returns/mean": 4.0, "returns/std": 4.0}
    | {"env/steps": 10, "episodes/count": 1, "episodes/return_mean": 5.0, "env/speed": 4.0}
    | {"episodes/return_std": 4.0, "episodes/return_max": 7.0, "episodes/return_min": 0.0},
)


def reductions() -> dict[str, Any]:
    """Results of every reduction over numbers that differ between the ranks."""
    reducer: Any = current_reducer()
    rank = reducer.rank
    rows, largest = torch.tensor(ROWS[rank]), torch.tensor(LARGEST[rank])
    moments = torch.tensor(float(len(rows))), rows.mean(), (rows - rows.mean()).square().sum()
    nothing = torch.zeros(()), torch.zeros(()), torch.zeros(())
    (merged, empty), (most,) = reducer.moments([moments, nothing], [largest])
    gradient, count = GRADIENTS[rank]
    found = {}
    for name, weight in (("some", torch.ones(count)), ("none", torch.zeros(count))):
        flat, terms = torch.tensor([gradient]), {"vf": torch.tensor(gradient * 10)}
        joined = reducer.gradients([flat], reducer.counted(terms, weight))
        found[name] = (flat.tolist(), {k: float(x) for k, x in joined.items()})
    return {
        "moments": [float(x) for x in merged],
        "empty": [float(x) for x in empty],
        "largest": most.tolist(),
        "gradients": found,
        "statistics": reducer.statistics(dict(STATISTICS[rank])),
        "agreed": [reducer.agree("train", rank == i, False, rank != i) for i in range(2)],
    }


@pytest.mark.slow
def test_reductions_are_those_of_all_rows(tmp_path: Path) -> None:
    one, other = run_ranks(2, reductions, tmp_path)
    assert one == other
    rows = torch.tensor([x for rank in ROWS for x in rank])
    squares = float((rows - rows.mean()).square().sum())
    assert one["moments"] == pytest.approx([4, float(rows.mean()), squares])
    assert one["empty"] == [0, 0, 0]
    assert one["largest"] == [40.0, 50.0]
    assert one["gradients"]["some"] == ([3.0], {"vf": 30.0})  # (3 · 2 + 1 · 6) / 4
    assert one["gradients"]["none"] == ([0.0], {"vf": 0.0})
    assert one["statistics"] == pytest.approx(
        {"returns/min": -2.0, "returns/max": 5.0, "returns/mean": 3.0, "env/speed": 3.0}
        | {"returns/std": math.sqrt((9 + 16) / 2), "env/steps": 40, "episodes/count": 4}
        | {"episodes/return_mean": 2.0, "episodes/return_std": math.sqrt((3 * 4 + 16) / 4)}
        | {"episodes/return_max": 9.0, "episodes/return_min": -1.0}
    )
    assert one["agreed"] == [(True, False, True)] * 2


class Telling:
    """Collectives of ranks on some GPUs."""

    def __init__(self, *gpus: list[str]) -> None:
        self.gpus = gpus

    def of_all(self, data: bytes) -> list[bytes]:
        return [json.dumps(x).encode() for x in self.gpus]


def test_ranks_on_one_gpu_are_refused() -> None:
    reducer = object.__new__(GroupReducer)
    for gpus in ([[], []], [["one"], ["two"]], [["one", "two"], ["three"]]):
        reducer.collectives = Telling(*gpus)  # type: ignore[assignment]
        reducer._check_gpus(gpus[0])
    reducer.collectives = Telling(["one"], ["two"], ["one"])  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"Ranks 0 and 2 are on one GPU.*set `device` to 'cpu'"):
        reducer._check_gpus(["one"])
