"""Policies as modules of TensorDicts: TorchRL acts with them as Everstep does."""

import copy
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import set_composite_lp_aggregate
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import (
    Compose,
    ExplorationType,
    InitTracker,
    SerialEnv,
    TransformedEnv,
    check_env_specs,
    set_exploration_type,
)

from everstep import (
    AlgorithmConfig,
    Policy,
    RecurrentAlgorithmConfig,
    RecurrentPolicy,
)
from everstep.adapters import to_torchrl
from everstep.distributions import SquashedNormal
from everstep.errors import ConfigError
from everstep.models import Model
from everstep.views import ViewRequirement
from tests.everstep_adapters.export.export_toys import Walk

NUM_ENVS, HORIZON = 4, 24

# Step by step or all steps at once: rounding of the same numbers, which depends on the processor.
pytestmark = pytest.mark.usefixtures("float64")


class Averaging(Model):
    """Acts on the mean of a window of places, and on how much of it is padding."""

    def __init__(self, observation_spec: Any, action_spec: Any, /, key: Any = "obs") -> None:
        super().__init__(observation_spec, action_spec, key=key)
        self.view_requirements[key] = ViewRequirement(shift=3)
        self.key = key
        self.policy, self.value = nn.Linear(3, 4), nn.Linear(3, 1)

    def forward(self, batch: TensorDict, /) -> Any:
        seen = batch[self.key]
        mean = torch.cat([seen["inputs"].mean(1), 1.0 * seen["padding_mask"].sum(1, True)], -1)
        self.values = self.value(mean)
        return {"logits": self.policy(mean).unsqueeze(1)}

    def value_function(self) -> torch.Tensor:
        return self.values


def config(kind: str) -> Any:
    common: dict[str, Any] = {"horizon": HORIZON, "seed": 1, "sgd_minibatch_size": None}
    if "normalized" not in kind:
        common["normalize_observations"] = False
    if kind.startswith("recurrent"):
        model = {"model_config": {"hidden_size": 8}}
        return RecurrentAlgorithmConfig(**common, **model, seq_len=4)
    if kind.startswith("window"):
        key = ("obs", "place") if "mapping" in kind else "obs"
        return AlgorithmConfig(**common, model_cls=Averaging, model_config={"key": key})
    squashed = {"distribution_cls": SquashedNormal} if "squashed" in kind else {}
    return AlgorithmConfig(**common, **squashed)


def collected(kind: str, **options: Any) -> tuple[Any, TensorDict]:
    """A policy that has learned a little, and the rollout that Everstep collects with it."""
    options["mapping"] = "mapping" in kind
    options["continuous"] = "squashed" in kind
    algorithm = config(kind).build(Walk(NUM_ENVS, **options))
    algorithm.collect()
    algorithm.step()
    sharpen(algorithm.policy.model)
    algorithm.env.seed(3)
    algorithm.states = None
    if algorithm.policy.normalizer is not None:  # which collecting would move on
        return algorithm.policy, None
    torch.manual_seed(5)
    algorithm.collect()
    return algorithm.policy, algorithm.buffer[:, :-1].clone()


def sharpen(model: nn.Module) -> None:
    """Make the policy depend on what it sees, clearly."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)


def exported(policy: Any, module: Any, **options: Any) -> Any:
    options["mapping"] = isinstance(policy.observation_spec, Composite)
    options["continuous"] = isinstance(policy.action_spec, Bounded)
    keeps_invalid = options.get("ends") == "next step"
    env = to_torchrl(Walk(NUM_ENVS, **options), invalid_rows="keep" if keeps_invalid else "error")
    if hasattr(module, "make_tensordict_primer"):
        # An environment with invalid rows says itself what opens an episode.
        trackers = [] if keeps_invalid else [InitTracker()]
        env = TransformedEnv(env, Compose(*trackers, module.make_tensordict_primer()))
    return env


def rolled_out(policy: Any, **options: Any) -> Any:
    """The rollout that TorchRL collects with the policy, from the same seeds."""
    module = policy.as_tensordict_module()
    env = exported(policy, module, **options)
    env.set_seed(3)
    torch.manual_seed(5)
    return env.rollout(HORIZON, module, break_when_any_done=False)


KINDS = ["feedforward", "mapping", "squashed", "recurrent", "recurrent, mapping"]
WINDOWS = ["window", "window, mapping"]


@pytest.mark.few(4)
@pytest.mark.parametrize("ends", ["same step", "next step"])
@pytest.mark.parametrize("kind", [*KINDS, *WINDOWS])
def test_rollouts_are_those_of_everstep(
    kind: str, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rollout draws its random numbers env step by env step then, as TorchRL's do.
    monkeypatch.setattr("everstep.algorithms.algorithm.actor", lambda *_, **__: None)
    policy, expected = collected(kind, ends=ends)
    found = rolled_out(policy, ends=ends)
    valid = found["next"].get("valid", torch.ones(NUM_ENVS, HORIZON, 1, dtype=torch.bool))
    valid = valid.squeeze(-1)
    assert found["next", "done"].sum() > 10
    assert valid.all() == (ends == "same step")
    if kind != "squashed":  # the buffer holds what was squashed
        assert torch.equal(found["action"][valid], expected["actions"][valid])
    assert torch.equal(found["next", "reward"][valid], expected["rewards"][valid])
    assert found["action_log_prob"].shape == (NUM_ENVS, HORIZON)
    close(found["action_log_prob"][valid], expected["logp"][valid].squeeze(-1))
    close(found["state_value"][valid], expected["values"][valid])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ends", ["same step", "next step"])
def test_torchrls_advantages_are_those_of_everstep(ends: str) -> None:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    plain = dict.fromkeys(
        ("normalize_advantages", "normalize_rewards", "recompute_advantages"), False
    )
    discounts = {"gamma": 0.9, "gae_lambda": 0.8}
    algorithm = AlgorithmConfig(horizon=HORIZON, seed=1, **plain, **discounts).build(
        Walk(NUM_ENVS, ends=ends)
    )
    sharpen(algorithm.policy.model)
    found = rolled_out(algorithm.policy, ends=ends)
    following = found["next"]
    following["state_value"] = algorithm.policy.as_tensordict_module()(following.clone())[
        "state_value"
    ]
    keys = ("reward", "done", "terminated")
    advantages, _ = generalized_advantage_estimate(
        *discounts.values(),
        found["state_value"],
        following["state_value"],
        *(following[key] for key in keys),
    )
    algorithm.env.seed(3)
    torch.manual_seed(5)
    algorithm.collect()
    valid = algorithm.rollout.valid.transpose(0, 1)
    algorithm.step()
    expected = algorithm.buffer["advantages"][:, :-1]
    assert (~valid).any() == (ends == "next step")
    torch.testing.assert_close(advantages[valid], expected[valid], rtol=0, atol=1e-12)


def test_observations_are_normalized() -> None:
    policy, _ = collected("normalized")
    assert policy.normalizer.moments["0"].count > 0
    module = policy.as_tensordict_module(deterministic=True)
    obs = torch.randn(5, 2)
    out = module(TensorDict({"observation": obs}, [5]))
    sample = policy.sample(
        TensorDict({"obs": obs.unsqueeze(1)}, [5, 1]), deterministic=True, return_values=True
    )
    assert torch.equal(out["action"], sample["actions"])
    close(out["state_value"], sample["values"])
    bare = Policy(policy.observation_spec, policy.action_spec, model=policy.model)
    plain = bare.as_tensordict_module()(TensorDict({"observation": obs}, [5]))
    assert (plain["state_value"] - out["state_value"]).abs().max() > 1e-3


# A collector.


def collector(env: Any, policy: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torchrl, importing itself
        warnings.simplefilter("ignore", FutureWarning)
        from torchrl.collectors import Collector

        return Collector(env, policy, **options)


@pytest.mark.parametrize("kind", ["feedforward", "recurrent", "window"])
def test_a_collector(kind: str) -> None:
    policy, _ = collected(kind)
    module = policy.as_tensordict_module()
    frames = collector(exported(policy, module), module, frames_per_batch=40, total_frames=120)
    batches = [data.clone() for data in frames]
    frames.shutdown()
    assert [data.batch_size for data in batches] == [(4, 10)] * 3
    data = torch.cat(batches, 1)
    assert data["next", "done"].sum() > 10
    for row in range(len(data)):
        check_log_probabilities(policy, kind, data[row])


def check_log_probabilities(policy: Any, kind: str, data: Any) -> None:
    """Of each episode's steps, from its observations alone."""
    opens = [0, *(data["next", "done"][:, 0].nonzero()[:, 0] + 1).tolist(), len(data)]
    for start, end in pairwise(opens):
        episode = data[start:end]
        if not len(episode):
            continue
        seen = TensorDict({"obs": episode["observation"].unsqueeze(0)}, [1, len(episode)])
        options: dict[str, Any] = {"return_actions": False, "return_values": True}
        if kind == "recurrent":
            out, _ = policy.sample(seen, **options)
        else:
            out = policy.sample(seen, kind="all", **options)
        distribution = policy.distribution_cls(out["features"], policy.model)
        close(episode["action_log_prob"], distribution.logp(episode["action"]).squeeze(-1))
        close(episode["state_value"], out["values"])


def test_a_collector_appends_what_a_recurrent_policy_needs() -> None:
    policy, _ = collected("recurrent")
    module = policy.as_tensordict_module()
    options = {"frames_per_batch": 40, "total_frames": 40}
    frames = collector(to_torchrl(Walk(4)), module, auto_register_policy_transforms=True, **options)
    [data] = list(frames)
    frames.shutdown()
    assert data["states"].keys() == data["next", "states"].keys()
    for row in range(len(data)):
        check_log_probabilities(policy, "recurrent", data[row])


# What it is.


def test_keys() -> None:
    policy, _ = collected("mapping")
    module = policy.as_tensordict_module()
    assert module.in_keys == ["place", ("clock", "age")]
    assert module.out_keys == ["action", "action_log_prob", "state_value"]
    assert not hasattr(module, "make_tensordict_primer")
    keyed = policy.as_tensordict_module(observation_key="seen")
    assert keyed.in_keys == [("seen", "place"), ("seen", "clock", "age")]
    env = to_torchrl(Walk(4, mapping=True), observation_key="seen")
    assert env.rollout(5, keyed, break_when_any_done=False).batch_size == (4, 5)
    recurrent, _ = collected("recurrent")
    assert recurrent.as_tensordict_module(observation_key="obs").in_keys == [
        "obs",
        ("states", "hidden_states"),
        ("states", "cell_states"),
        "is_init",
    ]


def test_log_probabilities_are_under_the_key_that_losses_read() -> None:
    policy, _ = collected("feedforward")
    assert "action_log_prob" in policy.as_tensordict_module().out_keys
    with set_composite_lp_aggregate(True):
        assert "sample_log_prob" in policy.as_tensordict_module().out_keys


def test_actions_of_several_leaves() -> None:
    spec = Composite(move=Unbounded(2), jump=Categorical(2, shape=torch.Size([1])))
    distribution = two_heads()
    policy = Policy(Unbounded(3), spec, model=TwoHeads(), distribution_cls=distribution)
    module = policy.as_tensordict_module()
    out = module(TensorDict({"observation": torch.zeros(5, 3)}, [5]))
    assert module.out_keys[:2] == [("action", "move"), ("action", "jump")]
    assert out["action", "move"].shape == (5, 2)
    assert out["action", "jump"].shape == (5, 1)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, batch: TensorDict) -> Any:
        return {"heads": self.head(batch["obs"])}

    def value_function(self) -> torch.Tensor:
        return torch.zeros(5, 1)


def two_heads() -> Any:
    from everstep.distributions import Distribution

    class Two(Distribution):
        def sample(self) -> TensorDict:
            heads = self.features["heads"]
            jump = (heads[:, 2:] > 0).long()
            return TensorDict({"move": heads[:, :2], "jump": jump}, [len(heads)])

        deterministic_sample = sample

        def logp(self, samples: Any) -> torch.Tensor:
            return torch.zeros(len(samples), 1)

        def entropy(self) -> torch.Tensor:
            return torch.zeros(len(self.features["heads"]), 1)

    return Two


@pytest.mark.parametrize("batch", [[], [5], [2, 3]])
@pytest.mark.parametrize("kind", ["feedforward", "recurrent", "window"])
def test_any_batch_size(kind: str, batch: list[int]) -> None:
    policy, _ = collected(kind)
    module = policy.as_tensordict_module(deterministic=True)
    obs = torch.randn(*batch, 2)
    is_init = torch.ones(*batch, 1, dtype=torch.bool)
    out = module(TensorDict({"observation": obs, "is_init": is_init}, batch))
    flat = module(
        TensorDict(
            {"observation": obs.reshape(-1, 2), "is_init": is_init.reshape(-1, 1)},
            [obs.numel() // 2],
        )
    )
    assert out["action"].shape == (*batch, 1)
    assert out["action_log_prob"].shape == torch.Size(batch)
    assert out["state_value"].shape == (*batch, 1)
    for key in module.out_keys:
        assert torch.equal(out[key].flatten(), flat[key].flatten())


def test_environments_side_by_side() -> None:
    policy, _ = collected("recurrent")
    module = policy.as_tensordict_module()
    env = SerialEnv(2, lambda: exported(policy, module))
    check_env_specs(env)
    data = env.rollout(20, module, break_when_any_done=False)
    assert data.batch_size == (2, 4, 20)
    for row in data.reshape(8, 20).unbind(0):
        check_log_probabilities(policy, "recurrent", row)
    env.close()


# How it acts.


def test_the_likeliest_action_on_demand() -> None:
    policy, _ = collected("feedforward")
    data = TensorDict({"observation": torch.randn(64, 2)}, [64])
    likeliest = policy.as_tensordict_module(deterministic=True)(data.clone())["action"]
    sampling = policy.as_tensordict_module()
    assert not torch.equal(sampling(data.clone())["action"], likeliest)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert torch.equal(sampling(data.clone())["action"], likeliest)
    with set_exploration_type(ExplorationType.RANDOM):
        assert not torch.equal(sampling(data.clone())["action"], likeliest)


def test_acting_leaves_no_trace() -> None:
    class Dropping(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(2, 64), nn.Dropout(0.5), nn.Linear(64, 4))

        def forward(self, batch: TensorDict) -> Any:
            return {"logits": super().forward(batch["obs"]).unsqueeze(1)}

        def value_function(self) -> torch.Tensor:
            return torch.zeros(9, 1)

    policy = Policy(Unbounded(2), Categorical(4, shape=torch.Size([1])), model=Dropping())
    module = policy.as_tensordict_module(deterministic=True)
    data = TensorDict({"observation": torch.randn(9, 2)}, [9])
    outs = [module(data.clone()) for _ in range(5)]
    assert all(torch.equal(out["action_log_prob"], outs[0]["action_log_prob"]) for out in outs)
    assert all(part.training for part in policy.model.modules())
    assert not outs[0]["action_log_prob"].requires_grad
    assert torch.is_grad_enabled()


def test_it_is_the_policy_and_not_a_copy() -> None:
    policy, _ = collected("normalized")
    module = policy.as_tensordict_module()
    assert {id(x) for x in module.parameters()} == {id(x) for x in policy.model.parameters()}
    assert any(key.startswith("normalizer.") for key in module.state_dict())
    other = copy.deepcopy(module)
    assert other.policy.model is other.model is not policy.model
    sharpen(other.model)
    data = TensorDict({"observation": torch.randn(9, 2)}, [9])
    close(
        other(data.clone())["state_value"], other.policy.as_tensordict_module()(data)["state_value"]
    )


def test_a_memory_that_is_not_handed_on_is_an_error() -> None:
    policy = RecurrentPolicy(Unbounded(2), Categorical(4, shape=torch.Size([1])))
    module = policy.as_tensordict_module()
    env = to_torchrl(Walk(4))
    with pytest.raises(ConfigError, match=r"no 'is_init' .* `InitTracker\(\)`"):
        env.rollout(5, module)
    with pytest.raises(ConfigError, match=r"is missing. .*`make_tensordict_primer\(\)`"):
        TransformedEnv(env, InitTracker()).rollout(5, module)


def test_binary_actions() -> None:
    policy = Policy(Unbounded(2), Binary(3))
    out = policy.as_tensordict_module()(TensorDict({"observation": torch.zeros(7, 2)}, [7]))
    assert Binary(3).expand(7, 3).is_in(out["action"])
