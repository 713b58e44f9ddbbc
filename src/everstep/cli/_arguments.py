"""Arguments and argument types that several commands share."""

import argparse
from typing import Any, Literal


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
    parser: argparse.ArgumentParser,
    flag: str,
    help: str,
    *,
    least: Literal[0, 1] = 1,
    **options: Any,
) -> None:
    """Add an option with an integer of at least `least`; `options` are those of `add_argument`."""
    kind = positive if least else non_negative
    parser.add_argument(flag, type=kind, metavar="N", help=help, **options)


def positive(text: str) -> int:
    """An integer above 0."""
    return _at_least(1, text)


def non_negative(text: str) -> int:
    """An integer that is not negative."""
    return _at_least(0, text)


def _at_least(minimum: int, text: str) -> int:
    if int(text) < minimum:
        raise argparse.ArgumentTypeError(f"must be at least {minimum}; got {text}")
    return int(text)
