"""`everstep video`: the policy of a run, playing, as a file."""

import argparse
from pathlib import Path

from ..core.interrupts import closing
from ..core.plain_files import path_within
from ._arguments import add_number, add_overrides, add_trust
from ._runs import beside, env_name, player_of

HELP = "record a video of the policy of a run"
DESCRIPTION = (
    "Record episodes of the policy of a run with the environment's renderer, with the return above "
    "the picture."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_playing_arguments(parser, episodes=3)
    parser.add_argument(
        "--out", metavar="FILE", help=".mp4 or .gif (default: play.mp4 in the run's directory)"
    )


def add_playing_arguments(parser: argparse.ArgumentParser, *, episodes: int) -> None:
    """Declare the run, and how it is played."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="directory of the run, or policy file")
    add_overrides(parser, "env_kwargs.max_episode_steps=200")
    add_number(parser, "--episodes", "episodes to play (default: %(default)s)", default=episodes)
    add_number(
        parser,
        "--max-env-steps",
        "env steps after which an episode is cut (default: %(default)s)",
        default=10_000,
    )
    add_number(
        parser, "--seed", "seed of the episodes (default: derived from the run's seed)", least=0
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="sample actions (default: the most likely)"
    )
    add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Record the video and print the returns; the exit code is 0.

    Raises:
        ConfigError: If this is not the directory of a run, or the file has another suffix.
        CheckpointError: If the policy cannot be read.
        AdapterError: If the environment cannot be made, or does not render.
        EverstepError: If the encoder is not installed.

    """
    from ..visualization import use_headless_renderers

    use_headless_renderers()  # before PyTorch and TorchRL are imported, or EnvPool does not see it
    from ..visualization.videos import check_video, record_video

    run_dir = Path(arguments.run_dir)
    is_file = run_dir.is_file()
    own = beside(run_dir, ".mp4") if is_file else run_dir / "play.mp4"
    out = Path(arguments.out or own)
    check_video(out)
    if arguments.out is None and not is_file:
        path_within(out, arguments.run_dir)
    player = player_of(arguments, "rgb_array")
    with closing(player.env):
        ends = record_video(
            player.policy,
            player.env,
            out,
            title=env_name(player.config.env_cls),
            episodes=arguments.episodes,
            **player.options,
        )
    for end in ends:
        print(f"episode {end.episode}  return {end.total:.1f}, {end.env_step} env steps")
    print(f"Video   {out}")
    return 0
