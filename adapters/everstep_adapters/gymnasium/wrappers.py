"""Construction of single environments: wrappers by dotted name, and processes.

A file writes `wrappers: [minigrid.wrappers.ImgObsWrapper]`, and with arguments
`wrappers: [{gymnasium.wrappers.FrameStackObservation: {stack_size: 4}}]`.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from everstep.core.names import Kind, import_kind
from everstep.errors import AdapterError, ConfigError

Wrapper = Callable[[Any], Any]

#: Module of names without one.
_DEFAULT = "gymnasium.wrappers"


def load_wrappers(wrappers: object) -> list[Wrapper]:
    """The callables that wrap a single environment, in the order in which they are applied.

    Args:
        wrappers: Each a callable; a dotted name, of which one without a dot is in
            `gymnasium.wrappers`; or a mapping of one such name to its keyword arguments.

    Raises:
        AdapterError: If one is none of these, or cannot be imported.

    """
    if isinstance(wrappers, str | Mapping) or callable(wrappers):
        wrappers = [wrappers]
    if not isinstance(wrappers, Sequence):
        raise AdapterError(
            "`wrappers` are a list of classes, of dotted names such as "
            "'minigrid.wrappers.ImgObsWrapper', or of mappings of one name to its arguments; got "
            f"{wrappers!r}."
        )
    return [_load(wrapper) for wrapper in wrappers]


def _load(wrapper: object) -> Wrapper:
    if isinstance(wrapper, str):
        return _find(wrapper)
    if isinstance(wrapper, Mapping):
        if len(wrapper) != 1:
            raise AdapterError(
                "A wrapper with arguments is a mapping of one name to them, such as "
                f"{{FrameStackObservation: {{stack_size: 4}}}}; got {dict(wrapper)!r}."
            )
        ((name, arguments),) = wrapper.items()
        if not isinstance(arguments, Mapping | None):
            raise AdapterError(
                f"Arguments of the wrapper {name!r} are a mapping of their names; got "
                f"{arguments!r}."
            )
        return partial(_find(str(name)), **dict(arguments or {}))
    if callable(wrapper):
        return wrapper
    raise AdapterError(
        f"A wrapper is a class, a dotted name, or a mapping of one to its arguments; got "
        f"{wrapper!r}."
    )


def _find(name: str) -> Wrapper:
    from gymnasium import Wrapper as Base

    path = name.replace(":", ".")
    kind = Kind(
        "a subclass of gymnasium.Wrapper, or a function of a module of your own",
        lambda cls: issubclass(cls, Base),
        functions=True,
        own_classes=lambda cls: True,
    )
    try:
        found = import_kind(path if "." in path else f"{_DEFAULT}.{path}", kind)
    except ConfigError as error:
        raise AdapterError(
            f"The wrapper {name!r} cannot be imported: {error}. Write the dotted name of its "
            "class, such as 'minigrid.wrappers.ImgObsWrapper'; names without a dot are those of "
            f"`{_DEFAULT}`."
        ) from error
    wrapper: Wrapper = found
    return wrapper


def start_method() -> dict[str, Any]:
    """How workers of an `AsyncVectorEnv` start, as its option: spawned, unless the process chose.

    PyTorch has started threads, which forked processes do not have.
    """
    is_chosen = multiprocessing.get_start_method(allow_none=True) is not None
    return {} if is_chosen else {"context": "spawn"}
