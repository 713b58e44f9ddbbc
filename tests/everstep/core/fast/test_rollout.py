"""Acting natively: stored rows equal what the policy gives for each of them."""

import math
from contextlib import suppress
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from everstep import Algorithm, AlgorithmConfig, ContinuousDummyEnv, DiscreteDummyEnv, Env
from everstep.adapters import GymnasiumEnv
from everstep.core.fast import NativeActor, actor
from everstep.distributions import SquashedNormal
from everstep.errors import NonFiniteError
from everstep.models import DefaultDiscreteModel
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


def actor_of(algorithm: Any) -> None | NativeActor:
    return actor(algorithm.policy, algorithm.rollout, deterministic=False)


def check_rows(algorithm: Any) -> None:
    """Stored log-probabilities and values are those that the policy computes for each env step."""
    rollout, policy = algorithm.rollout, algorithm.policy
    for t in range(rollout.horizon):
        with torch.no_grad():
            distribution, values, _ = policy._respond(rollout.obs_at(t), ())
        latents = rollout.action.unflatten(tuple(leaf[t] for leaf in rollout.actions), [6])
        logp = distribution.latents_logp(latents)
        torch.testing.assert_close(rollout.logp[t], logp, rtol=0, atol=1e-12)
        torch.testing.assert_close(rollout.values[t], values, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("action", list(ACTIONS))
def test_what_is_stored_is_what_the_policy_says(action: str) -> None:
    algorithm = built(env_of(ACTIONS[action]))
    assert isinstance(actor_of(algorithm), NativeActor)
    for _ in range(2):
        algorithm.collect()
        check_rows(algorithm)


@pytest.mark.parametrize("action", ["choice", "numbers"])
def test_threads_share_the_rows_and_change_no_number(action: str) -> None:
    wide = {"num_envs": 301, "horizon": 2, "model_config": {"hiddens": (256, 256)}}
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            algorithm = built(env_of(ACTIONS[action]), **wide)
            algorithm.collect()
            rollout = algorithm.rollout
            found.append([rollout.actions[0].clone(), rollout.logp.clone(), rollout.values.clone()])
    finally:
        torch.set_num_threads(before)
    assert found[0][2].std() > 0
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "options",
    [
        {"distribution_cls": SquashedNormal},
        {"model_config": {"state_dependent_std": True, "hiddens": (4,)}},
        {"model_config": {"hiddens": (), "bias": False}},
        {"model_config": {"hiddens": (8,), "activation_fn": "tanh"}},
        {"model_config": {"hiddens": (8, 8), "activation_fn": "sigmoid"}},
        {"model_config": {"hiddens": (8, 8), "shared": True}},
        {"normalize_observations": True},
    ],
    ids=["squashed", "deviations", "linear", "tanh", "sigmoid", "shared", "normalised"],
)
def test_it_does_for_every_perceptron(options: dict[str, Any]) -> None:
    algorithm = built(env_of(ACTIONS["bounded"]), **options)
    assert isinstance(actor_of(algorithm), NativeActor)
    for _ in range(2):
        algorithm.collect()
        check_rows(algorithm)
        algorithm.step()


#: Observations that are concatenated, and masks of the six options of two choices of three.
MASKED: Any = Composite(x=Unbounded(2), action_mask=Binary(6, dtype=torch.bool))

OBSERVATIONS: dict[str, Any] = {
    "mask": MASKED,
    "mask of integers": Composite(x=Unbounded(2), action_mask=Binary(6, dtype=torch.int8)),
    "mapping": Composite(a=Unbounded((2, 3)), b=Composite(c=Categorical(5, shape=(2,)))),
    "choices": Categorical(7, shape=(1,)),
    "bits": Binary(3),
    "bytes": Composite(a=Bounded(0, 3, (4,), dtype=torch.uint8), b=Unbounded(1)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("seen", "is_normalised"),
    [*((x, False) for x in OBSERVATIONS), *((x, True) for x in ("mask", "mapping", "bytes"))],
)
def test_it_does_for_every_observation(seen: str, is_normalised: bool) -> None:
    algorithm = built(
        env_of(ACTIONS["choices"], OBSERVATIONS[seen]), normalize_observations=is_normalised
    )
    assert isinstance(actor_of(algorithm), NativeActor)
    for _ in range(2):
        algorithm.collect()
        check_rows(algorithm)
        algorithm.step()


def test_masked_options_are_not_chosen() -> None:
    """Unless all of a choice are masked: then all are equally likely."""
    algorithm = built(env_of(ACTIONS["choices"], MASKED), num_envs=64, horizon=50)
    for deterministic in (False, True):
        algorithm.collect(deterministic=deterministic)
        assert algorithm._actor is not None
        rollout: Any = algorithm.rollout
        place = rollout.observation.paths.index(("action_mask",))
        mask = rollout.obs[place][:-1].unflatten(-1, (2, 3))
        chosen = mask.gather(-1, rollout.actions[0][:-1].unsqueeze(-1)).squeeze(-1)
        assert (chosen | ~mask.any(-1)).all()
        assert not mask.any(-1).all()
        every = ~mask.any(-1).any(-1, keepdim=True)
        expected = torch.full_like(rollout.logp[:-1][every], -2 * math.log(3))
        torch.testing.assert_close(rollout.logp[:-1][every], expected)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("action", list(ACTIONS))
def test_the_likeliest_actions_are_the_policys(action: str) -> None:
    algorithm = built(env_of(ACTIONS[action]))
    algorithm.collect(deterministic=True)
    check_rows(algorithm)
    for t in range(10):
        sample = algorithm.policy.act(algorithm.rollout.obs_at(t), (), deterministic=True)
        torch.testing.assert_close(algorithm.rollout.actions[0][t], sample.latents[0])


def test_actions_are_drawn_as_often_as_they_are_likely() -> None:
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


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.few(1)
@pytest.mark.parametrize("num_envs", [6, 1, 100])
def test_a_seed_draws_what_the_general_way_draws(
    action: str, num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    seen = MASKED if action == "choices" else RandomEnv.observed
    for switch in ("1", "0"):
        monkeypatch.setenv("EVERSTEP_NATIVE", switch)
        algorithm = built(env_of(ACTIONS[action], seen), num_envs=num_envs)
        assert (actor_of(algorithm) is None) is (switch == "0")
        algorithm.collect()
        rollout = algorithm.rollout
        found.append((rollout.actions[0], rollout.logp, rollout.values))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a[:-1], b[:-1], rtol=1e-10, atol=1e-10)


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


@pytest.mark.parametrize(
    ("env_cls", "options"),
    [
        (DiscreteDummyEnv, {"model_cls": Own}),
        (DiscreteDummyEnv, {"enable_amp": True}),
        (DiscreteDummyEnv, {"model_config": {"activation_fn": "hard_swish"}}),
        (env_of(ACTIONS["choice"], Categorical(2000, shape=(1,))), {}),
        (env_of(ACTIONS["choice"], Bounded(0, 255, (3, 8, 8), dtype=torch.uint8)), {}),
    ],
    ids=["own forward", "bf16", "activation", "embedded", "image"],
)
def test_other_models_act_at_once(env_cls: Any, options: dict[str, Any]) -> None:
    algorithm = built(env_cls, **options)
    assert actor_of(algorithm) is None
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


def test_observations_in_half_precision_are_converted() -> None:
    algorithm = built(env_of(ACTIONS["choice"], Unbounded(3, dtype=torch.bfloat16)))
    assert isinstance(actor_of(algorithm), NativeActor)
    algorithm.collect()
    obs = (algorithm.rollout.obs[0][4],)
    torch.testing.assert_close(algorithm.rollout.values[4], algorithm.policy.values(obs, ()))


def test_log_densities_of_many_actions_are_exact_to_the_last_digits() -> None:
    """In float32: a sum of 500 terms that loses none of what each addition rounds off."""
    algorithm = built(env_of(Unbounded(500)))
    model: Any = algorithm.policy.model
    with torch.no_grad():  # means are 0, and deviations 1: nothing but the sum is rounded
        for p in (*model.policy[-1].parameters(), model.outputs.log_std):
            p.zero_()
    algorithm.collect()
    assert algorithm._actor is not None
    rollout = algorithm.rollout
    noise = rollout.actions[0][:-1].double()
    expected = -0.5 * (noise.square() + math.log(2 * math.pi)).sum(-1, keepdim=True)
    found = rollout.logp[:-1]
    assert found.dtype is torch.float32
    last_digit = torch.finfo(torch.float32).eps * expected.abs()
    assert ((found.double() - expected).abs() <= last_digit).all()
