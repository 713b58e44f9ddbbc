"""Callbacks of a training: objects that a trainer calls while it runs.

A callback subclasses `Callback` and implements the methods that it needs. It may look at and change
the trainer that `on_start` gave it: `trainer.stop()` ends the training after the present train
step, and `trainer.algorithm.update_algorithm_parameter(name, value)` changes a hyperparameter. What
a callback raises ends the training.
"""

import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .core.entries import Entries
from .core.shown import call
from .core.validation import binds, signature_of, statistic
from .errors import ConfigError

_log = logging.getLogger(__name__)

#: Methods of a callback.
HOOKS = ("on_start", "on_train_step", "on_evaluation", "on_checkpoint", "on_end")

#: Names of their arguments.
_ARGUMENTS = dict(zip(HOOKS, ("trainer", "stats", "stats", "path", "status"), strict=True))

#: Lists of callbacks.
ENTRIES = Entries("callbacks", HOOKS, "a callback", "a subclass of `everstep.callbacks.Callback`")


class Callback:
    """Base of callbacks; its methods do nothing.

    A callback with `state_dict` and `load_state_dict` is restored when the run is resumed; the
    state is made of dicts, lists, tuples, tensors, NumPy arrays, numbers, strings, bytes and None.
    """

    #: The trainer, from `on_start` on.
    trainer: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def on_start(self, trainer: Any) -> None:
        """Called when `run` begins, with the trainer."""
        self.trainer = trainer

    def on_train_step(self, stats: dict[str, Any]) -> None:
        """Called after every train step, before its statistics are logged.

        Args:
            stats: Statistics of the train step; numbers that are added under new names are logged
                with them.

        """

    def on_evaluation(self, stats: dict[str, Any]) -> None:
        """Called after every evaluation, before its statistics are logged.

        Args:
            stats: Statistics of the evaluation, under `eval/`; numbers may be added under new
                names.

        """

    def on_checkpoint(self, path: Path) -> None:
        """Called when a checkpoint is written, which may go on in the background.

        Args:
            path: Directory of the checkpoint.

        """

    def on_end(self, status: str) -> None:
        """Called when `run` ends in any way, before it is saved; also if `on_start` failed.

        Args:
            status: How the training ended: `"FINISHED"`, `"FAILED"` or `"KILLED"`, if it was
                interrupted. That an `on_end` fails, also of another process, or the last
                checkpoint, is not known yet; trackers then record `"FAILED"`.

        """


class Callbacks:
    """Several callbacks as one, in order.

    Args:
        callbacks: The callbacks: objects, or entries of a file, which are dotted names of classes
            or mappings of one to its options.

    Raises:
        ConfigError: Names what is not a callback.

    """

    #: The callbacks.
    members: tuple[Any, ...]

    def __init__(self, callbacks: Sequence[Any] = ()) -> None:
        #: Callbacks that were told that what they return has no effect.
        self._told: set[int] = set()
        if not isinstance(callbacks, list | tuple):
            raise ConfigError(
                f"`callbacks` must be a list of callbacks; got {type(callbacks).__name__}. Write "
                "`callbacks=[…]`, of objects that subclass `everstep.callbacks.Callback`."
            )
        self.members = tuple(map(callback_from_config, callbacks))
        for member in self.members:
            _check_hooks(member)

    def __repr__(self) -> str:
        return call(type(self).__name__, list(self.members))

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a method of every callback; those of `Callback` know the trainer from here on."""
        for member in self.members:
            if hook == "on_start" and isinstance(member, Callback):
                [member.trainer] = arguments  # its own `on_start` may not call `super()`
            getattr(member, hook)(*arguments)

    def add_statistics(self, hook: str, stats: dict[str, Any]) -> None:
        """Call a method of every callback with the statistics, and add the numbers that it adds.

        Each gets a copy: what it does to it later has no effect. If one raises, what those before
        it have added stays, and so do the numbers that it has added itself.

        Args:
            hook: The method.
            stats: The statistics.

        Raises:
            ConfigError: If a callback adds what is no number or has a reserved name, or changes or
                removes what is there. It is named, and everything else is added.

        """
        for member in self.members:
            offered = dict(stats)
            try:
                if getattr(member, hook)(offered) is False and id(member) not in self._told:
                    self._told.add(id(member))
                    _log.warning(
                        "%s.%s returned False, which ends nothing. Call `self.trainer.stop()`.",
                        type(member).__qualname__,
                        hook,
                    )
            except BaseException:
                _take(stats, offered)
                raise
            if problems := _take(stats, offered):
                name = f"{type(member).__qualname__}.{hook}"
                raise ConfigError([f"`callbacks`: {name}: {problem}." for problem in problems])

    def state_dict(self) -> list[Any]:
        """States by callback; None for those without one."""
        return [x.state_dict() if hasattr(x, "state_dict") else None for x in self.members]

    def load_state_dict(self, states: Sequence[Any]) -> None:
        """Continue from `state_dict`; other callbacks than those of the run start anew."""
        if len(states) == len(self.members):
            for member, state in zip(self.members, states, strict=True):
                if state is not None and hasattr(member, "load_state_dict"):
                    member.load_state_dict(state)


def _check_hooks(member: Any) -> None:
    """Check that a callback's methods can be called, and warn of those that nothing calls.

    Raises:
        ConfigError: If a hook does not take one argument.

    """
    name = type(member).__qualname__
    for hook in HOOKS:
        signature = signature_of(getattr(member, hook))
        if not binds(signature, None):
            raise ConfigError(
                f"`callbacks`: {name}.{hook}{signature} must take one argument: "
                f"`def {hook}(self, {_ARGUMENTS[hook]})`."
            )
    others = [x for x in dir(type(member)) if re.match("_?on_", x) and x not in HOOKS]
    if idle := [x for x in others if isinstance(member, Callback)]:
        _log.warning(
            "%s.%s is not called: the methods of a callback are %s.",
            name,
            ", ".join(idle),
            ", ".join(HOOKS),
        )


def _take(stats: dict[str, Any], offered: Mapping[Any, Any]) -> list[str]:
    """Add to the statistics what a callback has added to its copy; what it may not do."""
    before, problems = dict(stats), []
    for name, value in offered.items():
        if name in before:
            if value is not before[name] and not _is_equal(value, before[name]):
                problems.append(f"`{name}` is a statistic already: choose another name")
            continue
        try:
            stats[name] = statistic(name, value)
        except ValueError as error:
            problems.append(str(error))
    removed = [name for name in before if name not in offered]
    return problems + [f"`{name}` cannot be removed: conditions may need it" for name in removed]


def _is_equal(value: Any, other: Any) -> bool:
    with contextlib.suppress(Exception):  # an array, or any object
        return bool(value == other)
    return False


def callback_from_config(entry: Any) -> Any:
    """The callback of an entry of a configuration file; an object is returned as it is.

    Args:
        entry: A callback; or the dotted name of a class, such as `my_module.SaveVideo`; or a
            mapping of one to its options.

    Raises:
        ConfigError: If it is none of these, or the class refuses the options.

    """
    return ENTRIES.make(entry)
