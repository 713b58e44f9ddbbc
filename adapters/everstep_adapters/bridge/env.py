"""The environment that wraps one in another Python."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from everstep.data import Device
from everstep.errors import AdapterError

from ..common.libraries import (
    inheriting_options,
    is_loaded_instance,
    pop_options,
    wrap_or_close,
)
from ..gymnasium import GymnasiumEnv

_NO_PYTHON = (
    "An environment in another Python needs `python`, the path of that interpreter, such as "
    "/envs/py38/bin/python: `env_kwargs: {python: …}` in a file, `env_kwargs.python=…` on the "
    "command line."
)


class BridgeEnv(GymnasiumEnv):
    """An environment in another Python as an Everstep environment.

    The other interpreter needs NumPy and the environment, and nothing of Everstep. Copies of a
    single environment are reset in the env step that ends them, with their true final observations.

    Args:
        env: The client of a server, as `make` starts it.
        horizon: Vector steps between resets that it is meant for.
        options: As `GymnasiumEnv` has them.

    Raises:
        AdapterError: If the adapter cannot represent the environment.

    """

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "Bridge"

    #: Effect of `seed` in `describe`.
    seeding: ClassVar[str] = "the next reset; row i gets seed + i, as the environment takes it"

    @inheriting_options(GymnasiumEnv)
    def __init__(self, env: Any, /, horizon: None | int = None, **options: Any) -> None:
        if not self.matches(env):
            raise AdapterError(
                f"`env` must be a `BridgeVectorEnv`; got {type(env).__name__}. Let "
                "`everstep.make('bridge:…', num_envs, python=…)` start it."
            )
        super().__init__(env, horizon, **options)

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` is the client of a server. Imports nothing."""
        return is_loaded_instance(env, "everstep_adapters.bridge.client", "BridgeVectorEnv")

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """Nothing: other objects are of other adapters."""
        return ""

    @classmethod
    def find(cls, name: str, /) -> list[str]:
        """Nothing: names need the prefix."""
        return []

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """False: environments in another Python have names."""
        return False

    @classmethod
    def make(
        cls,
        name: Any,
        num_envs: int,
        /,
        *,
        horizon: None | int = None,
        device: Device = "cpu",
        python: None | str | os.PathLike[str] = None,
        kwargs: None | Mapping[str, Any] = None,
        step_timeout: None | float = 600.0,
        **options: Any,
    ) -> "BridgeEnv":
        """A new environment in another Python, wrapped.

        Args:
            name: `gym:ID`, `gymnasium:ID`, `procgen:NAME`, or `module:function` of a module that
                the other interpreter can import.
            num_envs: Number of rows.
            horizon: Vector steps between resets that it is meant for.
            device: Device of everything that goes in and comes out.
            python: Path of the other interpreter.
            kwargs: Arguments of the environment or function whose names the adapter has itself.
            step_timeout: Seconds that an answer may take before the server is ended and an
                `EnvError` is raised; None for no limit.
            options: Options of the adapter, and arguments of the environment or function.

        Raises:
            AdapterError: If there is no such interpreter or environment, or it cannot be hosted.
            EnvError: If the environment fails while it is made.

        """
        from .client import BridgeVectorEnv

        if python is None:
            raise AdapterError(_NO_PYTHON)
        own = pop_options(GymnasiumEnv, options)
        arguments = {**options, **(kwargs or {})}
        path = os.fspath(python)
        env = BridgeVectorEnv(path, name, num_envs, arguments, step_timeout=step_timeout)
        return wrap_or_close(cls, env, horizon, device=device, **own)

    @classmethod
    def examine(cls, python: str, /) -> dict[str, str]:
        """Versions of an interpreter, and of the libraries that it can host, or why it cannot.

        Raises:
            AdapterError: If it cannot run the server.

        """
        from .client import examine

        return examine(python)

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        return {**super().describe(), "limit": cast(Any, self.env).limit}
