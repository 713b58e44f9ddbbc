"""Videos of episodes: captions, and the encoders of MP4 and GIF."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.files import replacing
from ..core.installation import install_command
from ..env import Env
from ..errors import EnvError, EverstepError
from ._figures import check_suffix
from ._playing import (
    Frame,
    Moment,
    frame_of,
    frames_per_second,
    make_rendering_env,
    play_episodes,
)

if TYPE_CHECKING:
    from ..policies import GenericPolicyBase

__all__ = [
    "Moment",
    "check_video",
    "make_rendering_env",
    "play_episodes",
    "record_video",
]

#: Suffixes of files that can be written.
SUFFIXES = (".mp4", ".gif")

#: Smallest width of a picture, for its caption; smaller ones are enlarged.
_WIDTH = 400

#: Seconds for which the last picture of an episode stays.
_HOLD = 0.7


def record_video(
    policy: "GenericPolicyBase[Any]",
    env: Env,
    out: str | Path,
    *,
    episodes: int = 3,
    title: str = "",
    **options: Any,
) -> list[Moment]:
    """Record episodes of a policy to a file, and return the last moment of each.

    Args:
        policy: The policy.
        env: One environment whose `render` returns pictures.
        out: `.mp4` or `.gif`. Nothing is left there if recording fails.
        episodes: Number of episodes.
        title: Left half of the caption above the pictures; episode and return are on the right.
        options: `deterministic`, `env_config` and `max_env_steps`, as of `evaluate`; after
            `max_env_steps`, by default 10,000, an episode is cut.

    Raises:
        ConfigError: If the name of the file has another suffix, or the policy does not fit.
        EnvError: If the environment cannot render.
        EverstepError: If the encoder is not installed, or fails.

    """
    path = Path(out)
    check_video(path)
    ends: list[Moment] = []
    fps = frames_per_second(env)

    def pictures() -> Iterator[Frame]:
        size: tuple[int, ...] = ()
        for moment in play_episodes(policy, env, episodes=episodes, **options):
            frame = frame_of(env)
            if frame.shape != (size := size or frame.shape):  # encoders drop those pictures
                raise EnvError(
                    f"`{type(env).__name__}.render()` must return pictures of one size; got "
                    f"{list(frame.shape)} after {list(size)}. Fix the size where it is drawn."
                )
            picture = captioned(frame, title, _text(moment, episodes))
            yield picture
            if moment.ended:
                ends.append(moment)
                yield from [picture] * round(_HOLD * fps)

    path.parent.mkdir(parents=True, exist_ok=True)
    encode = _write_gif if path.suffix.lower() == ".gif" else _write_mp4
    with replacing(path) as place:
        encode(place, pictures(), fps)
    return ends


def check_video(path: Path) -> None:
    """Check that a file of this name can be written.

    Raises:
        ConfigError: If it has another suffix than `.mp4` or `.gif`.
        EverstepError: If what writes such a file is not installed.

    """
    check_suffix(path, SUFFIXES)
    names = ["PIL"] if path.suffix.lower() == ".gif" else ["PIL", "imageio_ffmpeg"]
    for name in names:
        try:
            __import__(name)
        except ImportError:
            package = "Pillow" if name == "PIL" else "imageio-ffmpeg"
            raise EverstepError(
                f"Videos need Pillow and imageio-ffmpeg, and {package} is missing: "
                f"{install_command('video')}"
            ) from None


def _text(moment: Moment, episodes: int) -> str:
    which = f"episode {moment.episode}/{episodes}   " if episodes > 1 else ""
    return f"{which}env step {moment.env_step}   return {moment.total:.1f}"


def captioned(frame: Frame, left: str, right: str) -> Frame:
    """The picture below a line of text; both sides are even, as encoders need them."""
    from PIL import Image, ImageDraw

    scale = -(-_WIDTH // frame.shape[1])
    if scale > 1:
        frame = frame.repeat(scale, 0).repeat(scale, 1)
    height, width = frame.shape[:2]
    font = _font(max(13, width // 40))
    bar = round(font.size * 1.9)
    bar += (height + bar) % 2
    image = Image.new("RGB", (width + width % 2, height + bar), (24, 24, 27))
    draw = ImageDraw.Draw(image)
    margin, middle = bar // 3, bar // 2
    draw.text((margin, middle), left, (161, 161, 170), font, anchor="lm")
    draw.text((image.width - margin, middle), right, (250, 250, 250), font, anchor="rm")
    image.paste(Image.fromarray(frame), (0, bar))
    return np.asarray(image)


@lru_cache  # loading it takes a millisecond
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _write_mp4(path: Path, frames: Iterable[Frame], fps: float) -> None:
    """H.264 with 4:2:0 colours, which browsers play."""
    writer: Any = None
    try:
        for frame in frames:
            writer = _open_mp4(path, frame, fps) if writer is None else writer
            try:
                writer.send(np.ascontiguousarray(frame))
            except OSError as error:
                raise EverstepError(f"{path}: the video cannot be written: {error}") from error
    finally:
        if writer is not None:
            writer.close()


def _open_mp4(path: Path, frame: Frame, fps: float) -> Any:
    """A generator that takes pictures of the size of `frame`."""
    import imageio_ffmpeg

    writer = imageio_ffmpeg.write_frames(
        str(path),
        (frame.shape[1], frame.shape[0]),
        fps=fps,
        codec="libx264",
        quality=7,
        macro_block_size=2,
    )
    writer.send(None)
    return writer


def _write_gif(path: Path, frames: Iterable[Frame], fps: float) -> None:
    """A GIF that repeats; its times are multiples of 10 ms, and browsers want at least 20."""
    from PIL import Image

    every = max(1, -(-int(fps) // 50))
    images = (Image.fromarray(x) for i, x in enumerate(frames) if i % every == 0)
    duration = max(20, round(100 * every / fps) * 10)
    first = next(images)
    first.save(path, save_all=True, append_images=images, duration=duration, loop=0)
