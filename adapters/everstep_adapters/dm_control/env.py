"""The environment that wraps dm_control's."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from everstep.data import Device
from everstep.errors import AdapterError

from ..common.autoreset import parse_mode
from ..common.libraries import is_loaded_instance, is_loaded_kind, require
from ..common.options import inheriting_options
from ..gymnasium import GymnasiumEnv

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

_NEEDED = "dm_control is needed: pip install dm_control"

#: Module and name of the base class of dm_control's environments, and of others in its interface.
_BASE = ("dm_env._environment", "Environment")

#: That of EnvPool's environments, which have the interface too, but each for many.
_POOL = ("envpool.python.envpool", "EnvPoolMixin")


class DMControlEnv(GymnasiumEnv):
    """Environments of dm_env's interface as one Everstep environment.

    Args:
        env: An environment, several of one task, or a vector environment that `make` made. `close`
            closes them.
        horizon: Expected vector steps between resets.
        device: Device of actions and results.
        autoreset_mode: As `GymnasiumEnv` has it; of environments that exist, NEXT_STEP by default.
        options: As `GymnasiumEnv` has them.

    Raises:
        AdapterError: If the adapter cannot represent the environments.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("dm_control",)

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "dm_control"

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]] = ("dm_control", _NEEDED)

    @inheriting_options(GymnasiumEnv)
    def __init__(
        self,
        env: Any,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        autoreset_mode: "None | str | AutoresetMode" = None,
        **options: Any,
    ) -> None:
        env = _vectorized(env, autoreset_mode) if self.matches(env) else env
        super().__init__(env, horizon, device=device, autoreset_mode=autoreset_mode, **options)

    @classmethod
    def matches(cls, env: Any, /) -> bool:
        """Whether `env` is one of dm_env's environments, or a list of them. Imports nothing."""
        envs = env if isinstance(env, list | tuple) else [env]
        is_pool = any(is_loaded_instance(x, *_POOL) for x in envs)
        return bool(envs) and not is_pool and all(is_loaded_instance(x, *_BASE) for x in envs)

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """Nothing: Gymnasium's adapter advises."""
        return ""

    @classmethod
    def find(cls, name: str, /) -> list[str]:
        """Nothing: names of other libraries have a slash, too."""
        return []

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """Whether this is one of dm_env's environments, or a class of them. Imports nothing."""
        return is_loaded_kind(source, *_BASE)

    @classmethod
    def make(
        cls,
        name: Any,
        num_envs: int,
        /,
        *,
        horizon: None | int = None,
        device: Device = "cpu",
        **kwargs: Any,
    ) -> "DMControlEnv":
        """A new environment of copies of a task of the suite, or of what a function makes.

        Args:
            name: Domain and task, such as `"cartpole/swingup"`; or a class or function that makes a
                single environment.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            kwargs: Options of `GymnasiumEnv`; `vectorization_mode`, `vector_kwargs`, `wrappers`;
                `render_mode` and `render_kwargs`; what is none of these goes to
                `dm_control.suite.load`, such as `task_kwargs`, or to the function.

        Raises:
            AdapterError: If dm_control cannot make it, or the adapter cannot represent it.

        """
        made = super().make(_single(name), num_envs, horizon=horizon, device=device, **kwargs)
        assert isinstance(made, cls)
        return made


def _single(name: str | Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a single environment, with Gymnasium's interface."""
    label, load = getattr(name, "__name__", str(name)), name
    if isinstance(name, str):
        load = _loader(name)

    def make(
        render_mode: None | str = None, render_kwargs: None | dict[str, Any] = None, **kwargs: Any
    ) -> Any:
        from .single import SingleEnv

        return SingleEnv(load(**kwargs), render_mode, render_kwargs)  # type: ignore[operator]

    make.__name__ = label  # in errors
    return make


def _loader(name: str) -> Callable[..., Any]:
    """A function that loads a task of the suite.

    Raises:
        AdapterError: If the name is not written as a domain and a task.

    """
    domain, _, task = name.partition("/")
    if not (domain and task):
        raise AdapterError(
            "A task of dm_control's suite is written 'domain/task', such as 'cartpole/swingup'; "
            f"got {name!r}."
        )

    def load(**kwargs: Any) -> Any:
        return require("dm_control.suite", "load", _NEEDED)(domain, task, **kwargs)

    return load


def _vectorized(env: Any, autoreset_mode: Any) -> Any:
    """A `SyncVectorEnv` of environments that exist."""
    sync = require("gymnasium.vector", "SyncVectorEnv", "Gymnasium is needed")
    from .single import SingleEnv

    envs = env if isinstance(env, list | tuple) else [env]
    mode = parse_mode("NEXT_STEP" if autoreset_mode is None else autoreset_mode)
    return sync([lambda x=x: SingleEnv(x) for x in envs], autoreset_mode=mode)
