"""Arguments that several commands share."""

import argparse
from typing import Any


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add the positional arguments `key=value …`, which override keys of a file."""
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help=f"keys of the file to override, such as {example}",
    )


def add_number(
    parser: argparse.ArgumentParser, flag: str, help: str, *, least: int = 1, **options: Any
) -> None:
    """Add an option with an integer of at least `least`; `options` are those of `add_argument`."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}; got {text}")
        return int(text)

    parser.add_argument(flag, type=integer, metavar="N", help=help, **options)
