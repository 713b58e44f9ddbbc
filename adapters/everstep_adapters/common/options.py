"""Options of adapters: parameters of their constructors, whose annotations say what they take."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from functools import cache, wraps
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field

from everstep.core.rules import check_device
from everstep.core.validation import InvalidError, check_fields
from everstep.env import Env
from everstep.env.plugins import check_names
from everstep.errors import AdapterError

from .handles import Handle

_Constructor = TypeVar("_Constructor", bound=Callable[..., None])

#: A number above 0, perhaps infinite.
Length = Annotated[float, Field(gt=0, allow_inf_nan=True)]


class AdapterEnv(Handle, Env):
    """Base class of adapters: their constructors check the options that they are given."""

    #: Whether the library may have several CPUs, as JAX; the constructor checks their index then.
    has_cpus: ClassVar[bool] = False

    @property
    def handle_of(self) -> str:
        """See `Handle.handle_of`."""
        return getattr(vars(self).get("_calls"), "handle_of", "")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if (constructor := vars(cls).get("__init__")) is None:
            return

        @wraps(constructor)
        def checked(self: Any, *args: Any, **options: Any) -> None:
            constructor(self, *args, **check_options(cls, options, type(self).__name__))

        cls.__init__ = checked  # type: ignore[method-assign]


def check_options(
    adapter: Any, options: Mapping[str, Any], name: None | str = None
) -> dict[str, Any]:
    """Options of an adapter's constructor, as it takes them: NumPy's numbers are Python's.

    Args:
        adapter: Class with the constructor.
        options: The options.
        name: Name of the adapter in errors; None for that of the class.

    Raises:
        AdapterError: If the adapter has no such option, or a value does not fit its annotation.
        ConfigError: If there is no such device.

    """
    check_names(adapter, options)
    rules = _rules(adapter)
    values = {x: y.item() if isinstance(y, np.generic) else y for x, y in options.items()}
    typed = {x: y for x, y in values.items() if x in rules.__annotations__}
    try:
        values |= check_fields(rules, typed)
    except InvalidError as error:
        name = name or adapter.__name__
        raise AdapterError(
            "; ".join(f"`{x.path[0]}` of {name}: {x.message}" for x in error.problems) + "."
        ) from None
    if (device := values.get("device")) is not None:
        is_one_of_several = getattr(adapter, "has_cpus", False) and str(device).startswith("cpu:")
        if not is_one_of_several:
            check_device(device)
    return values


@cache
def _rules(adapter: Any) -> Any:
    """A dataclass with the annotations of an adapter's options, but those that are strings."""
    parameters = inspect.signature(adapter).parameters.values()
    named = [x for x in parameters if x.kind is x.KEYWORD_ONLY]
    rules = [x for x in named if x.annotation is not x.empty and type(x.annotation) is not str]
    return make_dataclass(adapter.__name__, [(x.name, x.annotation, None) for x in rules])


def inheriting_options(parent: type) -> Callable[[_Constructor], _Constructor]:
    """A decorator of constructors that pass `**options` on: their signature has the parent's.

    Args:
        parent: Class whose keyword-only parameters are options of its subclass, too.

    """

    def decorate(constructor: _Constructor) -> _Constructor:
        own = inspect.signature(constructor)
        *named, _ = own.parameters.values()  # the last one is `**options`
        inherited = [
            parameter
            for name, parameter in inspect.signature(parent).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in own.parameters
        ]
        constructor.__signature__ = own.replace(parameters=[*named, *inherited])  # type: ignore
        return constructor

    return decorate


def pop_options(adapter: type, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove from `kwargs` the options that an adapter's constructor takes, and return them.

    Options are its keyword-only parameters, other than those that `make` itself has. They are
    checked here as well, before a library makes anything.

    Raises:
        AdapterError: If one does not fit its annotation.

    """
    parameters = inspect.signature(adapter).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    given = {name: kwargs.pop(name) for name in names - {"device", "num_envs"} if name in kwargs}
    return check_options(adapter, given)
