"""Sections of the command line's reference, from the parsers."""

import argparse
import re
from collections.abc import Iterator


def section(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Lines of Markdown about a command: its usage, description and arguments."""
    shown = [
        action
        for action in parser._actions
        if action.help is not argparse.SUPPRESS and action.dest != "help"
    ]
    words = [parser.prog, *(_usage(action) for action in shown if not action.option_strings)]
    yield from (f"`{' '.join(words)}`", "", _text(parser.description or ""), "")
    for action in shown:
        values = {**vars(action), "prog": parser.prog}
        yield f"* {_names(action)}: {_text((action.help or '') % values)}"


def _usage(action: argparse.Action) -> str:
    """A positional argument as a usage has it."""
    name = action.metavar or action.dest
    several = " …" if action.nargs in ("*", "+") else ""
    return f"{name}{several}" if action.nargs in (None, "+") else f"[{name}{several}]"


def _names(action: argparse.Action) -> str:
    """An argument's names, with what it takes."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {_value(action)}"
    several = " …" if action.nargs in ("*", "+") else ""
    return ", ".join(f"`{flag}{value}{several}`" for flag in action.option_strings)


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(action.choices) if action.choices else action.dest.upper()


def _text(text: str) -> str:
    """Help as Markdown: flags are code, and nothing is emphasis or HTML."""
    parts = re.split(r"(`[^`]*`|--[a-z-]+)", text)
    parts[::2] = [re.sub(r"([*_<])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part.strip('`')}`" for part in parts[1::2]]
    return "".join(parts)
