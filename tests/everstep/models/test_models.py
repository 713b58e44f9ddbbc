"""Default models for every spec, and what they do with it."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

from everstep import AlgorithmConfig, Policy, RecurrentAlgorithmConfig, RecurrentPolicy
from everstep.distributions import SquashedNormal
from everstep.env import Env
from everstep.env.specs import MAX_OPTIONS, options, spec_from_dict, spec_to_dict
from everstep.errors import ConfigError
from everstep.models import DefaultContinuousModel, Model, RecurrentModel

OBSERVATIONS: dict[str, TensorSpec] = {
    "vector": Unbounded(4),
    "bounded": Bounded(-1.0, 1.0, shape=(3,)),
    "matrix": Unbounded((2, 3)),
    "float64": Unbounded(2, dtype=torch.float64),
    "float16": Unbounded(2, dtype=torch.float16),
    "bytes": Bounded(0, 255, shape=(6,), dtype=torch.uint8),
    "truths": Categorical(2, shape=torch.Size([3]), dtype=torch.bool),
    "grid of integers": Bounded(0, 4, shape=(2, 2), dtype=torch.int64),
    "integer": Categorical(7, shape=torch.Size([1])),
    "many": Categorical(5000, shape=torch.Size([2])),
    "integers": MultiCategorical([3, 5, 2]),
    "bits": Binary(4),
    "one-hot": OneHot(5),
    "multi-one-hot": MultiOneHot([2, 3]),
    "image": Bounded(0, 255, shape=(3, 40, 44), dtype=torch.uint8),
    "image, channels last": Bounded(0, 255, shape=(40, 44, 3), dtype=torch.uint8),
    "float image": Unbounded((1, 36, 36)),
    "image, small": Bounded(0, 255, shape=(7, 7, 3), dtype=torch.uint8),
    "image, gray": Bounded(0, 255, shape=(40, 36), dtype=torch.uint8),
    "image, stacked": Bounded(0, 255, shape=(2, 40, 36, 3), dtype=torch.uint8),
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
    "one-hot": OneHot(4),
    "multi-one-hot": MultiOneHot([2, 3]),
    "integers": Bounded(-1, 2, shape=(2,), dtype=torch.int64),
    "int32": MultiCategorical([2, 4], dtype=torch.int32),
    "continuous": Unbounded(2),
    "bounded": Bounded(-2.0, 3.0, shape=(2,)),
    "matrix": Unbounded((2, 2)),
    "float16": Unbounded(2, dtype=torch.float16),
    "float64": Bounded(-1.0, 2.0, shape=(2,), dtype=torch.float64),
    "half-bounded": Bounded(low=torch.tensor([0.0, -torch.inf]), high=torch.tensor([torch.inf, 1])),
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
        if not action.is_floating_point():
            assert self.action_spec.is_in(action)
        obs, rewards = self.reset(), torch.randn(self.num_envs, 1)
        return TensorDict({"obs": obs, "rewards": rewards}, [self.num_envs])


PAIRS = [(o, "discrete") for o in OBSERVATIONS] + [("vector", a) for a in ACTIONS]
PAIRS += [("mapping", a) for a in ("multi-discrete", "bounded", "multi-binary")]


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", ["feedforward", "recurrent"])
@pytest.mark.few(19)
@pytest.mark.parametrize(("observation", "action"), PAIRS)
def test_every_spec_trains(observation: str, action: str, kind: str, tmp_path: Any) -> None:
    """Every parameter learns, and what is saved acts the same."""
    env_cls = type("Specs", (Random,), {"specs": (OBSERVATIONS[observation], ACTIONS[action])})
    # The clipped gradients of "smooth_l1" may cancel to 0 for the value head's bias.
    common: dict[str, Any] = {"num_envs": 4, "horizon": 4, "vf_loss": "mse", "seed": 0}
    if kind == "recurrent":
        config: Any = RecurrentAlgorithmConfig(**common, seq_len=2, model_config={"hidden_size": 8})
    else:
        given = {} if "image" in observation else SMALL
        config = AlgorithmConfig(**common, model_config=given, num_sgd_iters=1)
    algorithm = config.build(env_cls)
    before = {name: x.clone() for name, x in algorithm.policy.model.named_parameters()}
    algorithm.collect()
    algorithm.step()
    still = [
        name
        for name, weight in algorithm.policy.model.named_parameters()
        if torch.equal(weight, before[name])
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


@pytest.mark.parametrize("action", ["bounded", "float64", "half-bounded"])
@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_squashed_actions_are_within_every_bound(action: str, config_cls: Any) -> None:
    spec = ACTIONS[action]

    class Strict(Random):
        specs = (OBSERVATIONS["vector"], spec)

        def step(self, action: Any) -> TensorDict:
            assert action.dtype == spec.dtype
            assert spec.is_in(action)
            return super().step(action)

    algorithm = config_cls(
        num_envs=16,
        horizon=8,
        distribution_cls=SquashedNormal,
        model_config={"log_std_init": 3.0},
        entropy_coeff=0.01,
    ).build(Strict)
    for _ in range(2):
        algorithm.collect()
        stats = algorithm.step()
        assert stats["monitors/skipped_updates"] == 0
        assert math.isfinite(stats["losses/total"])


@pytest.mark.few(8)
@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_action_of_every_observation_reaches_every_parameter(
    observation: str, cls: Any
) -> None:
    config = {"hidden_size": 8} if cls is RecurrentPolicy else {"hiddens": (8,)}
    obs_spec = OBSERVATIONS[observation]
    for name, spec in ACTIONS.items():
        policy = cls(obs_spec, spec, model_config={**config, "num_values": 2})
        batch = TensorDict({"obs": obs_spec.rand([3, 1])}, [3, 1])
        out = policy.sample(batch, requires_grad=True, return_logp=True, return_values=True)
        out = out[0] if cls is RecurrentPolicy else out
        assert out["actions"].shape == (3, *spec.shape), name
        assert out["actions"].is_floating_point() or spec.is_in(out["actions"]), name
        assert out["logp"].shape == (3, 1), name
        assert out["values"].shape == (3, 2), name
        (out["logp"].sum() + out["values"].sum()).backward()
        gradients = {key: x.grad for key, x in policy.model.named_parameters()}
        assert all(x is not None and x.isfinite().all() for x in gradients.values()), name


@pytest.mark.parametrize("spec", [*OBSERVATIONS.values(), *ACTIONS.values()])
def test_every_spec_can_be_written_down(spec: TensorSpec) -> None:
    spec = spec.to("cpu")
    assert spec_from_dict(spec_to_dict(spec)) == spec


class NoLooking(TorchDispatchMode):
    """Forbids what waits for an accelerator: reading a number, or where there are some."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero"), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
@pytest.mark.parametrize(
    ("observation", "action"),
    [(o, "discrete") for o in OBSERVATIONS] + [("vector", a) for a in ACTIONS],
)
def test_acting_looks_at_no_number(observation: str, action: str, cls: Any) -> None:
    policy = cls(OBSERVATIONS[observation], ACTIONS[action])
    obs = policy._observation.flatten(OBSERVATIONS[observation].rand([3]))
    states = policy.memory.zeros(3, device="cpu")
    with NoLooking():
        policy.act(obs, states)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_models_are_of_the_default_dtype(observation: str, cls: Any) -> None:
    policy = cls(OBSERVATIONS[observation], Unbounded(2))
    obs = policy._observation.flatten(OBSERVATIONS[observation].rand([3]))
    sample = policy.act(obs, policy.memory.zeros(3, device="cpu"))
    tensors = (sample.latents[0], sample.logp, sample.values, *sample.states)
    assert {x.dtype for x in tensors} == {torch.float64}


def test_no_leaf_is_rounded_to_the_dtype_of_another() -> None:
    spec = Composite(
        half=Unbounded(1, dtype=torch.bfloat16),
        double=Unbounded(1, dtype=torch.float64),
        kind=Categorical(3, shape=torch.Size([1])),
    )
    obs = spec.rand([4])
    encode: Any = Policy(spec, ACTIONS["discrete"]).model.encoder
    vectors = encode(obs)
    assert vectors.dtype == torch.float64
    assert torch.equal(vectors[:, 1:2], obs["double"])


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


@pytest.mark.parametrize(
    ("shape", "dims", "same"),
    [
        ((40, 36), (0, 1, 2), (1, 40, 36)),
        ((2, 40, 36, 3), (0, 1, 4, 2, 3), (6, 40, 36)),
        ((2, 3, 40, 36), (0, 1, 2, 3, 4), (6, 40, 36)),
    ],
)
def test_other_layouts_are_the_image_of_all_their_channels(
    shape: tuple[int, ...], dims: tuple[int, ...], same: tuple[int, ...]
) -> None:
    spec, plain = (Bounded(0, 255, shape=s, dtype=torch.uint8) for s in (shape, same))
    model, expected = (Policy(s, ACTIONS["discrete"]).model for s in (spec, plain))
    model.load_state_dict(expected.state_dict())
    picture = spec.rand([2])
    channels_first = picture.permute(dims).reshape(2, *same)
    torch.testing.assert_close(
        model(TensorDict({"obs": picture}, [2]))["logits"],
        expected(TensorDict({"obs": channels_first}, [2]))["logits"],
    )


@pytest.mark.parametrize("side", [7, 20, 35, 36, 40, 43, 48, 56, 64, 83, 84])
def test_an_encoded_image_has_places_and_misses_no_edge(side: int) -> None:
    spec = Bounded(0, 255, shape=(1, side, side), dtype=torch.uint8)
    encoder: Any = Policy(spec, ACTIONS["discrete"]).model.encoder.encoders[0]
    nothing, dots = torch.zeros(1, 1, side, side), torch.zeros(side, 1, side, side)
    dots[range(side), 0, range(side), side // 2] = 1.0
    assert min(encoder.convolutions[:-1](nothing).shape[-2:]) >= min(side // 4, 4)
    is_seen = (encoder.convolutions(dots) != encoder.convolutions(nothing)).any(1)
    assert is_seen[:-1].all()  # the last row of sizes that no stride divides may be missed


@pytest.mark.parametrize(
    "spec",
    [
        Unbounded((3, 7, 7)),
        Unbounded((40, 36)),
        Bounded(0, 255, shape=(7, 7), dtype=torch.uint8),
        Bounded(0, 4, shape=(3, 40, 40), dtype=torch.int64),
    ],
)
def test_what_may_be_no_image_is_flattened(spec: TensorSpec) -> None:
    model: Any = Policy(spec, ACTIONS["discrete"], model_config=SMALL).model
    assert model.encoder is None
    assert model.policy[0].in_features == spec.shape.numel()


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


def test_options_of_different_choices_have_different_embeddings() -> None:
    spec = MultiCategorical([2000, 3])
    encode: Any = Policy(spec, ACTIONS["discrete"]).model.encoder
    a, b = encode(torch.tensor([[1, 2]])).split(64, -1)
    same, other = encode(torch.tensor([[1, 1]])).split(64, -1)
    assert torch.equal(a, same)
    assert not torch.equal(b, other)
    assert not torch.equal(a, other)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Categorical(3, shape=torch.Size([2])), [3, 3]),
        (MultiCategorical([2, 4]), [2, 4]),
        (MultiCategorical(torch.tensor([[2, 3], [4, 5]]), shape=(2, 2)), [2, 3, 4, 5]),
        (MultiCategorical([2, 3], shape=(2, 2)), [2, 3, 2, 3]),
        (Binary(3), [2, 2, 2]),
        (OneHot(3, shape=(2, 3)), [3, 3]),
        (MultiOneHot([2, 3]), [2, 3]),
        (Bounded(-1, 2, shape=(2,), dtype=torch.int8), [4, 4]),
        (Bounded(0, MAX_OPTIONS, shape=(1,), dtype=torch.int64), []),
        (Bounded(-(2**63), 2**63 - 1, shape=(1,), dtype=torch.int64), []),
        (Unbounded(3), []),
        (Bounded(-1.0, 1.0, shape=(3,)), []),
    ],
)
def test_options(spec: TensorSpec, expected: list[int]) -> None:
    assert options(spec) == expected


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
        (Composite(), "nothing to observe"),
        (Composite(action_mask=Binary(3)), "nothing to observe"),
        (Unbounded(()), "at least one dimension"),
        (Composite(x=Composite(y=Categorical(3))), r"dimension; got x\.y without"),
        (Composite(action_mask=Binary(4), x=Unbounded(1)), r"one element an option, 3; got \[4\]"),
    ],
)
def test_what_has_no_encoder_says_what_to_do(spec: TensorSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Policy(spec, ACTIONS["discrete"])
    assert any(way in str(caught.value) for way in ("set `model_cls`", "Set `model_cls`", "Use "))


@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
def test_numbers_have_no_mask(cls: Any) -> None:
    with pytest.raises(ConfigError, match="`action_mask` is for choices only"):
        cls(Composite(action_mask=Binary(2), x=Unbounded(1)), ACTIONS["continuous"])


@pytest.mark.parametrize("action", ["discrete", "several", "multi-discrete", "multi-binary"])
@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
def test_every_choice_can_be_masked(action: str, cls: Any) -> None:
    """Of each choice the last option only; of what is chosen or not, none."""
    spec = ACTIONS[action]
    counts = options(spec)
    mask = torch.cat([torch.arange(n) == n - 1 for n in counts])
    if isinstance(spec, Binary):
        mask = torch.zeros(3, dtype=torch.bool)
    obs_spec = Composite(action_mask=Binary(mask.numel(), dtype=torch.bool), x=Unbounded(1))
    batch = TensorDict({"obs": obs_spec.rand([50, 1])}, [50, 1])
    batch["obs", "action_mask"] = mask.expand(50, 1, -1)
    out = cls(obs_spec, spec).sample(batch, return_logp=True)
    out = out[0] if cls is RecurrentPolicy else out
    expected = torch.zeros(3) if isinstance(spec, Binary) else torch.tensor(counts) - 1
    assert torch.equal(out["actions"], expected.expand(50, -1).to(spec.dtype))
    torch.testing.assert_close(out["logp"], torch.zeros(50, 1))


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("one-hot", [0, 0, 0, 1]),
        ("multi-one-hot", [0, 1, 0, 0, 1]),
        ("integers", [2, 2]),
    ],
)
def test_choices_in_other_forms_can_be_masked(action: str, expected: list[int]) -> None:
    """Of each choice the last option only."""
    spec = ACTIONS[action]
    mask = torch.cat([torch.arange(n) == n - 1 for n in options(spec)])
    obs_spec = Composite(action_mask=Binary(mask.numel(), dtype=torch.bool), x=Unbounded(1))
    batch = TensorDict({"obs": obs_spec.rand([50, 1])}, [50, 1])
    batch["obs", "action_mask"] = mask.expand(50, 1, -1)
    out = Policy(obs_spec, spec).sample(batch, return_logp=True)
    assert torch.equal(out["actions"], torch.tensor(expected).expand(50, -1).to(spec.dtype))
    torch.testing.assert_close(out["logp"], torch.zeros(50, 1))


@pytest.mark.parametrize("base", [Model, RecurrentModel])
def test_actions_without_a_default_model_are_told(base: Any) -> None:
    with pytest.raises(TypeError, match=r"\[2\] \(torch.int64\): set `model_cls`"):
        base.default_model_cls(Unbounded(3), Unbounded(2, dtype=torch.int64))


@pytest.mark.parametrize("config_cls", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_a_model_can_be_copied_and_pickled_after_an_update(config_cls: Any) -> None:
    """Values that `value_function` stores are not pickled: a pickle is as large as before."""
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


@pytest.mark.parametrize("observation", ["vector", "mapping"])
def test_a_sequence_is_its_steps(observation: str) -> None:
    policy = RecurrentPolicy(OBSERVATIONS[observation], ACTIONS["continuous"])
    batch = TensorDict({"obs": OBSERVATIONS[observation].rand([2, 5])}, [2, 5])
    together, states = policy.sample(batch, deterministic=True, return_values=True)
    after, steps = policy.init_states(2), []
    for t in range(5):
        now = batch[:, t : t + 1]
        out, after = policy.sample(now, after.unsqueeze(1), deterministic=True, return_values=True)
        steps.append(out)
    for key in ("actions", "values"):
        alone = torch.stack([out[key] for out in steps], 1).flatten(0, 1)
        torch.testing.assert_close(together[key], alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(states["cell_states"], after["cell_states"])


def test_an_integer_is_a_good_log_std() -> None:
    model = DefaultContinuousModel(Unbounded(2), Unbounded(1), log_std_init=-1)
    assert model(TensorDict({"obs": torch.randn(2, 2)}, [2]))["log_std"].unique().tolist() == [-1.0]


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
    if recurrent and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("PyTorch has no LSTM in bfloat16 on processors without AVX-512")
    env_cls = type("Specs", (Random,), {"specs": (Unbounded(4), ACTIONS["continuous"])})
    config_cls: Any = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    algorithm = config_cls(num_envs=4, horizon=8, enable_amp=True).build(env_cls)
    algorithm.collect()
    stats = algorithm.step()
    assert all(x.dtype == torch.float32 for x in algorithm.states)
    assert stats["monitors/skipped_updates"] == 0
    if recurrent:
        batch = TensorDict({"obs": torch.randn(4, 2, 4)}, [4, 2])
        with torch.autocast("cpu", torch.bfloat16):
            _, states = algorithm.policy.model(batch, algorithm.policy.init_states(4).unsqueeze(1))
        assert {x.dtype for x in states.values()} == {torch.float32}
    first = algorithm.policy.act(
        (torch.randn(4, 4),), algorithm.policy.memory.zeros(4, device="cpu")
    )
    assert first.values.dtype == first.logp.dtype == torch.float32
