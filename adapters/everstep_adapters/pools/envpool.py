"""The environment that wraps EnvPool's pools."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from everstep.core.installation import install_command
from everstep.data import Device
from everstep.errors import AdapterError

from ..common.libraries import (
    close_quietly,
    creating,
    is_loaded_instance,
    require,
    wrap_or_close,
)
from ..common.options import inheriting_options, pop_options
from ..common.pools import PoolCalls, check_batch_size, is_envpool
from ..gymnasium import GymnasiumEnv

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

_NEEDED = f"EnvPool is needed: {install_command('envpool')}"


class EnvPoolEnv(GymnasiumEnv):
    """A pool of `envpool.make_gymnasium` as an Everstep environment.

    The seed of a pool is an option of its constructor. `seed` therefore makes a new pool at the
    next reset, with the same options; a pool that was made elsewhere and wrapped keeps its seed.

    Args:
        env: Pool with Gymnasium's interface, perhaps in wrappers.
        horizon: Expected vector steps between resets.
        device: Device of actions and results.
        options: As `GymnasiumEnv` has them.

    Raises:
        AdapterError: If the pool returns some of its rows in a vector step, has several players in
            an environment, or a space without tensors.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("envpool",)

    #: Number of environments that `num_envs="auto"` makes: more learn less from a small budget.
    default_num_envs: ClassVar[int] = 8

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "EnvPool"

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]] = ("envpool", _NEEDED)

    #: Effect of `seed` in `describe`.
    seeding: ClassVar[str] = "the next reset makes a new pool, if it was made here"

    @inheriting_options(GymnasiumEnv)
    def __init__(
        self,
        env: "VectorEnv[Any, Any, Any]",
        /,
        horizon: None | int = None,
        *,
        device: Device = "cpu",
        **options: Any,
    ) -> None:
        if not is_envpool(env):
            received = f"`env` must come from `envpool.make_gymnasium`; got {type(env).__name__}."
            raise AdapterError(f"{received} {self.suggest(env)}".strip())
        config = cast(Any, env.unwrapped).spec.config
        check_batch_size(env, config.batch_size)
        if config.max_num_players > 1:
            raise AdapterError(
                f"{type(env.unwrapped).__name__} has up to {config.max_num_players} players in an "
                "environment, whose number changes; only environments of one player have a row "
                "each."
            )
        _make_spaces(env)
        super().__init__(env, horizon, device=device, **options)
        self.max_episode_steps = config.max_episode_steps
        self._make_pool: None | Callable[[int], Any] = None
        assert isinstance(self._calls, PoolCalls)
        self._calls.remake = self._remake

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` is a pool with Gymnasium's interface. Imports nothing."""
        return is_envpool(env)

    @classmethod
    def suggest(cls, env: object, /) -> str:
        """Advice for a pool with another interface; empty for others."""
        if not is_loaded_instance(env, "envpool.python.envpool", "EnvPoolMixin"):
            return ""
        return "EnvPool makes the same pool with the right interface: `envpool.make_gymnasium`."

    @classmethod
    def find(cls, name: str, /) -> list[str]:
        """Nothing: ids that EnvPool shares with Gymnasium need the prefix."""
        return []

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """False: pools have names."""
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
        **kwargs: Any,
    ) -> "EnvPoolEnv":
        """A new pool, made by `envpool.make_gymnasium` and wrapped.

        Args:
            name: Task, such as `"HalfCheetah-v4"` or `"Pong-v5"`.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            kwargs: Options of `GymnasiumEnv`, but for `max_episode_steps`, which the pool counts;
                others are the pool's, such as `seed` or `num_threads`.

        Raises:
            AdapterError: If EnvPool cannot make it, or the adapter cannot represent it.

        """
        make_gymnasium = require("envpool", "make_gymnasium", _NEEDED)
        of_pool = {key: kwargs[key] for key in ("max_episode_steps",) if key in kwargs}
        options = pop_options(cls, kwargs)
        options.pop("max_episode_steps", None)
        kwargs |= of_pool

        def make_pool(**seed: int) -> "VectorEnv[Any, Any, Any]":
            with creating("EnvPool", name):
                pool = make_gymnasium(name, **{**kwargs, "num_envs": num_envs, **seed})
            try:
                _make_spaces(pool)
            except BaseException:
                close_quietly(pool)
                raise
            return cast("VectorEnv[Any, Any, Any]", pool)

        env = wrap_or_close(cls, make_pool(), horizon, device=device, **options)
        env._make_pool = lambda seed: make_pool(seed=seed)
        return env

    def _remake(self, seed: int) -> "VectorEnv[Any, Any, Any]":
        """A new pool with that seed; the same pool if it was made elsewhere."""
        if self._make_pool is not None:
            pool, self.env = self.env, self._make_pool(seed)
            pool.close()
        else:
            warnings.warn(
                f"{type(self.env).__name__} keeps the seed that it was made with. Pass `seed` to "
                "`envpool.make_gymnasium`, or let `everstep.make('envpool:…', …)` make the pool.",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.env


def _make_spaces(env: "VectorEnv[Any, Any, Any]") -> None:
    """Make a pool's spaces, which it caches, without Gymnasium's warnings and with its bounds.

    EnvPool writes its bounds in float64, whatever the dtype of its spaces, and C++'s smallest
    positive number, `numeric_limits<T>::min()`, for no lower bound.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        inner: Any = env.unwrapped
        _forget_bounds(inner.observation_space)
        _ = env.observation_space, env.action_space


def _forget_bounds(space: Any) -> None:
    """Make the bounds of a space infinite where they are the smallest and the largest number."""
    for child in getattr(space, "spaces", {}).values():
        _forget_bounds(child)
    if space.dtype is None or space.dtype.kind != "f":
        return
    none = np.zeros(space.shape, np.bool_)
    for dtype in (np.float32, np.float64):
        facts = np.finfo(dtype)
        none |= (space.low == facts.tiny) & (space.high >= facts.max)
    space.low, space.high = np.where(none, -np.inf, space.low), np.where(none, np.inf, space.high)
