"""Checkpoints that are refused: the error names the reason, and nothing has changed."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim

from everstep import AlgorithmConfig
from everstep.bonuses import RandomNetworkDistillation
from everstep.errors import CheckpointError
from tests.toys import RecordedEnv

State = dict[str, Any]
HORIZON = 4


def built(num_envs: int = 3, *, width: int = 8, bonus: bool = False, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    env = RecordedEnv(
        torch.randn(6 * HORIZON + 1, num_envs, 2, generator=generator),
        HORIZON,
        rewards=torch.randn(6 * HORIZON, num_envs, 1, generator=generator),
    )
    if bonus:
        options["bonuses"] = [RandomNetworkDistillation(pre_normalization_steps=0, features=4)]
    options = {"seed": 0, "horizons_per_env_reset": -1, **options}
    options = {"normalize_rewards": "running", "normalize_observations": True, **options}
    return AlgorithmConfig(model_config={"hiddens": (width,)}, **options).build(env)


def trained(*args: Any, **options: Any) -> Any:
    algorithm = built(*args, **options)
    for _ in range(2):
        algorithm.collect()
        algorithm.step()
    return algorithm


def everything(algorithm: Any) -> list[Any]:
    """Whatever training continues from, copied."""
    parts = algorithm.parts
    modules = [parts.policy.model, parts.policy.normalizer, parts.discounted_returns]
    modules += list(parts.bonuses)
    tensors = [x for m in modules if m is not None for x in (*m.parameters(), *m.buffers())]
    for value in vars(parts.rollout).values():
        tensors += list(value if isinstance(value, tuple) else [value])
    for state in parts.optimizer.state.values():
        tensors += list(state.values())
    tensors += [*parts.episodes.state_dict().values(), torch.get_rng_state()]
    groups = [{**group, "params": None} for group in parts.optimizer.param_groups]
    numbers = [groups, dataclasses.asdict(algorithm.state), algorithm.continues, parts.env.t]
    numbers += [len(parts.optimizer.state), float(parts.objective.entropy_coeff)]
    numbers += [parts.grad_scaler.state_dict(), algorithm.is_prepared]
    return copy.deepcopy(
        [x.detach() if isinstance(x, torch.Tensor) else None for x in tensors] + numbers
    )


def is_same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(found, expected, strict=True)
    )


def check_refused(algorithm: Any, state: State, match: str) -> None:
    algorithm.collect()  # something that is lost if the state is touched
    expected = everything(algorithm)
    with pytest.raises(CheckpointError, match=match):
        algorithm.load_state_dict(state)
    assert is_same(everything(algorithm), expected)
    assert algorithm.state.buffered
    algorithm.step()


def of(**options: Any) -> Callable[[], State]:
    return lambda: trained(**options).state_dict()


def changed(change: Callable[[State], Any]) -> Callable[[], State]:
    def make() -> State:
        state = copy.deepcopy(trained().state_dict())
        change(state)
        return state

    return make


SGD: Any = {"optimizer_cls": optim.SGD, "optimizer_config": {"lr": 0.1, "momentum": 0.9}}

CASES: dict[str, tuple[dict[str, Any], Callable[[], State], str]] = {
    "width": ({}, of(width=6), "weights do not fit the model.*another shape"),
    "environments": ({}, of(num_envs=5), "observations .* have shapes"),
    "SGD for Adam": ({}, of(**SGD), "optimizer has no .*Adam needs"),
    "Adam for SGD": (SGD, of(), "optimizer has no .*SGD needs"),
    "amsgrad": (
        {},
        of(optimizer_cls=optim.RMSprop, optimizer_config={"lr": 0.1}),
        "optimizer has no",
    ),
    "groups": (
        {"optimizer_config": {"lr": 1e-3, "lr_v": 1e-2}},
        of(),
        "parameter groups of",
    ),
    "no normaliser": ({}, of(normalize_observations=False), "`normalize_observations`"),
    "normaliser": ({"normalize_observations": False}, of(), "`normalize_observations`"),
    "bonuses": ({}, of(bonus=True), "bonuses are"),
    "missing": ({}, changed(lambda s: s.pop("counters")), "has no counters"),
    "missing two": (
        {},
        changed(lambda s: (s.pop("rng"), s.pop("env"))),
        "has no env, rng",
    ),
    "a weight": ({}, changed(lambda s: s["model"].popitem()), "weights do not fit the model"),
    "a moment": (
        {},
        changed(lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.zeros(7))),
        r"`exp_avg` of parameter 0 is a tensor, \[7\]; Adam needs a tensor of the",
    ),
    "a state of no parameter": (
        {},
        changed(lambda s: s["optimizer"]["state"].update({torch.tensor(3): {}})),
        r"optimizer's state of tensor\(3\) is of no parameter",
    ),
    "a counter": ({}, changed(lambda s: s["counters"].pop("horizons")), "`counters`"),
    "normaliser's size": (
        {},
        changed(lambda s: s["normalizer"].popitem()),
        "`normalizer`",
    ),
    "moments of rewards": (
        {},
        changed(lambda s: s["discounted_returns"].popitem()),
        "`discounted_returns`",
    ),
    "episodes": ({}, changed(lambda s: s["episodes"].popitem()), "`episodes`"),
    "flags": ({}, changed(lambda s: s.update(last_done=torch.zeros(9, 1))), "`last_done`"),
    "generator": ({}, changed(lambda s: s.update(rng=torch.zeros(3))), "`rng`"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_state_that_does_not_fit_changes_nothing(case: str) -> None:
    options, make, match = CASES[case]
    check_refused(trained(**options), make(), match)


def test_a_state_with_an_environments_needs_one_that_loads_it() -> None:
    algorithm = trained()
    state = copy.deepcopy(algorithm.state_dict())

    class Without:
        """The environment, without its state."""

        def __init__(self, env: Any) -> None:
            self.env = env

        def __getattr__(self, name: str) -> Any:
            if name in ("state_dict", "load_state_dict"):
                raise AttributeError(name)
            return getattr(self.env, name)

    algorithm.parts = dataclasses.replace(algorithm.parts, env=Without(algorithm.env))
    check_refused(algorithm, state, "no `load_state_dict`")


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError, CheckpointError])
def test_an_environment_that_refuses_its_state_changes_nothing(error: Any) -> None:
    algorithm = trained()
    state = copy.deepcopy(algorithm.state_dict())
    algorithm.collect()
    expected = everything(algorithm)

    def refuse(state: Any) -> None:
        raise error("of another level")

    algorithm.env.load_state_dict = refuse
    with pytest.raises(Exception, match="of another level") as caught:
        algorithm.load_state_dict(state)
    assert is_same(everything(algorithm), expected)
    assert isinstance(caught.value, error | CheckpointError)


def test_an_environment_that_refuses_its_state_is_named() -> None:
    algorithm = trained()
    state = copy.deepcopy(algorithm.state_dict())

    def refuse(state: Any) -> None:
        raise ValueError("of another level")

    algorithm.env.load_state_dict = refuse
    with pytest.raises(CheckpointError, match=r"RecordedEnv.*of another level"):
        algorithm.load_state_dict(state)
