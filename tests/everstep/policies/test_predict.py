"""`Policy.predict`: shapes, states, the model's mode, random numbers and threads."""

import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

from everstep import AlgorithmConfig, Policy, RecurrentAlgorithmConfig, RecurrentPolicy
from everstep.core.normalizers import ObservationNormalizer
from everstep.models import DefaultDiscreteModel
from everstep_adapters import GymnasiumEnv
from tests.everstep.policies.test_deployment import Memory, Padded, Rolling
from tests.everstep.policies.test_tensordict_module import TwoHeads, two_heads
from tests.toys import BOTH, TERMINATED, TRUNCATED, Episode, scripted_vector_env

SCRIPTS = [
    [Episode(3, TERMINATED), Episode(2, TRUNCATED), Episode(1, BOTH)],
    [Episode(1, TRUNCATED), Episode(5, TERMINATED)],
    [Episode(50, TERMINATED)],
]

OBS, CHOICE = Unbounded(3), Categorical(4, shape=torch.Size([1]))


def scripted(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> GymnasiumEnv:
    env = scripted_vector_env(SCRIPTS, AutoresetMode.NEXT_STEP, CHOICE.space.n)
    return GymnasiumEnv(env, horizon)


class Wide(nn.Module):
    """Mixin that makes the most likely option depend on the observation."""

    def __init__(self, *specs: Any, **config: Any) -> None:
        super().__init__(*specs, **config)
        torch.manual_seed(5)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=3.0)


class WidePadded(Wide, Padded):
    pass


class WideRolling(Wide, Rolling):
    pass


class WideMemory(Wide, Memory):
    pass


@pytest.mark.parametrize("batch", ["each episode's start", "one environment"])
@pytest.mark.parametrize("model_cls", [WidePadded, WideRolling, WideMemory])
def test_actions_are_those_of_a_rollout_that_is_fed_step_by_step(
    model_cls: Any, batch: str
) -> None:
    recurrent = model_cls is WideMemory
    config: Any = RecurrentAlgorithmConfig if recurrent else AlgorithmConfig
    options = {"seq_len": 4} if recurrent else {}
    algorithm = config(
        num_envs=len(SCRIPTS), horizon=16, device="cpu", model_cls=model_cls, **options
    ).build(scripted)
    policy = algorithm.policy
    algorithm.collect(deterministic=True)
    rollout = algorithm.rollout
    actions = rollout.actions[0][:16, :, 0].numpy()
    assert len(np.unique(actions)) > 1
    assert rollout.first[:15].any()
    (obs,) = rollout.obs
    starts = rollout.first.numpy()
    if batch == "one environment":
        for i in range(len(SCRIPTS)):
            state, start = None, True
            for t in range(16):
                action, state = policy.predict(obs[t, i].numpy(), state, start)
                assert action == actions[t, i]
                start = bool(starts[t, i, 0])
        return
    state, start = None, np.ones(len(SCRIPTS), bool)
    for t in range(16):
        found, state = policy.predict(obs[t], state, start)
        np.testing.assert_array_equal(found.numpy(), actions[t])
        start = starts[t, :, 0]


def test_states_are_tensors_of_past_observations_and_recurrent_states() -> None:
    window, memory = Policy(OBS, CHOICE, model_cls=Padded), RecurrentPolicy(OBS, CHOICE)
    obs = torch.randn(5, 3)
    _, (past, age) = window.predict(obs)
    torch.testing.assert_close(past, torch.stack([torch.zeros(5, 3), obs], 1))
    assert age.tolist() == [1] * 5
    _, (past, age) = window.predict(2 * obs, (past.numpy(), age.numpy()), [False] * 4 + [True])
    torch.testing.assert_close(past[:4], torch.stack([obs, 2 * obs], 1)[:4])
    torch.testing.assert_close(past[4], torch.stack([torch.zeros(3), 2 * obs[4]]))
    assert age.tolist() == [2, 2, 2, 2, 1]
    _, state = memory.predict(obs)
    restarted = memory.predict(obs, state, True)[1]
    for new, old in zip(restarted, state, strict=True):
        assert new.shape[0] == 5
        torch.testing.assert_close(new, old)
    assert not torch.equal(memory.predict(obs, state)[1][0], state[0])
    assert Policy(OBS, CHOICE).predict(obs)[1] is None


@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
def test_arrays_give_arrays_and_tensors_tensors(cls: Any) -> None:
    policy = cls(OBS, Unbounded(2))
    obs = np.random.default_rng(0).normal(size=(4, 3))
    with torch.no_grad():
        rows = torch.tensor(obs, dtype=torch.float32)
        states = policy.memory.flatten(policy.init_states(4))
        expected = policy.act((rows,), states, deterministic=True).actions[0]
    batch, _ = policy.predict(obs)
    assert type(batch) is np.ndarray
    assert batch.dtype == np.float32
    np.testing.assert_array_equal(batch, expected.numpy())
    for same in (obs.tolist(), obs[::-1].copy()[::-1], rows.numpy(), obs.astype(">f8")):
        np.testing.assert_array_equal(policy.predict(same)[0], batch)
    tensors, _ = policy.predict(torch.tensor(obs, requires_grad=True))
    assert tensors.dtype is torch.float32
    assert not tensors.requires_grad
    torch.testing.assert_close(tensors, expected, rtol=0, atol=0)
    single, _ = policy.predict(obs[1])
    assert single.shape == (2,)
    np.testing.assert_allclose(single, batch[1], rtol=1e-5, atol=1e-6)
    assert policy.predict(obs[:0])[0].shape == (0, 2)


def test_bounds_of_the_spec_are_kept_to() -> None:
    policy = Policy(OBS, Bounded(-0.01, 0.02, shape=(2,)))
    nn.init.normal_(policy.model.policy[-1].weight)
    actions, _ = policy.predict(torch.randn(50, 3))
    assert actions.min() == torch.tensor(-0.01)
    assert actions.max() == torch.tensor(0.02)


def test_mappings_of_actions() -> None:
    spec = Composite(move=Unbounded(2), jump=Categorical(2, shape=torch.Size([1])))
    policy: Any = Policy(Composite(a=OBS), spec, model=OfA(), distribution_cls=two_heads())
    actions, _ = policy.predict({"a": np.zeros((5, 3))})
    assert {key: (x.shape, x.dtype.name) for key, x in actions.items()} == {
        "move": ((5, 2), "float32"),
        "jump": ((5, 1), "int64"),
    }
    assert policy.predict({"a": np.zeros(3)})[0]["move"].shape == (2,)
    tensors, _ = policy.predict(TensorDict({"a": torch.zeros(5, 3)}, [5]))
    assert tensors.batch_size == torch.Size([5])
    assert policy.predict({"a": torch.zeros(3)})[0].batch_size == torch.Size([])


class OfA(TwoHeads):
    def forward(self, batch: TensorDict) -> Any:
        return super().forward(batch["obs"].rename_key_("a", "obs"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (np.zeros(4),),
            r"`obs` must have shape \[3\], one observation, or \[N, 3\], a batch; got \[4\]",
        ),
        ((np.zeros((2, 2, 3)),), r"got \[2, 2, 3\]"),
        ((1.0,), r"`obs` must have shape \[3\], .*got \[\]"),
        (([[1, 2, 3], [4]],), "`obs` cannot be an array"),
        (({"a": 1},), r"`obs` must have the dtype float32 .* got object \(dict\)"),
        ((torch.zeros(3, dtype=torch.complex64),), "got torch.complex64"),
        ((np.zeros((2, 3)), None, [True] * 3), "each of 2 observations; got list of shape"),
        ((np.zeros((2, 3)), None, "yes"), "`episode_start` must be one bool"),
        ((np.zeros(3), (torch.zeros(1, 2),)), r"`state` must be .*\[1, 1, 8\]\]; got tuple of 1"),
        ((np.zeros(3), (torch.zeros(1, 2),) * 2), r"got \[\[1, 2\], \[1, 2\]\]"),
        ((np.zeros(3), {}), "got dict. Pass None"),
        (([0.0, np.nan, 0.0],), r"`obs` must be finite, .* got nan \(1 of 3 numbers\)"),
        ((torch.full((2, 3), -torch.inf),), r"got -inf \(6 of 6"),
        ((np.full(3, 1e300),), r"got inf \(3 of 3"),
        ((torch.zeros(3, device="meta"),), "holds all its numbers; got one that is on the device"),
        ((torch.zeros(3).to_sparse(),), "nested or sparse"),
        ((np.zeros(3), (torch.full((1, 1, 8), torch.nan),) * 2), "`state` has NaN"),
        (
            (np.zeros(3), (torch.zeros(1, 1, 8, dtype=torch.complex64),) * 2),
            r"`state\[0\]` must have",
        ),
        ((np.zeros(3), ([[1], [1, 2]],) * 2), r"`state\[0\]` cannot be an array"),
        ((np.zeros(3), (np.zeros((1, 1, 8)),) * 3), "got tuple of 3"),
        ((np.zeros(3), None, np.nan), "`episode_start` must be one bool, .* got the number nan"),
        ((np.zeros(3), None, 0.5), "the number 0.5. Pass `terminated"),
        ((np.zeros(3), None, [[1], [1, 0]]), "`episode_start` must .* got list: .* inhomogeneous"),
        ((np.zeros(3), None, None, "no"), "`deterministic`: expected bool; got 'no'"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, message: str) -> None:
    policy = RecurrentPolicy(OBS, CHOICE, model_cls=Memory)
    with pytest.raises(ValueError, match=message):
        policy.predict(*arguments)


def test_a_policy_without_state_takes_none() -> None:
    with pytest.raises(ValueError, match="`state` must be None"):
        Policy(OBS, CHOICE).predict(np.zeros(3), (torch.zeros(1),))
    with pytest.raises(ValueError, match="`episode_start` must be one bool"):
        Policy(OBS, CHOICE).predict(np.zeros(3), episode_start="yes")


#: Spaces by their names, each with what a policy of it observes.
SPACES: dict[str, Any] = {
    "numbers": OBS,
    "doubles": Unbounded(3, dtype=torch.float64),
    "choice": Categorical(5, shape=torch.Size([1])),
    "choices": MultiCategorical([3, 4]),
    "flags": Binary(4, dtype=torch.bool),
    "image": Bounded(0, 255, shape=torch.Size([3, 36, 36]), dtype=torch.uint8),
}
SPACES["mapping"] = Composite(a=OBS, b=SPACES["choice"])
SPACES["masked"] = Composite(obs=OBS, action_mask=SPACES["flags"])

#: The same numbers as an array `x` has, in other forms.
SAME: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: x.tolist(),
    lambda x: list(x),
    torch.from_numpy,
    lambda x: torch.nn.Parameter(torch.from_numpy(x), requires_grad=False),
    lambda x: np.broadcast_to(x, x.shape),
    lambda x: np.repeat(x, 2, -1)[..., ::2],
    lambda x: np.asfortranarray(x),
    lambda x: x.astype(x.dtype.newbyteorder(">")),
    lambda x: x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.min_scalar_type(x)),
]

#: Others, which may fit a space nevertheless.
OTHER: list[Callable[[Any], Any]] = [
    lambda x: x.astype(object),
    lambda x: x.astype(complex),
    lambda x: x.astype(str),
    lambda x: x.astype("datetime64[s]") if x.dtype.kind == "i" else b"x",
    lambda x: np.full(x.shape, np.nan),
    lambda x: np.full(x.shape, np.inf, np.float32),
    lambda x: np.full(x.shape, 1e300),
    lambda x: np.full(x.shape, -1),
    lambda x: np.full(x.shape, 2**63 + 5, np.uint64),
    lambda x: np.full(x.shape, 10**30, dtype=object).tolist(),
    lambda x: x[..., :0],
    lambda x: x[..., 0],
    lambda x: np.concatenate([x, x], -1),
    lambda x: x[None, None],
    lambda x: np.zeros(x.shape, [("a", "f4")]),
    lambda x: torch.from_numpy(x).to("meta"),
    lambda x: torch.from_numpy(x).float().to_sparse(),
    lambda x: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
    lambda x: None,
    lambda x: [[1, 2], [3]],
    lambda x: {"a": x},
    lambda x: {1, 2},
    lambda x: iter(x),
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
def test_drawn_inputs_are_read_as_the_same_numbers_or_refused(cls: Any, space: str) -> None:
    draw = random.Random(space)
    torch.manual_seed(3)
    spec = SPACES[space]
    policy = cls(spec, CHOICE)
    for _ in range(40):
        rows = draw.choice([None, 1, 3])
        plain = spec.rand([] if rows is None else [rows])
        leaves = dict(plain.items()) if space in ("mapping", "masked") else {"": plain}
        arrays = {name: leaf.numpy() for name, leaf in leaves.items()}
        has_other = draw.random() < 0.5
        changed = {name: draw.choice(SAME)(x) for name, x in arrays.items()}
        if has_other:
            name = draw.choice(list(arrays))
            changed[name] = draw.choice(OTHER)(arrays[name])
        given: Any = dict(reversed(changed.items())) if "" not in changed else changed[""]
        expected, after = policy.predict(plain)
        state = draw.choice([None, after])
        refusal = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found, _ = policy.predict(given, state)
        except ValueError as error:
            refusal = str(error)
        assert not refusal or (has_other and refusal.startswith(("`", "All entries of `obs`")))
        if not has_other and state is None:
            np.testing.assert_array_equal(np.asarray(found), expected)


class Dropped(DefaultDiscreteModel):
    """Half of the observation is dropped in train mode; `forward` counts its calls."""

    def __init__(self, *specs: Any, **config: Any) -> None:
        super().__init__(*specs, **config)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))
        nn.init.normal_(self.policy[-1].weight)

    def forward(self, batch: TensorDict, /) -> Any:
        self.calls += 1
        self.seen = self.seen + 1
        batch["obs"] = nn.functional.dropout(batch["obs"], training=self.training)
        return super().forward(batch)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_in_eval_mode_and_left_as_it_was(training: bool) -> None:
    policy = Policy(OBS, CHOICE, model_cls=Dropped)
    policy.model.train(training)
    policy.model.policy[0].eval()
    modes = [module.training for module in policy.model.modules()]
    values = policy.model._values
    obs = np.random.default_rng(0).normal(size=(200, 3))
    first, _ = policy.predict(obs)
    np.testing.assert_array_equal(policy.predict(obs)[0], first)
    assert [module.training for module in policy.model.modules()] == modes
    assert policy.model.calls == int(policy.model.seen) == 0
    assert policy.model._values is values
    with torch.no_grad():  # trained weights are those that act, whatever was predicted before
        policy.model.policy[-1].weight.neg_()
        policy.model.policy[-1].bias.neg_()
    assert (policy.predict(obs)[0] != first).any()


def test_a_compiled_model_predicts() -> None:
    policy = Policy(OBS, CHOICE)
    expected = policy.predict(torch.ones(5, 3))[0]
    policy.model.compile(backend=lambda graph, inputs: 1 / 0)
    assert torch.equal(policy.predict(torch.ones(5, 3))[0], expected)


def plain(net: nn.Module) -> nn.Module:
    return net


def normed(net: nn.Module) -> nn.Module:
    nn.utils.parametrizations.weight_norm(net[0])
    return net


class Network(WideRolling):
    """Part of the model is dropped in train mode, by a network that is one module in two places."""

    def __init__(self, *specs: Any, make: Any) -> None:
        super().__init__(*specs)
        self.net = make(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)))
        self.same = self.net

    def seen(self, batch: TensorDict) -> torch.Tensor:
        return self.same(super().seen(batch))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "make", [plain, normed, torch.jit.script, lambda net: torch.compile(net, backend="eager")]
)
def test_modules_of_every_kind_are_in_eval_mode(make: Any) -> None:
    policy = Policy(OBS, CHOICE, model_cls=Network, model_config={"make": make})
    obs = np.random.default_rng(0).normal(size=(300, 3))
    actions, _ = policy.predict(obs)
    assert policy.model.net.training
    assert int(sum(x.sum() for name, x in policy.model.named_buffers() if "batches" in name)) == 0
    policy.model.eval()
    windows = torch.zeros(300, 3, 3)
    windows[:, -1] = torch.tensor(obs)
    with torch.no_grad():
        states = policy.memory.flatten(policy.init_states(300))
        expected = policy.act((windows,), states, deterministic=True).actions[0]
    np.testing.assert_array_equal(actions, expected.numpy())


@pytest.mark.parametrize("cls", [Policy, RecurrentPolicy])
def test_random_numbers_and_statistics_are_left_alone(cls: Any) -> None:
    normalizer = ObservationNormalizer(OBS)
    normalizer.update((5 + 3 * torch.randn(100, 3),), torch.ones(100, dtype=torch.bool))
    policy = cls(OBS, Unbounded(2), normalizer=normalizer)
    plain = cls(OBS, Unbounded(2), model=policy.model)
    before = {name: x.clone() for name, x in normalizer.state_dict().items()}
    generators = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    obs = 5 + 3 * torch.ones(4, 3)
    actions, _ = policy.predict(obs)
    (normalized,) = normalizer((obs,))
    assert torch.equal(actions, plain.predict(normalized)[0])
    assert not torch.equal(actions, plain.predict(obs)[0])
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (np.random.get_state()[1] == generators[1]).all()
    assert random.getstate() == generators[2]
    assert all(torch.equal(x, before[name]) for name, x in normalizer.state_dict().items())
    sampled = policy.predict(obs, deterministic=False)[0]
    assert not torch.equal(sampled, actions)


def in_threads(*works: Callable[[], None]) -> None:
    """Run functions at the same time, and raise the first error of one."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow  # three threads share the interpreter
@pytest.mark.parametrize("enable_amp", [False, True])
def test_threads_predict_while_another_trains(enable_amp: bool) -> None:
    """The training is that without them, number by number; and so are the actions."""

    def build() -> Any:
        return AlgorithmConfig(
            num_envs=len(SCRIPTS), horizon=8, device="cpu", seed=0, model_cls=Dropped,
            enable_amp=enable_amp, amp_dtype="bfloat16",
        ).build(scripted)  # fmt: skip

    def train(algorithm: Any) -> None:
        torch.manual_seed(0)
        for _ in range(8):
            algorithm.collect()
            algorithm.step()

    alone, watched = build(), build()
    train(alone)
    policy, done = watched.policy, threading.Event()
    still = Policy(OBS, CHOICE, model_cls=Dropped)  # in train mode, and not trained
    obs = torch.randn(50, 64, 3)
    expected = [still.predict(x)[0] for x in obs]

    def predict() -> None:
        while not done.is_set():
            for x, actions in zip(obs, expected, strict=True):
                assert torch.equal(still.predict(x)[0], actions)
                assert policy.predict(x.numpy())[0].shape == (64,)

    def train_watched() -> None:
        try:
            train(watched)
        finally:
            done.set()

    in_threads(predict, predict, train_watched)
    trained = zip(alone.policy.model.parameters(), policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in trained)
