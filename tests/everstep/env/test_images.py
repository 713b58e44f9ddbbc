"""Images: their layout, the range of their pixels, and what is normalised beside them."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from everstep import AlgorithmConfig, ContinuousDummyEnv, RecurrentAlgorithmConfig
from everstep.env.images import image_layout, is_measured
from everstep.errors import ConfigError
from everstep.models import DefaultDiscreteModel, ObservationNetwork

ONE = torch.Size([1])
CHOICE = Categorical(3, shape=ONE)
BYTES, FLOATS = torch.uint8, torch.float32


def pixels(shape: Any, dtype: Any = BYTES, low: float = 0, high: float = 255) -> Bounded:
    return Bounded(low, high, shape=shape, dtype=dtype)


#: Channels, height, width and whether channels are last; None for no image, "ask" for an error.
LAYOUTS: list[tuple[tuple[int, ...], Any, Any]] = [
    ((84, 84, 3), BYTES, (3, 84, 84, True)),
    ((84, 84, 4), BYTES, (4, 84, 84, True)),
    ((84, 84, 1), BYTES, (1, 84, 84, True)),
    ((210, 160, 3), BYTES, (3, 210, 160, True)),
    ((7, 7, 3), BYTES, (3, 7, 7, True)),
    ((4, 84, 84), BYTES, (4, 84, 84, False)),
    ((3, 64, 64), BYTES, (3, 64, 64, False)),
    ((3, 210, 160), BYTES, (3, 210, 160, False)),
    ((1, 4, 4), BYTES, (1, 4, 4, False)),
    ((4, 4, 1), BYTES, (1, 4, 4, True)),
    ((84, 84), BYTES, (1, 84, 84, False)),
    ((40, 36), BYTES, (1, 40, 36, False)),
    ((96, 96, 12), BYTES, (12, 96, 96, True)),
    ((84, 84, 6), BYTES, (6, 84, 84, True)),
    ((64, 64, 9), BYTES, (9, 64, 64, True)),
    ((9, 64, 64), BYTES, (9, 64, 64, False)),
    ((8, 8, 12), BYTES, (12, 8, 8, True)),
    ((17, 8, 8), BYTES, (17, 8, 8, False)),
    ((210, 160, 12), BYTES, (12, 210, 160, True)),
    ((12, 210, 160), BYTES, (12, 210, 160, False)),
    ((4, 84, 84, 3), BYTES, (12, 84, 84, True)),
    ((4, 3, 84, 84), BYTES, (12, 84, 84, False)),
    ((4, 84, 84, 6), BYTES, (24, 84, 84, True)),
    ((4, 84, 84, 1), BYTES, (4, 84, 84, True)),
    ((96, 96, 12), FLOATS, (12, 96, 96, True)),
    ((1, 36, 36), FLOATS, (1, 36, 36, False)),
    ((10, 20, 40), BYTES, "ask"),
    ((84, 84, 84), BYTES, "ask"),
    ((3, 3, 3), BYTES, "ask"),
    ((3, 3, 27), BYTES, "ask"),
    ((84, 3, 84), BYTES, "ask"),
    ((10, 9, 9), BYTES, "ask"),
    ((9, 9, 10), BYTES, "ask"),
    ((11, 11, 17), BYTES, (17, 11, 11, True)),
    ((19, 7, 7), BYTES, (19, 7, 7, False)),
    ((64, 40, 50), BYTES, "ask"),
    ((64, 40, 50), FLOATS, "ask"),
    ((7, 7, 3), FLOATS, None),
    ((10, 20, 40), FLOATS, None),
    ((84, 84), FLOATS, None),
    ((20, 30), BYTES, None),
    ((128,), BYTES, None),
    ((2, 7, 7, 3), BYTES, None),
    ((7, 7, 3), torch.int64, None),
]


@pytest.mark.parametrize(("shape", "dtype", "expected"), LAYOUTS)
def test_the_layout_of_an_image_is_the_likely_one_or_asked_for(
    shape: Any, dtype: Any, expected: Any
) -> None:
    spec = pixels(shape, dtype)
    if expected == "ask":
        with pytest.raises(ValueError, match=r"first or last: set `image_layout` to 'channels_fi"):
            image_layout(spec)
        last = image_layout(spec, "channels_last")
        first = image_layout(spec, "channels_first")
        assert last is not None
        assert first is not None
        assert (last.channels, last.channels_last) == (shape[-1], True)
        assert (first.channels, first.channels_last) == (shape[-3], False)
        assert image_layout(spec, "flat") is None
        return
    layout = image_layout(spec)
    found = layout and (layout.channels, layout.height, layout.width, layout.channels_last)
    assert found == expected


def env_of(spec: Any, values: Any = None) -> Any:
    """A kind of environment with these observations: random ones, or `values` of rows."""

    class Seen(ContinuousDummyEnv):
        def __init__(self, num_envs: int, /, horizon: Any = None, *, device: Any = "cpu") -> None:
            super().__init__(num_envs, horizon, device=device)
            self.observation_spec = spec

        def _seen(self) -> Any:
            return spec.rand([self.num_envs]) if values is None else values(self.num_envs)

        def reset(self, *, config: Any = None) -> Any:
            super().reset(config=config)
            return self._seen()

        def step(self, action: Any) -> TensorDict:
            rewards = super().step(action)["rewards"]
            return TensorDict({"obs": self._seen(), "rewards": rewards}, [self.num_envs])

    return Seen


SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 4}


@pytest.mark.few(1)
@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
@pytest.mark.parametrize("nested", [False, True])
def test_an_error_says_how_to_say_the_layout(config: Any, nested: bool) -> None:
    image = pixels((10, 20, 12))
    spec = Composite(camera=image, speed=Unbounded(2)) if nested else image
    name = "obs.camera" if nested else "obs"
    with pytest.raises(ConfigError, match=f"`{name}`: an image .*`image_layout`"):
        config(**SMALL).build(env_of(spec))
    said: Any = {"camera": "channels_last"} if nested else "channels_last"
    algorithm = config(**SMALL, model_config={"image_layout": said}).build(env_of(spec))
    encoder = algorithm.policy.model.encoder.encoders[0]
    assert encoder.layout.channels == 12
    algorithm.collect()
    algorithm.step()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("hwc", "image_layout` expected one of channels_first, channels_last, flat"),
        ({"eye": "flat"}, "image_layout` expected leaves among camera, speed; got 'eye'"),
        ({"speed": "channels_last"}, "image_layout` is for images"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(said: Any, message: str) -> None:
    spec = Composite(camera=pixels((10, 20, 12)), speed=Unbounded(2))
    with pytest.raises(ConfigError, match=message):
        AlgorithmConfig(**SMALL, model_config={"image_layout": said}).build(env_of(spec))


# ---- the range of pixels -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "number", "expected"),
    [
        (pixels((7, 7, 3)), 255, 1.0),
        (pixels((7, 7, 3), high=2), 2, 1.0),
        (pixels((7, 7, 3), high=2), 1, 0.5),
        (pixels((7, 7, 3), high=1), 1, 1.0),
        (pixels((7, 7, 3), low=10, high=20), 15, 0.5),
        (Unbounded((7, 7, 3), dtype=BYTES), 51, 0.2),
        (pixels((36, 36, 3), FLOATS), 255, 1.0),
        (pixels((36, 36, 3), FLOATS, -5, 5), 0, 0.5),
        (pixels((36, 36, 3), FLOATS, -1, 1), -1, -1.0),
        (pixels((36, 36, 3), FLOATS, 0, torch.inf), 9, 9.0),
    ],
)
def test_pixels_are_scaled_by_the_bounds_of_their_space(
    spec: Any, number: float, expected: float
) -> None:
    model: Any = DefaultDiscreteModel(spec, CHOICE)
    seen = []
    encoder = model.encoder.encoders[0]
    encoder.convolutions.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    obs = torch.full((2, *spec.shape), number).to(spec.dtype)
    before = obs.clone()
    model(TensorDict({"obs": obs}, [2]))
    torch.testing.assert_close(seen[0], torch.full_like(seen[0], expected))
    assert torch.equal(obs, before)


@pytest.mark.parametrize("shape", [(9,), (20, 30), (2, 7, 7, 3)])
@pytest.mark.parametrize("high", [2, 1, 40])
def test_a_grid_of_small_integers_is_told_apart(shape: tuple[int, ...], high: int) -> None:
    """Bytes that are no image and count to 2 are not divided by 255: the network sees them."""
    model: Any = DefaultDiscreteModel(pixels(shape, high=high), CHOICE)
    obs = torch.stack([torch.full(shape, x, dtype=BYTES) for x in (0, high)])
    seen = []
    linear = next(x for x in model.modules() if isinstance(x, torch.nn.Linear))
    linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(TensorDict({"obs": obs}, [2]))
    spread = (seen[0][1] - seen[0][0]).abs()
    assert spread.min() >= 1
    assert spread.max() <= high


def test_pixels_whose_bounds_differ_are_scaled_one_by_one() -> None:
    high = torch.tensor([255.0, 255.0, 255.0, 10.0]).expand(40, 40, 4)
    spec = Bounded(low=torch.zeros(40, 40, 4), high=high.contiguous())
    network: Any = ObservationNetwork(spec, 2)
    seen = []
    encoder = network.encoder.encoders[0]
    encoder.convolutions.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network((high.clone().unsqueeze(0),))
    torch.testing.assert_close(seen[0], torch.ones_like(seen[0]))


# ---- normalisation -----------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "spec",
    [
        Bounded(-1000, 1000, shape=(2,), dtype=torch.int32),
        Bounded(0, 255, shape=(2,), dtype=torch.uint8),
        Bounded(0, 100, shape=(2,), dtype=torch.int8),
        Bounded(0, 2**40, shape=(2,), dtype=torch.int64),
        Unbounded(2, dtype=torch.int64),
        Unbounded(2, dtype=torch.float64),
    ],
)
@pytest.mark.parametrize("config", [AlgorithmConfig, RecurrentAlgorithmConfig])
def test_integers_are_normalised_as_real_numbers_are(config: Any, spec: Any) -> None:
    limit = 100 if spec.dtype is torch.int8 else 200

    def values(rows: int) -> torch.Tensor:
        return torch.randint(limit, (rows, 2)).to(spec.dtype)

    env = env_of(spec, values)
    algorithm = config(num_envs=16, horizon=64, seed=0, normalize_observations=True).build(env)
    algorithm.collect()
    algorithm.step()
    (seen,) = algorithm.policy.normalizer((algorithm.rollout.obs[0].flatten(0, 1),))
    assert seen.is_floating_point()
    torch.testing.assert_close(seen.mean(0), torch.zeros_like(seen[0]), atol=0.05, rtol=0)
    torch.testing.assert_close(seen.std(0), torch.ones_like(seen[0]), atol=0.05, rtol=0)
    algorithm.collect()
    algorithm.step()


def test_large_integers_keep_their_differences() -> None:
    from everstep.core.normalizers import ObservationNormalizer

    spec = Unbounded(1, dtype=torch.int64)
    normalizer = ObservationNormalizer(spec)
    rows = 2**40 + torch.arange(5).unsqueeze(1)
    normalizer.update((rows,), torch.ones(5, dtype=torch.bool))
    (seen,) = normalizer((rows,))
    expected = (torch.arange(5.0) - 2) / 2**0.5
    torch.testing.assert_close(seen.flatten(), expected)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Unbounded(2), True),
        (Bounded(0, 9, shape=(2,), dtype=torch.int16), True),
        (pixels((128,)), True),
        (pixels((7, 7, 3)), False),
        (pixels((36, 36, 3), FLOATS), False),
        (Unbounded((36, 36, 3)), True),
        (CHOICE, False),
        (Binary(3), False),
        (Categorical(2, shape=ONE, dtype=torch.bool), False),
    ],
)
def test_numbers_are_measured_choices_and_images_are_not(spec: Any, expected: bool) -> None:
    assert is_measured(spec) is expected


@pytest.mark.parametrize("spec", [pixels((7, 7, 3)), CHOICE, Composite(a=Binary(2), b=CHOICE)])
def test_a_normalisation_of_nothing_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigError, match="`normalize_observations` has nothing to normalise"):
        AlgorithmConfig(**SMALL, normalize_observations=True).build(env_of(spec))
