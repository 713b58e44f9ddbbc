"""Libraries that may not be installed, and the construction of their environments."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from everstep.core.installation import install_command
from everstep.core.validation import unknown_name
from everstep.env import Env
from everstep.errors import AdapterError

from .calls import GONE, error_text

_Adapter = TypeVar("_Adapter", bound=Env)

#: Modules that register environments in Gymnasium when they are imported, by how their ids begin.
#: pip installs each by the same name.
_MODULES = {
    r"(MiniGrid|BabyAI)-": "minigrid",
    r"(exit|highway|intersection|merge|parking|racetrack|roundabout|u-turn)-": "highway_env",
    r"Panda(Flip|PickAndPlace|Push|Reach|Slide|Stack)": "panda_gym",
    r"Fetch(PickAndPlace|Push|Reach|Slide)": "gymnasium_robotics",
    r"(AdroitHand|HandManipulate|HandReach|FrankaKitchen-|(Ant|Point)Maze_)": "gymnasium_robotics",
    r"MiniWorld-": "miniworld",
}

#: Errors of `gymnasium.make_vec` for an id that is not registered, or whose module is missing.
_UNREGISTERED = ("NameNotFound", "ModuleNotFoundError")


def is_loaded_instance(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class of a module. Imports nothing.

    A module that was never imported has no instances.
    """
    return is_loaded_kind(value, module, name) and not isinstance(value, type)


def is_loaded_kind(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance or a subclass of a class of a module. Imports nothing."""
    kind = getattr(sys.modules.get(module), name, None)
    if not isinstance(kind, type):
        return False
    return isinstance(value, kind) or (isinstance(value, type) and issubclass(value, kind))


def require(module: str, name: str, advice: str) -> Any:
    """The object `name` of a module.

    Args:
        module: Module to import.
        name: Name in it.
        advice: Text of the error if that fails, such as `"… is needed: pip install …"`.

    Raises:
        AdapterError: If the module cannot be imported, or has no such name.

    """
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AdapterError(f"{advice} ({error})") from error


#: The usual games of ALE, by their names: they are known where ALE is not installed, too.
_GAMES = """
alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling
boxing breakout centipede chopper_command crazy_climber defender demon_attack double_dunk enduro
fishing_derby freeway frostbite gopher gravitar hero ice_hockey jamesbond kangaroo krull
kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix pitfall pong private_eye qbert
riverraid road_runner robotank seaquest skiing solaris space_invaders star_gunner surround tennis
time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
"""


def game_of(id: str) -> None | str:
    """ALE's name of the game of an id: `"ms_pacman"` for `"ALE/MsPacman-v5"` and `"mspacman"`."""
    found = re.fullmatch(r"(ALE/)?(\w+?)(NoFrameskip|Deterministic)?(-v\d+)?", id)
    if found is None:
        return None
    game = re.sub(r"(?<!^)(?=[A-Z])", "_", found[2]).lower()
    if found[1] or found[3]:
        return game
    bare = game.replace("_", "")
    return next((name for name in _GAMES.split() if name.replace("_", "") == bare), None)


def module_of(id: str) -> None | str:
    """The module that registers a Gymnasium id of a known library; None for other ids."""
    return next((name for start, name in _MODULES.items() if re.match(start, id)), None)


def _registration(name: str) -> None | str:
    """Advice on an id that is not registered, if the module that registers it is known."""
    module, _, id = name.rpartition(":")
    known = module_of(id)
    if known is None or module not in ("", known):
        return None
    is_installed = find_spec(known) is not None
    write = f"write 'gymnasium:{known}:{id}', so that the module {known} registers it"
    steps = [*([] if is_installed else [f"pip install {known}"]), *([] if module else [write])]
    return ", and ".join(steps)


#: Options of environments that are known by other names too.
_OPTIONS = ("max_episode_steps", "render_mode", "num_envs", "seed")


def _option_advice(text: str) -> str:
    """Arguments that a constructor was given too many, or too few, by the text of its error."""
    if unexpected := re.search(r"unexpected keyword argument '(\w+)'", text):
        unknown = unknown_name("option", unexpected[1], _OPTIONS)
        return f"{text.partition(': ')[2].removesuffix('.')}. `{unexpected[1]}`: {unknown}"
    if missing := re.search(r"(\w+)\.__init__\(\) missing [^:]*: ((?:'\w+'[, and]*)+)", text):
        names = re.findall(r"'(\w+)'", missing[2])
        options = ", ".join(f"'{name}': …" for name in names)
        return (
            f"arguments of {missing[1]}.__init__ are missing: {', '.join(names)}. Give them as "
            f"`env_kwargs={{{options}}}`"
        )
    return ""


@contextmanager
def creating(library: str, name: str) -> Iterator[None]:
    """A context in which a library makes the environment `name`.

    Raises:
        AdapterError: If it raises anything.

    """
    try:
        yield
    except Exception as error:  # the environment's constructor may raise anything
        reason = str(error) if isinstance(error, AdapterError) else error_text(error)
        if isinstance(error, GONE):
            reason = (
                "a worker ended while it started; what it printed says why. Workers that are "
                "spawned import the script again: let it start its work under "
                "`if __name__ == '__main__':`"
            )
        if library != "ALE" and (game := game_of(name)) is not None:
            reason += f". Everstep makes Atari games as 'ale:{game}' ({install_command('atari')})"
        elif isinstance(error, TypeError) and (option_advice := _option_advice(reason)):
            reason = option_advice
        elif type(error).__name__ in _UNREGISTERED and (advice := _registration(name)):
            reason = f"{reason.removesuffix('.')}. Way out: {advice}"
        raise AdapterError(f"{library} cannot make {name!r}: {reason}") from error


def wrap_or_close(adapter: type[_Adapter], env: Any, *args: Any, **options: Any) -> _Adapter:
    """`adapter(env, …)`; closes the environment if the adapter refuses it."""
    try:
        return adapter(env, *args, **options)
    except BaseException:
        close_quietly(env)
        raise


def close_quietly(env: Any) -> None:
    """Close what an error left open, if it can be closed, and let that error be the one raised."""
    with suppress(Exception):
        getattr(env, "close", lambda: None)()
