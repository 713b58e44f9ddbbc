"""Videos: which env step each picture is of, and that returns are those of an evaluation."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from everstep.__main__ import main
from everstep.core.installation import install_command
from everstep.errors import EverstepError
from tests.everstep.visualization.conftest import PAINTED, Train

pytestmark = pytest.mark.slow


def frames_of(path: Path) -> list[Any]:
    """Pictures of a GIF; those that follow an equal one are not stored."""
    image = pytest.importorskip("PIL.Image")
    sequence = pytest.importorskip("PIL.ImageSequence")
    with image.open(path) as opened:
        return [np.asarray(frame.convert("RGB")) for frame in sequence.Iterator(opened)]


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[list[float], list[int]]:
    """Returns and lengths of the episodes that `everstep video` prints."""
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[0] == "episode"]
    return [float(row[3].rstrip(",")) for row in rows], [int(row[4]) for row in rows]


def test_pictures_are_of_the_env_steps_in_order(
    painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    out = tmp_path / "play.gif"
    assert main(["video", str(painted), "--episodes", "2", "--out", str(out)]) == 0
    _, lengths = printed(capsys)
    assert lengths == [5, 5]
    frames = frames_of(out)
    below = [int(frame[-1, 0].mean().round()) for frame in frames]
    # The end of an episode is drawn before the environment's reset: no step 0 of the second one.
    assert below == [20 * step for step in (0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5)]
    assert all(side % 2 == 0 for side in frames[0].shape[:2])
    captions = [frame[:20].tobytes() for frame in frames]
    assert len(set(captions)) == len(captions)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recurrent": True},
        {"normalize_observations": True, "normalize_rewards": "running"},
    ],
    ids=["feedforward", "recurrent", "normalised"],
)
def test_returns_are_those_of_an_evaluation(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    pytest.importorskip("PIL")
    run_dir = train(env_cls=f"{PAINTED}.PaintedEnv", **options)
    played = ["--episodes", "6", "--seed", "7", "--stochastic"]
    assert main(["video", str(run_dir), *played, "--out", str(tmp_path / "play.gif")]) == 0
    returns, _ = printed(capsys)
    assert main(["eval", str(run_dir), *played, "--num-envs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.mean(returns) == pytest.approx(found["episodes/return_mean"])
    assert [min(returns), max(returns)] == [
        found["episodes/return_min"],
        found["episodes/return_max"],
    ]
    assert len(set(returns)) > 1


def test_options_of_an_evaluation_count_where_it_is_shown(
    painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    sized = [f"env_cls={PAINTED}.SizedEnv", "env_kwargs.length=7", "eval_env_kwargs.length=3"]
    played = [str(painted), *sized, "--episodes", "2"]
    assert main(["video", *played, "--out", str(tmp_path / "play.gif")]) == 0
    assert printed(capsys)[1] == [3, 3]
    assert main(["eval", *played, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes/length_mean"] == 3


def test_numbers_of_environments_are_given_once(
    painted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(painted), "num_envs=2", "--num-envs", "4"]) == 2
    assert "num_envs: given by --num-envs, too" in capsys.readouterr().err


def test_a_rate_of_pictures_that_no_video_has_is_left_out(painted: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    out = tmp_path / "new" / "play.gif"  # the directory is made
    words = [str(painted), f"env_cls={PAINTED}.RushedEnv", "--episodes", "1", "--out", str(out)]
    assert main(["video", *words]) == 0
    with image.open(out) as made:
        assert made.n_frames < 100


def test_an_episode_is_cut_after_max_env_steps(
    painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    out = ["--out", str(tmp_path / "play.gif")]
    assert main(["video", str(painted), "--episodes", "2", "--max-env-steps", "3", *out]) == 0
    assert printed(capsys)[1] == [3, 3]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("BlindEnv", "must return a picture, uint8 [height, width, 3]"),
        ("UnrenderedEnv", "has no `render()`"),
        ("EmptyEnv", "must return a picture, uint8 [height, width, 3]"),
        ("GrowingEnv", "must return pictures of one size; got [31, 51, 3] after [30, 51, 3]"),
    ],
)
def test_environments_that_cannot_render_are_named(
    painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str, words: str
) -> None:
    pytest.importorskip("PIL")
    out = tmp_path / "play.gif"
    code = main(["video", str(painted), f"env_cls={PAINTED}.{env}", "--out", str(out)])
    assert code == 2
    error = capsys.readouterr().err
    assert words in error
    assert env in error
    assert list(tmp_path.iterdir()) == []


class Bare(gym.Env[Any, Any]):
    """An environment that takes no `render_mode`."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.drawn = 0

    def reset(self, **options: Any) -> Any:
        super().reset(seed=options.get("seed"))
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.drawn += 1
        return np.zeros(2, np.float32), 1.0, self.drawn % 4 == 0, False, {}


class Drawn(Bare):
    """One that does, and has a rate of its own."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  Gymnasium's

    def __init__(self, render_mode: None | str = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((9, 13, 3), self.drawn, np.uint8)


def test_a_class_of_ones_own_takes_render_mode(
    painted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    out = ["--episodes", "2", "--out", str(tmp_path / "play.gif")]
    assert main(["video", str(painted), f"env_cls={__name__}.Drawn", *out]) == 0
    assert printed(capsys) == ([4.0, 4.0], [4, 4])
    assert main(["video", str(painted), f"env_cls={__name__}.Bare", *out]) == 2
    error = capsys.readouterr().err
    assert "'Bare'" in error
    assert "render_mode='rgb_array'" in error


def test_an_environment_of_another_library_is_replaced_by_name(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    run_dir = train(env_cls="torchrl:CartPole-v1")
    out = ["--episodes", "1", "--out", str(tmp_path / "play.gif")]
    assert main(["video", str(run_dir), *out]) == 2
    assert "Or name one with the same observations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "play.avi"], "must end in .mp4, .gif; got '.avi'"),
        (["--out", "play"], "Try play.mp4"),
        (["gamma=1"], "video takes env_cls"),
        (["num_envs=4"], "num_envs: has no effect: everstep video plays in one environment"),
        (["device=cpu"], "device: has no effect"),
        (["env_kwargs.render_mode=human"], "env_kwargs.render_mode: has no effect"),
        (["eval_env_kwargs.vectorization_mode=sync"], "vectorization_mode: has no effect"),
        (["seed=1", "--seed", "2"], "seed: given by --seed, too. Drop one of them"),
        (
            ["env_config.a=1", "eval_env_config.a=2"],
            "env_config.a: has no effect beside the run's eval_env_config",
        ),
    ],
)
def test_errors_name_the_way_out(
    painted: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("imageio_ffmpeg")
    assert main(["video", str(painted), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_without_the_encoder_the_extra_is_named(
    painted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["video", str(painted)]) == 2
    error = capsys.readouterr().err
    assert f"imageio-ffmpeg is missing: {install_command('video')}" in error


def test_an_mp4_has_every_picture(painted: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    assert main(["video", str(painted), "--episodes", "1"]) == 0
    made = painted / "play.mp4"
    command = [ffmpeg.get_ffmpeg_exe(), "-i", str(made), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, check=True, capture_output=True)
    facts = done.stderr.decode()
    width, height = map(int, re.findall(r"Video: h264.*yuv420p.* (\d+)x(\d+).* 30 fps", facts)[0])
    shown = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    made.unlink()
    assert len(shown) == 1 + 5 + round(0.7 * 30)  # the reset, env steps, and the last one held
    brightness = [frame[-1].mean() for frame in shown[:6]]
    assert brightness == pytest.approx([0, 20, 40, 60, 80, 100], abs=3)


def run_without_display(*arguments: str) -> "subprocess.CompletedProcess[str]":
    names = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER")
    env = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "everstep", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("env", "module"),
    [
        ("CartPole-v1", "pygame"),
        ("Pendulum-v1", "pygame"),
        ("InvertedPendulum-v5", "mujoco"),
        ("envpool:HalfCheetah-v4", "envpool"),
    ],
)
def test_environments_are_drawn_without_a_display(
    train: Train, tmp_path: Path, env: str, module: str
) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip(module)
    run_dir = train(env_cls=env)
    out = tmp_path / "play.gif"
    options = ["--episodes", "1", "--max-env-steps", "20", "--out", str(out)]
    done = run_without_display("video", str(run_dir), *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    frames = frames_of(out)
    assert len(frames) >= 5
    assert frames[0][60:].std() > 1  # something is drawn
    assert (frames[0][60:] != frames[-1][60:]).any()


def test_a_window_needs_a_display(painted: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("environment variables name displays on Linux")
    done = run_without_display("play", str(painted))
    assert done.returncode == 2
    assert f"everstep video {painted}" in done.stderr


def test_a_window_shows_whole_episodes(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    run_dir = train(env_cls="gymnasium:CartPole-v1")
    command = [sys.executable, "-m", "everstep", "play", str(run_dir), "--episodes", "1"]
    env = {**os.environ, "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("episode 1  return ")


def test_a_failed_recording_leaves_nothing(painted: Path, tmp_path: Path) -> None:
    """A video of before stays as it was."""
    pytest.importorskip("PIL")
    from everstep import Policy
    from everstep.visualization.videos import record_video
    from tests.everstep.visualization.painted import PaintedEnv

    class Failing(PaintedEnv):
        def render(self) -> Any:
            if self.shown == 3:
                raise OSError("the lamp is broken")
            return super().render()

    out = tmp_path / "play.gif"
    out.write_bytes(b"before")
    with pytest.raises(EverstepError, match="the lamp is broken"):
        record_video(Policy.load(painted / "policy"), Failing(1), out)
    assert out.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [out]
