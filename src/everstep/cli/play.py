"""`everstep play`: watch the policy of a run in a window."""

import argparse

from ..core.interrupts import closing
from ..errors import ConfigError
from ._runs import player_of
from .video import add_playing_arguments

HELP = "show the policy of a run in a window"
DESCRIPTION = "Play episodes with the policy of a run in the environment's own window."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_playing_arguments(parser, episodes=3)


def run(arguments: argparse.Namespace) -> int:
    """Play the episodes and print the returns; the exit code is 0.

    Raises:
        ConfigError: If there is no display, or this is not the directory of a run.
        CheckpointError: If the policy cannot be read.
        AdapterError: If the environment cannot be made, or has no window.

    """
    from ..visualization import has_display

    if not has_display():
        raise ConfigError(
            "everstep play opens a window, and there is no display: neither DISPLAY nor "
            f"WAYLAND_DISPLAY is set. Record a video: everstep video {arguments.run_dir}"
        )
    from ..visualization.videos import play_episodes

    player = player_of(arguments, "human")
    with closing(player.env):
        for moment in play_episodes(
            player.policy, player.env, episodes=arguments.episodes, **player.options
        ):
            if moment.ended:
                ending = f"return {moment.total:.1f}, {moment.env_step} env steps"
                print(f"episode {moment.episode}  {ending}", flush=True)
    return 0
