"""Default models for every spec, and what they do with it."""

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    TensorSpec,
    Unbounded,
)

from everstep import AlgorithmConfig, Policy, RecurrentAlgorithmConfig, RecurrentPolicy
from everstep.env import Env
from everstep.errors import ConfigError
from everstep.models import Model, RecurrentModel

OBSERVATIONS: dict[str, TensorSpec] = {
    "vector": Unbounded(4),
    "bounded": Bounded(-1.0, 1.0, shape=(3,)),
    "matrix": Unbounded((2, 3)),
    "float64": Unbounded(2, dtype=torch.float64),
    "bytes": Bounded(0, 255, shape=(6,), dtype=torch.uint8),
    "integer": Categorical(7, shape=torch.Size([1])),
    "many": Categorical(5000, shape=torch.Size([2])),
    "integers": MultiCategorical([3, 5, 2]),
    "bits": Binary(4),
    "one-hot": OneHot(5),
    "image": Bounded(0, 255, shape=(3, 40, 44), dtype=torch.uint8),
    "image, channels last": Bounded(0, 255, shape=(40, 44, 3), dtype=torch.uint8),
    "float image": Unbounded((1, 36, 36)),
    "mapping": Composite(
        camera=Bounded(0, 255, shape=(1, 36, 36), dtype=torch.uint8),
        nested=Composite(position=Unbounded(3), kind=Categorical(4, shape=torch.Size([1]))),
        flags=Binary(2),
    ),
}

ACTIONS: dict[str, TensorSpec] = {
    "discrete": Categorical(3, shape=torch.Size([1])),
    "several": Categorical(3, shape=torch.Size([2])),
    "multi-discrete": MultiCategorical([2, 4]),
    "multi-binary": Binary(3),
    "continuous": Unbounded(2),
    "bounded": Bounded(-2.0, 3.0, shape=(2,)),
    "matrix": Unbounded((2, 2)),
}

SMALL = {"hiddens": (8,)}


class Random(Env):
    """Random observations, whatever is done; actions must be what their spec says."""

    specs: tuple[TensorSpec, TensorSpec]

    def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
        super().__init__(num_envs, horizon, device=device)
        self.observation_spec, self.action_spec = self.specs

    def reset(self, *, config: Any = None) -> Any:
        return self.observation_spec.rand([self.num_envs])

    def step(self, action: Any) -> TensorDict:
        assert action.shape == (self.num_envs, *self.action_spec.shape)
        if not isinstance(self.action_spec, Bounded):
            assert self.action_spec.is_in(action)
        obs, rewards = self.reset(), torch.randn(self.num_envs, 1)
        return TensorDict({"obs": obs, "rewards": rewards}, [self.num_envs])


PAIRS = [(o, "discrete") for o in OBSERVATIONS] + [("vector", a) for a in ACTIONS]
PAIRS += [("mapping", a) for a in ("multi-discrete", "bounded", "multi-binary")]


@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
@pytest.mark.parametrize(("observation", "action"), PAIRS)
def test_every_spec_trains(observation: str, action: str, kind: str, tmp_path: Any) -> None:
    """Every parameter learns, and what is saved acts the same."""
    env_cls = type("Specs", (Random,), {"specs": (OBSERVATIONS[observation], ACTIONS[action])})
    if kind == "recurrent":
        config: Any = RecurrentAlgorithmConfig(
            num_envs=4, horizon=4, seq_len=2, model_config={"hidden_size": 8}
        )
    else:
        given = {} if "image" in observation else SMALL
        config = AlgorithmConfig(num_envs=4, horizon=4, model_config=given, num_sgd_iters=1)
    algorithm = config.build(env_cls)
    before = copy.deepcopy(algorithm.policy.model.state_dict())
    algorithm.collect()
    algorithm.step()
    still = [
        name
        for name, weight in algorithm.policy.model.state_dict().items()
        if torch.equal(weight, before[name]) and "tables" not in name
    ]
    assert still == []
    algorithm.policy.save(tmp_path / "policy")
    policy_cls: Any = RecurrentPolicy if kind == "recurrent" else Policy
    loaded = policy_cls.load(tmp_path / "policy")
    batch = TensorDict({"obs": OBSERVATIONS[observation].rand([3, 1])}, [3, 1])

    def answer(policy: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out = policy.sample(batch, deterministic=True, return_values=True)
        out = out[0] if isinstance(out, tuple) else out
        return out["actions"], out["values"]

    (actions, values), (same_actions, same_values) = answer(algorithm.policy), answer(loaded)
    assert actions.dtype == ACTIONS[action].dtype
    assert torch.equal(actions, same_actions)
    assert torch.equal(values, same_values)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_one_row_does_not_depend_on_the_others(observation: str) -> None:
    spec = OBSERVATIONS[observation]
    model = Policy(spec, ACTIONS["continuous"]).model
    obs = spec.rand([5])
    with torch.no_grad():
        together = model(TensorDict({"obs": obs}, [5]))["mean"]
        alone = [model(TensorDict({"obs": obs[i : i + 1]}, [1]))["mean"] for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-6)


def test_channels_may_come_last() -> None:
    """The same picture, either way round, is encoded the same."""
    torch.manual_seed(0)
    first = Policy(OBSERVATIONS["image"], ACTIONS["discrete"]).model
    torch.manual_seed(0)
    last = Policy(OBSERVATIONS["image, channels last"], ACTIONS["discrete"]).model
    picture = OBSERVATIONS["image"].rand([2])
    a = first(TensorDict({"obs": picture}, [2]))["logits"]
    b = last(TensorDict({"obs": picture.movedim(1, -1)}, [2]))["logits"]
    torch.testing.assert_close(a, b)


def test_bytes_are_scaled_to_one_and_numbers_are_not() -> None:
    picture = OBSERVATIONS["image"].rand([2])
    model: Any = Policy(OBSERVATIONS["image"], ACTIONS["discrete"]).model
    floats: Any = Policy(Unbounded((3, 40, 44)), ACTIONS["discrete"]).model
    floats.load_state_dict(model.state_dict())
    a = model(TensorDict({"obs": picture}, [2]))["logits"]
    b = floats(TensorDict({"obs": picture / 255}, [2]))["logits"]
    torch.testing.assert_close(a, b)


def test_an_integer_is_a_choice_not_a_size() -> None:
    """Exchanging two columns of the first layer exchanges the two integers, and nothing else."""
    spec = Categorical(5, shape=torch.Size([1]))
    model: Any = Policy(spec, ACTIONS["discrete"], model_config=SMALL).model
    assert model.policy[0].in_features == 5

    def logits(i: int) -> torch.Tensor:
        return model(TensorDict({"obs": torch.tensor([[i]])}, [1]))["logits"]

    before = [logits(i) for i in range(5)]
    with torch.no_grad():
        model.policy[0].weight[:, [1, 3]] = model.policy[0].weight[:, [3, 1]]
    for i, j in enumerate([0, 3, 2, 1, 4]):
        torch.testing.assert_close(logits(i), before[j])


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_mask_excludes_options_and_is_not_encoded(recurrent: bool) -> None:
    spec = Composite(
        action_mask=Categorical(2, shape=torch.Size([3]), dtype=torch.bool), x=Unbounded(2)
    )
    policy: Any = (RecurrentPolicy if recurrent else Policy)(spec, ACTIONS["discrete"])
    model = policy.model
    width = model.lstm.input_size if recurrent else model.policy[0].in_features
    assert width == 2
    mask = torch.tensor([[True, False, True]]).expand(500, 3)
    batch = TensorDict({"obs": {"action_mask": mask, "x": torch.randn(500, 2)}}, [500])
    out = policy.sample(batch.unsqueeze(1), return_logp=True)
    out = out[0] if recurrent else out
    assert set(out["actions"].unique().tolist()) == {0, 2}
    assert out["logp"].isfinite().all()


def test_what_an_action_mask_forbids_is_never_done_in_training() -> None:
    class MaskedEnv(Random):
        specs = (
            Composite(
                action_mask=Categorical(2, shape=torch.Size([3]), dtype=torch.bool),
                x=Unbounded(2),
            ),
            ACTIONS["discrete"],
        )

        def reset(self, *, config: Any = None) -> Any:
            obs = super().reset()
            obs["action_mask"][:, 0] |= ~obs["action_mask"].any(-1)  # something must be allowed
            self.mask = obs["action_mask"].clone()
            return obs

        def step(self, action: Any) -> TensorDict:
            assert self.mask.gather(-1, action).all()
            return super().step(action)

    algorithm = AlgorithmConfig(
        num_envs=32, horizon=8, model_config=SMALL, entropy_coeff=0.01
    ).build(MaskedEnv)
    for _ in range(3):
        algorithm.collect()
        stats = algorithm.step()
        assert stats["losses/entropy"] > 0
        assert stats["monitors/skipped_updates"] == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Bounded(0, 255, shape=(3, 20, 20), dtype=torch.uint8), "at least 36 by 36"),
        (Composite(), "nothing to observe"),
    ],
)
def test_what_has_no_encoder_says_what_to_do(spec: TensorSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Policy(spec, ACTIONS["discrete"])
    assert "model_cls" in str(caught.value)


@pytest.mark.parametrize("base", [Model, RecurrentModel])
def test_actions_without_a_default_model_are_told(base: Any) -> None:
    with pytest.raises(TypeError, match=r"\[2\] \(torch.int64\): set `model_cls`"):
        base.default_model_cls(Unbounded(3), Unbounded(2, dtype=torch.int64))


@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_a_model_can_be_copied_and_pickled_after_an_update(config_cls: Any) -> None:
    """What `value_function` keeps is no part of it: a pickle is as large as before."""
    env_cls = type("Specs", (Random,), {"specs": (Unbounded(4), ACTIONS["discrete"])})
    algorithm = config_cls(num_envs=64, horizon=32).build(env_cls)
    before = len(pickle.dumps(algorithm.policy.model))
    algorithm.collect()
    algorithm.step()
    assert len(pickle.dumps(algorithm.policy.model)) == before
    twin = copy.deepcopy(algorithm.policy.model)
    assert all(
        torch.equal(a, b)
        for a, b in zip(twin.parameters(), algorithm.policy.model.parameters(), strict=True)
    )
    copy.deepcopy(algorithm.policy)


def test_a_recurrent_policy_starts_near_uniform() -> None:
    policy = RecurrentPolicy(Unbounded(4), ACTIONS["discrete"])
    out, _ = policy.sample(TensorDict({"obs": torch.randn(16, 8, 4)}, [16, 8]), return_logp=True)
    torch.testing.assert_close(out["logp"], torch.full((128, 1), 1 / 3).log(), atol=0.02, rtol=0)


def test_several_layers_and_no_biases() -> None:
    policy = RecurrentPolicy(
        Unbounded(4),
        Unbounded(2),
        model_config={"hidden_size": 8, "num_layers": 3, "bias": False, "log_std_init": -1.0},
    )
    assert policy.state_spec["hidden_states"].shape == (3, 8)
    assert not [n for n, _ in policy.model.lstm.named_parameters() if "bias" in n]
    out, states = policy.sample(TensorDict({"obs": torch.randn(2, 5, 4)}, [2, 5]))
    assert states["cell_states"].shape == (2, 3, 8)
    assert out["features", "log_std"].unique().tolist() == pytest.approx([-1.0])


@pytest.mark.parametrize("recurrent", [False, True])
def test_under_autocast_heads_and_states_are_in_full(recurrent: bool) -> None:
    env_cls = type("Specs", (Random,), {"specs": (Unbounded(4), ACTIONS["continuous"])})
    config_cls: Any = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    algorithm = config_cls(num_envs=4, horizon=8, enable_amp=True).build(env_cls)
    algorithm.collect()
    stats = algorithm.step()
    assert all(x.dtype == torch.float32 for x in algorithm.states)
    assert stats["monitors/skipped_updates"] == 0
    first = algorithm.policy.act(
        (torch.randn(4, 4),), algorithm.policy.memory.zeros(4, device="cpu")
    )
    assert first.values.dtype == first.logp.dtype == torch.float32
