"""Everstep on the stand-in: its numbers are the host's, wherever its tensors are."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep import AlgorithmConfig, DiscreteDummyEnv, Trainer
from everstep.bonuses import RandomNetworkDistillation
from everstep.errors import EnvError
from everstep.trainers._resuming import resume
from tests.device.machine import Machine
from tests.device.trainings import CASES, HORIZON, Case
from tests.everstep.core.graphs.graph_toys import Losing, Walk

pytestmark = pytest.mark.usefixtures("general")


def trained(case: Case, device: str, rounds: int) -> tuple[Any, list[dict[str, float]]]:
    """An algorithm that was trained, and the statistics of each round, without times."""
    algorithm, found = case.build(device), []
    torch.manual_seed(1)
    for _ in range(rounds):
        stats = {**algorithm.collect(), **algorithm.step()}
        found.append({k: x for k, x in stats.items() if not k.startswith("profiling/")})
    return algorithm, found


def check_same(one: Any, other: Any, *, rtol: float = 1e-4) -> None:
    """Check that weights and statistics of two trainings agree."""
    for a, b in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=rtol, atol=1e-5)
    for a, b in zip(one[1], other[1], strict=True):
        assert a == pytest.approx(b, rel=rtol, abs=1e-5, nan_ok=True)


#: Environments that draw on the device alone, so that it draws what the host would have drawn.
SAME = ["discrete", "continuous", "episodes", "A2C", "LSTM", "windows", "masks", "normalised"]
SAME += ["KL stop", "accumulated gradients", "final observations lost", "final observations masked"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x.startswith("final") else pytest.mark.slow) for x in SAME],
)
def test_a_device_computes_what_the_host_does(machine: Machine, name: str) -> None:
    options = {"shuffle_minibatches": False, **CASES[name].options}
    case = Case(CASES[name].env, options, CASES[name].recurrent)
    check_same(trained(case, "cuda", 3), trained(case, "cpu", 3))


class Stepped(Losing):
    """Cannot be recorded itself, and keeps the actions until its next env step."""

    capturable = False
    kept: Any = None

    def step(self, action: Any) -> Any:
        row, before = super().step(action), self.kept
        self.kept = action
        return row if before is None else row.set("rewards", before.float())


@pytest.mark.slow
@pytest.mark.parametrize("env", [Walk, Losing, Stepped])
@pytest.mark.parametrize("recurrent", [False, True])
def test_a_replay_is_what_it_would_have_been(machine: Machine, env: Any, recurrent: bool) -> None:
    """Scratch memory is poisoned around each replay, and every address has to live."""
    options: dict[str, Any] = {"normalize_rewards": "running", "on_missing_final": "approximate"}
    options["recompute_advantages"] = not recurrent
    eager = trained(Case(env, options, recurrent), "cuda", 5)
    recorded = trained(Case(env, {**options, "cuda_graphs": True}, recurrent), "cuda", 5)
    refused = None if env.capturable else "the environment is not `capturable`"
    assert [x.refused for x in recorded[0].recorder.graphs] == [refused, *[None] * 4]
    replays = [0, 5 * HORIZON - 2] if env is Stepped else [3, 0]
    assert [x.replays for x in recorded[0].recorder.graphs] == [
        *replays,
        *([3, 0, 3] if recurrent else [3, 3, 8]),
    ]
    for stats in (*eager[1], *recorded[1]):
        stats.pop("losses/entropy", None)  # recorded updates measure it more often
    check_same(eager, recorded)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"enable_amp": True}, {"normalize_observations": True}], ids=["casts", "constants"]
)
def test_what_acts_casts_and_normalises_anew(machine: Machine, options: dict[str, Any]) -> None:
    """Casts and constants of before a capture are of old numbers, in memory that is freed."""
    eager = trained(Case(Stepped, options), "cuda", 4)
    recorded = trained(Case(Stepped, {**options, "cuda_graphs": True}), "cuda", 4)
    assert recorded[0].recorder.acting.replays == 4 * HORIZON - 2
    for stats in (*eager[1], *recorded[1]):
        stats.pop("losses/entropy", None)
    check_same(eager, recorded, rtol=1e-3)


class Endless(DiscreteDummyEnv):
    """Cannot be recorded, and has no episodes, where states are reset."""

    capturable = False


@pytest.mark.slow
@pytest.mark.parametrize("env", [Stepped, Endless])
def test_what_acts_is_recorded_anew_where_weights_have_moved(machine: Machine, env: Any) -> None:
    """Later than the update, in whose scratch memory its results may lie then."""
    found = []
    for cuda_graphs in (False, True):
        options: dict[str, Any] = {"cuda_graphs": cuda_graphs}
        if env is Endless:
            options |= {"seqs_per_state_reset": -1, "horizons_per_env_reset": -1}
        algorithm, _ = trained(Case(env, options, env is Endless), "cuda", 3)
        stats, replays = [], algorithm.recorder.acting.replays
        for _ in range(2):
            algorithm.policy.to("cpu").to("cuda")
            stats += [algorithm.collect(), algorithm.step()]
        assert algorithm.recorder.acting.replays == replays + 2 * (HORIZON - 2) * cuda_graphs
        stats = [{k: x for k, x in y.items() if "/entropy" not in k} for y in stats]
        stats = [{k: x for k, x in y.items() if not k.startswith("profiling/")} for y in stats]
        found.append((algorithm, stats))
    check_same(*found)


class Sharing(Walk):
    """Returns final observations in the memory of those that open the next episodes."""

    def step(self, action: Any) -> Any:
        row = super().step(action)
        return row.set("final_obs", row["obs"])


def test_final_observations_are_looked_at_where_the_host_may_wait(machine: Machine) -> None:
    with pytest.raises(EnvError, match="`final_obs` lies in the memory of `obs`"):
        Case(Sharing).build().collect()
    algorithm, _ = trained(Case(Sharing, {"cuda_graphs": True}), "cuda", 3)
    assert algorithm.recorder.collection.replays == 1


class Drawing(Walk):
    """Draws from a generator of its own."""

    def __init__(self, num_envs: int, /, horizon: Any = 16, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.generator = torch.Generator(device=device).manual_seed(2)

    def step(self, action: Any) -> Any:
        row = super().step(action)
        drawn = torch.randn(self.num_envs, 1, device=self.device, generator=self.generator)
        return row.set("rewards", row["rewards"] + drawn)


@pytest.mark.slow
def test_generators_of_an_environment_are_captured(machine: Machine) -> None:
    eager = trained(Case(Drawing, {"seed": 0}), "cuda", 4)
    recorded = trained(Case(Drawing, {"seed": 0, "cuda_graphs": True}), "cuda", 4)
    assert recorded[0].recorder.collection.replays == 2
    for one, other in zip(eager[1], recorded[1], strict=True):
        assert one["rewards/mean"] == pytest.approx(other["rewards/mean"], rel=1e-4)


@pytest.mark.slow
def test_what_is_recorded_later_may_lie_in_the_memory_of_what_was_before(machine: Machine) -> None:
    """All graphs have one pool. Each is recorded anew while the others stay."""
    options: dict[str, Any] = {
        "normalize_rewards": "running",
        "recompute_advantages": True,
        "seed": 0,
    }
    eager = trained(Case(Walk, options), "cuda", 9)
    algorithm, found = Case(Walk, {**options, "cuda_graphs": True}).build(), []
    torch.manual_seed(1)
    for i in range(9):
        for work, turn in zip(algorithm.recorder.graphs, (3, None, 5, 6, 7), strict=True):
            if i == turn:
                work.forget()
        found.append({**algorithm.collect(), **algorithm.step()})
    for one, other in zip(eager[1], found, strict=True):
        for key in ("monitors/explained_variance", "rewards/mean", "losses/policy"):
            assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5)
    for work in algorithm.recorder.graphs:
        work.forget()
    algorithm.collect()
    algorithm.step()
    algorithm.collect()  # a pool that has lost its graphs is not used again
    algorithm.step()
    assert all(work.refused is None for work in algorithm.recorder.graphs)


@pytest.mark.slow
def test_a_run_on_a_device_is_resumed_on_the_host(machine: Machine, tmp_path: Path) -> None:
    options = {"num_envs": 4, "horizon": 8, "seed": 0, "model_config": {"hiddens": (8,)}}
    quiet = {"track": False, "loggers": []}
    with Trainer(Walk, run_dir=tmp_path, device="cuda", **options, **quiet) as trainer:
        trainer.run(total_env_steps=64)
    with resume(tmp_path, ["device=cpu", "total_env_steps=96"], **quiet) as trainer:
        assert trainer.algorithm.recorder.update.refused == "nothing is recorded"
        trainer.run()
        assert trainer.algorithm.policy.device.type == "cpu"
        assert trainer.algorithm.state.env_steps == 96


@pytest.mark.slow
def test_a_training_goes_on_between_devices(machine: Machine) -> None:
    case = CASES["normalised"]
    there, _ = trained(case, "cuda", 2)
    state = copy.deepcopy(there.state_dict())
    here = case.build("cpu")
    here.load_state_dict(state)
    back = case.build("cuda")
    back.load_state_dict(copy.deepcopy(here.state_dict()))
    for a, b in zip(there.parameters(), back.parameters(), strict=True):
        assert b.is_cuda
        assert torch.equal(a, b)
    for algorithm in (here, back):
        stats = {**algorithm.collect(), **algorithm.step()}
        assert math.isfinite(stats["losses/total"])


@pytest.mark.slow
def test_states_go_to_the_device(machine: Machine) -> None:
    here, _ = trained(Case(Walk, {}, True), "cpu", 1)
    there = Case(Walk, {}, True).build()
    there._load(copy.deepcopy(here.state_dict()), continues=True)
    assert there.states
    assert all(x.is_cuda for x in there.states)


@pytest.mark.slow
def test_trainers_train_evaluate_save_and_resume(machine: Machine, tmp_path: Any) -> None:
    options: dict[str, Any] = {"num_envs": 4, "horizon": 8, "model_config": {"hiddens": (8,)}}
    with everstep.Trainer(Walk, device="cuda", run_dir=tmp_path / "run", **options) as trainer:
        trainer.run(total_env_steps=64)
        trainer.eval()
        trainer.save_checkpoint()
        expected = [x.detach().cpu() for x in trainer.algorithm.parameters()]
    with everstep.Trainer.load(tmp_path / "run") as again:
        found = [x.detach().cpu() for x in again.algorithm.parameters()]
        assert again.algorithm.policy.device.type == "cuda"
        again.run(additional_env_steps=32)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("recurrent", [False, True])
def test_policies_predict_for_arrays_and_for_tensors(machine: Machine, recurrent: bool) -> None:
    policy = Case(Walk, {}, recurrent).build().policy
    action, state = policy.predict(np.zeros((3, 2), np.float32))
    assert isinstance(action, np.ndarray)
    there, _ = policy.predict(torch.zeros(3, 2, device="cuda"), state)
    assert there.is_cuda


@pytest.mark.slow
@pytest.mark.parametrize("env", [Walk, Stepped])
@pytest.mark.parametrize("recorded", [False, True])
def test_rollouts_are_evaluated(machine: Machine, recorded: bool, env: Any) -> None:
    algorithm = Case(env, {"cuda_graphs": recorded}).build()
    for _ in range(3):
        algorithm.collect()
        algorithm.step()
    before = [work.replays for work in algorithm.recorder.graphs]
    with algorithm.evaluating():
        algorithm.collect(deterministic=True)
    assert [work.replays for work in algorithm.recorder.graphs] == before
    algorithm.collect()
    algorithm.step()


@pytest.mark.slow
def test_curiosity_learns_on_the_device(machine: Machine) -> None:
    bonus = RandomNetworkDistillation(hiddens=(8,), features=4)
    stats = trained(Case(Walk, {"bonuses": [bonus]}), "cuda", 3)[1][-1]
    assert stats["bonuses/rnd_mean"] > 0


@pytest.mark.slow
def test_gradients_go_to_other_workers(machine: Machine) -> None:
    algorithm = AlgorithmConfig(num_envs=4, horizon=8, device="cuda", seed=0).build(Walk)
    algorithm.collect()
    minibatch = next(iter(algorithm.minibatches()))
    gradients, _ = algorithm.compute_gradients(minibatch, grads_to_cpu=True)
    assert not any(g.is_cuda for g in gradients)
    algorithm.apply_gradients(gradients)
