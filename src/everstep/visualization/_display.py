"""Displays: whether a window can be opened, and renderers that need none."""

import os
import sys


def use_headless_renderers() -> None:
    """Let MuJoCo and pygame draw without a display, unless the environment says how."""
    if sys.platform == "linux" and not has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def has_display() -> bool:
    """Whether a window can be opened, as far as environment variables say."""
    if sys.platform != "linux":
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
