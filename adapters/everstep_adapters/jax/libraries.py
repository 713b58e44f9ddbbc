"""One adapter a library: which objects it wraps, and how it makes them by name."""

from typing import TYPE_CHECKING, Any, ClassVar

from .env import JaxEnv

if TYPE_CHECKING:
    from .functions import Functions


class GymnaxEnv(JaxEnv):
    """gymnax's environments; see `JaxEnv`."""

    family = "gymnax"
    library = ("gymnax", "gymnax is needed: pip install gymnax")
    kinds: ClassVar[tuple[tuple[str, str], ...]] = (
        ("gymnax.environments.environment", "Environment"),
    )

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        from .functions import of_gymnax

        return of_gymnax(env, params)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from gymnax import make

        return make(name, **kwargs)


class CraftaxEnv(GymnaxEnv):
    """Craftax's environments; see `JaxEnv`."""

    family = "Craftax"
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
    library = ("brax", "Brax is needed: pip install brax")
    kinds = (("brax.envs.base", "Env"),)

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        from .functions import of_brax

        return of_brax(env)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from brax.envs import get_environment

        return get_environment(name, **kwargs)


class PlaygroundEnv(BraxEnv):
    """MuJoCo Playground's environments; see `JaxEnv`."""

    family = "MuJoCo Playground"
    library = ("mujoco_playground", "MuJoCo Playground is needed: pip install playground")
    kinds = (("mujoco_playground._src.mjx_env", "MjxEnv"),)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from mujoco_playground import registry

        return registry.load(name, **kwargs)


class JumanjiEnv(JaxEnv):
    """Jumanji's environments; see `JaxEnv`."""

    family = "Jumanji"
    library = ("jumanji", "Jumanji is needed: pip install jumanji")
    kinds = (("jumanji.env", "Environment"),)

    @classmethod
    def _read(cls, env: Any, params: Any) -> "Functions":
        from .functions import of_jumanji

        return of_jumanji(env)

    @classmethod
    def _make_one(cls, name: str, **kwargs: Any) -> Any:
        from jumanji import make

        return make(name, **kwargs)
