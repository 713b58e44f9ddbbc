"""TorchRL's specs: observations, actions, and shared memory."""

import math
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)
from torchrl.envs import (
    DTypeCastTransform,
    PendulumEnv,
    StepCounter,
    TransformedEnv,
)

import everstep
from everstep import AlgorithmConfig, Trainer
from everstep.env.formats import EnvFormat
from everstep.errors import AdapterError, EnvError
from everstep_adapters import TorchRLEnv
from everstep_adapters.torchrl.handoff import Handoff
from tests.everstep_adapters.torchrl.torchrl_toys import (
    SCRIPTS,
    InPlace,
    Recorder,
    ScriptedEnv,
    check_stream,
    observing,
    zeros,
)
from tests.toys import TERMINATED, Episode

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

BOOL, LONG = torch.bool, torch.int64
MOVES = Categorical(2, shape=torch.Size([2]))


def acting(action: Any, batch_size: Any = (2,)) -> Recorder:
    shape = torch.Size(batch_size)
    return Recorder(action, Composite(seen=Unbounded((*shape, 1)), shape=shape), shape)


# Observations.

OBSERVATIONS: dict[str, tuple[Any, Any]] = {
    "float64": (Unbounded((2, 3), dtype=torch.float64), Unbounded(3)),
    "float16": (Unbounded((2, 3), dtype=torch.float16), Unbounded(3, dtype=torch.float16)),
    "scalar": (Unbounded((2,)), Unbounded(1)),
    "bounded": (Bounded(-1.0, 2.0, (2, 3)), Bounded(-1.0, 2.0, (3,))),
    "half bounded": (Bounded(0.0, math.inf, (2, 3)), Bounded(0.0, math.inf, (3,))),
    "pixels": (
        Bounded(0, 255, (2, 3, 4, 4), dtype=torch.uint8),
        Bounded(0, 255, (3, 4, 4), dtype=torch.uint8),
    ),
    "integers": (Unbounded((2, 3), dtype=LONG), Unbounded(3, dtype=LONG)),
    "choice": (Categorical(5, shape=(2,)), Categorical(5, shape=torch.Size([1]))),
    "choices": (Categorical(5, shape=(2, 4)), Categorical(5, shape=torch.Size([4]))),
    "choices without a number": (Categorical(-1, shape=(2,)), Unbounded(1, dtype=LONG)),
    "one-hot": (OneHot(3, shape=(2, 3), dtype=LONG), OneHot(3, dtype=LONG)),
    "several one-hot": (MultiOneHot([2, 3], shape=(2, 5)), MultiOneHot([2, 3])),
    "several choices": (MultiCategorical([2, 3], shape=(2, 2)), MultiCategorical([2, 3])),
    "binary": (Binary(3, shape=(2, 3), dtype=BOOL), Binary(3, dtype=BOOL)),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_keep_their_kind_without_the_batch(name: str) -> None:
    spec, expected = OBSERVATIONS[name]
    env = TorchRLEnv(observing(seen=spec))
    assert env.observation_spec == expected
    for obs in (env.reset(), env.step(zeros(env))["obs"], env.step(zeros(env))["final_obs"]):
        assert obs.shape == (2, *expected.shape)
        assert obs.dtype == expected.dtype


def test_bounds_that_differ_between_rows_are_as_wide_as_the_widest() -> None:
    low = torch.tensor([[-1.0, -3.0], [-2.0, 0.0]])
    env = TorchRLEnv(observing(seen=Bounded(low, -low + 1, (2, 2))))
    assert env.observation_spec == Bounded(torch.tensor([-2.0, -3.0]), torch.tensor([3.0, 4.0]))


def test_several_observations_are_a_composite_in_the_order_of_the_specs() -> None:
    leaves = {name.replace(" ", "_"): spec for name, (spec, _) in OBSERVATIONS.items()}
    nested = Composite(deep=Unbounded((2, 2)), shape=(2,))
    env = everstep.wrap(observing(**leaves, nested=nested), horizon=4)
    assert list(env.observation_spec.keys(True, True)) == [*leaves, ("nested", "deep")]
    row = env.reset()
    assert row.batch_size == (2,)
    assert row["nested", "deep"].shape == (2, 2)
    layout: Any = {"image_layout": "channels_first"}
    trainer = Trainer(env, run_dir=None, model_config=layout)
    assert math.isfinite(trainer.step()["losses/total"])


def test_observations_are_chosen_by_key() -> None:
    inner = observing(
        a=Unbounded((2, 1)), part=Composite(b=Unbounded((2, 2)), c=Unbounded((2, 3)), shape=(2,))
    )
    env = TorchRLEnv(inner, observation_keys=["part", "a"])
    assert list(env.observation_spec.keys(True, True)) == [("part", "b"), ("part", "c"), "a"]
    env = TorchRLEnv(inner, observation_keys=[("part", "b")])
    assert env.observation_spec == Unbounded(2)
    assert "(left out: a, part.c)" in env.describe()["observation"]


def test_notes_of_transforms_are_seen_on_demand_only() -> None:
    inner = TransformedEnv(observing(seen=Unbounded((2, 3))), StepCounter())
    assert TorchRLEnv(inner).observation_spec == Unbounded(3)
    env = TorchRLEnv(inner, observation_keys=["seen", "step_count"])
    env.reset()
    env.step(zeros(env))
    assert env.step(zeros(env))["obs"]["step_count"].tolist() == [[2], [2]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (torch.stack([Bounded(-1, 1, (3,)), Bounded(-1, 2, (3,))]), "`seen` .* differs between"),
        (torch.stack([Unbounded((3,)), Unbounded((4,))]), "`seen` .* differs between rows"),
        (Unbounded((2, -1)), "`seen` .* its size varies"),
        (NonTensor(shape=(2,)), "`seen` cannot be a tensor: it is described by NonTensor"),
    ],
)
def test_what_has_no_tensor_is_refused(spec: Any, message: str) -> None:
    inner = observing(seen=spec, other=Unbounded((2, 1)))
    with pytest.raises(AdapterError, match=f"{message}.*observation_keys"):
        TorchRLEnv(inner)
    assert TorchRLEnv(inner, observation_keys=["other"]).observation_spec == Unbounded(1)


def test_nothing_to_observe_is_refused() -> None:
    with pytest.raises(AdapterError, match="nothing to observe"):
        TorchRLEnv(observing(step_count=Unbounded((2, 1))))


# Actions.

CHOICE = Categorical(3, shape=torch.Size([1]))
SMALL = Categorical(3, shape=torch.Size([1]), dtype=torch.int32)
#: Bounds that differ between rows.
OTHER_BOUNDS = Bounded(torch.tensor([[-1.0], [-2.0]]), torch.tensor([[1.0], [3.0]]), (2, 1))

ACTIONS: dict[str, tuple[Any, dict[str, Any], Any, Any, Any]] = {
    "choice without a dimension": (
        Categorical(3, shape=(2,)), {}, CHOICE, [[1], [2]], [1, 2],
    ),
    "choice": (Categorical(3, shape=(2, 1), dtype=torch.int32), {}, SMALL, [[1], [2]], [[1], [2]]),
    "choices": (
        Categorical(3, shape=(2, 2)), {}, Categorical(3, shape=torch.Size([2])),
        [[0, 1], [2, 2]], [[0, 1], [2, 2]],
    ),
    "one-hot": (
        OneHot(3, shape=(2, 3), dtype=LONG), {}, CHOICE, [[1], [2]], [[0, 1, 0], [0, 0, 1]],
    ),
    "one-hot as it is": (
        OneHot(3, shape=(2, 3)), {"categorical_actions": False}, OneHot(3),
        [[False, True, False], [False, False, True]], [[False, True, False], [False, False, True]],
    ),
    "rows of one-hot": (
        OneHot(2, shape=(2, 3, 2)), {}, Categorical(2, shape=torch.Size([3])),
        [[0, 1, 1], [1, 0, 0]],
        [[[True, False], [False, True], [False, True]],
         [[False, True], [True, False], [True, False]]],
    ),
    "several one-hot": (
        MultiOneHot([2, 3], shape=(2, 5), dtype=LONG), {}, MultiCategorical([2, 3]),
        [[0, 2], [1, 0]], [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]],
    ),
    "several choices": (
        MultiCategorical([2, 3], shape=(2, 2)), {}, MultiCategorical([2, 3]),
        [[0, 2], [1, 0]], [[0, 2], [1, 0]],
    ),
    "binary": (
        Binary(3, shape=(2, 3)), {}, Binary(3), [[1, 0, 1], [0, 0, 1]], [[1, 0, 1], [0, 0, 1]],
    ),
    "bounded integers": (
        Bounded(-1, 2, (2, 1), dtype=LONG), {}, Bounded(-1, 2, (1,), dtype=LONG),
        [[-1], [2]], [[-1], [2]],
    ),
    "clipped": (
        Bounded(-1.0, 2.0, (2, 1), dtype=torch.float64), {"action_bounds": "clip"},
        Bounded(-1.0, 2.0, (1,)),
        [[-5.0], [5.0]], [[-1.0], [2.0]],
    ),
    "clipped without a dimension": (
        Bounded(-1.0, 2.0, (2,)), {"action_bounds": "clip"}, Bounded(-1.0, 2.0, (1,)),
        [[-5.0], [1.5]], [-1.0, 1.5],
    ),
    "clipped by rows": (
        OTHER_BOUNDS, {}, Bounded(-2.0, 3.0, (1,)), [[5.0], [5.0]], [[1.0], [3.0]],
    ),
    "rescaled": (
        Bounded(-1.0, 3.0, (2, 1)), {"action_bounds": "rescale"}, Bounded(-1.0, 1.0, (1,)),
        [[-1.0], [0.5]], [[-1.0], [2.0]],
    ),
    "rescaled by default": (
        Bounded(-1.0, 3.0, (2, 1)), {}, Bounded(-1.0, 1.0, (1,)), [[-1.0], [0.5]], [[-1.0], [2.0]],
    ),
    "half bounded": (
        Bounded(0.0, math.inf, (2, 1)), {}, Bounded(0.0, math.inf, (1,)),
        [[-1.0], [5.0]], [[0.0], [5.0]],
    ),
    "unbounded": (
        Unbounded((2, 1)), {}, Unbounded(1), [[-9.0], [9.0]], [[-9.0], [9.0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_reach_the_environment_in_its_own_form(name: str) -> None:
    spec, options, expected, given, sent = ACTIONS[name]
    env = TorchRLEnv(acting(spec), **options)
    assert env.action_spec == expected
    env.reset()
    env.step(torch.tensor(given, dtype=expected.dtype))
    assert env.env.sent.tolist() == sent
    assert env.env.sent.dtype == spec.dtype
    assert spec.is_in(env.env.sent)


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - {"clipped by rows"}))
def test_formats_of_actions_are_those_that_reach_the_environment(name: str) -> None:
    spec, options, expected, given, sent = ACTIONS[name]
    env = TorchRLEnv(acting(spec), **options)
    (form,) = EnvFormat.from_description(env.env_format.describe()).action
    choices = torch.tensor(given, dtype=expected.dtype).reshape(2, *form.choices)
    assert form.to_torch(choices).tolist() == sent
    assert form.to_torch(choices).dtype == spec.dtype
    assert form.to_numpy(choices.numpy()).tolist() == sent


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ACTIONS)
def test_default_policies_act_in_every_form(name: str) -> None:
    spec, options, *_ = ACTIONS[name]
    env = everstep.wrap(acting(spec), horizon=4, **options)
    trainer = Trainer(env, run_dir=None)
    trainer.step()
    assert spec.is_in(env.env.sent)
    actions, _ = trainer.algorithm.policy.predict(env.env.reset()["seen"])
    if hasattr(env, "env_format"):
        assert spec.is_in(actions)
    else:  # bounds that differ between rows
        assert actions.shape == (2, 1)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (Unbounded((2, 1), dtype=LONG), {}, "no actions that a policy could sample"),
        (Categorical(-1, shape=(2,)), {}, "Give its spec a number of options"),
        (MultiOneHot([2, 3], shape=(2, 4, 5)), {}, "flatten it in a transform"),
        (Unbounded((2, 1)), {"action_bounds": "rescale"}, "finite bounds; `action` has low"),
        (OTHER_BOUNDS, {"action_bounds": "rescale"}, "equal bounds; those of `action` differ"),
        (NonTensor(shape=(2,)), {}, "`action` cannot be a tensor"),
    ],
)
def test_actions_that_cannot_be_sampled_are_refused(spec: Any, options: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        TorchRLEnv(acting(spec), **options)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.zeros(2, dtype=LONG), r"shape \(2, 1\).*got \(2,\)"),
        (torch.zeros(3, 1, dtype=LONG), r"got \(3, 1\)"),
        (torch.zeros(2, 1), "dtype torch.int64 or one of its kind; got torch.float32"),
        ([[0], [1]], "got list"),
    ],
)
def test_actions_of_another_form_are_errors(action: Any, message: str) -> None:
    env = TorchRLEnv(observing(seen=Unbounded((2, 1))))
    env.reset()
    with pytest.raises(AdapterError, match=message):
        env.step(action)
    env.step(zeros(env))  # nothing was lost


def test_several_actions_or_rewards_are_chosen_by_key() -> None:
    shape = torch.Size([2])
    actions = Composite(
        {"arm": Categorical(2, shape=shape), "leg": Categorical(3, shape=shape)}, shape=shape
    )
    rewards = Composite({"speed": Unbounded((2, 1)), "style": Unbounded((2, 1))}, shape=shape)
    inner = Recorder(actions, Composite(seen=Unbounded((2, 1)), shape=shape), shape, reward=rewards)
    with pytest.raises(AdapterError, match="one action; this environment has arm, leg"):
        TorchRLEnv(inner)
    with pytest.raises(AdapterError, match="one reward; this environment has speed, style"):
        TorchRLEnv(inner, action_key="leg")
    env = TorchRLEnv(inner, action_key="leg", reward_key="style")
    assert env.action_spec == CHOICE


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (Unbounded((2,)), torch.float32),
        (Unbounded((2, 1), dtype=torch.float64), torch.float32),
        (Unbounded((2, 1), dtype=LONG), torch.float32),
        (Unbounded((2, 1), dtype=torch.float16), torch.float16),
    ],
)
def test_rewards_are_one_floating_point_number_a_row(spec: Any, dtype: torch.dtype) -> None:
    shape = torch.Size([2])
    inner = Recorder(MOVES, Composite(seen=Unbounded((2, 1)), shape=shape), shape, reward=spec)
    env = TorchRLEnv(inner)
    env.reset()
    rewards = env.step(zeros(env))["rewards"]
    assert (rewards.shape, rewards.dtype) == ((2, 1), dtype)


def test_rewards_of_several_numbers_are_refused() -> None:
    shape = torch.Size([2])
    seen = Composite(seen=Unbounded((2, 1)), shape=shape)
    with pytest.raises(AdapterError, match=r"`reward` has \[3\].*LineariseRewards"):
        TorchRLEnv(Recorder(MOVES, seen, shape, reward=Unbounded((2, 3))))


# Whose memory it is.


def test_observations_on_the_same_device_are_the_environments_own_tensors() -> None:
    inner = InPlace()
    env = TorchRLEnv(inner)
    assert env.reset().data_ptr() == inner.state.data_ptr()
    for _ in range(3):
        row = env.step(torch.ones(3, 2))
        assert row["obs"].data_ptr() == inner.state.data_ptr()
        assert row["final_obs"].data_ptr() == inner.state.data_ptr()
        own = {x.data_ptr() for x in (inner.rewards, inner.flags, inner.state)}
        copied = {key: row[key].data_ptr() for key in env.episode_keys | {"rewards"}}
        copied.pop("final_obs")
        assert not own & set(copied.values())
        assert len(set(copied.values())) == len(copied)
    assert inner.rewards.flatten().tolist() == [3.0] * 3
    assert "same device" in env.describe()["hand-off"]


def test_a_batch_of_several_dimensions_is_not_copied_either() -> None:
    inner = InPlace((2, 3))
    env = TorchRLEnv(inner)
    env.reset()
    assert env.step(torch.ones(6, 2))["obs"].data_ptr() == inner.state.data_ptr()


def test_a_dtype_that_differs_is_a_copy() -> None:
    inner = ScriptedEnv([[Episode(5, TERMINATED)]])
    env = TorchRLEnv(TransformedEnv(inner, DTypeCastTransform(torch.float64, torch.float32)))
    assert env.observation_spec.dtype is torch.float32
    assert TorchRLEnv(inner).reset().dtype is torch.float32


def test_actions_are_sent_in_new_memory() -> None:
    env = TorchRLEnv(InPlace())
    env.reset()
    action = torch.ones(3, 2, requires_grad=True)
    before = action.detach().clone()
    env.step(action)
    env.step(action.detach().t().contiguous().t())
    first, second = env.env.kept
    assert first.data_ptr() != action.data_ptr() != second.data_ptr()
    assert not first.requires_grad
    assert torch.equal(action, before)


@pytest.mark.usefixtures("float64")
def test_staged_memory_is_allocated_once_and_holds_the_same_rows() -> None:
    scripts = SCRIPTS["mixed"]
    env = TorchRLEnv(ScriptedEnv(scripts))
    env._handoff = Handoff(torch.device("cpu"), torch.device("cpu"), staged=True)
    check_stream(env, scripts)
    first, second = env.step(zeros(env)), env.step(zeros(env))
    assert all(first[key].data_ptr() == second[key].data_ptr() for key in first.keys())  # noqa: SIM118
    assert len({second[key].data_ptr() for key in second.keys()}) == len(second.keys())  # noqa: SIM118


@pytest.mark.gpu
def test_a_gpu_environment_hands_over_its_tensors_and_a_cpu_one_is_copied() -> None:
    env = TorchRLEnv(InPlace(), device="cuda")
    row = env.reset()
    assert row.device.type == "cuda"
    row = env.step(torch.ones(3, 2, device="cuda"))
    assert {row[key].device.type for key in row.keys()} == {"cuda"}  # noqa: SIM118
    assert row["obs"].tolist() == [[1.0, 1.0]] * 3
    pendulum = TorchRLEnv(PendulumEnv(device="cuda"), num_envs=4, observation_keys=["th"])
    assert pendulum.device.type == "cuda"
    obs = pendulum.reset()
    assert obs.data_ptr() == pendulum._data["th"].data_ptr()
    assert pendulum.step(torch.ones(4, 1, device="cuda"))["rewards"].device.type == "cuda"


@pytest.mark.parametrize(("centre", "width"), [(5_400_000, 0.2), (5_400_000, 200.0)])
def test_differences_that_float32_does_not_have_are_named_once(
    centre: float, width: float, caplog: pytest.LogCaptureFixture
) -> None:
    class Far(Recorder):
        def _observe(self) -> TensorDictBase:
            self.values["seen"] = centre + width * torch.rand(2, 3, dtype=torch.float64)
            return super()._observe()

    spec = Composite(seen=Unbounded((2, 3), dtype=torch.float64), shape=(2,))
    env = TorchRLEnv(Far(MOVES, spec, (2,)))
    for _ in range(2):
        env.reset()
        for _ in range(40):
            env.step(zeros(env))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == (width < 1)
    assert all("`seen` are lost: element 0 of its numbers were between" in x for x in texts)


def test_a_table_of_choices_has_choices() -> None:
    counts = torch.tensor([[2, 3], [4, 5]])
    table = MultiCategorical(counts.expand(2, 2, 2), shape=(2, 2, 2))
    values = torch.zeros(2, 2, 2, dtype=LONG)
    env = TorchRLEnv(observing(seen=table, values={"seen": values}), 4)
    algorithm = AlgorithmConfig().build(env)
    algorithm.collect()
    values[1, 1, 0] = 4
    with pytest.raises(EnvError, match=r"environment 1 is 4 in element 2, which is no choice"):
        algorithm.collect()


class Paid(ScriptedEnv):
    """Rewards around a number."""

    centre = 1e9

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).update({"reward": self._paid()})

    def _paid(self) -> torch.Tensor:
        return self.centre + torch.rand(*self.batch_size, 1, dtype=self.dtype)


@pytest.mark.parametrize(
    ("centre", "dtype", "warns"),
    [
        (1e9, torch.float64, 1),
        (1.0, torch.float64, 0),
        (1e9, torch.float32, 0),
    ],
)
def test_rewards_whose_differences_float32_does_not_have_are_named_once(
    centre: float, dtype: torch.dtype, warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped = Paid(next(iter(SCRIPTS.values())), dtype=dtype)
    wrapped.centre = centre
    env = TorchRLEnv(wrapped)
    env.reset()
    for _ in range(160):
        env.step(zeros(env))
    texts = [record.getMessage() for record in caplog.records]
    assert [x for x in texts if "Differences in `rewards` are lost: its numbers were" in x] == texts
    assert len(texts) == warns
