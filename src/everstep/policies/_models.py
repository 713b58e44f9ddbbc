"""Models from their class and options, with errors that name the option."""

import inspect
from typing import Any

from torchrl.data import TensorSpec

from ..core.validation import unknown_name
from ..errors import ConfigError
from ..models import GenericModelBase


def make_model(
    model_cls: Any, observation_spec: TensorSpec, action_spec: TensorSpec, config: dict[str, Any]
) -> Any:
    """The model of a class.

    Raises:
        ConfigError: If the class refuses the specs or an option.

    """
    try:
        return model_cls(observation_spec, action_spec, **config)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        name = getattr(model_cls, "__name__", type(model_cls).__name__)
        for option in config:
            if str(error).startswith(own := f"`{option}` "):
                rest = str(error).removeprefix(own).removesuffix(".")
                raise ConfigError(f"`model_config.{option}` {rest}.") from error
            if f"unexpected keyword argument '{option}'" in str(error):
                known = _options_of(model_cls)
                unknown = unknown_name("option", option, known)
                raise ConfigError(
                    f"`model_config.{option}`: {unknown} of {name}, which takes "
                    f"{', '.join(known) or 'none'}."
                ) from error
        if isinstance(model_cls, type) and not issubclass(model_cls, GenericModelBase):
            raise ConfigError(
                f"`model_cls` must be a subclass of `everstep.models.Model`, or a function that "
                "takes (observation_spec, action_spec, **model_config) and returns a model; got "
                f"{model_cls.__module__}.{name}. The default model takes sizes: "
                "`model_config={'hiddens': [64, 64]}`."
            ) from error
        reason = str(error).splitlines()[0]
        if isinstance(error, TypeError):
            reason += ". A model class takes (observation_spec, action_spec, **model_config)"
        raise ConfigError(f"`model_config` {config} does not suit {name}: {reason}") from error


def _options_of(model_cls: Any) -> list[str]:
    """Keyword arguments of a model class and of those that it passes the rest of them on to."""
    own = [cls.__init__ for cls in getattr(model_cls, "__mro__", ()) if "__init__" in vars(cls)]
    names: list[str] = []
    for function in own or [model_cls]:
        parameters = inspect.signature(function).parameters.values()
        optional = [p for p in parameters if p.kind is p.KEYWORD_ONLY or p.default is not p.empty]
        names += [p.name for p in optional if p.name != "outputs"]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names
