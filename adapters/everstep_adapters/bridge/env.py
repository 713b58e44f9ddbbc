"""The environments that wrap one in another Python."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from everstep.core.validation import FilePath, Integer, PositiveInt
from everstep.data import Device
from everstep.env import Env, check_sizes
from everstep.errors import AdapterError

from ..common.libraries import (
    close_quietly,
    is_loaded_instance,
    wrap_or_close,
)
from ..common.options import Length, check_options, inheriting_options, pop_options
from ..gymnasium import GymnasiumEnv
from ..isaacgym import IsaacGymEnv

_NO_PYTHON = (
    "An environment in another Python needs `python`, the path of that interpreter, such as "
    "/envs/py38/bin/python: `env_kwargs: {python: …}` in a file, `env_kwargs.python=…` on the "
    "command line. One on another machine needs `server` and `key` instead."
)


_BOTH = "An environment is in another Python (`python`) or on another machine (`server`): give one."


class BridgeTaskEnv(IsaacGymEnv):
    """A task in another Python, with the interface of IsaacGymEnvs, legged_gym or rsl_rl.

    `BridgeEnv.make` makes it. Its options and its rows are those of `IsaacGymEnv`.
    """

    @property
    def handle_of(self) -> str:
        """See `Handle.handle_of`."""
        return str(self.task.handle_of)

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        own = {"environment": str(self.task), "seeding": "the server's generators, or the task's"}
        own["hand-off"] = self.task.hand_off
        return {**super().describe(), **own}


class BridgeEnv(GymnasiumEnv):
    """An environment in another Python as an Everstep environment.

    The other interpreter needs NumPy and the environment, and nothing of Everstep. Copies of a
    single environment are reset in the env step that ends them, with their true final observations.

    With `python` and `entry` instead of `env`, the result is that of `make`: of a task with
    IsaacGym's interfaces it is a `BridgeTaskEnv`.

    Args:
        env: The client of a server, as `make` starts it.
        horizon: Expected vector steps between resets.
        python: Path of the other interpreter.
        server: Address of a server on another machine, instead of `python`; see `make`.
        entry: The `name` of `make`.
        num_envs: Number of rows; None for `default_num_envs`.
        options: As `GymnasiumEnv` has them; with `python`, as `make` has them.

    Raises:
        AdapterError: If the adapter cannot represent the environment.

    """

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "Bridge"

    #: See `everstep.env.plugins.Adapter`.
    programs: ClassVar[tuple[str, ...]] = ("python", "server", "key")

    #: Effect of `seed` in `describe`.
    seeding: ClassVar[str] = "the next reset; row i gets seed + i, as the environment takes it"

    @inheriting_options(GymnasiumEnv)
    def __new__(
        cls,
        env: Any = None,
        /,
        horizon: None | int = None,
        *,
        python: None | str | os.PathLike[str] = None,
        server: None | str | Sequence[str] = None,
        entry: None | str = None,
        num_envs: None | Integer = None,
        **options: Any,
    ) -> Any:
        """See the class."""
        if env is not None:
            return super().__new__(cls)
        if entry is None:
            raise AdapterError("`BridgeEnv` needs `python` and `entry`, such as 'module:function'.")
        count = cls.default_num_envs if num_envs is None else num_envs
        return cls.make(entry, count, horizon=horizon, python=python, server=server, **options)

    @inheriting_options(GymnasiumEnv)
    def __init__(self, env: Any = None, /, horizon: None | int = None, **options: Any) -> None:
        if env is None:  # `__new__` has returned what `make` made
            return
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
    def module_of(cls, name: str, /) -> str:
        """The module that the other interpreter imports; empty for libraries that it knows."""
        library, _, id = name.partition(":")
        if library in ("gym", "gymnasium") and ":" in id:  # a module that registers the id
            return id.replace(":", ".")
        known = ("gym", "gymnasium", "procgen", "isaacgymenvs")
        return "" if library in known else name.replace(":", ".")

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
        python: None | FilePath = None,
        server: None | str | Sequence[str] = None,
        key: None | FilePath = None,
        kwargs: None | Mapping[str, Any] = None,
        processes: PositiveInt = 1,
        step_timeout: None | Length = 600.0,
        **options: Any,
    ) -> Any:
        """A new environment in another Python, wrapped: a `BridgeEnv` or a `BridgeTaskEnv`.

        Args:
            name: `gym:ID`, `gymnasium:ID`, `procgen:NAME`, `isaacgymenvs:TASK`, or
                `module:function` of a module that the other interpreter can import.
            num_envs: Number of rows.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            python: Path of the other interpreter.
            server: Address of a server on another machine, `HOST:PORT`, instead of `python`; or
                several, which share the rows.
            key: Path of the key file of `server`, which the file's owner alone may read.
            kwargs: Arguments of the environment or function whose names the adapter has itself.
            processes: Number of servers, or of processes of each `server`, which share the rows
                and step them at once.
            step_timeout: Seconds that an answer may take before the server is ended and an
                `EnvError` is raised; None for no limit.
            options: Options of the adapter, and arguments of the environment or function.

        Raises:
            AdapterError: If there is no such interpreter or environment, or it cannot be hosted.
            EnvError: If the environment fails while it is made.

        """
        from .client import start
        from .tasks import RemoteTask

        num_envs, horizon = check_sizes(cls.__name__, num_envs, horizon)
        given: dict[str, Any] = {"python": python, "server": server, "key": key, "kwargs": kwargs}
        given |= {"processes": processes, "step_timeout": step_timeout}
        given = check_options(cls.make, given, cls.__name__)
        servers = [server] if isinstance(server, str) else [*(server or [])]
        if (python is None) is not bool(servers):
            raise AdapterError(_NO_PYTHON if python is None else _BOTH)
        if bool(servers) is (key is None):
            raise AdapterError("`server` and `key`, the path of its key file, go together.")
        own = pop_options(IsaacGymEnv, options) | pop_options(GymnasiumEnv, options)
        env = start(
            os.path.expanduser(python or ""),
            name,
            num_envs,
            {**options, **(kwargs or {})},
            processes=given["processes"],
            step_timeout=given["step_timeout"],
            servers=servers,
            key=None if key is None else os.path.expanduser(key),
            device=device,
        )
        kind: type[Env] = cls
        parent: type[Env] = GymnasiumEnv
        if isinstance(env, RemoteTask):
            kind, parent = BridgeTaskEnv, IsaacGymEnv
            env.extras_names = [own["final_obs_key"]] if own.get("final_obs_key") else []
        if unknown := set(own) - set(pop_options(parent, dict(own))):
            close_quietly(env)
            raise AdapterError(
                f"{env} has no option {', '.join(sorted(unknown))}; give an argument of the "
                "environment with this name in `kwargs`."
            )
        return wrap_or_close(kind, env, horizon, device=device, **own)

    @classmethod
    def examine(cls, python: str, /) -> dict[str, str]:
        """Versions of an interpreter, and of the libraries that it can host, or why it cannot.

        Raises:
            AdapterError: If it cannot run the server.

        """
        from .connection import examine

        return examine(os.path.expanduser(python))

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        return {**super().describe(), "limit": cast(Any, self.env).limit}
