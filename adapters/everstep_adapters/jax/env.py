"""The environments that wrap functions of JAX."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tensordict import TensorDict

from everstep.core.validation import Integer, PositiveInt
from everstep.data import DataKeys, Device
from everstep.env.formats import EnvFormat
from everstep.errors import AdapterError, EnvError

from ..common.actions import ActionBounds, ActionCheck
from ..common.calls import error_text
from ..common.endings import FLAGS
from ..common.handoff import finish_reading
from ..common.libraries import (
    creating,
    is_loaded_instance,
    require,
    wrap_or_close,
)
from ..common.options import AdapterEnv, pop_options
from ..common.specs import describe_spec

# The folder's other modules import JAX, so this one imports them when an environment is wrapped.
if TYPE_CHECKING:
    from .source import Functions


class JaxEnv(AdapterEnv):
    """A batch of environments that are functions in JAX; the module says how they reset.

    On a GPU, observations are the program's own memory; on the host they are copied into rows.
    `float64` becomes PyTorch's default dtype. Observations that are trees of several arrays are a
    `Composite`. A vector step is one compiled call, and the first of each compiles it.

    Args:
        env: Environment of the library; gymnax's and Craftax's may be a pair with its parameters.
        horizon: Expected vector steps between resets.
        num_envs: Number of parallel environments.
        device: Device of actions and results; `None` is JAX's own.
        max_episode_steps: Env steps after which the adapter truncates an episode. Limits of the
            environment's own stay in force; that of Brax's and Playground's training is replaced.
        action_bounds: `"clip"` sends the nearest action inside the bounds; `"rescale"` maps [-1, 1]
            to them; `"auto"` rescales if a dimension has two, so that the first random actions are
            spread over what is allowed, whatever its unit.
        params: Parameters of gymnax's and Craftax's environments; `None` for their defaults.

    Raises:
        AdapterError: If the adapter cannot represent the environment, or `num_envs` is missing.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ()

    #: Number of environments that `num_envs="auto"` makes.
    default_num_envs: ClassVar[int] = 64

    #: Vector steps that `horizon="auto"` means.
    default_horizon: ClassVar[int] = 128

    #: See `everstep.env.Env`.
    resets_rows: ClassVar[bool] = True

    has_cpus: ClassVar[bool] = True

    #: Name of the library in `describe`.
    family: ClassVar[str] = "JAX"

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]]

    #: Modules and names of the classes that are wrapped.
    kinds: ClassVar[tuple[tuple[str, str], ...]] = ()

    #: The wrapped environment: one, of which there are `num_envs`.
    env: Any

    episode_keys = FLAGS | {DataKeys.FINAL_OBS}

    def __init__(
        self,
        env: Any,
        /,
        horizon: None | int = None,
        *,
        num_envs: None | Integer = None,
        device: None | Device = None,
        max_episode_steps: None | PositiveInt = None,
        action_bounds: ActionBounds = "auto",
        params: Any = None,
    ) -> None:
        if isinstance(env, tuple):
            env, params = env
        if not self.matches(env):
            raise AdapterError(
                f"`env` must be an environment of {self.family}; got {type(env).__name__}."
            )
        require("jax", "jit", "JAX is needed: pip install jax")
        import jax

        from . import actions, devices, program, rows, specs, state

        if num_envs is None:
            raise AdapterError(
                f"{self.family}'s environments are functions of one environment, of which there "
                "can be any number: pass `num_envs`, as in `everstep.wrap(env, num_envs=64)`."
            )
        self._functions = functions = self._read(env, params)
        self._own = devices.choose(device)
        self._jax_device = devices.to_torch(self._own)
        on_device = self._jax_device if device is None else torch.device(device)
        super().__init__(num_envs, horizon, device=str(on_device))
        self.env, self.params = env, params
        limit = functions.limit if max_episode_steps is None else max_episode_steps
        #: Env steps of an episode at most, of the adapter's limit and the environment's own.
        self.max_episode_steps = min(filter(None, (limit, functions.own_limit)), default=None)
        self._limit = limit
        own_device = self._jax_device
        self._actions = actions.Actions(
            functions.action, num_envs, on_device, own_device, action_bounds
        )
        self.action_spec = self._actions.spec
        self._check_action = ActionCheck(num_envs, self.action_spec)
        self._program = program.Program(functions, num_envs, limit, *self._actions.ends)
        self._state, self._jax = state, jax
        self._observations = specs.Observations(self._program.obs, on_device, type(env).__name__)
        self._rows = rows.Rows(
            self._program.packing, self._observations, num_envs, own_device, on_device
        )
        self.observation_spec = self._observations.spec
        self.env_format = EnvFormat(self._observations.forms, (self._actions.form,))
        self._key: Any = None
        self._carry: Any = None
        self._is_closed = False

    # ---- what a library says -------------------------------------------------------------------

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        """The functions of an environment of the library."""
        raise NotImplementedError

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        """An environment of the library by name; a pair with its parameters if it has some."""
        raise NotImplementedError

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` is an environment of the library, or a pair of one and its parameters."""
        if isinstance(env, tuple):
            return len(env) == 2 and cls.matches(env[0])
        return any(is_loaded_instance(env, *kind) for kind in cls.kinds)

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """Whether a function that returned this object makes environments here."""
        return cls.matches(source)

    @classmethod
    def make(
        cls,
        name: str | Callable[[], Any],
        num_envs: int,
        /,
        *,
        horizon: None | int = None,
        device: Device = "cpu",
        **kwargs: Any,
    ) -> "JaxEnv":
        """New environments, made by the library and wrapped.

        Args:
            name: The library's name of it, or a function that makes one.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            kwargs: Options of the adapter; others go to the library's constructor.

        Raises:
            AdapterError: If it cannot be made, or the adapter cannot represent it.

        """
        options = pop_options(cls, kwargs)
        require(cls.library[0], "__name__", cls.library[1])
        with creating(cls.family, getattr(name, "__name__", str(name))):
            env = name(**kwargs) if callable(name) else cls._make_one(name, **kwargs)
        options |= {"num_envs": num_envs, "device": device}
        return wrap_or_close(cls, env, horizon, **options)

    # ---- vector steps ----------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Seed the next reset; later ones continue from its key."""
        self._key = self._jax.random.PRNGKey(seed)

    def reset(self, *, config: None | dict[str, Any] = None) -> torch.Tensor | TensorDict:
        """Initial observations `[num_envs, …]` after resetting every environment.

        Without a seed the first key is drawn from PyTorch's generator.

        Args:
            config: None, or empty: these environments take no options in a reset.

        Raises:
            AdapterError: If there are options.

        """
        if config:
            raise AdapterError(
                f"{self.family}'s environments take no options in a reset; got "
                f"{', '.join(config)}. Give parameters to the environment."
            )
        finish_reading(self._jax_device)
        key, self._key = self._key, None
        if key is None and self._carry is not None:
            key = self._program.restore(self._carry).key
        if key is None:
            key = self._jax.random.PRNGKey(int(torch.randint(2**31 - 1, ())))
        # What a key was put on, all that is computed with it is on, too.
        key = self._jax.device_put(key, self._own)
        self._carry, obs = self._call("reset", self._program.start, key)
        return self._observations.read(obs)

    def step(self, action: torch.Tensor | TensorDict) -> TensorDict:
        """The row of a vector step: `obs`, `rewards` and the episode keys; see the module.

        Args:
            action: Actions `[num_envs, *action_spec.shape]`, integers or floating point as the
                spec has it. Never written to.

        Raises:
            AdapterError: If the action has another shape or kind of dtype.
            EnvError: If it was not reset, or the environment fails.

        """
        if self._carry is None:
            raise EnvError(f"{type(self.env).__name__} was not reset: call `reset` before `step`.")
        sent = self._actions.send(self._check_action(action))
        self._carry, results = self._call("step", self._program.advance, self._carry, sent)
        return self._rows.read(results)

    def reset_rows(self, rows: torch.Tensor) -> torch.Tensor | TensorDict:
        """Observations after resetting rows now.

        Args:
            rows: Rows bool `[num_envs, 1]`. Only their observations are meaningful.

        Raises:
            EnvError: If it was not reset, or the environment fails.

        """
        if self._carry is None:
            raise EnvError(f"{type(self.env).__name__} was not reset: call `reset` before.")
        finish_reading(self._jax_device)
        mask = self._jax.device_put(rows.reshape(-1).numpy(force=True), self._own)
        self._carry, obs = self._call("reset", self._program.reset_rows, self._carry, mask)
        return self._observations.read(obs)

    def _call(self, method: str, function: Any, *args: Any) -> Any:
        if self._is_closed:
            raise EnvError(f"{type(self.env).__name__} was closed. Make a new one.")
        try:
            return function(*args)
        except Exception as error:  # the environment's code may raise anything while it is traced
            reason = str(error) if isinstance(error, EnvError) else error_text(error)
            raise EnvError(f"{type(self.env).__name__} failed in `{method}`: {reason}") from error

    # ---- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Keys, states and counts of the environments, from which they continue exactly."""
        finish_reading(self._jax_device)
        to_tensors, restore = self._state.to_tensors, self._program.restore
        return {
            "carry": None if self._carry is None else to_tensors(restore(self._carry)),
            "key": None if self._key is None else to_tensors(self._key),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            CheckpointError: If it is that of another environment; then nothing is changed.

        """
        finish_reading(self._jax_device)
        like = self._jax.eval_shape(self._jax.random.PRNGKey, 0)
        read = partial(self._state.from_tensors, self._jax, name=type(self.env).__name__)
        carry = None
        if state["carry"] is not None:
            carry = read(state["carry"], self._program.carry)
            carry = self._program.hold(self._jax.device_put(carry, self._own))
        key = None if state["key"] is None else read(state["key"], like)
        self._carry, self._key = carry, key

    # ---- the rest --------------------------------------------------------------------------------

    def describe(self) -> dict[str, str]:
        """Detected properties, one short line each."""
        limit = "" if self._limit is None else f"; {self._limit} env steps, counted by the adapter"
        copies = "one copy into rows of host memory"
        if self._jax_device.type != "cpu":
            copies = "the program's own memory, by DLPack"
        if torch.device(self.device).type != self._jax_device.type:
            copies += f", then from {self._jax_device} to {self.device}, actions back"
        return {
            "family": f"{self.family}, in JAX {self._jax.__version__}",
            "environment": type(self.env).__name__,
            "num_envs": str(self.num_envs),
            "observation": describe_spec(self.observation_spec),
            "action": describe_spec(self.action_spec),
            "resets": "in the env step that ends an episode, in the same compiled call",
            "final observations": "what the env step returned before the reset",
            "limit": f"the environment's own: {self._functions.clock}{limit}",
            "hand-off": copies,
            "seeding": "the next reset; its key is split for all that follows",
        }

    def close(self) -> None:
        """Forget the states; later calls are errors."""
        self._carry, self._is_closed = None, True

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.env).__name__}, num_envs={self.num_envs}, "
            f"horizon={self.horizon}, device={str(self.device)!r})"
        )


# ---- one class a library: which objects it wraps, and how it makes them by name ---------------


class GymnaxEnv(JaxEnv):
    """gymnax's environments; see `JaxEnv`."""

    family = "gymnax"
    libraries = ("gymnax",)
    library = ("gymnax", "gymnax is needed: pip install gymnax six")
    kinds: ClassVar[tuple[tuple[str, str], ...]] = (
        ("gymnax.environments.environment", "Environment"),
    )

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        from .source import of_gymnax

        return of_gymnax(env, params)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from gymnax import make

        return make(name, **kwargs)


class CraftaxEnv(GymnaxEnv):
    """Craftax's environments; see `JaxEnv`."""

    family = "Craftax"
    libraries = ("craftax",)
    library = ("craftax", "Craftax is needed: pip install craftax")
    kinds: ClassVar[tuple[tuple[str, str], ...]] = (
        ("craftax.environment_base.environment_bases", "EnvironmentAutoReset"),
        ("craftax.environment_base.environment_bases", "EnvironmentNoAutoReset"),
    )

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from craftax.craftax_env import make_craftax_env_from_name

        return make_craftax_env_from_name(name, auto_reset=False, **kwargs)


class BraxEnv(JaxEnv):
    """Brax's environments; see `JaxEnv`."""

    family = "Brax"
    libraries = ("brax",)
    library = ("brax", "Brax is needed: pip install brax")
    kinds = (("brax.envs.base", "Env"),)

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        from .source import of_brax

        return of_brax(env)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from brax.envs import get_environment

        return get_environment(name, **kwargs)


class PlaygroundEnv(BraxEnv):
    """MuJoCo Playground's environments; see `JaxEnv`."""

    family = "MuJoCo Playground"
    libraries = ("mujoco_playground",)
    library = ("mujoco_playground", "MuJoCo Playground is needed: pip install playground")
    kinds = (("mujoco_playground._src.mjx_env", "MjxEnv"),)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from mujoco_playground import registry

        return registry.load(name, **kwargs)


class JumanjiEnv(JaxEnv):
    """Jumanji's environments; see `JaxEnv`."""

    family = "Jumanji"
    libraries = ("jumanji",)
    library = ("jumanji", "Jumanji is needed: pip install jumanji")
    kinds = (("jumanji.env", "Environment"),)

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        from .source import of_jumanji

        return of_jumanji(env)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from jumanji import make

        return make(name, **kwargs)
