"""Operations of workers: laws against `step`, numbers, and training in several processes."""

import multiprocessing
import re
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn, optim
from torchrl.data import Bounded

from everstep import (
    Algorithm,
    AlgorithmConfig,
    ContinuousDummyEnv,
    DiscreteDummyEnv,
    RecurrentAlgorithm,
    RecurrentAlgorithmConfig,
    TrainConfig,
    Trainer,
)
from everstep.adapters import GymnasiumEnv
from everstep.core.hyperparameters import LIVE
from everstep.core.normalizers import RunningMoments
from everstep.errors import CheckpointError, ConfigError, DivergedError, NotBufferedError
from everstep.loggers import read_metrics
from everstep.models import Model
from everstep.objectives import PPO
from tests.everstep.algorithms.operations_workers import (
    EPOCHS,
    MINIBATCHES,
    ROUNDS,
    as_arrays,
    drifting,
    work,
)
from tests.toys import TERMINATED, TRUNCATED, Episode, scripted_vector_env

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "seed": 0}
RND = {"rnd": {"pre_normalization_steps": 1, "pre_normalization_length": 4}}


def built(env_cls: Any = DiscreteDummyEnv, **config: Any) -> Any:
    recurrent = "seq_len" in config
    cls = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    return cls(**{**SMALL, **config}).build(env_cls)


def flat(algorithm: Any) -> torch.Tensor:
    """Every weight, and what an update moves besides, in one vector."""
    normalizer = algorithm.policy.normalizer
    known = [] if normalizer is None else list(normalizer.state_dict().values())
    known += [x for bonus in algorithm.bonuses for x in bonus.state_dict().values()]
    return torch.cat([x.detach().double().flatten() for x in (*algorithm.parameters(), *known)])


def drive(algorithm: Any) -> None:
    """An update by single operations."""
    for minibatch in algorithm.minibatches():
        gradients, _ = algorithm.compute_gradients(minibatch)
        algorithm.apply_gradients(gradients)


# ---- an update by operations is an update ----------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"sgd_minibatch_size": 8, "entropy_coeff": 0.01},
    "a2c": {"objective": "a2c", "optimizer_config": {"lr_pi": 3e-3, "lr_v": 1e-2}},
    "recurrent": {"seq_len": 4, "sgd_minibatch_size": 4},
    "rnd": {"bonuses": [RND], "sgd_minibatch_size": 16},
    "statistics": {"normalize_observations": True, "normalize_rewards": "running"},
    "schedules": {
        "lr_schedule": [(0, 1e-2), (64, 1e-4)],
        "entropy_coeff_schedule": [(0, 0.1), (64, 0.0)],
    },
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", KINDS)
def test_driving_by_operations_is_stepping(kind: str) -> None:
    stepped, driven = built(**KINDS[kind]), built(**KINDS[kind])
    for update in ("step", "operations"):
        algorithm = stepped if update == "step" else driven
        torch.manual_seed(5)
        for _ in range(3):
            algorithm.collect()
            algorithm.step() if update == "step" else drive(algorithm)
    torch.testing.assert_close(flat(driven), flat(stepped), rtol=0, atol=1e-12)
    assert driven.state == stepped.state
    for name in ("lr_scheduler", "entropy_scheduler"):
        assert getattr(driven, name).coeff == getattr(stepped, name).coeff


@pytest.mark.usefixtures("float64")
def test_accumulated_gradients_of_an_epoch_are_one_step() -> None:
    config = {"accumulate_grads": True, "sgd_minibatch_size": 8, "num_sgd_iters": 2}
    stepped, driven = built(**config), built(**config)
    for algorithm in (stepped, driven):
        torch.manual_seed(5)
        algorithm.collect()
    torch.manual_seed(6)
    stepped.step()
    torch.manual_seed(6)
    sums: list[Any] = []
    for i, minibatch in enumerate(driven.minibatches(), start=1):
        gradients, _ = driven.compute_gradients(minibatch)
        sums = [s + g for s, g in zip(sums, gradients, strict=True)] if sums else gradients
        if i % driven.num_mini_batch == 0:
            driven.apply_gradients(sums)
            sums = []
    torch.testing.assert_close(flat(driven), flat(stepped), rtol=0, atol=1e-12)


def test_minibatches_need_a_rollout_that_was_not_learned_from() -> None:
    algorithm = built()
    with pytest.raises(NotBufferedError, match="`collect` before `minibatches`"):
        algorithm.minibatches()
    algorithm.collect()
    drive(algorithm)
    with pytest.raises(NotBufferedError, match="`collect` before `step`"):
        algorithm.step()


def test_an_update_that_is_left_early_counts() -> None:
    algorithm = built(lr_schedule=[(0, 1e-2), (32, 1e-4)])
    algorithm.collect()
    for _ in algorithm.minibatches():
        break
    assert algorithm.state.env_steps == 32
    assert algorithm.optimizer.param_groups[0]["lr"] == 1e-4


def test_an_update_that_a_checkpoint_took_the_place_of_does_not() -> None:
    algorithm = built()
    saved = algorithm.state_dict()
    algorithm.collect()
    minibatches = algorithm.minibatches()
    next(minibatches)
    algorithm.load_state_dict(saved)
    minibatches.close()
    assert algorithm.state.env_steps == 0


# ---- loss and gradients ----------------------------------------------------------------------


def one_minibatch(algorithm: Any) -> Any:
    algorithm.collect()
    return next(algorithm.minibatches())


@pytest.mark.parametrize("more", [{}, {"bonuses": [RND]}])
def test_the_loss_of_ppo_is_what_its_parts_say(more: dict[str, Any]) -> None:
    algorithm = built(entropy_coeff=0.02, vf_coeff=0.5, **more)
    minibatch = one_minibatch(algorithm)
    value_loss, action_loss, dist_entropy, loss = algorithm.compute_loss(minibatch)
    total = value_loss + action_loss - 0.02 * dist_entropy
    total = total + sum(bonus.losses(minibatch) for bonus in algorithm.bonuses)
    torch.testing.assert_close(loss, total)
    terms = algorithm._losses(minibatch)
    assert (value_loss, action_loss) == (0.5 * terms["vf"], -terms["policy"])
    assert dist_entropy > 0
    assert loss.requires_grad


def test_the_loss_of_a2c_is_one_number() -> None:
    algorithm = built(objective="a2c")
    minibatch = one_minibatch(algorithm)
    loss = algorithm.compute_loss(minibatch)
    assert loss.shape == ()
    assert loss == algorithm._losses(minibatch)["total"]


def test_gradients_are_those_of_the_loss_and_nothing_else_changes() -> None:
    algorithm = built(entropy_coeff=0.02)
    minibatch = one_minibatch(algorithm)
    before = flat(algorithm)
    *_, loss = algorithm.compute_loss(minibatch)
    expected = torch.autograd.grad(loss, algorithm.parameters())
    gradients, info = algorithm.compute_gradients(minibatch)
    for found, wanted in zip(gradients, expected, strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(flat(algorithm), before)
    assert info["losses/total"] == pytest.approx(loss.item())
    assert info["monitors/kl_div"] == pytest.approx(0, abs=1e-6)
    assert set(info) == {
        *(f"losses/{name}" for name in ("policy", "vf", "entropy", "total")),
        *(f"monitors/{name}" for name in ("kl_div", "clip_fraction")),
    }


@pytest.mark.parametrize("grads_to_cpu", [True, False])
def test_gradients_may_stay_or_travel(grads_to_cpu: bool) -> None:
    algorithm = built()
    minibatch = one_minibatch(algorithm)
    gradients, _ = algorithm.compute_gradients(minibatch, grads_to_cpu=grads_to_cpu)
    kept = [g.clone() for g in gradients]
    algorithm.apply_gradients()  # takes the gradients that are kept inside; these are others
    assert all(torch.equal(g, k) for g, k in zip(gradients, kept, strict=True))
    with_tensors, with_arrays = built(), built()
    with_tensors.apply_gradients(gradients)
    frozen = [g.numpy().copy() for g in gradients]
    for array in frozen:
        array.flags.writeable = False
    with_arrays.apply_gradients(frozen)
    assert torch.equal(flat(with_tensors), flat(algorithm))
    assert torch.equal(flat(with_arrays), flat(algorithm))


@pytest.mark.gpu
@pytest.mark.parametrize("grads_to_cpu", [True, False])
def test_gradients_of_either_device_are_applied(grads_to_cpu: bool) -> None:
    algorithm = built(device="cuda")
    minibatch = one_minibatch(algorithm)
    gradients, _ = algorithm.compute_gradients(minibatch, grads_to_cpu=grads_to_cpu)
    assert {g.device.type for g in gradients} == {"cpu" if grads_to_cpu else "cuda"}
    elsewhere = built(device="cpu")
    elsewhere.set_weights(algorithm.get_weights())
    algorithm.apply_gradients(gradients)
    elsewhere.apply_gradients(gradients)
    torch.testing.assert_close(flat(elsewhere), flat(algorithm).cpu())


class PartlyUsed(Model):
    """A layer that nothing depends on, and one that is not trained."""

    def __init__(self, observation_spec: Any, action_spec: Any) -> None:
        super().__init__(observation_spec, action_spec)
        self.unused = nn.Linear(3, 2)
        self.policy = nn.Linear(1, 2)
        self.frozen = nn.Linear(1, 1).requires_grad_(False)
        self.vf = nn.Linear(1, 1)

    def forward(self, batch: Any) -> Any:
        obs = batch["obs"] / 100
        self.values = self.vf(self.frozen(obs))
        return {"logits": self.policy(obs).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self.values


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_parameters_without_gradients_keep_their_place(max_grad_norm: None | float) -> None:
    algorithm = built(model_cls=PartlyUsed, max_grad_norm=max_grad_norm)
    minibatch = one_minibatch(algorithm)
    gradients, _ = algorithm.compute_gradients(minibatch)
    names = [name for name, _ in algorithm.policy.model.named_parameters()]
    assert [name for name, g in zip(names, gradients, strict=True) if g is None] == [
        "unused.weight",
        "unused.bias",
        "frozen.weight",
        "frozen.bias",
    ]
    parameters = algorithm.parameters()
    assert all(g is None or g.shape == p.shape for g, p in zip(gradients, parameters, strict=True))
    before = [p.detach().clone() for p in parameters]
    algorithm.apply_gradients(gradients)
    moved = [not torch.equal(p, b) for p, b in zip(parameters, before, strict=True)]
    assert moved == [g is not None for g in gradients]


def test_clipping_comes_after_averaging() -> None:
    """Of gradients of ones, by hand: a step of c/√n."""
    config = {"optimizer_cls": optim.SGD, "optimizer_config": {"lr": 1.0}, "max_grad_norm": 0.3}
    algorithm = built(**config)
    before = flat(algorithm)
    halves = [[c * torch.ones_like(p) for p in algorithm.parameters()] for c in (0.5, 1.5)]
    algorithm.apply_gradients([(a + b) / 2 for a, b in zip(*halves, strict=True)])
    moved = before - flat(algorithm)
    torch.testing.assert_close(moved, torch.full_like(moved, 0.3 / len(moved) ** 0.5))


def test_there_must_be_gradients_to_apply() -> None:
    algorithm = built()
    with pytest.raises(ValueError, match="no gradients to apply"):
        algorithm.apply_gradients()
    minibatch = one_minibatch(algorithm)
    algorithm.compute_gradients(minibatch)
    algorithm.apply_gradients()
    with pytest.raises(ValueError, match="no gradients to apply"):
        algorithm.apply_gradients()
    algorithm.collect()
    algorithm.step()
    with pytest.raises(ValueError, match="no gradients to apply"):
        algorithm.apply_gradients()


def test_gradients_must_fit() -> None:
    algorithm = built()
    ones = [torch.ones_like(p) for p in algorithm.parameters()]
    before = flat(algorithm)
    with pytest.raises(ValueError, match=f"There are {len(ones)} parameters; got 1 gradients"):
        algorithm.apply_gradients(ones[:1])
    with pytest.raises(ValueError, match="Parameter 0 has shape"):
        algorithm.apply_gradients(ones[::-1])
    with pytest.raises(DivergedError, match="weights are as before"):
        algorithm.apply_gradients([ones[0] * float("nan"), *ones[1:]])
    assert torch.equal(flat(algorithm), before)
    algorithm.apply_gradients(ones)
    assert not torch.equal(flat(algorithm), before)


# ---- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ppo", "recurrent", "rnd"])
def test_weights_travel_and_stay_where_they_are(kind: str) -> None:
    here, there = (built(**{**KINDS[kind], "seed": seed}) for seed in (1, 2))
    places = [p.data_ptr() for p in there.parameters()]
    weights = here.get_weights()
    there.set_weights({name: x.numpy() for name, x in weights.items()})
    here.collect()
    here.step()  # what was taken away is a copy
    for p, place in zip(there.parameters(), places, strict=True):
        assert p.data_ptr() == place
    taken = there.get_weights()
    assert all(torch.equal(taken[name], x) for name, x in weights.items())
    there.collect()
    there.step()  # and the optimizer goes on with them
    assert any(not torch.equal(there.get_weights()[name], x) for name, x in weights.items())


def test_a_models_state_dict_will_do() -> None:
    here, there = (built(seed=seed) for seed in (1, 2))
    there.set_weights(here.policy.model.state_dict())
    assert torch.equal(flat(here), flat(there))


def test_weights_that_do_not_fit_are_refused_as_a_whole() -> None:
    algorithm = built()
    before, weights = flat(algorithm), algorithm.get_weights()
    first, *_, last = weights
    halved = {name: x + 1 for name, x in weights.items()}
    for wrong in (
        {name: x for name, x in halved.items() if name != last},
        {**halved, last: halved[first]},
        {**halved, "more": torch.ones(1)},
    ):
        with pytest.raises(CheckpointError, match="do not fit"):
            algorithm.set_weights(wrong)
    assert torch.equal(flat(algorithm), before)


# ---- what workers have seen ------------------------------------------------------------------

NORMALIZING: dict[str, Any] = {
    "normalize_observations": True,
    "normalize_rewards": "running",
    "bonuses": [{"rnd": {"pre_normalization_steps": 0}}],
}


def moments(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Mean and variance of all rows `[R, …]`, and how many there are."""
    joined = torch.cat(rows).double()
    mean = joined.mean(0)
    return mean, (joined - mean).square().mean(0), len(joined)


@pytest.mark.parametrize("rows", [[5, 0, 3], [0, 0], [1, 1, 1]])
def test_merged_moments_are_those_of_all_rows(rows: list[int]) -> None:
    torch.manual_seed(0)
    own, seen = RunningMoments(2), []
    for _ in range(4):
        workers = [deepcopy(own) for _ in rows]
        for worker, count in zip(workers, rows, strict=True):
            seen.append(1000 + 3 * torch.randn(count, 2, dtype=torch.float64))
            worker.update(seen[-1], torch.ones(count, dtype=torch.bool))
        own.merge(workers)
    mean, var, count = moments(seen)
    assert own.count == count
    if count:
        torch.testing.assert_close(own.mean, mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(own.var, var, rtol=1e-9, atol=0)
    assert own.mean.isfinite().all()


@pytest.mark.usefixtures("float64")
def test_workers_that_share_moments_have_seen_what_all_have() -> None:
    server = built(**NORMALIZING, num_envs=2)
    workers = [built(**NORMALIZING, num_envs=n, horizon=4 * n) for n in (2, 3)]
    seen: list[torch.Tensor] = []
    led_to: list[torch.Tensor] = []
    for _ in range(3):
        for worker in workers:
            worker.set_weights(server.get_weights())
            worker.set_moments(as_arrays(server.get_moments()))
            worker.collect()
            drive(worker)
            seen.append(worker.rollout.obs[0][:-1].flatten(0, 1).clone())
            led_to.append(worker.rollout.obs[0][1:].flatten(0, 1).clone())
        server.merge_moments([as_arrays(worker.get_moments()) for worker in workers])
        found = server.get_moments()
        for name, rows in (("observations.moments.0", seen), ("bonuses.rnd.moments.0", led_to)):
            mean, var, count = moments(rows)
            assert found[f"{name}.count"] == count
            torch.testing.assert_close(found[f"{name}.mean"], mean, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(found[f"{name}.var"], var, rtol=1e-12, atol=1e-12)
        assert found["rewards.count"] == found["bonuses.rnd.spread.count"] == count


def test_moments_travel_as_they_are() -> None:
    here, there = (built(**NORMALIZING, seed=seed) for seed in (1, 2))
    here.collect()
    here.step()
    taken = here.get_moments()
    there.set_moments(taken)
    here.collect()
    here.step()  # what was taken away is a copy
    assert all(torch.equal(x, taken[name]) for name, x in there.get_moments().items())
    assert not torch.equal(here.get_moments()["rewards.count"], taken["rewards.count"])


def test_moments_that_do_not_fit_are_refused_as_a_whole() -> None:
    here, there, plain = built(**NORMALIZING), built(**NORMALIZING), built()
    here.collect()
    here.step()
    before = here.get_moments()
    with pytest.raises(CheckpointError, match="moments do not fit this algorithm's"):
        here.set_moments(plain.get_moments())
    with pytest.raises(CheckpointError, match=r"are of 0 rows, fewer than the 32 .* `set_moments`"):
        here.merge_moments([here.get_moments(), there.get_moments()])
    assert all(torch.equal(x, before[name]) for name, x in here.get_moments().items())


# ---- acting ----------------------------------------------------------------------------------

SCRIPTS = [[Episode(3, TERMINATED), Episode(5, TRUNCATED)], [Episode(4, TERMINATED)]]


# Collection draws its random numbers for many env steps at once where a policy remembers nothing.
@pytest.mark.parametrize(
    ("recurrent", "deterministic"), [(False, True), (True, False), (True, True)]
)
def test_acting_is_what_collection_does(recurrent: bool, deterministic: bool) -> None:
    def env() -> Any:
        return GymnasiumEnv(scripted_vector_env(SCRIPTS, AutoresetMode.SAME_STEP))

    config: Any = {"num_envs": "auto", "horizon": 12, **({"seq_len": 4} if recurrent else {})}
    algorithm = built(env(), **config)
    torch.manual_seed(3)
    algorithm.collect(deterministic=deterministic)
    rollout = algorithm.rollout
    torch.manual_seed(3)
    again = env()
    obs, rhs, done = again.reset(), None, torch.ones(2, 1)
    for t in range(12):
        action, executed, rhs, other = algorithm.acting_step(obs, rhs, done, deterministic)
        assert torch.equal(action, rollout.actions[0][t])
        assert torch.equal(executed, action)
        torch.testing.assert_close(other["logp"], rollout.logp[t])
        torch.testing.assert_close(other["values"], rollout.values[t])
        outcome = again.step(executed)
        obs, done = outcome["obs"], (outcome["terminated"] | outcome["truncated"]).float()
    if recurrent:
        assert set(rhs.keys()) == set(algorithm.policy.init_states(2).keys())
    else:
        assert torch.equal(rhs, torch.zeros(2, 1))


class BoundedEnv(ContinuousDummyEnv):
    """Actions between −0.001 and 0.002."""

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.action_spec: Any = Bounded(-0.001, 0.002, (1,), device=torch.device(device))


def test_executed_actions_are_within_the_bounds() -> None:
    algorithm = built(BoundedEnv)
    drawn, executed, _, _ = algorithm.acting_step(torch.zeros(64, 1), None, torch.ones(64))
    assert drawn.min() < -0.001
    assert drawn.max() > 0.002
    assert torch.equal(executed, drawn.clamp(-0.001, 0.002))


# ---- hyperparameters -------------------------------------------------------------------------

CHANGES: list[tuple[str, Any, dict[str, Any]]] = [
    ("gamma", 0.5, {}),
    ("gae_lambda", 0.5, {}),
    ("entropy_coeff", 0.1, {}),
    ("entropy_coeff_schedule", [[0, 0.1], [64, 0.0]], {}),
    ("clip_param", 0.01, {}),
    ("vf_clip_param", 0.1, {}),
    ("vf_clip_param", None, {}),
    ("vf_coeff", 0.1, {}),
    ("vf_loss", "mse", {}),
    ("max_grad_norm", 0.01, {}),
    ("max_grad_norm", None, {}),
    ("normalize_advantages", False, {}),
    ("num_sgd_iters", 2, {}),
    ("sgd_minibatch_size", 8, {}),
    ("lr_schedule", [[0, 1e-2], [32, 1e-4]], {}),
    ("dual_clip_param", 2, {}),
    ("target_kl_div", 1e-4, {}),
    ("lr", 0.02, {"optimizer_config": {"lr": 0.02}}),
    ("num_epochs", 1, {"num_sgd_iters": 1}),
    ("num_mini_batch", 4, {"sgd_minibatch_size": 8}),
    ("entropy_coef", 0.2, {"entropy_coeff": 0.2}),
    ("value_loss_coef", 0.3, {"vf_coeff": 0.3}),
    ("use_clipped_value_loss", True, {"vf_clip_param": 0.2}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "fields"), CHANGES)
def test_a_changed_algorithm_is_one_that_was_built_so(name: str, value: Any, fields: Any) -> None:
    config = {"sgd_minibatch_size": 16, "optimizer_config": {"lr": 0.01}, "vf_clip_param": 0.05}
    as_built = built(**{**config, **(fields or {name: value})})
    changed, untouched = built(**config), built(**config)
    changed.update_algorithm_parameter(name, value)
    for algorithm in (as_built, changed, untouched):
        torch.manual_seed(4)
        for _ in range(2):
            algorithm.collect()
            algorithm.step()
    assert torch.equal(flat(changed), flat(as_built))
    assert not torch.equal(flat(changed), flat(untouched))
    for view in (changed.hparams, changed.config):
        for field, wanted in {**(fields or {name: value})}.items():
            found = getattr(view, field)
            assert found == ([tuple(p) for p in wanted] if "schedule" in field else wanted)
    assert changed.hparams.num_minibatches == as_built.hparams.num_minibatches


def test_learning_rates_of_groups_change_apart() -> None:
    algorithm = built(objective="a2c", optimizer_config={"lr_pi": 1e-3, "lr_v": 1e-2})
    algorithm.update_algorithm_parameter("lr_v", 5e-2)
    assert [group["lr"] for group in algorithm.optimizer.param_groups] == [1e-3, 5e-2]
    algorithm.update_algorithm_parameter("lr_pi", 0.0)
    assert [group["lr"] for group in algorithm.optimizer.param_groups] == [0.0, 5e-2]
    assert algorithm.hparams.optimizer_config == {"lr_pi": 0.0, "lr_v": 5e-2}
    assert algorithm.lr_scheduler.coeff == 0.0


def test_the_discount_of_the_environments_stream_changes_beside_a_bonus() -> None:
    algorithm = built(bonuses=[RND])
    algorithm.update_algorithm_parameter("gamma", 0.5)
    assert [stream.gamma for stream in algorithm.streams] == [0.5, 0.99]


@pytest.mark.parametrize("name", sorted(LIVE))
def test_auto_is_resolved_again_or_refused(name: str) -> None:
    """It stayed in the config, and the next train step failed."""
    algorithm = built()
    with suppress(ConfigError):
        algorithm.update_algorithm_parameter(name, "auto")
    assert "auto" not in [x for x in algorithm.hparams.values() if isinstance(x, str)]
    algorithm.collect()
    algorithm.step()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", "auto", "`gamma`: 'auto' is resolved when .* it became 0.95. Give a value."),
        ("gama", 0.9, r"`gama`: unknown hyperparameter \(did you mean gamma\?\)"),
        ("value_loss_coeff", 0.9, r"did you mean vf_coeff\?"),
        ("gamma", 1.5, r"`gamma`: expected float in \(0, 1\] or 'auto'; got 1.5"),
        ("lr", -1.0, "`lr`: expected float >= 0 or null; got -1.0"),
        ("sgd_minibatch_size", 5, "must divide the 32 transitions"),
        ("num_mini_batch", 5, "must divide the 32 transitions .*; got 5. Try 1 or 2 or 4 or 8."),
        ("accumulate_grads", True, "more than one minibatch"),
        ("bounds_loss_coeff", 0.1, "is for the distribution Normal, .* got Categorical"),
        ("num_envs", 8, "`num_envs` is part of what the algorithm is built of: set it in the con"),
        ("horizon", 8, "build a new algorithm"),
        ("model", nn.Linear(1, 1), "build a new algorithm"),
        ("bonuses", [RND], "build a new algorithm"),
        ("normalize_rewards", False, "build a new algorithm"),
        ("optimizer_config", {"lr": 1.0}, "build a new algorithm"),
        ("eps", 1e-5, "build a new algorithm"),
        ("lr_pi", 1e-5, "build a new algorithm"),
    ],
)
def test_what_cannot_be_changed_is_refused(name: str, value: Any, message: str) -> None:
    algorithm = built()
    before = dict(algorithm.hparams)
    with pytest.raises(ConfigError, match=message):
        algorithm.update_algorithm_parameter(name, value)
    assert dict(algorithm.hparams) == before
    assert algorithm.optimizer.param_groups[0]["lr"] == 1e-3


def test_what_a_schedule_sets_is_not_set_beside_it() -> None:
    schedules: Any = {"lr_schedule": [(0, 1e-2)], "entropy_coeff_schedule": [(0, 0.1)]}
    algorithm = built(**schedules)
    for name, schedule in (("lr", "lr_schedule"), ("entropy_coef", "entropy_coeff_schedule")):
        with pytest.raises(ConfigError, match=f"`{name}` is set by `{schedule}`"):
            algorithm.update_algorithm_parameter(name, 0.5)
        algorithm.update_algorithm_parameter(schedule, None)
        algorithm.update_algorithm_parameter(name, 0.5)
    assert algorithm.optimizer.param_groups[0]["lr"] == 0.5
    assert algorithm.objective.entropy_coeff == 0.5


def test_an_update_has_as_many_transitions_as_its_minibatches() -> None:
    for config in ({"sgd_minibatch_size": 8}, {"seq_len": 4, "sgd_minibatch_size": 2}):
        algorithm = built(**config, num_sgd_iters=3, gamma=0.9, test_every=7, num_test_episodes=2)
        assert algorithm.num_mini_batch == 4
        assert algorithm.num_mini_batch * algorithm.mini_batch_size == algorithm.update_every == 32
        assert (algorithm.gamma, algorithm.num_epochs, algorithm.start_steps) == (0.9, 3, 0)
        assert (algorithm.test_every, algorithm.num_test_episodes) == (7, 2)
        algorithm.collect()
        assert len(list(algorithm.minibatches())) == 12


# ---- factories -------------------------------------------------------------------------------


def test_a_factory_takes_the_documented_names() -> None:
    create_algo, name = Algorithm.create_factory(
        lr=0.01,
        eps=1e-5,
        num_epochs=3,
        clip_param=0.1,
        entropy_coef=0.02,
        value_loss_coef=0.4,
        max_grad_norm=0.7,
        num_mini_batch=4,
        use_clipped_value_loss=True,
        gamma=0.98,
    )
    algorithm = create_algo("cpu", None, DiscreteDummyEnv(4, horizon=8))
    assert name == "PPO"
    assert isinstance(algorithm, Algorithm)
    hparams = algorithm.hparams
    assert hparams.optimizer_config == {"lr": 0.01, "eps": 1e-5}
    assert (algorithm.num_epochs, algorithm.num_mini_batch, algorithm.gamma) == (3, 4, 0.98)
    assert (hparams.clip_param, hparams.vf_clip_param, hparams.max_grad_norm) == (0.1, 0.1, 0.7)
    assert (hparams.entropy_coeff, hparams.vf_coeff) == (0.02, 0.4)


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        (
            {},
            "PPO",
            {
                "optimizer_config": {"lr": 1e-4},
                "max_grad_norm": 0.5,
                "vf_clip_param": 0.2,
                "entropy_coeff": 0.01,
                "vf_coeff": 0.5,
                "test_every": 1000,
                "num_sgd_iters": 4,
            },
        ),
        (
            {"objective": "a2c"},
            "A2C",
            {
                "optimizer_config": {"lr_pi": 1e-4, "lr_v": 1e-4},
                "max_grad_norm": 0.5,
                "vf_clip_param": None,
                "entropy_coeff": 0.0,
                "test_every": 5000,
                "num_sgd_iters": 1,
            },
        ),
        (
            {"bonuses": [RND]},
            "RND_PPO",
            {"max_grad_norm": 2.0, "vf_clip_param": None, "entropy_coeff": 0.01},
        ),
        ({"objective": PPO, "lr_schedule": [(0, 0.1)]}, "PPO", {"optimizer_config": None}),
        ({"vf_clip_param": 3.0, "clip_param": 0.1}, "PPO", {"vf_clip_param": 3.0}),
        ({"clip_param": 0.1}, "PPO", {"vf_clip_param": 0.1}),
        ({"objective": "a2c", "lr": 0.1}, "A2C", {"optimizer_config": {"lr": 0.1}}),
        (
            {"optimizer_cls": optim.SGD, "optimizer_config": {"momentum": 0.5}, "lr": 0.1},
            "PPO",
            {"optimizer_config": {"momentum": 0.5, "lr": 0.1}},
        ),
    ],
)
def test_factories_have_documented_defaults(given: Any, name: str, expected: Any) -> None:
    create_algo, found = Algorithm.create_factory(**given)
    hparams = create_algo("cpu", None, DiscreteDummyEnv(4, horizon=8)).hparams
    assert found == name
    assert {field: hparams[field] for field in expected} == expected
    assert (hparams.gamma, hparams.num_test_episodes, hparams.num_minibatches) == (0.99, 5, 1)
    assert (hparams.vf_loss, hparams.normalize_rewards) == ("mse", False)


def test_a_factory_makes_many_and_trains_what_it_is_given() -> None:
    create_algo, _ = RecurrentAlgorithm.create_factory(seq_len=4, num_envs=4, horizon=8, seed=0)
    first = create_algo("cpu", None, DiscreteDummyEnv)
    assert isinstance(first, RecurrentAlgorithm)
    second = create_algo("cpu", first.policy.model, DiscreteDummyEnv)
    third = create_algo("cpu", first.policy, DiscreteDummyEnv)
    assert second.policy.model is third.policy.model is first.policy.model
    third.collect()
    third.step()


def test_a_factory_takes_over_what_a_policy_knows_of_observations() -> None:
    algorithm = built(normalize_observations=True, clip_observations=3.0)
    algorithm.collect()
    algorithm.step()
    create_algo, _ = Algorithm.create_factory()
    found = create_algo("cpu", algorithm.policy, DiscreteDummyEnv(4, horizon=8))
    assert found.policy.normalizer.clip == 3.0
    expected = algorithm.policy.normalizer.state_dict()
    assert all(torch.equal(x, expected[k]) for k, x in found.policy.normalizer.state_dict().items())


def test_a_factorys_mistakes_are_told_before_it_is_used() -> None:
    with pytest.raises(ConfigError) as error:
        Algorithm.create_factory(clip_parm=0.1, num_minibatch=2, seq_len=2)
    assert len(error.value.problems) == 3
    assert "`clip_parm`: unknown hyperparameter (did you mean clip_param?)." in str(error.value)
    closed = []

    class Closing(DiscreteDummyEnv):
        def close(self) -> None:
            closed.append(self)

    create_algo, _ = Algorithm.create_factory(num_mini_batch=5, num_envs=4, horizon=8)
    with pytest.raises(ConfigError, match="`num_mini_batch` must divide the 32 transitions"):
        create_algo("cpu", None, Closing)
    assert len(closed) == 1


def test_minibatches_of_a_recurrent_policy_are_of_sequences() -> None:
    algorithm = built(seq_len=2)
    with pytest.raises(ConfigError, match=r"the 16 sequences .* / seq_len\); got 3"):
        algorithm.update_algorithm_parameter("num_mini_batch", 3)


# ---- several processes -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("float64")
def test_gradients_of_two_processes_applied_in_a_third_are_those_of_one() -> None:
    together, server = drifting(6), drifting(1)
    weights = as_arrays(together.get_weights())
    server.set_weights(weights)
    context = multiprocessing.get_context("spawn")
    pipes, processes, norms = [], [], []
    for i in range(2):
        pipe, theirs = context.Pipe()
        pipes.append(pipe)
        processes.append(context.Process(target=work, args=(theirs, 3 * i, weights)))
        processes[-1].start()
        theirs.close()  # so that the pipe of a worker that dies ends
    try:
        for _ in range(ROUNDS * EPOCHS * MINIBATCHES):
            received = [pipe.recv() for pipe in pipes]
            server.apply_gradients([sum(pair) / 2 for pair in zip(*received, strict=True)])
            norms.append(float(server.updater.grad_norm))
            for pipe in pipes:
                pipe.send(as_arrays(server.get_weights()))
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    for _ in range(ROUNDS):
        together.collect(deterministic=True)
        together.step()
    assert [process.exitcode for process in processes] == [0, 0]
    assert max(norms) > 0.1  # clipping had something to do
    trained = server.get_weights()
    for name, expected in together.get_weights().items():
        assert np.abs(trained[name].numpy() - weights[name]).max() > 1e-3
        torch.testing.assert_close(trained[name], expected, rtol=0, atol=1e-12)


# ---- tests while training --------------------------------------------------------------------


def records(path: Path) -> list[dict[str, Any]]:
    return [r for r in read_metrics(path / "metrics.jsonl") if "eval/episodes/count" in r]


def test_tests_are_made_of_complete_episodes(tmp_path: Path) -> None:
    env = GymnasiumEnv(scripted_vector_env(SCRIPTS, AutoresetMode.NEXT_STEP))
    eval_env = GymnasiumEnv(scripted_vector_env([[Episode(3, TERMINATED)]], AutoresetMode.DISABLED))
    with Trainer(
        env,
        horizon=8,
        test_every=2,
        num_test_episodes=4,
        eval_env=eval_env,
        run_dir=tmp_path / "run",
        track=False,
    ) as trainer:
        trainer.run(stop_conditions=[lambda stats: stats["algorithm/steps"] == 5])
        found = records(tmp_path / "run")
        assert [r["eval/episodes/count"] for r in found] == [4, 4]
        assert [r["eval/episodes/length_mean"] for r in found] == [3, 3]
        trainer.algorithm.update_algorithm_parameter("test_every", None)
        trainer.run(stop_conditions=[lambda stats: stats["algorithm/steps"] == 9])
    assert len(records(tmp_path / "run")) == 2


def test_tests_need_an_environment_of_their_own() -> None:
    trainer = Trainer(DiscreteDummyEnv, **SMALL, test_every=1, run_dir=None)
    with pytest.raises(ValueError, match="`test_every` plays complete episodes"):
        trainer.run(total_env_steps=32)
    with pytest.raises(ValueError, match="`episodes` plays complete episodes"):
        trainer.eval(episodes=3)
    config = TrainConfig(DiscreteDummyEnv(4, horizon=8), test_every=1)
    with pytest.raises(ConfigError, match="`test_every` plays complete episodes"):
        config.build(run_dir=None)


def test_a_config_makes_the_environment_of_its_tests(tmp_path: Path) -> None:
    for env_cls in (DiscreteDummyEnv, partial(DiscreteDummyEnv)):
        config = TrainConfig(env_cls, **SMALL, test_every=1, num_test_episodes=3)
        trainer = config.build(run_dir=tmp_path / str(id(env_cls)), track=False)
        assert trainer.eval_env is not None
        assert trainer.eval_env is not trainer.algorithm.env
        trainer.run(total_env_steps=64)
        trainer.close()
        [found] = records(tmp_path / str(id(env_cls)))
        assert found["eval/episodes/count"] == 3


FILE = """
env_cls: everstep.env.DiscreteDummyEnv
objective: ppo
bonuses: [{{rnd: {{}}}}]
test_every: 10
num_test_episodes: 2
stop: [{{HitsLowerBound: {{key: {key}, bound: 0.1}}}}]
"""


@pytest.mark.parametrize("key", ["losses/rnd", "bonuses/rnd_mean", "losses/vf"])
def test_conditions_know_the_statistics_of_bonuses(key: str, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(FILE.format(key=key))
    config = TrainConfig.from_file(path)
    assert (config.test_every, config.num_test_episodes) == (10, 2)
    plain = [line for line in FILE.splitlines() if not line.startswith(("bonuses", "objective"))]
    path.write_text("\n".join(plain).format(key=key))
    if key == "losses/vf":
        TrainConfig.from_file(path)
    else:
        with pytest.raises(ConfigError, match="unknown statistic"):
            TrainConfig.from_file(path)


# ---- the page --------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "coming_from" / "pytorchrl.md").read_text(encoding="utf-8")

PARAMETERS = """
device envs actor lr lr_v lr_pi eps gamma num_epochs clip_param num_mini_batch test_every
max_grad_norm entropy_coef value_loss_coef num_test_episodes use_clipped_value_loss
policy_loss_addons gamma_intrinsic ext_adv_coeff int_adv_coeff predictor_proportion
pre_normalization_steps pre_normalization_length intrinsic_rewards_network
intrinsic_rewards_target_network_kwargs intrinsic_rewards_predictor_network_kwargs
"""

OPERATIONS = """
acting_step apply_gradients compute_gradients compute_loss create_factory set_weights
update_algorithm_parameter gamma mini_batch_size num_epochs num_mini_batch num_test_episodes
start_steps test_every update_every
"""


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_page_has_every_parameter_and_operation() -> None:
    for title, expected in (("Parameters", PARAMETERS), ("Operations", OPERATIONS)):
        rows = [line.split("|")[1] for line in section(title).splitlines() if line[:1] == "|"]
        named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
        assert named == set(expected.split())
    for cls in (Algorithm, RecurrentAlgorithm):
        assert all(getattr(cls, name).__doc__ for name in OPERATIONS.split())


def test_the_tests_that_the_page_names_are_there() -> None:
    page = (ROOT / "docs" / "evidence" / "pytorchrl.md").read_text(encoding="utf-8")
    found = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page)
    assert found
    for file, name in found:
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def test_gradients_of_half_precision_are_not_scaled() -> None:
    """And taken in a step as they are."""
    found: list[Any] = []
    for options in ({}, {"enable_amp": True, "amp_dtype": "float16"}):
        sgd: Any = {"optimizer_cls": torch.optim.SGD, "optimizer_config": {"lr": 1.0}}
        algorithm = built(seed=3, max_grad_norm=None, **sgd, **options)
        algorithm.collect()
        if options:  # gradient scaling begins too high for float16
            algorithm.grad_scaler.load_state_dict(
                {**algorithm.grad_scaler.state_dict(), "scale": 1024.0}
            )
        minibatch = next(algorithm.minibatches())
        gradients, _ = algorithm.compute_gradients(minibatch)
        before = flat(algorithm).clone()
        algorithm.apply_gradients()
        taken = before - flat(algorithm)
        expected = torch.cat([g.flatten() for g in gradients if g is not None])
        torch.testing.assert_close(taken, expected.to(taken), rtol=0, atol=2e-3)
        found.append(expected.double().norm())
    assert float(found[1]) == pytest.approx(float(found[0]), rel=0.2)
