"""Gymnasium spaces: observations read and actions sent, for every space."""

import math
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded

import everstep
from everstep.errors import AdapterError, EnvError
from everstep_adapters import GymnasiumEnv

INF = math.inf
SCALAR = spaces.Discrete(2)


class Sampling(gymnasium.Env[Any, Any]):
    """Observes samples of its space and keeps the actions that it is sent."""

    def __init__(self, observation_space: Any, action_space: Any, name: int) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.actions: list[Any] = []
        self.name, self.t = name, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.observe(), 1.0, self.t % 4 == self.name, False, {}

    def observe(self) -> Any:
        self.t += 1
        self.observation_space.seed(1000 * self.name + self.t)
        return self.observation_space.sample()


def vector(observation_space: Any = SCALAR, action_space: Any = SCALAR) -> SyncVectorEnv:
    fns = [partial(Sampling, observation_space, action_space, name) for name in range(2)]
    return SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP)


class Returning(VectorEnv):
    """A vector environment whose observations are the batch that it is given, of two rows."""

    def __init__(self, observation_space: spaces.Space[Any], batch: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = 2
        self.single_observation_space, self.single_action_space = observation_space, SCALAR
        self.batch = batch

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.batch, {}


# Observations.

SPACES: dict[str, tuple[spaces.Space[Any], type, torch.dtype, tuple[int, ...]]] = {
    "float32": (spaces.Box(-1, 1, (3,)), Bounded, torch.float32, (3,)),
    "half-bounded": (spaces.Box(-1, INF, (3,)), Bounded, torch.float32, (3,)),
    "float64": (spaces.Box(-1, 1, (3,), np.float64), Bounded, torch.float32, (3,)),
    "float16": (spaces.Box(-1, 1, (3,), np.float16), Bounded, torch.float16, (3,)),
    "no dimensions": (spaces.Box(-1, 1, ()), Bounded, torch.float32, (1,)),
    "image": (spaces.Box(0, 255, (4, 5, 3), np.uint8), Bounded, torch.uint8, (4, 5, 3)),
    "int64": (spaces.Box(-9, 2**40, (3,), np.int64), Bounded, torch.int64, (3,)),
    "int8": (spaces.Box(-9, 9, (3,), np.int8), Bounded, torch.int8, (3,)),
    "uint16": (spaces.Box(0, 65535, (3,), np.uint16), Bounded, torch.int32, (3,)),
    "uint32": (spaces.Box(0, 2**32 - 1, (3,), np.uint32), Bounded, torch.int64, (3,)),
    "bool": (spaces.Box(0, 1, (3,), np.bool_), Bounded, torch.bool, (3,)),
    "discrete": (spaces.Discrete(5), Categorical, torch.int64, (1,)),
    "discrete from -1": (spaces.Discrete(5, start=-1), Categorical, torch.int64, (1,)),
    "multi-discrete": (spaces.MultiDiscrete([3, 4]), MultiCategorical, torch.int64, (2,)),
    "multi-discrete from": (
        spaces.MultiDiscrete([3, 4], start=[7, -2]),
        MultiCategorical,
        torch.int64,
        (2,),
    ),
    "grid": (spaces.MultiDiscrete([[3, 4], [5, 6]]), Bounded, torch.int64, (2, 2)),
    "binary": (spaces.MultiBinary([2, 3]), Binary, torch.int8, (2, 3)),
}


def start_of(space: Any) -> Any:
    return getattr(space, "start", 0)


@pytest.mark.parametrize("name", SPACES)
def test_observations_arrive_as_their_spec_describes_them(name: str) -> None:
    space, spec_type, dtype, shape = SPACES[name]
    env, by_hand = GymnasiumEnv(vector(space)), vector(space)
    spec = env.observation_spec
    assert isinstance(spec, spec_type)
    assert (spec.dtype, tuple(spec.shape)) == (dtype, shape)
    got, (want, _) = env.reset(), by_hand.reset()
    for _ in range(8):
        assert (got.dtype, tuple(got.shape)) == (dtype, (2, *shape))
        assert all(spec.is_in(row) for row in got)
        expected = (want - start_of(space)).reshape(2, *shape)
        np.testing.assert_array_equal(got.numpy(), expected.astype(got.numpy().dtype))
        got = env.step(torch.zeros(2, 1, dtype=torch.int64))["obs"]
        want = by_hand.step([0, 0])[0]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1e300, 1e300, (3,), np.float64),
        spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (3,)),
    ],
    ids=["beyond float32", "the largest number"],
)
def test_bounds_that_are_none_are_not_made_up(space: Any) -> None:
    assert isinstance(GymnasiumEnv(vector(space)).observation_spec, Unbounded)


def test_bounds_are_those_of_each_dimension() -> None:
    low, high = np.array([[-3.0, 0.1], [2.0, -0.7]]), np.array([[1.0, 0.3], [8.0, -0.1]])
    spec = GymnasiumEnv(vector(spaces.Box(low, high, dtype=np.float64))).observation_spec
    np.testing.assert_array_equal(spec.space.low, low.astype(np.float32))
    np.testing.assert_array_equal(spec.space.high, high.astype(np.float32))


@pytest.mark.usefixtures("float64")
def test_the_default_dtype_is_that_of_float64_spaces_and_of_rewards() -> None:
    env = GymnasiumEnv(vector(spaces.Box(-1, 1, (3,), np.float64)))
    by_hand = vector(spaces.Box(-1, 1, (3,), np.float64))
    obs = env.reset()
    assert obs.dtype == env.observation_spec.dtype == torch.float64
    np.testing.assert_array_equal(obs, by_hand.reset()[0])
    assert env.step(torch.zeros(2, 1, dtype=torch.int64))["rewards"].dtype == torch.float64
    assert GymnasiumEnv(vector(spaces.Box(-1, 1, (3,)))).reset().dtype == torch.float32


NESTED = spaces.Dict(
    {
        "pose": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(4, start=2))),
        "camera": spaces.Dict({"left": spaces.Box(0, 255, (2, 2, 1), np.uint8)}),
        "load": spaces.Box(0, INF, (), np.float64),
    }
)


def test_nested_spaces_become_composites() -> None:
    env, by_hand = GymnasiumEnv(vector(NESTED)), vector(NESTED)
    assert isinstance(env.observation_spec, Composite)
    assert set(env.observation_spec.keys(True, True)) == {
        ("pose", "0"),
        ("pose", "1"),
        ("camera", "left"),
        "load",
    }
    assert env.observation_spec["pose", "1"].n == 4
    got, (want, _) = env.reset(), by_hand.reset()
    for _ in range(8):
        assert isinstance(got, TensorDict)
        assert got.batch_size == (2,)
        assert all(env.observation_spec.is_in(row) for row in got)
        np.testing.assert_array_equal(got["pose", "0"], want["pose"][0])
        np.testing.assert_array_equal(got["pose", "1"][:, 0], want["pose"][1] - 2)
        np.testing.assert_array_equal(got["camera", "left"], want["camera"]["left"])
        np.testing.assert_array_equal(got["load"][:, 0], want["load"].astype(np.float32))
        row = env.step(torch.zeros(2, 1, dtype=torch.int64))
        want, _, _, _, infos = by_hand.step([0, 0])
        got = row["obs"]
        for i in torch.nonzero(row["first"][:, 0]).flatten().tolist():
            final = infos["final_obs"][i]
            left = row["final_obs", "camera", "left"][i]
            np.testing.assert_array_equal(left, final["camera"]["left"])
            assert row["final_obs", "pose", "1"][i].item() == final["pose"][1] - 2


@pytest.mark.parametrize(
    "batch",
    [
        np.arange(12, dtype=np.float32).reshape(3, 2, 2).T,
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
        np.arange(12, dtype=np.float32).reshape(2, 2, 3)[::-1, :, ::-1],
        np.arange(24, dtype=np.float64).reshape(2, 2, 6)[..., ::2],
        np.arange(12, dtype=">f4").reshape(2, 2, 3),
        torch.arange(12.0).reshape(2, 2, 3),
        np.arange(12).reshape(2, 2, 3).tolist(),
    ],
    ids=["transposed", "fortran", "reversed", "strided", "big-endian", "tensor", "list"],
)
def test_memory_order_and_byte_order_do_not_matter(batch: Any) -> None:
    env = GymnasiumEnv(Returning(spaces.Box(-INF, INF, (2, 3)), batch))
    np.testing.assert_array_equal(env.reset(), np.asarray(batch))


def test_read_only_observations_are_copied() -> None:
    batch = np.ones((2, 3), dtype=np.float32)
    batch.flags.writeable = False
    obs = GymnasiumEnv(Returning(spaces.Box(-INF, INF, (3,)), batch)).reset()
    obs += 1
    assert batch.max() == 1


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"`observation_space` cannot be a tensor.*Text"),
        (
            spaces.Dict({"a": spaces.Tuple((SCALAR, spaces.Sequence(SCALAR)))}),
            r"`observation_space\['a'\]\[1\]`.*Sequence",
        ),
        (spaces.Dict({"a": spaces.OneOf([SCALAR, SCALAR])}), r"\['a'\]`.*OneOf"),
        (spaces.Dict({"a": spaces.Dict({})}), r"\['a'\]`.*empty `Dict`"),
        (spaces.Box(0, 9, (2,), np.uint64), r"no uint64.*float64"),
        (None, r"does not say what it is \(None\)"),
    ],
)
def test_spaces_without_tensors_are_named(space: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        GymnasiumEnv(Returning(space, None))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": np.zeros(2)}, r"`obs\['b'\]` is missing"),
        ({"a": np.zeros((2, 1)), "b": np.zeros(2, int)}, r"`obs\['a'\]` must have shape \(2,\)"),
        ({"a": np.zeros(2), "b": np.zeros(2)}, r"`obs\['b'\]` must have a dtype that fits int64"),
        (np.zeros(2), r"`obs\['a'\]` is missing"),
        (None, r"`obs\['a'\]` is missing"),
    ],
)
def test_observations_that_do_not_fit_are_named(batch: Any, message: str) -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, ()), "b": spaces.Discrete(3, start=1)})
    with pytest.raises(EnvError, match=message):
        GymnasiumEnv(Returning(space, batch)).reset()


# Actions.


def sent(action_space: Any, action: torch.Tensor, **options: Any) -> list[Any]:
    inner = vector(action_space=action_space)
    env = GymnasiumEnv(inner, **options)
    env.reset()
    before = action.clone()
    env.step(action)
    assert torch.equal(action, before)
    received = [np.asarray(env.unwrapped.actions[0]) for env in inner.envs]
    assert all(action_space.contains(action) for action in received)
    return [action.tolist() for action in received]


def test_discrete_actions_count_from_start() -> None:
    space = spaces.Discrete(3, start=-1)
    spec = GymnasiumEnv(vector(action_space=space)).action_spec
    assert isinstance(spec, Categorical)
    assert (spec.n, tuple(spec.shape)) == (3, (1,))
    assert sent(space, torch.tensor([[0], [2]])) == [-1, 1]
    assert sent(space, torch.tensor([[0], [2]], dtype=torch.uint8)) == [-1, 1]


def test_multi_discrete_actions_count_from_start() -> None:
    space = spaces.MultiDiscrete([3, 4], start=[5, -2])
    spec = GymnasiumEnv(vector(action_space=space)).action_spec
    assert isinstance(spec, MultiCategorical)
    assert spec.nvec.tolist() == [3, 4]
    assert sent(space, torch.tensor([[0, 0], [2, 3]])) == [[5, -2], [7, 1]]


def test_binary_actions_are_choices_of_two() -> None:
    space = spaces.MultiBinary(3)
    assert GymnasiumEnv(vector(action_space=space)).action_spec.nvec.tolist() == [2, 2, 2]
    assert sent(space, torch.tensor([[0, 1, 1], [1, 0, 0]])) == [[0, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("space", "action", "received"),
    [
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [-1, 9]]),
            [[[0, 0], [0, 0]], [[1, 2], [3, 4]]],
            [[[1, 0], [-1, 9]], [[2, 2], [2, 13]]],
        ),
        (
            spaces.MultiBinary([2, 2]),
            [[[0, 1], [1, 0]], [[1, 1], [0, 0]]],
            [[[0, 1], [1, 0]], [[1, 1], [0, 0]]],
        ),
        (spaces.Box(-2, 3, (2,), np.int32), [[-2, 0], [3, 1]], [[-2, 0], [3, 1]]),
        (spaces.Box(0, 255, (1, 2), np.uint8), [[[0, 7]], [[255, 1]]], [[[0, 7]], [[255, 1]]]),
        (spaces.Box(0, 70_000, (), np.uint32), [[0], [70_000]], [0, 70_000]),
        (spaces.Box(0, 1, (2,), np.bool_), [[0, 1], [1, 1]], [[False, True], [True, True]]),
    ],
    ids=["grid", "binary grid", "int32", "uint8", "uint32", "bool"],
)
def test_integer_actions_of_every_shape_are_sent(space: Any, action: Any, received: Any) -> None:
    assert sent(space, torch.tensor(action)) == received


def test_integer_boxes_are_bounded_integers() -> None:
    spec = GymnasiumEnv(vector(action_space=spaces.Box(-2, 3, (2,), np.int32))).action_spec
    assert isinstance(spec, Bounded)
    assert (spec.dtype, tuple(spec.shape)) == (torch.int32, (2,))
    assert spec.space.low.tolist() == [-2, -2]
    assert spec.space.high.tolist() == [3, 3]


ACTION_SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([2, 3], start=[4, 0]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "binary": spaces.MultiBinary(3),
    "binary grid": spaces.MultiBinary([2, 2]),
    "int32": spaces.Box(-2, 3, (2,), np.int32),
    "uint8, no dimensions": spaces.Box(0, 255, (), np.uint8),
    "bool": spaces.Box(0, 1, (2,), np.bool_),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "half-bounded": spaces.Box(0, INF, (2,)),
    "bounds of each dimension": spaces.Box(
        np.array([-1.0, 0]), np.array([1.0, 9]), dtype=np.float64
    ),
    "float16, no dimensions": spaces.Box(-1, 1, (), np.float16),
}


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize("name", ACTION_SPACES)
def test_a_policy_samples_actions_of_every_space_that_is_not_refused(name: str) -> None:
    space = ACTION_SPACES[name]
    inner = vector(spaces.Box(-1, 1, (2,)), space)
    everstep.Trainer(GymnasiumEnv(inner, horizon=8), run_dir=None).step()
    for env in inner.envs:
        received = [np.asarray(action, space.dtype) for action in env.unwrapped.actions]
        assert len(received) == 8
        scalar = isinstance(space, spaces.Discrete)
        assert all(space.contains(int(a) if scalar else a) for a in received)


LIMITED = spaces.Box(np.array([-2.0, 0.0, -INF]), np.array([2.0, INF, INF]), dtype=np.float64)


def test_actions_are_clipped_to_the_bounds_that_exist() -> None:
    action = torch.tensor([[-9.0, -9.0, -9.0], [9.0, 9.0, 9.0]])
    assert sent(LIMITED, action, action_bounds="clip") == [[-2, 0, -9], [2, 9, 9]]
    spec = GymnasiumEnv(vector(action_space=LIMITED), action_bounds="clip").action_spec
    assert spec.space.low.tolist() == [-2, 0, -INF]
    assert spec.space.high.tolist() == [2, INF, INF]


@pytest.mark.parametrize("bounds", ["rescale", "auto"])
def test_actions_are_rescaled_where_both_bounds_exist(bounds: Any) -> None:
    action = torch.tensor([[-1.0, -1.0, -1.0], [0.5, 0.5, 0.5]])
    assert sent(LIMITED, action, action_bounds=bounds) == [[-2, 0, -1], [1, 0.5, 0.5]]
    spec = GymnasiumEnv(vector(action_space=LIMITED), action_bounds=bounds).action_spec
    assert spec.space.low.tolist() == [-1, 0, -INF]
    assert spec.space.high.tolist() == [1, INF, INF]


@pytest.mark.parametrize(
    ("space", "scales"),
    [
        (spaces.Box(-1, 1, (2,)), False),
        (spaces.Box(np.array([-1.0, 0]), np.array([1, INF]), dtype=np.float64), False),
        (spaces.Box(-INF, INF, (2,)), False),
        (spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,)), False),
        (spaces.Box(-2, 2, (2,)), True),
        (spaces.Box(0, 1, (2,)), True),
        (spaces.Box(np.array([-1.0, -1e-3]), np.array([1, 1e-3]), dtype=np.float64), True),
        (spaces.Box(np.array([-INF, 3]), np.array([1, 4]), dtype=np.float64), True),
    ],
)
def test_only_bounds_other_than_minus_one_and_one_rescale_by_default(
    space: spaces.Box, scales: bool
) -> None:
    (form,) = GymnasiumEnv(vector(action_space=space)).env_format.action
    assert (form.scale is not None) is scales


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rescaling_takes_the_unit_interval_to_the_bounds(dtype: Any) -> None:
    low, high = np.array([[-3.0, 0.1], [2.0, -0.7]]), np.array([[1.0, 0.3], [8.0, -0.1]])
    space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    env = GymnasiumEnv(vector(action_space=space), action_bounds="rescale")
    assert isinstance(env.action_spec, Bounded)
    assert (env.action_spec.space.low == -1).all()
    assert (env.action_spec.space.high == 1).all()
    assert tuple(env.action_spec.shape) == (2, 2)
    ends = [(-1.0, space.low), (1.0, space.high), (0.0, (space.low + space.high) / 2)]
    assert (
        sent(space, torch.full((2, 2, 2), 5.0), action_bounds="rescale")[0] == space.high.tolist()
    )
    for value, expected in ends:
        received = sent(space, torch.full((2, 2, 2), value), action_bounds="rescale")[0]
        np.testing.assert_allclose(received, expected, rtol=4 * np.finfo(dtype).eps)


def test_rescaling_survives_bounds_whose_difference_does_not() -> None:
    most = 3 * 2.0**126  # almost the largest float32, which would stand for no bound
    space = spaces.Box(-most, most, (1,))
    action = torch.tensor([[-1.0], [0.5]])
    assert sent(space, action, action_bounds="rescale") == [[-most], [most / 2]]


def test_bounded_actions_keep_shape_and_dtype() -> None:
    inner = vector(action_space=spaces.Box(-1, 2, (2, 3), np.float64))
    spec = GymnasiumEnv(inner, action_bounds="clip").action_spec
    assert isinstance(spec, Bounded)
    assert (spec.dtype, tuple(spec.shape)) == (torch.float32, (2, 3))
    assert spec.space.high.unique().tolist() == [2.0]
    action = torch.tensor([[0.5], [3.0]])
    assert sent(spaces.Box(-1, 2, ()), action, action_bounds="clip") == [0.5, 2.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_actions_of_any_floating_dtype_are_sent(dtype: torch.dtype) -> None:
    space = spaces.Box(-1, 1, (1,))
    assert sent(space, torch.tensor([[0.5], [-0.25]], dtype=dtype)) == [[0.5], [-0.25]]


def test_actions_may_require_gradients_and_have_any_strides() -> None:
    space = spaces.Box(-1, 1, (2,))
    action = torch.tensor([[0.5, 0.25], [-0.5, 1.0]]).T.requires_grad_()
    assert sent(space, action) == [[0.5, -0.5], [0.25, 1.0]]


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (SCALAR, torch.zeros(2, dtype=torch.int64), r"shape \(2, 1\).*got \(2,\)"),
        (SCALAR, torch.zeros(3, 1, dtype=torch.int64), r"shape \(2, 1\).*got \(3, 1\)"),
        (SCALAR, torch.zeros(2, 1), r"dtype torch.int64.*got torch.float32"),
        (SCALAR, torch.zeros(2, 1, dtype=torch.bool), r"dtype torch.int64.*got torch.bool"),
        (spaces.Box(-1, 1, (1,)), torch.zeros(2, 1, dtype=torch.int64), r"float32.*int64"),
        (SCALAR, np.zeros((2, 1)), r"must be a tensor; got ndarray"),
    ],
)
def test_actions_that_do_not_fit_are_refused(space: Any, action: Any, message: str) -> None:
    env = GymnasiumEnv(vector(action_space=space))
    env.reset()
    with pytest.raises(AdapterError, match=message):
        env.step(action)


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (spaces.Dict({"a": SCALAR}), {}, r"`action_space` must be.*Dict"),
        (spaces.Tuple((SCALAR, SCALAR)), {}, r"`action_space` must be.*Tuple.*TransformAction"),
        (spaces.Text(3), {}, r"`action_space` must be.*Text"),
        (spaces.Box(0, 9, (2,), np.uint64), {}, r"`action_space` cannot be a tensor.*uint64"),
        (
            SCALAR,
            {"action_bounds": "rescale"},
            r"of floating point; got Discrete\(2\)",
        ),
        (spaces.Box(-INF, INF, (2,)), {"action_bounds": "rescale"}, r"finite bounds.*'clip'"),
        (SCALAR, {"action_bounds": "squash"}, "'clip' or 'rescale'; got 'squash'"),
    ],
)
def test_action_spaces_that_cannot_be_sampled_are_refused(
    space: Any, options: Any, message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        GymnasiumEnv(vector(action_space=space), **options)


def test_an_environment_without_an_action_space_is_refused() -> None:
    inner = Returning(SCALAR, None)
    inner.single_action_space = None
    with pytest.raises(AdapterError, match=r"`action_space` must be one space.*None"):
        GymnasiumEnv(inner)
