"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("everstep")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "unknown"
