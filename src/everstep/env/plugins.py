"""Adapters that are installed: objects of the entry points of the group `everstep.adapters`.

Everstep's own adapters are registered there, too. The name of an entry point is the prefix of a
spec string: `gymnasium` in `gymnasium:CartPole-v1`.
"""

import difflib
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from ..core.validation import signature_of, unknown_name
from ..data import Device
from ..errors import AdapterError
from . import Env

#: The entry-point group that adapters register in.
GROUP = "everstep.adapters"

#: Start of the entry points of our own adapters.
_OWN = "everstep_adapters."

_warned: set[str] = set()


class Adapter(Protocol):
    """Object of an entry point of `everstep.adapters`: a class with two class methods.

    Its module is imported when an adapter for an object is searched for, so it should import its
    library late. It may also have `default_num_envs`, `default_horizon`, `max_num_envs`,
    `max_horizon`, and

    * `suggest(env) -> str`: advice on an object that it nearly matches;
    * `find(name) -> list[str]`: its names that a name without a prefix may mean. If the name itself
      is one of them, that environment is made, else they are suggested;
    * `libraries`: names of modules of its library: files of others may name their classes;
    * `module_of(name) -> str`: the module that `make` imports for a name, dotted; empty if none;
    * `programs`: names of arguments of `make` that start a program, or connect to a machine;
    * `makes(source) -> bool`: whether `make` takes this class in place of a name, or a function
      that returned this object. Decides by type, without importing a library.
    """

    def __call__(self, env: Any, /, **options: Any) -> Env:
        """The environment, wrapped."""
        ...

    def matches(self, env: object, /) -> bool:
        """Whether it can wrap `env`. Decides by type, without importing a library."""
        ...

    def make(
        self,
        name: Any,
        num_envs: int,
        /,
        *,
        horizon: None | int = None,
        device: Device = "cpu",
        **kwargs: Any,
    ) -> Env:
        """A new environment."""
        ...


def prefixes() -> tuple[str, ...]:
    """Prefixes of all registered adapters, sorted."""
    return tuple(sorted(_registered()))


def own_adapters(prefix: None | str = None) -> list[Adapter]:
    """Everstep's own adapters, whose modules import no library; that of `prefix` alone."""
    points = _registered().items()
    own = [name for name, point in points if point.value.startswith(_OWN)]
    return [load(name) for name in own if prefix in (None, name)]


def _registered() -> dict[str, EntryPoint]:
    """Entry points by prefix. Plug-ins come first, so they can match special cases of our types."""
    registered: dict[str, EntryPoint] = {}
    points = entry_points(group=GROUP)
    for point in sorted(points, key=lambda x: (x.value.startswith(_OWN), x.name, x.value)):
        used = registered.setdefault(point.name, point)
        if used.value != point.value:
            _warn_once(
                f"The adapter prefix {point.name!r} is registered twice; {used.value!r} is used, "
                f"{point.value!r} is not. Uninstall one of them."
            )
    return registered


def known_prefixes(prefix: str) -> str:
    """Message with the registered prefixes, and the one nearest to `prefix`."""
    known = prefixes()
    if not known:
        return "No adapter is registered: install Everstep with pip, also from source."
    near = difflib.get_close_matches(prefix, known, n=1)
    guess = f" Did you mean {near[0]!r}?" if near and near[0] != prefix else ""
    return f"Known prefixes: {', '.join(known)}.{guess}"


def load(prefix: str, name: str = "name") -> Adapter:
    """The adapter of a prefix; an `AdapterError` if there is none, or it cannot be loaded.

    Args:
        prefix: Prefix of an environment's name.
        name: What follows the prefix, for the message.

    """
    point = _registered().get(prefix)
    if point is None:
        own = name if name.isidentifier() else "name"
        raise AdapterError(
            f"No adapter has the prefix {prefix!r}. {known_prefixes(prefix)} The id of an "
            f"environment that a module registers has both: 'gymnasium:{prefix}:Name-v0'. A class "
            f"or function of your own has a dot instead: '{prefix}.{own}'."
        )
    try:
        adapter = point.load()
        missing = [x for x in ("matches", "make") if not callable(getattr(adapter, x, None))]
        if missing:
            raise AdapterError(f"{adapter!r} has no {' and no '.join(missing)}")
        return cast(Adapter, adapter)
    except Exception as error:
        raise AdapterError(
            f"The adapter of {prefix!r}, {point.value!r}, cannot be loaded: {error}"
        ) from error


def usable_adapters(first: str = "") -> Iterator[tuple[str, Adapter]]:
    """Prefixes and adapters that can be loaded, each when it is asked for.

    An adapter that cannot be loaded is left out with a warning.

    Args:
        first: Prefix to begin with.

    """
    for prefix in sorted(_registered(), key=lambda name: name != first):
        try:
            yield prefix, load(prefix)
        except AdapterError as error:
            _warn_once(f"{error}. It is left out.")


def _matches(prefix: str, adapter: Adapter, env: object) -> bool:
    try:
        return adapter.matches(env)
    except Exception as error:  # a broken plug-in must not break others
        _warn_once(f"`matches` of the adapter of {prefix!r} failed: {error!r}")
        return False


def adapter_of(env: object) -> None | Adapter:
    """The adapter that wraps `env`."""
    adapters = usable_adapters()
    return next((adapter for prefix, adapter in adapters if _matches(prefix, adapter, env)), None)


def maker_of(source: object) -> None | Adapter:
    """The adapter whose `make` takes this class, or a function that returned this object."""
    return next((x for _, x in usable_adapters() if makes(x, source)), None)


def makes(adapter: Any, source: object) -> bool:
    """Whether the `make` of this adapter takes `source`."""
    return hasattr(adapter, "makes") and bool(adapter.makes(source))


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def check_names(adapter: Any, options: Iterable[str]) -> None:
    """Check that an adapter's constructor has options of these names.

    Raises:
        AdapterError: If it lacks one.

    """
    parameters = signature_of(adapter).parameters.values()
    if any(x.kind is x.VAR_KEYWORD for x in parameters):
        return
    known = [x.name for x in parameters if x.kind in (x.KEYWORD_ONLY, x.POSITIONAL_OR_KEYWORD)]
    for option in {*options} - {*known}:
        unknown = unknown_name("option", option, known)
        raise AdapterError(f"`{option}`: {unknown} of {adapter.__name__}.")
