"""Registry of adapters: wraps environments, and makes them from specs, classes and functions.

All adapters, also Everstep's own, register through the entry-point group `everstep.adapters`. The
name of the entry point is the prefix of a spec string: `gymnasium` in `gymnasium:CartPole-v1`.
"""

import difflib
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeAlias, cast

from typing_extensions import Unpack

from .data import Device, WrapOptions
from .env import Env, EnvFactory
from .errors import AdapterError
from .validation import binds, signature_of

#: Whatever environments can be made of, or wrapped; see `resolve`.
EnvSource: TypeAlias = Any

#: The entry-point group that adapters register in.
GROUP = "everstep.adapters"

#: Description of what `resolve` takes.
EXPECTED = (
    "an environment, a class, a function that makes one, or a spec such as gymnasium:CartPole-v1"
)

#: Start of the entry points of our own adapters.
_OWN = "everstep_adapters."

_warned: set[str] = set()


class Adapter(Protocol):
    """Object of an entry point of `everstep.adapters`: a class with two class methods.

    Its module is imported whenever an adapter is searched for, so it should import its library
    late. It may also have `default_num_envs`, `default_horizon`, `max_num_envs`, `max_horizon`, and

    * `suggest(env) -> str`: advice on an object that it nearly matches;
    * `find(name) -> list[str]`: its names that a name without a prefix may mean. If the name itself
      is one of them, that environment is made, else they are suggested;
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


def wrap(env: Any, /, **options: Unpack[WrapOptions]) -> Env:
    """Wrap an existing environment as an Everstep environment; an `Env` is returned unchanged.

    Args:
        env: Environment of a type that an adapter is registered for.
        options: Options of the adapter, such as `horizon` and `device`.

    Raises:
        AdapterError: If no adapter matches, or the one that does cannot represent it.

    """
    if isinstance(env, Env):
        if options:
            rule = "is an Everstep environment already and takes no options"
            fix = "Set them when the environment is made."
            raise AdapterError(f"{type(env).__name__} {rule}; got {', '.join(options)}. {fix}")
        return env
    if adapter := _adapter_of(env):
        return adapter(env, **options)
    raise AdapterError(_no_match(env))


def make(
    source: str | Callable[..., Any],
    num_envs: int,
    /,
    *,
    horizon: None | int = None,
    device: Device = "cpu",
    **kwargs: Any,
) -> Env:
    """A new environment from a spec string, a class or a function.

    Args:
        source: See `factory`.
        num_envs: Number of parallel environments.
        horizon: Env steps between resets.
        device: Device of actions and results.
        kwargs: Options of the adapter's `make`; arguments of the class or function.

    Raises:
        AdapterError: If there is no such environment, or the adapter cannot make it.

    """
    return factory(source, **kwargs)(num_envs, horizon, device=device)


def factory(source: str | Callable[..., Any], /, **kwargs: Any) -> EnvFactory:
    """A factory of environments; the algorithm chooses their number.

    Args:
        source: A spec string, such as `"gymnasium:CartPole-v1"`, or a registered Gymnasium id, such
            as `"CartPole-v1"`; a subclass of `gymnasium.Env`, or a function without arguments that
            returns a single environment, of which copies are made; or an Everstep environment class
            or factory.
        kwargs: Options of the adapter's `make`; arguments of the class or function.

    Raises:
        AdapterError: If there is no such environment, or the source is none of these.

    """
    made = resolve(source, kwargs)
    if not is_made(made):
        return cast(EnvFactory, made)
    env, name = cast(Env, made), "This"
    if made is not source:
        env.close()
        name = f"{_name(source)}()"
    raise AdapterError(
        f"{name} is a batch of {env.num_envs} environments that is made already: pass it to "
        "`everstep.wrap` or to a trainer. To choose their number, give a class, or a function that "
        "makes a single environment."
    )


def resolve(
    source: EnvSource, kwargs: None | dict[str, Any] = None, /, *, device: None | Device = None
) -> EnvFactory | Env:
    """The factory that makes environments of a source; an environment is wrapped.

    The one place that decides what a source is. Functions without arguments are called once.

    Args:
        source: What `factory` takes; an environment that `wrap` takes, or a function without
            arguments that returns one.
        kwargs: Options of the adapter's `make`; arguments of the class or function.
        device: Device of an environment that is wrapped; None: the adapter's default.

    Raises:
        AdapterError: If the source is none of these.

    """
    kwargs = kwargs or {}
    if isinstance(source, str):
        return SpecFactory(source, **kwargs)
    if is_made(source):
        is_ours = isinstance(source, Env) or not _adapter_of(source)
        if is_ours and hasattr(source, "observation_spec"):  # those written for rl8, too
            return cast(Env, source)
        return wrap(source, **(kwargs if device is None else {"device": device, **kwargs}))
    if isinstance(source, type) and (adapter := _maker_of(source)):
        return AdapterFactory(adapter, source, kwargs)
    if not callable(source):
        raise AdapterError(f"Expected {EXPECTED}; got {source!r}.")
    if takes_sizes(source, kwargs):
        if not kwargs:
            return cast(EnvFactory, source)
        bound = partial(source, **kwargs)
        copy_defaults(source, bound)
        return bound
    check_callable(source, kwargs)
    made = source(**_own(source, kwargs))
    adapter = _adapter_of(made) or _maker_of(made)
    if adapter is not None and _makes(adapter, made):
        made.close()
        return AdapterFactory(adapter, source, kwargs)
    if not is_made(made):
        raise AdapterError(f"{_name(source)}() must return an environment; got {made!r}.")
    return resolve(made, device=device)


def is_made(source: object) -> bool:
    """Whether this is an environment, not a class or factory of one."""
    return hasattr(source, "step") and not isinstance(source, type)


def check_callable(source: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raise an `AdapterError` if a class or function cannot be called to make environments."""
    signature = signature_of(source)
    calls = takes_sizes(source, kwargs) or binds(signature, **_own(source, kwargs))
    if not calls and not _maker_of(source):
        raise AdapterError(
            f"{_name(source)}{signature} cannot make environments: its parameters must be those of "
            "an Everstep factory, (num_envs, horizon, *, device), or it must need none. Give "
            "others as options (`env_kwargs`), or bind them with a lambda."
        )


def takes_sizes(source: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether this is an Everstep factory, called with `(num_envs, horizon, device=…)`.

    A function that can also be called without arguments is one only if it has a parameter `device`,
    or takes any positional arguments: `functools.partial(gymnasium.make, "CartPole-v1")` would take
    them as well, for something else.
    """
    signature, own = signature_of(source), _own(source, kwargs)
    parameters = signature.parameters
    takes_any = any(x.kind is x.VAR_POSITIONAL for x in parameters.values())
    declares = "device" in parameters or takes_any
    sized = binds(signature, 1, None, device="cpu", **own)
    return sized and (declares or not binds(signature, **own))


def _own(source: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those of `kwargs` that are parameters of `source`; others may be the adapter's."""
    return {k: value for k, value in kwargs.items() if k in signature_of(source).parameters}


class AdapterFactory:
    """An `EnvFactory` of what an adapter makes.

    Args:
        adapter: The adapter.
        source: What its `make` takes: a name, or a class or function that it makes copies of.
        kwargs: Options of its `make`.

    """

    #: Options of the adapter's `make`.
    kwargs: dict[str, Any]

    def __init__(self, adapter: Adapter, source: Any, kwargs: dict[str, Any]) -> None:
        reserved = sorted({"num_envs", "horizon", "device"} & set(kwargs))
        if reserved:
            name = getattr(self, "spec", source)
            raise AdapterError(
                f"A factory of {name!r} is given {', '.join(reserved)} when it is called, not "
                "when it is made."
            )
        self.kwargs = kwargs
        self._adapter, self.source = adapter, source
        copy_defaults(adapter, self)

    def __call__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> Env:
        """A new environment."""
        make = self._adapter.make
        env = make(self.source, num_envs, horizon=horizon, device=device, **self.kwargs)
        env.made_by = self  # type: ignore[attr-defined]  # for the record of a run
        return env


class SpecFactory(AdapterFactory):
    """An `EnvFactory` that makes environments from a spec string; see `factory`.

    Args:
        spec: `"prefix:name"`, or the name alone if an adapter finds it.
        kwargs: Options of the adapter's `make`.

    """

    #: `"prefix:name"`.
    spec: str

    def __init__(self, spec: str, /, **kwargs: Any) -> None:
        prefix, name = _split(spec)
        self.spec = f"{prefix}:{name}"
        super().__init__(_load(prefix), name, kwargs)

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.kwargs.items())
        return f"everstep.factory({self.spec!r}{options})"


def copy_defaults(source: object, target: object) -> None:
    """Copy what adapters and factories may declare: defaults, maxima and their library."""
    for name in ("default_num_envs", "default_horizon", "max_num_envs", "max_horizon", "library"):
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
    """Prefix and name; a name without a prefix is looked up."""
    prefix, colon, name = spec.partition(":")
    if colon and prefix and name:
        return prefix, name
    near: list[str] = []
    for prefix, adapter in _usable_adapters().items() if spec and not colon else ():
        names: list[str] = getattr(adapter, "find", lambda _: [])(spec)
        if spec in names:
            return prefix, spec
        near += [f"{prefix}:{name}" for name in names]
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise AdapterError(
        "An environment is written 'prefix:name', such as 'gymnasium:CartPole-v1', or as the id of "
        f"a registered Gymnasium environment; got {spec!r}.{guess} {_known(spec.partition(':')[0])}"
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
        raise AdapterError(
            f"No adapter has the prefix {prefix!r}. {_known(prefix)} The id of an environment that "
            f"a module registers has both: 'gymnasium:{prefix}:Name-v0'."
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


def _adapter_of(env: object) -> None | Adapter:
    """The adapter that wraps `env`."""
    adapters = _usable_adapters().items()
    return next((adapter for prefix, adapter in adapters if _matches(prefix, adapter, env)), None)


def _maker_of(source: object) -> None | Adapter:
    """The adapter whose `make` takes this class, or a function that returned this object."""
    return next((x for x in _usable_adapters().values() if _makes(x, source)), None)


def _makes(adapter: Any, source: object) -> bool:
    return hasattr(adapter, "makes") and bool(adapter.makes(source))


def _name(source: object) -> str:
    return str(getattr(source, "__name__", repr(source)))


def _no_match(env: object) -> str:
    if isinstance(env, str):
        return f"`wrap` takes an environment; to make one use `everstep.make({env!r}, num_envs)`."
    if not is_made(env) and callable(env):
        return (
            f"`wrap` takes an environment, and {_name(env)} makes one: use "
            f"`everstep.make({_name(env)}, num_envs)`, or give it to a trainer."
        )
    kind, adapters = type(env), _usable_adapters()
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
