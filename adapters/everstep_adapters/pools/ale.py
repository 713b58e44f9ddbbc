"""The environment that wraps ALE's vector environments."""

import sys
from typing import TYPE_CHECKING, Any, ClassVar, cast

from everstep.core.installation import install_command
from everstep.data import Device
from everstep.errors import AdapterError

from ..common.autoreset import parse_mode
from ..common.libraries import (
    creating,
    game_of,
    require,
    wrap_or_close,
)
from ..common.options import inheriting_options, pop_options
from ..common.pools import check_batch_size, is_ale
from ..gymnasium import GymnasiumEnv

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode, VectorEnv

_NEEDED = f"ale-py 0.11 is needed: {install_command('atari')}"


class ALEEnv(GymnasiumEnv):
    """An `ale_py.vector_env.AtariVectorEnv` as an Everstep environment.

    Args:
        env: Vector environment of one game, perhaps in wrappers.
        horizon: Expected vector steps between resets.
        device: Device of actions and results.
        options: As `GymnasiumEnv` has them; `action_bounds` are of continuous actions.

    Raises:
        AdapterError: If it returns some of its rows in a vector step, or its games have no action
            space in common.

    """

    #: Modules of the library, whose classes a run from elsewhere may name.
    libraries: ClassVar[tuple[str, ...]] = ("ale_py",)

    #: Number of environments that `num_envs="auto"` makes: threads step them.
    default_num_envs: ClassVar[int] = 16

    #: Vector steps that `horizon="auto"` means.
    default_horizon: ClassVar[int | tuple[int, int]] = 128

    #: Name of the environment type in `describe`.
    family: ClassVar[str] = "ALE"

    #: Module of the library, and how to install it.
    library: ClassVar[tuple[str, str]] = ("ale_py", _NEEDED)

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
        if not is_ale(env):
            raise AdapterError(
                f"`env` must be an `ale_py.vector_env.AtariVectorEnv`; got {type(env).__name__}."
            )
        if env.single_action_space is None:
            raise AdapterError(
                f"{env} plays games that have no action space in common. Make it with "
                "`full_action_space=True`, or an environment for each game."
            )
        check_batch_size(env, cast(Any, env.unwrapped).batch_size)
        super().__init__(env, horizon, device=device, **options)

    @classmethod
    def matches(cls, env: object, /) -> bool:
        """Whether `env` is ALE's vector environment. Imports nothing."""
        return is_ale(env)

    @classmethod
    def find(cls, name: str, /) -> list[str]:
        """The game of a name or Gymnasium id, `"ms_pacman"` for `"ALE/MsPacman-v5"`, if any."""
        game = game_of(name)
        is_taken = name in getattr(sys.modules.get("gymnasium"), "registry", ())
        return [] if game is None or is_taken else [game]

    @classmethod
    def makes(cls, source: object, /) -> bool:
        """False: games have names."""
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
        autoreset_mode: "str | AutoresetMode" = "NEXT_STEP",
        **kwargs: Any,
    ) -> "ALEEnv":
        """A new vector environment of a game.

        Args:
            name: Game as ALE spells it, such as `"pong"` or `"ms_pacman"`.
            num_envs: Number of parallel environments.
            horizon: Expected vector steps between resets.
            device: Device of actions and results.
            autoreset_mode: `"NEXT_STEP"` or `"SAME_STEP"`.
            kwargs: Options of `GymnasiumEnv`; others go to `AtariVectorEnv`, such as `frameskip`
                or `episodic_life`.

        Raises:
            AdapterError: If ALE cannot make it, or the adapter cannot represent it.

        """
        mode, options = parse_mode(autoreset_mode), pop_options(cls, kwargs)
        if kwargs.get("life_loss_info") and mode.name != "SAME_STEP":
            raise AdapterError(
                "`life_loss_info` ends an episode with each life and resets nothing, so no env "
                "step after it is a reset. Pass `autoreset_mode='SAME_STEP'`, in which the next "
                "episode begins at once, or use `episodic_life`."
            )
        with creating("ALE", name):
            env = _make_vector_env(name, num_envs, autoreset_mode=mode, **kwargs)
        return wrap_or_close(cls, env, horizon, device=device, **options)


def _make_vector_env(name: str, num_envs: int, **kwargs: Any) -> "VectorEnv[Any, Any, Any]":
    """A new vector environment with metadata of its own.

    Its constructor writes its mode into the metadata that all classes without their own share,
    which would then hold for other environments, too.
    """
    from gymnasium.vector import VectorEnv

    shared = dict(VectorEnv.metadata)
    try:
        env: VectorEnv[Any, Any, Any] = require("ale_py.vector_env", "AtariVectorEnv", _NEEDED)(
            name, num_envs, **kwargs
        )
        env.metadata = dict(env.metadata)
    finally:
        VectorEnv.metadata.clear()
        VectorEnv.metadata.update(shared)
    return env
