"""Arguments and argument types that several commands share."""

import argparse


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add the positional arguments `key=value …`, which override keys of a file."""
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help=f"keys of the file to override, such as {example}",
    )


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
