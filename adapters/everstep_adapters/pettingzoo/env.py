"""The environment that wraps PettingZoo's."""

import difflib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from tensordict import TensorDict

from everstep.core.names import check_module
from everstep.data import DataKeys, Device
from everstep.env.agents import AgentSpec, AllAgents
from everstep.errors import AdapterError, ConfigError

from ..common.autoreset import parse_mode
from ..common.independence import check_independent
from ..common.libraries import (
    close_quietly,
    creating,
    is_loaded_instance,
    is_loaded_kind,
    require,
)
from ..common.options import inheriting_options, pop_options
from ..gymnasium import GymnasiumEnv

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

_NEEDED = "PettingZoo is needed: pip install pettingzoo"

#: Module and names of the base classes, of agents that act at once and of those that take turns.
_MODULE, _PARALLEL, _TURNS = "pettingzoo.utils.env", "ParallelEnv", "AECEnv"

#: PettingZoo's own packages, whose names may stand without `pettingzoo.`.
_OWN = {"atari", "butterfly", "classic", "mpe", "sisl"}


class PettingZooEnv(GymnasiumEnv):
    """Agents of PettingZoo environments as the rows of one Everstep environment.

    Args:
        env: A parallel environment, one of turns that can be made parallel, or a list of several
            of one kind. `close` closes them.
        horizon: Expected vector steps between resets.
        device: Device of actions and results.
        agents: Agents that the policy controls: names, or the part of their names before the
            number, such as `"adversary"`; None for all. The others act at random. If their spaces
            differ, `policies` of the training must be `"group"`, `"agent"`, or groups.
        all_agents: Whether the observation has a leaf `all_agents` too, with the observations of
            the environment's rows one after the other: for values that see what all agents see.
        autoreset_mode: None or SAME_STEP.
        options: As `GymnasiumEnv` has them.

    Raises:
        AdapterError: If the adapter cannot represent the environments.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("pettingzoo", "supersuit")

    #: Number of rows that `num_envs="auto"` makes.
    default_num_envs: ClassVar[int] = 32

    #: Vector steps that `horizon="auto"` means.
    default_horizon: ClassVar[int | tuple[int, int]] = 256

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "PettingZoo"

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]] = ("pettingzoo", _NEEDED)

    #: Effect of `seed` in `describe`.
    seeding: ClassVar[str] = "the next reset; environment i gets seed + i"

    own_episode_keys: ClassVar[frozenset[str]] = frozenset({DataKeys.VALID})

    @inheriting_options(GymnasiumEnv)
    def __init__(
        self,
        env: Any,
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        agents: None | str | Sequence[str] = None,
        all_agents: bool = False,
        autoreset_mode: "None | str | AutoresetMode" = None,
        **options: Any,
    ) -> None:
        if not self.matches(env):
            raise AdapterError(
                "`env` must be a PettingZoo environment or a list of several; got "
                f"{type(env).__name__}."
            )
        require("gymnasium.vector", "AutoresetMode", "Gymnasium is needed")
        if autoreset_mode is not None and parse_mode(autoreset_mode).name != "SAME_STEP":
            raise AdapterError(
                "`autoreset_mode` of PettingZoo's environments is 'SAME_STEP': one is reset in the "
                f"env step in which the last of its agents ended; got {autoreset_mode!r}. Leave it "
                "out."
            )
        if (limit := options.get("max_episode_steps")) is not None:
            raise AdapterError(
                "`max_episode_steps` of PettingZoo's environments is their own: the agents of one "
                f"are reset together; got {limit!r}. Give the limit to the environment's "
                f"constructor, where many call it `max_cycles`, as in `max_cycles={limit!r}`."
            )
        from .agents import check_alike, controlled
        from .vector import AgentsVectorEnv

        envs = [_parallel(x) for x in (env if isinstance(env, list | tuple) else [env])]
        check_independent(envs, "`env`")
        names = controlled(envs[0], agents)
        check_alike(envs, names)
        self._vector = AgentsVectorEnv(envs, names)
        bounds = options.get("action_bounds", "auto")
        if bounds in ("auto", "rescale") and (odd := self._vector.other_bounds()):
            if bounds == "rescale":
                raise AdapterError(
                    "`action_bounds='rescale'` needs agents whose actions have equal bounds; those "
                    f"of {odd[0]} are {odd[1]}, and those of all "
                    f"{self._vector.single_action_space}. Use 'clip'."
                )
            options["action_bounds"] = "clip"
        super().__init__(self._vector, horizon, device=device, **options)
        #: Specs of each agent, if they differ; see `everstep.env.Env`.
        self.agent_specs: None | dict[str, AgentSpec] = None
        if (spaces := self._vector.own_spaces) is not None:
            self.agent_specs = {agent: self._specs_of(*pair) for agent, pair in spaces.items()}
        self._everybody: None | AllAgents = None
        if all_agents:
            form = self.env_format
            self._everybody = AllAgents(self.observation_spec, form, len(self._vector.agents))
            self.observation_spec = self._everybody.spec
            self.env_format = self._everybody.env_format
            for agent, own in (self.agent_specs or {}).items():
                self.agent_specs[agent] = self._everybody.around(own)  # type: ignore[index]

    @classmethod
    def matches(cls, env: Any, /) -> bool:
        """Whether `env` is one of PettingZoo's environments, or a list of them. Imports nothing."""
        envs = env if isinstance(env, list | tuple) else [env]
        kinds = _PARALLEL, _TURNS
        return bool(envs) and all(
            any(is_loaded_instance(x, _MODULE, kind) for kind in kinds) for x in envs
        )

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """Nothing: Gymnasium's adapter advises."""
        return ""

    @classmethod
    def find(cls, name: str, /) -> list[str]:
        """Nothing: names are those of modules."""
        return []

    @classmethod
    def module_of(cls, name: str, /) -> str:
        """The module of an environment; empty for PettingZoo's own."""
        return "" if name.partition(".")[0] in _OWN else name.replace(":", ".")

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """Whether this is a class of PettingZoo environments, or one of them. Imports nothing."""
        return any(is_loaded_kind(source, _MODULE, kind) for kind in (_PARALLEL, _TURNS))

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
    ) -> "PettingZooEnv":
        """A new environment of copies of a PettingZoo environment.

        Args:
            name: Module of the environment, such as `"mpe2.simple_spread_v3"` or
                `"sisl.pursuit_v5"` (of PettingZoo's own); or a class or function that makes one.
            num_envs: Number of rows, so of environments times agents; rounded up to whole
                environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            kwargs: Options of `PettingZooEnv`; others go to each environment's constructor.

        Raises:
            AdapterError: If it cannot be made, or the adapter cannot represent it.

        """
        options = pop_options(cls, kwargs)
        make_one = _maker(name) if isinstance(name, str) else name
        envs: list[Any] = []
        with ExitStack() as on_error:
            rows = num_envs
            while len(envs) * rows < num_envs or not envs:
                with creating("PettingZoo", getattr(name, "__name__", str(name))):
                    envs.append(make_one(**kwargs))
                on_error.callback(close_quietly, envs[-1])
                if len(envs) == 1:
                    rows = cls(envs[0], device=device, **options).num_envs
            env = cls(envs, horizon, device=device, **options)
            on_error.pop_all()
        return env

    @property
    def rows_per_env(self) -> int:
        """Number of rows of each environment: of agents that the policy controls."""
        return len(self._vector.agents)

    @property
    def agents(self) -> list[str]:
        """Names of the agents that are the rows of each environment."""
        return self._vector.agents

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]`; see `GymnasiumEnv.reset`."""
        obs = super().reset(config=config)
        return obs if self._everybody is None else self._everybody.extended(obs, obs)

    def _end(self, row: Any, observation: Any, infos: dict[str, Any]) -> None:
        """Write the ends of agents' episodes, and who acted: agents join and leave meanwhile."""
        super()._end(row, observation, infos)
        row.first[...], row.valid[...] = self._vector.first, self._vector.valid

    def _rows(self, returned: tuple[Any, Any, Any, Any, dict[str, Any]]) -> TensorDict:
        """The row of a vector step; see the module."""
        row = super()._rows(returned)
        if self._everybody is not None:
            row = row.copy()
            self._everybody.extend(row)
        return row

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        return {
            **super().describe(),
            "agents": ", ".join(self._vector.agents),
            "resets": "in the env step in which the last agent of an environment ended",
            "final observations": "the last observation of each agent",
        }


def _maker(name: str) -> Callable[..., Any]:
    """The function that makes an environment of a module, the parallel one if there is one.

    Raises:
        AdapterError: If there is no such module, or it makes no environments.

    """
    for path in _paths(name):
        try:
            check_module(path)
            module = import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise AdapterError(f"{path} cannot be imported: {error}.") from error
            continue
        except ConfigError as error:
            raise AdapterError(f"{name!r}: {error}.") from None
        for function in ("parallel_env", "env"):
            if callable(made := getattr(module, function, None)):
                return cast(Callable[..., Any], made)
        raise AdapterError(
            f"{path} has no `parallel_env` and no `env`, as PettingZoo's modules do."
        )
    near = " or ".join(map(repr, _near(name)))
    raise AdapterError(
        f"There is no module {name} or pettingzoo.{name}. "
        + (f"Did you mean {near}? " if near else "")
        + "An environment is the name of its module, such as 'mpe2.simple_spread_v3' (pip install "
        "mpe2) or 'sisl.pursuit_v5'."
    )


def _paths(name: str) -> list[str]:
    """Modules that a name may mean: PettingZoo's own packages are not looked for elsewhere."""
    own = f"pettingzoo.{name}"
    return [own] if name.partition(".")[0] in _OWN else [name, own]


def _near(name: str) -> list[str]:
    """Modules of the same package with similar names, such as other versions."""
    package, _, last = name.rpartition(".")
    for path in _paths(package):
        with suppress(ImportError, ValueError):
            known = [x.name for x in iter_modules(import_module(path).__path__)]
            near = difflib.get_close_matches(last, [x for x in known if "_v" in x])
            return [f"{package}.{x}" for x in near]
    return []


def _parallel(env: Any) -> Any:
    """An environment in which agents act at once."""
    if not is_loaded_instance(env, _MODULE, _TURNS):
        return env
    try:
        return require("pettingzoo.utils", "aec_to_parallel", _NEEDED)(env)
    except AssertionError as error:
        raise AdapterError(
            f"Agents of {env} take turns, and it cannot be made parallel: {error}. Every agent "
            "has to act in every vector step."
        ) from error
