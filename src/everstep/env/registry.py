"""Environments of other libraries, wrapped, or made from specs, classes and functions."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast, overload

import torch
from typing_extensions import Unpack

from ..core.memory import check_room
from ..core.names import check_module, dotted_name
from ..core.rules import check_device
from ..core.validation import binds, explained, signature_of
from ..data import Device, MakeOptions, WrapOptions
from ..errors import AdapterError, ConfigError
from . import Env, EnvFactory, check_sizes
from .plugins import (
    Adapter,
    adapter_of,
    check_names,
    known_prefixes,
    load,
    maker_of,
    makes,
    usable_adapters,
)

#: Whatever environments can be made of, or wrapped; see `resolve`.
EnvSource: TypeAlias = Any

#: Bytes that an environment takes at the least.
_ENV_BYTES = 64

#: Description of what `resolve` takes.
EXPECTED = (
    "an environment, a class, a function that makes one, or a spec such as gymnasium:CartPole-v1"
)


def wrap(env: Any, /, **options: Unpack[WrapOptions]) -> Env:
    """Wrap an existing environment as an Everstep environment; an `Env` is returned unchanged.

    Args:
        env: Environment of a type that an adapter is registered for.
        options: Options of the adapter, such as `horizon` and `device`.

    Raises:
        AdapterError: If no adapter matches, or the one that does cannot represent it.
        ConfigError: If there is no such device.

    """
    if (device := options.get("device")) is not None:
        check_device(device)
    if isinstance(env, Env):
        if options:
            rule = "is an Everstep environment already and takes no options"
            fix = "Set them when the environment is made."
            raise AdapterError(f"{type(env).__name__} {rule}; got {', '.join(options)}. {fix}")
        return env
    if adapter := adapter_of(env):
        check_names(adapter, options)
        return adapter(env, **options)
    raise AdapterError(_no_match(env))


@overload
def make(
    source: str,
    /,
    num_envs: int,
    *,
    horizon: None | int = None,
    device: Device = "cpu",
    **kwargs: Unpack[MakeOptions],
) -> Env: ...
@overload
def make(
    source: Callable[..., Any],
    /,
    num_envs: int,
    *,
    horizon: None | int = None,
    device: Device = "cpu",
    **kwargs: Any,
) -> Env: ...
@explained(
    "Write `make('CartPole-v1', num_envs)`: the number of environments is needed.",
    env_kwargs=None | dict[str, Any],
)
def make(
    source: str | Callable[..., Any],
    /,
    num_envs: int,
    *,
    horizon: None | int = None,
    device: Device = "cpu",
    **kwargs: Any,
) -> Env:
    """A new environment from a spec string, a class or a function.

    Args:
        source: See `factory`.
        num_envs: Number of parallel environments.
        horizon: Vector steps between resets.
        device: Device of actions and results.
        kwargs: See `factory`.

    Raises:
        AdapterError: If there is no such environment, or the adapter cannot make it.

    """
    num_envs, horizon = check_sizes("`make`", num_envs, horizon)
    check_device(device)
    # What is made in the caller's `inference_mode` could not be written outside of it.
    with torch.inference_mode(False):
        return _factory(source, kwargs)(num_envs, horizon, device=device)


@overload
def factory(source: str, /, **kwargs: Unpack[MakeOptions]) -> EnvFactory: ...
@overload
def factory(source: Callable[..., Any], /, **kwargs: Any) -> EnvFactory: ...
def factory(source: str | Callable[..., Any], /, **kwargs: Any) -> EnvFactory:
    """A factory of environments; the algorithm chooses their number.

    Args:
        source: A spec string, such as `"gymnasium:CartPole-v1"`, or a registered Gymnasium id, such
            as `"CartPole-v1"`; a subclass of `gymnasium.Env`, or a function without arguments that
            returns a single environment, of which copies are made; or an Everstep environment class
            or factory.
        kwargs: Options of the adapter's `make`; arguments of the class or function. Arguments of
            the environment that a spec string names can also be given as one dictionary,
            `env_kwargs`; that is how type checkers accept them.

    Raises:
        AdapterError: If there is no such environment, or the source is none of these.

    """
    return _factory(source, kwargs)


def _factory(source: str | Callable[..., Any], kwargs: dict[str, Any]) -> EnvFactory:
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
    if is_made(source) or not (callable(source) and _own(source, {"env_kwargs": 0})):
        kwargs = _beside(kwargs)
    if is_made(source):
        is_ours = isinstance(source, Env) or not adapter_of(source)
        if is_ours and hasattr(source, "observation_spec"):  # those written for rl8, too
            return cast(Env, source)
        return wrap(source, **(kwargs if device is None else {"device": device, **kwargs}))
    if isinstance(source, type) and (adapter := maker_of(source)):
        return AdapterFactory(adapter, source, kwargs)
    if not callable(source):
        raise AdapterError(f"Expected {EXPECTED}; got {source!r}.{_of_a_list(source)}")
    if takes_sizes(source, kwargs):
        if not kwargs:
            return cast(EnvFactory, source)
        bound = partial(source, **kwargs)
        copy_defaults(source, bound)
        return bound
    check_callable(source, kwargs)
    made = source(**_own(source, kwargs))
    adapter = None if isinstance(made, type) else adapter_of(made) or maker_of(made)
    if adapter is not None and makes(adapter, made):
        getattr(made, "close", lambda: None)()  # functions of JAX have none
        return AdapterFactory(adapter, source, kwargs)
    if not is_made(made) or isinstance(made, type):
        way_out = f" Give {made.__name__} itself." if isinstance(made, type) else ""
        raise AdapterError(f"{_name(source)}() must return an environment; got {made!r}.{way_out}")
    try:
        return resolve(made, device=device)
    except BaseException:
        with suppress(Exception):  # the error is the one to raise
            getattr(made, "close", lambda: None)()
        raise


def _of_a_list(source: object) -> str:
    """Advice on a list of functions or environments, as other libraries take it."""
    if not isinstance(source, list | tuple) or not source:
        return ""
    if callable(source[0]):
        return (
            f" One function is enough, with `num_envs={len(source)}`; functions that differ make "
            "`gymnasium.vector.SyncVectorEnv([…])`, which is an environment."
        )
    return " Give one of them by its id, class or a function that makes it, and `num_envs`."


def is_made(source: object) -> bool:
    """Whether this is an environment, not a class or factory of one."""
    return hasattr(source, "step") and not isinstance(source, type)


def check_callable(source: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raise an `AdapterError` if a class or function cannot be called to make environments."""
    signature = signature_of(source)
    calls = takes_sizes(source, kwargs) or binds(signature, **_own(source, kwargs))
    if not calls and not maker_of(source):
        raise AdapterError(
            f"{_name(source)}{signature} cannot make environments: its parameters must be those of "
            "an Everstep factory, (num_envs, horizon, *, device), or it must need none. Give "
            "others as `env_kwargs={'name': value}`, or bind them with a lambda."
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
    others = {k: value for k, value in own.items() if k not in _SIZES}
    sized = binds(signature, 1, None, device="cpu", **others)
    sized = sized and (declares or not binds(signature, **own))
    if sized:
        _check_sizes(_name(source), own)
    return sized


#: Arguments of a factory's call.
_SIZES = ("device", "horizon", "num_envs")


def _check_sizes(name: object, kwargs: dict[str, Any]) -> None:
    """Raise an `AdapterError` if options hold what a factory is called with."""
    reserved = [key for key in _SIZES if key in kwargs]
    if reserved:
        raise AdapterError(
            f"A factory of {name!r} is given {', '.join(reserved)} when it is called, not "
            "when it is made: `everstep.factory(…)(num_envs, horizon, device=…)`, or "
            "`everstep.make(…, num_envs)`."
        )


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
        _check_sizes(getattr(self, "spec", source), kwargs)
        self.kwargs = kwargs
        self._adapter, self.source = adapter, source
        copy_defaults(adapter, self)

    def __call__(
        self, num_envs: int, /, horizon: None | int = None, *, device: Device = "cpu"
    ) -> Env:
        """A new environment."""
        if isinstance(num_envs, int):
            of = f"An environment of `num_envs` {num_envs:,}"
            check_room(num_envs * _ENV_BYTES, torch.device("cpu"), of, "Lower `num_envs`.")
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
        if module := re.match(r"(.+)[.:]", name):  # the adapter may import it
            try:
                check_module(module[1].replace(":", "."))
            except ConfigError as error:
                raise AdapterError(f"{spec!r}: {error}.") from None
        self.spec = f"{prefix}:{name}"
        super().__init__(load(prefix, name), name, _beside(kwargs))

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.kwargs.items())
        return f"everstep.factory({self.spec!r}{options})"


def describe_env(source: Any) -> dict[str, Any]:
    """Keys of a configuration file that make the same environment; none if a file cannot."""
    # Not with `getattr`: TorchRL's environments ask their workers for what they do not have.
    source = getattr(source, "__dict__", {}).get("made_by", source)
    if isinstance(source, SpecFactory):
        return {"env_cls": source.spec, "env_kwargs": source.kwargs or None}
    if isinstance(source, AdapterFactory):  # of a class or function
        named = describe_env(source.source)
        return named and {**named, "env_kwargs": source.kwargs or None}
    name = getattr(source, "__qualname__", "<")
    return {} if "<" in name else {"env_cls": dotted_name(source)}  # `<lambda>`, `<locals>`


def _beside(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Options with those under `env_kwargs` beside them."""
    own = kwargs.get("env_kwargs") or {}
    if not isinstance(own, Mapping):
        raise AdapterError(f"`env_kwargs` must be a mapping of names to values; got {own!r}.")
    return {**own, **{key: value for key, value in kwargs.items() if key != "env_kwargs"}}


def copy_defaults(source: object, target: object) -> None:
    """Copy what adapters and factories may declare: defaults, maxima and their library."""
    for name in ("default_num_envs", "default_horizon", "max_num_envs", "max_horizon", "library"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def _split(spec: str) -> tuple[str, str]:
    """Prefix and name; a name without a prefix is looked up."""
    prefix, colon, name = spec.partition(":")
    if colon and prefix and name:
        return prefix, name
    near: list[str] = []
    # Most names without a prefix are Gymnasium's: no other adapter is imported for them.
    for prefix, adapter in usable_adapters("gymnasium") if spec and not colon else ():
        names: list[str] = getattr(adapter, "find", lambda _: [])(spec)
        if spec in names:
            return prefix, spec
        near += [f"{prefix}:{name}" for name in names]
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    if "." in spec and all(part.isidentifier() for part in spec.split(".")):
        guess += " A class or function of your own is given itself, not by its name."
    raise AdapterError(
        "An environment is written 'prefix:name', such as 'gymnasium:CartPole-v1', or as the id of "
        f"a registered Gymnasium environment; got {spec!r}.{guess} "
        f"{known_prefixes(spec.partition(':')[0])}"
    )


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
    kind, adapters = type(env), dict(usable_adapters())
    advice = (getattr(adapter, "suggest", lambda _: "")(env) for adapter in adapters.values())
    sentences = [
        f"No adapter can wrap a `{kind.__module__}.{kind.__qualname__}`.",
        *dict.fromkeys(advice),  # adapters of one library may suggest the same
        f"Environments of these types can be wrapped: {', '.join(adapters) or 'none'}.",
    ]
    return " ".join(filter(None, sentences))
