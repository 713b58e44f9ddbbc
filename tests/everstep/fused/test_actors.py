"""Acting in a rollout: what is computed later is what would have been computed at once."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

import everstep.policies._actors as actors
from everstep import Algorithm, AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv, Env
from everstep.adapters import GymnasiumEnv
from everstep.distributions import SquashedNormal
from everstep.env import is_asynchronous
from everstep.errors import NonFiniteError
from everstep.models import DefaultDiscreteModel, _host_chains
from everstep.policies import Actor, make_actor
from everstep.policies._actors import BlockActor
from tests.toys import TERMINATED, Episode, scripted_vector_env

ACTIONS: dict[str, Any] = {
    "choice": Categorical(3, shape=(1,)),
    "choices": Categorical(3, shape=(2,)),
    "column": Categorical(3, shape=(1,), dtype=torch.int32),
    "uneven": MultiCategorical([2, 5]),
    "binary": Binary(2),
    "integers": Bounded(-1, 2, (2,), dtype=torch.int64),
    "numbers": Unbounded(2),
    "matrix": Unbounded((2, 3)),
    "bounded": Bounded(-0.5, 0.5, (2,)),
}


class RandomEnv(Env):
    """Random observations of any shape, and any actions, which it overwrites."""

    observed: Any = Unbounded(4)
    acted: Any = ACTIONS["choice"]

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec, self.action_spec = self.observed, self.acted

    def reset(self, *, config: Any = None) -> Any:
        return self.observed.rand([self.num_envs])

    def step(self, action: Any) -> TensorDict:
        obs, rewards = self.reset(), torch.randn(self.num_envs, 1)
        action.zero_()
        return TensorDict({"obs": obs, "rewards": rewards}, [self.num_envs])


def env_of(acted: Any, observed: Any = RandomEnv.observed) -> type[RandomEnv]:
    return type("Env", (RandomEnv,), {"observed": observed, "acted": acted})


def built(env_cls: Any, **options: Any) -> Algorithm:
    small = {"num_envs": 6, "horizon": 10, "seed": 0, **options}
    algorithm = AlgorithmConfig(**small).build(env_cls)
    for p in algorithm.policy.model.parameters():
        nn.init.normal_(p, std=0.5)
    return algorithm


def check_rows(algorithm: Any) -> None:
    """What is stored of each env step is what the policy says of it."""
    rollout, policy = algorithm.rollout, algorithm.policy
    for t in range(rollout.horizon):
        with torch.no_grad():
            distribution, values, _ = policy._respond(rollout.obs_at(t), ())
        latents = rollout.action.unflatten(tuple(leaf[t] for leaf in rollout.actions), [6])
        logp = distribution.latents_logp(latents)
        # Sums of 256 products in an order that is the processor's. They pass through numbers up to
        # 100, of which a rounding is 1e-14, and there are some hundred.
        torch.testing.assert_close(rollout.logp[t], logp, rtol=0, atol=1e-11)
        torch.testing.assert_close(rollout.values[t], values, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("rows", [1, 24, 2048], ids=["a step", "4 steps", "the rollout"])
def test_what_waits_is_what_the_policy_says(
    action: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "BLOCK_ROWS", rows)
    algorithm = built(env_of(ACTIONS[action]))
    assert type(make_actor(algorithm.policy, algorithm.rollout)) is BlockActor
    for _ in range(2):
        algorithm.collect()
        check_rows(algorithm)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {"distribution_cls": SquashedNormal},
        {"model_config": {"state_dependent_std": True, "hiddens": (4,)}},
        {"model_config": {"hiddens": (), "bias": False}},
        {"model_config": {"hiddens": (8,), "activation_fn": "tanh"}},
        {"model_config": {"hiddens": (8, 8), "activation_fn": "sigmoid"}},
        {"normalize_observations": True},
    ],
    ids=["squashed", "deviations", "linear", "tanh", "sigmoid", "normalised"],
)
@pytest.mark.parametrize("most", [0, 2**18], ids=["PyTorch", "NumPy"])
def test_it_does_for_every_perceptron(
    most: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_host_chains, "MOST_MULTIPLICATIONS", most)
    algorithm = built(env_of(ACTIONS["bounded"]), **options)
    assert type(make_actor(algorithm.policy, algorithm.rollout)) is BlockActor
    for _ in range(2):
        algorithm.collect()
        check_rows(algorithm)
        algorithm.step()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("action", list(ACTIONS))
def test_the_likeliest_actions_are_the_policys(action: str) -> None:
    algorithm = built(env_of(ACTIONS[action]))
    algorithm.collect(deterministic=True)
    check_rows(algorithm)
    for t in range(10):
        sample = algorithm.policy.act(algorithm.rollout.obs_at(t), (), deterministic=True)
        torch.testing.assert_close(algorithm.rollout.actions[0][t], sample.latents[0])


@pytest.mark.parametrize("rows", [64, 2048], ids=["drawn often", "drawn once"])
def test_actions_are_drawn_as_often_as_they_are_likely(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "BLOCK_ROWS", rows)
    env_cls = env_of(ACTIONS["choices"], Unbounded(1))
    algorithm = built(env_cls, num_envs=64, horizon=300)
    with torch.no_grad():
        for p in algorithm.policy.model.policy.parameters():
            p.zero_()
        algorithm.policy.model.policy[-1].bias.copy_(torch.tensor([0.5, 0.3, 0.2] * 2).log())
    algorithm.collect()
    drawn = algorithm.rollout.actions[0][:-1].flatten(0, 1)  # [19200, 2]
    for choice in range(2):
        shares = drawn[:, choice].bincount(minlength=3) / len(drawn)
        # Four standard deviations of a share.
        assert (shares - torch.tensor([0.5, 0.3, 0.2])).abs().max() < 4 * 0.5 / len(drawn) ** 0.5
    assert abs(torch.corrcoef(drawn.T.double())[0, 1]) < 4 / len(drawn) ** 0.5
    following = torch.stack([drawn[:-64, 0], drawn[64:, 0]]).double()
    assert abs(torch.corrcoef(following)[0, 1]) < 4 / len(drawn) ** 0.5


def test_numbers_are_drawn_with_their_deviations() -> None:
    algorithm = built(env_of(Unbounded(2), Unbounded(1)), num_envs=64, horizon=300)
    with torch.no_grad():
        for p in algorithm.policy.model.policy.parameters():
            p.zero_()
        algorithm.policy.model.policy[-1].bias.copy_(torch.tensor([1.0, -2.0]))
        algorithm.policy.model.outputs.log_std.copy_(torch.tensor([0.5, 3.0]).log())
    algorithm.collect()
    drawn = algorithm.rollout.actions[0][:-1].flatten(0, 1)
    deviation = torch.tensor([0.5, 3.0])
    error = 4 * deviation / len(drawn) ** 0.5
    assert ((drawn.mean(0) - torch.tensor([1.0, -2.0])).abs() < error).all()
    assert ((drawn.std(0) - deviation).abs() < error).all()
    assert len(drawn.unique()) > 0.99 * drawn.numel()  # numbers of float32 meet


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_no_warning_is_given_of_what_is_not_finite(value: float) -> None:
    """An error is, once the rollout is complete."""
    algorithm = built(env_of(ACTIONS["choice"]))
    algorithm.collect()
    algorithm.env.step = lambda action: TensorDict(  # type: ignore[method-assign]
        {"obs": torch.full((6, 4), value), "rewards": torch.zeros(6, 1)}, [6]
    )
    with suppress(NonFiniteError):
        algorithm.collect()
    assert not algorithm.rollout.values.isfinite().all() or value == 3e38


def test_each_rollout_draws_anew_and_a_seed_draws_the_same() -> None:
    def actions(seed: int) -> list[torch.Tensor]:
        algorithm = built(env_of(Unbounded(2)), seed=seed)
        found = []
        for _ in range(2):
            algorithm.collect()
            found.append(algorithm.rollout.actions[0][:-1].clone())
        return found

    first, second = actions(3)
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(actions(3), (first, second), strict=True))


class Own(DefaultDiscreteModel):
    """A model with a `forward` of its own."""

    def forward(self, batch: TensorDict, /) -> Any:
        return super().forward(batch)


MASKED = Composite(x=Unbounded(2), action_mask=Binary(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("env_cls", "options"),
    [
        (DiscreteDummyEnv, {"model_cls": Own}),
        (DiscreteDummyEnv, {"enable_amp": True}),
        (env_of(ACTIONS["choice"], Unbounded(3, dtype=torch.bfloat16)), {}),
        (DiscreteDummyEnv, {"model_config": {"activation_fn": "squared_relu"}}),
        (env_of(ACTIONS["choice"], MASKED), {}),
        (env_of(ACTIONS["choice"], Composite(a=Unbounded(2), b=Unbounded(3))), {}),
        (env_of(ACTIONS["choice"], Categorical(7, shape=(1,))), {}),
    ],
    ids=["own forward", "bf16", "observed in bf16", "activation", "mask", "mapping", "choices"],
)
def test_other_models_act_at_once(env_cls: Any, options: dict[str, Any]) -> None:
    algorithm = built(env_cls, **options)
    assert type(make_actor(algorithm.policy, algorithm.rollout)) is Actor
    algorithm.collect()


@pytest.mark.parametrize("place", ["model", "policy", "layer", "outputs"])
def test_hooks_are_called(place: str) -> None:
    algorithm = built(ContinuousDummyEnv)
    model: Any = algorithm.policy.model
    seen: list[int] = []
    module = {"model": model, "policy": model.policy, "layer": model.policy[0]}.get(place)
    (module or model.outputs).register_forward_hook(lambda *_: seen.append(1))
    algorithm.collect()
    assert len(seen) >= algorithm.rollout.horizon


def test_a_normaliser_is_used_as_it_was() -> None:
    """Rows that wait are normalised by the moments that their actions were chosen by."""
    env = GymnasiumEnv(
        scripted_vector_env([[Episode(3, TERMINATED)]] * 6, AutoresetMode.NEXT_STEP), 10
    )
    algorithm = AlgorithmConfig(seed=0, normalize_observations=True).build(env)
    for _ in range(2):
        algorithm.collect()
        policy, rollout = algorithm.policy, algorithm.rollout
        for t in range(10):
            values = policy.values(rollout.obs_at(t), ())
            torch.testing.assert_close(rollout.values[t], values)
        algorithm.step()


# Environments that are stepped meanwhile.


class Elsewhere(RandomEnv):
    """Is stepped elsewhere: notes whether a step is under way, and fails where told to."""

    asynchronous = True
    under_way = False

    def reset(self, *, config: Any = None) -> Any:
        assert not self.under_way
        return super().reset()

    def step_async(self, action: Any) -> None:
        assert not self.under_way
        self.under_way = True
        self.sent = action

    def step_wait(self) -> TensorDict:
        assert self.under_way
        self.under_way = False
        obs, rewards = super().reset(), torch.randn(self.num_envs, 1)
        self.sent.zero_()
        return TensorDict({"obs": obs, "rewards": rewards}, [self.num_envs])

    def step(self, action: Any) -> TensorDict:
        raise AssertionError("nobody calls `step` of an environment that is asynchronous")


class Within(RandomEnv):
    """Hands on everything but `step`, as wrappers do."""

    def __init__(self, env: Any) -> None:
        self._env, self.calls = env, 0

    def __getattribute__(self, name: str) -> Any:
        own = ("_env", "calls", "step", "__class__", "__dict__")
        return object.__getattribute__(self, name) if name in own else getattr(self._env, name)

    def step(self, action: Any) -> TensorDict:
        self.calls += 1
        self._env.step_async(action)
        outcome: TensorDict = self._env.step_wait()
        return outcome


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("rows", [6, 24, 512], ids=["a step", "4 steps", "the rollout"])
def test_what_waits_is_done_while_environments_are_stepped(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "MEANWHILE_ROWS", rows)
    algorithm = built(Elsewhere)
    stored: list[tuple[bool, int]] = []
    store = BlockActor._store

    def noting(actor: Any, end: int) -> None:
        stored.append((algorithm.env.under_way, end))  # type: ignore[attr-defined]
        store(actor, end)

    monkeypatch.setattr(BlockActor, "_store", noting)
    for _ in range(2):
        stored.clear()
        algorithm.collect()
        check_rows(algorithm)
        # Only the last env steps wait, for what the very last one leads to.
        ends = range(max(1, rows // 6), 10, max(1, rows // 6))
        assert stored == [*((True, end) for end in ends), (False, 10)]
        algorithm.step()


def test_models_that_act_at_once_do_so_before_environments_are_stepped() -> None:
    algorithm = built(Elsewhere, model_cls=Own)
    seen: list[bool] = []
    algorithm.policy.model.register_forward_hook(
        lambda *_: seen.append(algorithm.env.under_way)  # type: ignore[attr-defined]
    )
    algorithm.collect()
    assert len(seen) == 11
    assert not any(seen)
    algorithm.step()


def test_an_error_meanwhile_leaves_no_env_step_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = built(Elsewhere)
    with monkeypatch.context() as failing:
        failing.setattr(BlockActor, "catch_up", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            algorithm.collect()
    algorithm.collect()
    algorithm.step()


def test_whoever_overrides_step_alone_is_stepped_by_it() -> None:
    algorithm = built(lambda *args, **options: Within(Elsewhere(*args, **options)))
    algorithm.collect()
    assert algorithm.env.calls == 10  # type: ignore[attr-defined]
    replaced: Any = built(Elsewhere)
    calls = []

    def step(action: Any) -> TensorDict:
        calls.append(1)
        replaced.env.step_async(action)
        outcome: TensorDict = replaced.env.step_wait()
        return outcome

    replaced.env.step = step
    replaced.collect()
    assert len(calls) == 10


class Halves:
    """A mixin: an env step for those who have its halves."""

    def step(self: Any, action: Any) -> TensorDict:
        self.step_async(action)
        outcome: TensorDict = self.step_wait()
        return outcome


def test_halves_may_be_of_a_class_that_comes_before_that_of_the_whole() -> None:
    below = {name: vars(Elsewhere)[name] for name in ("step_async", "step_wait", "reset")}
    mixed = type("Mixed", (Halves, RandomEnv), {"asynchronous": True, "under_way": False, **below})
    assert is_asynchronous(mixed(2))
    above = type("Above", (Halves, Elsewhere), {})
    assert not is_asynchronous(above(2))


def test_random_numbers_are_the_same_whoever_steps_the_environment() -> None:
    """Past a block of what is computed meanwhile, and where none of its multiples ends."""

    class Here(Elsewhere):
        asynchronous = False

        def step(self, action: Any) -> TensorDict:
            self.step_async(action)
            return self.step_wait()

    found = []
    for env_cls in (Here, Elsewhere):
        algorithm = built(
            type("Env", (env_cls,), {"acted": ACTIONS["numbers"]}), num_envs=16, horizon=100
        )
        for _ in range(2):
            algorithm.collect()
        found.append((algorithm.rollout.actions[0].clone(), algorithm.rollout.values.clone()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
