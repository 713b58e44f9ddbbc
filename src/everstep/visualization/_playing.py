"""Episodes of a run's policy in one environment that shows itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch

from ..core.installation import install_command
from ..core.rollouts import episode_keys_of
from ..env import Env
from ..env.registry import AdapterFactory
from ..errors import AdapterError, EnvError
from ..evaluation import Player, check_fit

if TYPE_CHECKING:
    from ..policies import GenericPolicyBase
    from ..trainers import TrainConfig

#: A picture, uint8 `[height, width, 3]`.
Frame = npt.NDArray[np.uint8]

#: Frames a second of an environment that does not say.
_FPS = 30.0

#: Most frames a second of a video; above it a second has more pictures than any file should.
_MOST_FPS = 1000.0

#: Options of many environments, which one of its own does not need.
MANY = ("vectorization_mode", "vector_kwargs", "random_phase", "render_mode")

#: End of errors about environments that cannot be shown.
_ELSEWHERE = (
    "Or name one with the same observations and actions that renders, such as "
    "env_cls=gymnasium:CartPole-v1."
)


@dataclass(frozen=True)
class Moment:
    """The state of an episode after a reset or an env step."""

    #: Number of the episode, from 1.
    episode: int

    #: Env steps of the episode so far.
    env_step: int

    #: Sum of its rewards so far.
    total: float

    #: Whether this is its end.
    ended: bool


def make_rendering_env(config: "TrainConfig", mode: Literal["rgb_array", "human"]) -> Env:
    """One environment of a run's kind that shows itself, on the CPU.

    Args:
        config: The run's configuration.
        mode: `"rgb_array"`, whose `render` returns pictures, or `"human"`, which opens a window.

    Raises:
        AdapterError: If the environment cannot be made, or not with this `render_mode`.

    """
    source: Any = config.make_env_source(evaluating=True)
    if isinstance(source, AdapterFactory):
        options = {k: v for k, v in source.kwargs.items() if k not in MANY}
        source.kwargs = {**options, "render_mode": mode}
    horizon = config.horizon if isinstance(config.horizon, int) else None
    try:
        return cast(Env, source(1, horizon, device="cpu"))
    except AdapterError as error:
        raise AdapterError(
            f"{str(error).rstrip('.')}. It was made with render_mode={mode!r}, "
            f"as it must be to be shown: let it take that argument. {_ELSEWHERE}"
        ) from error


def play_episodes(
    policy: "GenericPolicyBase[Any]",
    env: Env,
    *,
    episodes: int,
    deterministic: bool = True,
    env_config: None | dict[str, Any] = None,
    max_env_steps: int = 10_000,
) -> Iterator[Moment]:
    """Episodes one after the other; yields after each reset and each env step.

    The actions are those of `evaluate`: with the policy's normaliser, recurrent state and windows.
    The caller may render the environment between moments. In a non-episodic environment, an episode
    is `env.horizon` env steps from a reset, or `max_env_steps`.

    Args:
        policy: The policy.
        env: One environment; it is reset first.
        episodes: Number of episodes.
        deterministic: Whether actions are the distribution's mode rather than samples.
        env_config: Passed to the reset.
        max_env_steps: Env steps after which an episode is cut.

    Raises:
        ConfigError: If `policy` does not fit the environment.
        EnvError: If `env` has more than one environment.

    """
    if env.num_envs != 1:
        raise EnvError(f"Episodes are shown of one environment; got {env.num_envs}.")
    check_fit(policy, env)
    is_episodic = bool(episode_keys_of(env))
    limit = max_env_steps if is_episodic else min(env.horizon or max_env_steps, max_env_steps)
    player = Player(policy, env, deterministic)
    resets_itself = False
    for episode in range(1, episodes + 1):
        if not resets_itself:
            player.reset(env_config)
            yield Moment(episode, 0, 0.0, False)
        resets_itself = False
        for _ in range(limit + 1):
            ended, sums = player.step()
            total, count = sums[0].tolist()
            resets_itself = bool(ended[0])
            is_over = resets_itself or count >= limit
            yield Moment(episode, int(count), total, is_over)
            if is_over:
                break


def frame_of(env: Env) -> Frame:
    """The picture that one environment renders.

    Raises:
        EnvError: If it renders none; says how to get one.

    """
    name = type(env).__name__
    render = getattr(env, "render", None)
    if render is None:
        raise EnvError(
            f"{name} has no `render()`, so it cannot be shown. Give the class a method that "
            f"returns a picture, uint8 [height, width, 3]. {_ELSEWHERE}"
        )
    try:
        picture = render()
    except Exception as error:
        raise EnvError(f"{name} failed in `render`: {error}{_missing(error)}") from error
    if isinstance(picture, tuple | list) and len(picture) == 1:  # one an environment
        picture = picture[0]
    if isinstance(picture, torch.Tensor):
        picture = picture.numpy(force=True)
    array = np.asarray(picture)
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3 or not array.size:
        received = "None" if picture is None else f"{array.dtype} {list(array.shape)}"
        raise EnvError(
            f"`{name}.render()` must return a picture, uint8 [height, width, 3], as Gymnasium's "
            f"environments do with render_mode='rgb_array'; got {received}."
        )
    return array


def frames_per_second(env: Env) -> float:
    """`render_fps` of the environment's metadata, or 30 if it is none that a video can have."""
    for each in (env, getattr(env, "env", None)):
        metadata = getattr(each, "metadata", None)
        fps = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
        if isinstance(fps, int | float) and 0 < fps <= _MOST_FPS:
            return float(fps)
    return _FPS


def _missing(error: Exception) -> str:
    """Advice on libraries that the error says are missing."""
    text = str(error).lower()
    if "pygame" in text:
        return f". Classic control is drawn with pygame: {install_command('classic')}"
    if any(word in text for word in ("egl", "osmesa", "opengl", "glfw", "gl context")):
        return (
            ". MuJoCo draws without a display through EGL or OSMesa: apt-get install libegl1 "
            "libgl1-mesa-dri (MUJOCO_GL=egl), or libosmesa6 (MUJOCO_GL=osmesa)"
        )
    return ""
