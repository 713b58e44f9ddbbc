"""Registry of adapters: wraps environments, and makes them from spec strings.

All adapters, also Everstep's own, register through the entry-point group `everstep.adapters`. The
name of the entry point is the prefix of a spec string: `gymnasium` in `gymnasium:CartPole-v1`.
"""

import difflib
import warnings
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from .data import Device
from .env import Env, EnvFactory
from .errors import AdapterError

#: The entry-point group that adapters register in.
GROUP = "everstep.adapters"

#: Start of the entry points of our own adapters.
_OWN = "everstep_adapters."

_warned: set[str] = set()


class Adapter(Protocol):
    """Object of an entry point of `everstep.adapters`: a class with two class methods.

    Its module is imported whenever an adapter is searched for, so it should import its library
    late. It may also have `default_num_envs`, `default_horizon`, `max_num_envs`, `max_horizon`, and
    `suggest(env) -> str`, advice on an object that it nearly matches.
    """

    def __call__(self, env: Any, /, **options: Any) -> Env:
        """The environment, wrapped."""
        ...

    def matches(self, env: object, /) -> bool:
        """Whether it can wrap `env`. Decides by type, without importing a library."""
        ...

    def make(
        self,
        name: str,
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


def wrap(env: Any, /, **options: Any) -> Env:
    """Wrap an existing environment as an Everstep environment; an `Env` is returned unchanged.

    Args:
        env: Environment of a type that an adapter is registered for.
        options: Options of the adapter, such as `horizon` and `device`.

    Raises:
        AdapterError: If no adapter matches, or the one that does cannot represent it.

    """
    if isinstance(env, Env):
        if options:
            raise AdapterError(
                f"{type(env).__name__} is an Everstep environment already and takes no options; "
                f"got {', '.join(options)}. Set them when the environment is made."
            )
        return env
    adapters = _usable_adapters()
    for prefix, adapter in adapters.items():
        if _matches(prefix, adapter, env):
            return adapter(env, **options)
    raise AdapterError(_no_match(env, adapters))


def make(
    spec: str,
    num_envs: int,
    /,
    *,
    horizon: None | int = None,
    device: Device = "cpu",
    **kwargs: Any,
) -> Env:
    """A new environment from a spec string.

    Args:
        spec: `"prefix:name"`, such as `"gymnasium:CartPole-v1"`.
        num_envs: Number of parallel environments.
        horizon: Env steps between resets.
        device: Device of actions and results.
        kwargs: Options of the adapter's `make`.

    Raises:
        AdapterError: If the prefix is not registered, or the adapter cannot make it.

    """
    prefix, name = _split(spec)
    return _load(prefix).make(name, num_envs, horizon=horizon, device=device, **kwargs)


def factory(spec: str, /, **kwargs: Any) -> EnvFactory:
    """A factory of environments from a spec string; the algorithm chooses their number.

    Args:
        spec: `"prefix:name"`, such as `"gymnasium:CartPole-v1"`.
        kwargs: Options of the adapter's `make`.

    Raises:
        AdapterError: If the prefix is not registered.

    """
    return SpecFactory(spec, **kwargs)


class SpecFactory:
    """An `EnvFactory` that makes environments from a spec string; see `factory`.

    Args:
        spec: `"prefix:name"`.
        kwargs: Options of the adapter's `make`.

    """

    #: Options of the adapter's `make`.
    kwargs: dict[str, Any]

    #: `"prefix:name"`.
    spec: str

    def __init__(self, spec: str, /, **kwargs: Any) -> None:
        reserved = sorted({"num_envs", "horizon", "device"} & set(kwargs))
        if reserved:
            raise AdapterError(
                f"A factory of {spec!r} is given {', '.join(reserved)} when it is called, not "
                "when it is made."
            )
        self.spec = spec
        self.kwargs = kwargs
        self._prefix, self._name = _split(spec)
        self._adapter = _load(self._prefix)
        copy_defaults(self._adapter, self)

    def __call__(
        self,
        num_envs: int,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
    ) -> Env:
        """A new environment."""
        return self._adapter.make(
            self._name, num_envs, horizon=horizon, device=device, **self.kwargs
        )

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.kwargs.items())
        return f"everstep.factory({self.spec!r}{options})"


def copy_defaults(source: object, target: object) -> None:
    """Copy the defaults and maxima that adapters and factories may declare."""
    for name in ("default_num_envs", "default_horizon", "max_num_envs", "max_horizon"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


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


def _split(spec: str) -> tuple[str, str]:
    prefix, colon, name = spec.partition(":")
    if colon and prefix and name:
        return prefix, name
    raise AdapterError(
        f"An environment is written 'prefix:name', such as 'gymnasium:CartPole-v1'; got {spec!r}. "
        f"{_known(prefix)}"
    )


def _known(prefix: str) -> str:
    """Message with the registered prefixes, and the one nearest to `prefix`."""
    known = prefixes()
    if not known:
        return "No adapter is registered: install Everstep with pip, also from source."
    near = difflib.get_close_matches(prefix, known, n=1)
    guess = f" Did you mean {near[0]!r}?" if near and near[0] != prefix else ""
    return f"Known prefixes: {', '.join(known)}.{guess}"


def _load(prefix: str) -> Adapter:
    point = _registered().get(prefix)
    if point is None:
        raise AdapterError(f"No adapter has the prefix {prefix!r}. {_known(prefix)}")
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


def _usable_adapters() -> dict[str, Adapter]:
    """Every adapter that can be loaded, with a warning for each that cannot."""
    adapters = {}
    for prefix in _registered():
        try:
            adapters[prefix] = _load(prefix)
        except AdapterError as error:
            _warn_once(f"{error}. It is left out.")
    return adapters


def _matches(prefix: str, adapter: Adapter, env: object) -> bool:
    try:
        return adapter.matches(env)
    except Exception as error:  # a broken plug-in must not break others
        _warn_once(f"`matches` of the adapter of {prefix!r} failed: {error!r}")
        return False


def _no_match(env: object, adapters: dict[str, Adapter]) -> str:
    if isinstance(env, str):
        return f"`wrap` takes an environment; to make one use `everstep.make({env!r}, num_envs)`."
    kind = type(env)
    advice = (getattr(adapter, "suggest", lambda _: "")(env) for adapter in adapters.values())
    sentences = [
        f"No adapter can wrap a `{kind.__module__}.{kind.__qualname__}`.",
        *dict.fromkeys(advice),  # adapters of one library may suggest the same
        f"Environments of these types can be wrapped: {', '.join(adapters) or 'none'}.",
    ]
    return " ".join(filter(None, sentences))


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
