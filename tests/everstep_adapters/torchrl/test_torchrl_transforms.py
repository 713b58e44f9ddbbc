"""The transforms that TorchRL's documentation shows, beside TorchRL's own steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl import envs as t
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, ParallelEnv, SerialEnv, TransformedEnv

from everstep import Trainer
from everstep.errors import AdapterError, EnvError
from everstep_adapters import TorchRLEnv
from tests.everstep_adapters.torchrl.torchrl_oracle import Make, check_beside
from tests.everstep_adapters.torchrl.torchrl_toys import SCRIPTS, ScriptedEnv, observing

mocks = pytest.importorskip("torchrl.testing.mocking_classes")

OBS = ["observation"]


def scripted() -> EnvBase:
    """Episodes of 1 to 3 env steps with every kind of end, observations and rewards of float64."""
    return ScriptedEnv(SCRIPTS["mixed"][:1], ())


def long() -> EnvBase:
    """Episodes of 5 and 6 env steps."""
    return ScriptedEnv(SCRIPTS["mixed"][3:], ())


def images() -> EnvBase:
    """Images `[8, 10, 3]` of 8 bits beside the observation."""
    return TransformedEnv(scripted(), t.UnaryTransform(OBS, ["pixels"], fn=to_image))


def to_image(obs: torch.Tensor) -> torch.Tensor:
    shape = (*obs.shape[:-1], 8, 10, 3)
    return (obs.float() * 41 % 256).to(torch.uint8)[..., None, None, :].expand(shape).clone()


def floats() -> EnvBase:
    """Images `[3, 8, 10]` between 0 and 1."""
    return TransformedEnv(images(), t.ToTensorImage(in_keys=["pixels"]))


def choosing() -> EnvBase:
    return mocks.DiscreteActionVecMockEnv()


def moving() -> EnvBase:
    return mocks.ContinuousActionVecMockEnv()


def vision(transform: str, *args: int) -> Any:
    """A transform that needs torchvision."""
    pytest.importorskip("torchvision")
    return getattr(t, transform)(*args, in_keys=["pixels"])


class Masked(EnvBase):
    """Four options, each of which may be chosen once in an episode; others are an error."""

    def __init__(self) -> None:
        super().__init__()
        mask = Composite(action_mask=Binary(4, dtype=torch.bool))
        self.action_spec, self.reward_spec = Categorical(4), Unbounded(1)
        self.observation_spec, self.state_spec = Composite(seen=Unbounded(3), **mask), mask

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDictBase:
        return self.observation_spec.rand().set("action_mask", torch.ones(4, dtype=torch.bool))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action, mask = tensordict["action"], tensordict["action_mask"]
        assert mask[action], "not allowed"
        mask = mask.scatter(-1, action[None], False)
        data = self.observation_spec.rand().set("action_mask", mask)
        return data.update({"reward": torch.ones(1), "done": ~mask.any(-1, keepdim=True)})


#: A transform and the environment that it is applied to.
CASES: dict[str, tuple[Make, Callable[[], Any]]] = {
    "ActionDiscretizer": (moving, lambda: t.ActionDiscretizer(3)),
    "ActionScaling": (moving, lambda: t.ActionScaling(loc=0.5, scale=2.0)),
    "BinarizeReward": (scripted, t.BinarizeReward),
    "CatFrames": (scripted, lambda: t.CatFrames(4, -1, in_keys=OBS)),
    "CatFrames of images": (floats, lambda: t.CatFrames(4, -3, in_keys=["pixels"])),
    "CatTensors": (
        scripted,
        lambda: t.Compose(
            t.UnaryTransform(OBS, ["other"], fn=torch.sin),
            t.CatTensors(["observation", "other"], "both"),
        ),
    ),
    "CenterCrop": (floats, lambda: vision("CenterCrop", 4, 6)),
    "ClipTransform": (scripted, lambda: t.ClipTransform(OBS, low=-1.0, high=1.0)),
    "Crop": (floats, lambda: vision("Crop", 4, 6)),
    "DTypeCastTransform": (
        scripted,
        lambda: t.DTypeCastTransform(torch.float64, torch.float16, in_keys=OBS),
    ),
    "DeviceCastTransform": (scripted, lambda: t.DeviceCastTransform("cpu")),
    "DiscreteActionProjection": (choosing, lambda: t.DiscreteActionProjection(7, 10)),
    "DoubleToFloat": (scripted, t.DoubleToFloat),
    "ExcludeTransform": (images, lambda: t.ExcludeTransform("pixels")),
    "FiniteTensorDictCheck": (scripted, t.FiniteTensorDictCheck),
    "FlattenObservation": (floats, lambda: t.FlattenObservation(-3, -1, in_keys=["pixels"])),
    "FrameSkipTransform": (long, lambda: t.FrameSkipTransform(2)),
    "GrayScale": (floats, lambda: t.GrayScale(in_keys=["pixels"])),
    "InitTracker": (scripted, t.InitTracker),
    "NoopResetEnv": (long, lambda: t.NoopResetEnv(3)),
    "ObservationNorm": (scripted, lambda: t.ObservationNorm(0.5, 2.0, in_keys=OBS)),
    "PermuteTransform": (images, lambda: t.PermuteTransform((-1, -3, -2), in_keys=["pixels"])),
    "RandomTruncationTransform": (
        long,
        lambda: t.Compose(t.StepCounter(), t.RandomTruncationTransform(2, 4, prob=0.5)),
    ),
    "RenameTransform": (scripted, lambda: t.RenameTransform(OBS, ["seen"])),
    "RewardClipping": (scripted, lambda: t.RewardClipping(-0.1, 0.1)),
    "RewardScaling": (scripted, lambda: t.RewardScaling(0.5, 2.0)),
    "RewardSum": (scripted, t.RewardSum),
    "SelectTransform": (images, lambda: t.SelectTransform("observation")),
    "SignTransform": (scripted, lambda: t.SignTransform(["reward"])),
    "SqueezeTransform": (
        scripted,
        lambda: t.Compose(
            t.UnsqueezeTransform(-1, in_keys=OBS), t.SqueezeTransform(-1, in_keys=OBS)
        ),
    ),
    "Stack": (
        scripted,
        lambda: t.Compose(
            t.UnaryTransform(OBS, ["other"], fn=torch.sin),
            t.Stack(["observation", "other"], "both"),
        ),
    ),
    "StepCounter": (scripted, lambda: t.StepCounter(2)),
    "TargetReturn": (scripted, lambda: t.TargetReturn(10.0)),
    "TensorDictPrimer": (
        scripted,
        lambda: t.TensorDictPrimer(hidden=Unbounded(5), expand_specs=True),
    ),
    "TerminateTransform": (
        long,
        lambda: t.transforms.TerminateTransform(lambda data: data["observation"][..., 2:] > 3),
    ),
    "TimeMaxPool": (scripted, lambda: t.TimeMaxPool(OBS, T=3)),
    "ToTensorImage, Resize": (
        images,
        lambda: t.Compose(t.ToTensorImage(in_keys=["pixels"]), vision("Resize", 4, 5)),
    ),
    "TrajCounter": (scripted, t.TrajCounter),
    "UnsqueezeTransform": (scripted, lambda: t.UnsqueezeTransform(-2, in_keys=OBS)),
    "VecNorm": (scripted, lambda: t.VecNorm(in_keys=OBS)),
    "VecNormV2": (scripted, lambda: t.VecNormV2(in_keys=OBS)),
    "all of a task": (
        floats,
        lambda: t.Compose(
            t.GrayScale(in_keys=["pixels"]),
            t.CatFrames(4, -3, in_keys=["pixels"]),
            t.InitTracker(),
            t.StepCounter(4),
            t.RewardSum(),
            t.RewardScaling(0.0, 0.1),
            t.DoubleToFloat(),
        ),
    ),
}


def transformed(name: str) -> EnvBase:
    torch.manual_seed(0)
    make, transform = CASES[name]
    return TransformedEnv(make(), transform())


def around(name: str) -> EnvBase:
    """The transform around a batch of environments, rather than in each."""
    torch.manual_seed(0)
    make, transform = CASES[name]
    return TransformedEnv(SerialEnv(2, make), transform())


PLACES = [
    pytest.param("plain", marks=pytest.mark.slow),
    *(pytest.param(place, marks=pytest.mark.exhaustive) for place in ("around", "serial")),
    pytest.param("parallel", marks=pytest.mark.long),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CASES)
def test_transforms(name: str, place: str) -> None:
    make = partial(around if place == "around" else transformed, name)
    if (name, place) == ("NoopResetEnv", "around"):
        with pytest.raises(EnvError, match="NoopResetEnv is designed to work on single env"):
            TorchRLEnv(make()).reset()
        return
    kinds: dict[str, Callable[[Make], EnvBase]] = {
        "serial": lambda make: SerialEnv(2, make),
        "parallel": lambda make: ParallelEnv(2, make, mp_start_method="fork"),
    }
    batched = kinds.get(place, lambda make: make())
    env, own = TorchRLEnv(batched(make)), batched(make)
    ends = check_beside(env, own)
    env.close()
    own.close()
    assert ends or CASES[name][0] in (choosing, moving)


def test_masks_of_actions_are_observed_and_applied() -> None:
    env = TorchRLEnv(TransformedEnv(SerialEnv(2, Masked), t.ActionMask()), horizon=16)
    assert set(env.observation_spec.keys()) == {"seen", "action_mask"}
    rows = Trainer(env, run_dir=None).step()
    assert rows["episodes/length_mean"] == 4
    env.close()


@pytest.mark.parametrize(
    ("transform", "error"),
    [
        (lambda: t.Reward2GoTransform(), ValueError),
        (lambda: t.transforms.MultiStepTransform(3, 0.9), EnvError),
        (lambda: t.BurnInTransform([], 1), EnvError),
    ],
    ids=["Reward2GoTransform", "MultiStepTransform", "BurnInTransform"],
)
def test_transforms_of_replay_buffers_are_refused_by_torchrl(transform: Any, error: Any) -> None:
    with pytest.raises(error, match=r"replay buffer|ReplayBuffer"):
        play(TransformedEnv(long(), transform()))


def play(inner: EnvBase, **options: Any) -> TorchRLEnv:
    env = TorchRLEnv(inner, **options)
    env.reset()
    env.step(env.action_spec.rand(torch.Size([env.num_envs])))
    return env


@pytest.mark.parametrize(
    ("make", "message", "options"),
    [
        (
            lambda: TransformedEnv(
                mocks.CountingEnvWithString(), t.Hash(["string"], ["hash"], hash_fn=hash_of)
            ),
            "observation_keys=",
            {"observation_keys": ["observation", "hash"]},
        ),
        (
            lambda: TransformedEnv(
                moving(), t.transforms.RNDTransform(torch.nn.Linear(7, 2), torch.nn.Linear(7, 2))
            ),
            "reward_key='reward'",
            {"reward_key": "reward"},
        ),
        (
            lambda: TransformedEnv(
                observing((), seen=Unbounded(1)),
                t.Compose(t.ExcludeTransform("seen"), t.StepCounter()),
            ),
            r"observation_keys=\['step_count'\]",
            {"observation_keys": ["step_count"]},
        ),
    ],
    ids=["Hash", "RNDTransform", "nothing but a count"],
)
@pytest.mark.filterwarnings("ignore")
def test_transforms_that_need_an_option(make: Make, message: str, options: Any) -> None:
    with pytest.raises(AdapterError, match=message):
        play(make())
    play(make(), **options)


def hash_of(text: str, seed: Any = None) -> torch.Tensor:
    return torch.tensor([len(text)])


def test_what_a_transform_excludes_cannot_be_learned_from() -> None:
    with pytest.raises(AdapterError, match=r"specs of TransformedEnv.* have no reward"):
        play(TransformedEnv(long(), t.ExcludeTransform("reward")))
    with pytest.raises(AdapterError, match=r"nothing to observe. Add an observation"):
        play(TransformedEnv(long(), t.ExcludeTransform("observation")))
