"""Vector environments as `GymnasiumEnv.make` makes them."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium import make_vec, registry
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from everstep.errors import AdapterError

from ..common.autoreset import parse_mode
from ..common.libraries import creating, module_of
from ..common.options import pop_options
from .modes import AnyVectorEnv
from .wrappers import load_wrappers, start_method

#: Options that an environment with a vector entry point of its own does not take.
_NEEDS_SYNC = ("autoreset_mode", "max_episode_steps", "render_mode", "wrappers", "vector_kwargs")


def find_ids(name: str) -> list[str]:
    """`[name]` if it is a registered id, else the ids that it may mean."""
    if name in registry:
        return [name]
    if (module := module_of(name)) is not None:
        return [f"{module}:{name}"]
    by_lower = {text: id for id in registry for text in (id.lower(), id.lower().split("-v")[0])}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return [by_lower[text] for text in near]


def make_vector(
    adapter: Any, name: Any, num_envs: int, kwargs: dict[str, Any]
) -> tuple[AnyVectorEnv, dict[str, Any]]:
    """A vector environment, and the options of the adapter that wraps it.

    Args:
        adapter: Class of the adapter.
        name: Registered id, class or function, as `GymnasiumEnv.make` takes it.
        num_envs: Number of parallel environments.
        kwargs: Options of the adapter, of `gymnasium.make_vec` and of each environment.

    """
    if not isinstance(name, str):
        kwargs = {"vectorization_mode": "sync", **kwargs}
    options, made_with = _split_options(adapter, kwargs)
    with creating(adapter.family, getattr(name, "__name__", str(name))):
        if isinstance(name, str):
            source = _source(name, made_with.get("vectorization_mode"))
            return make_vec(source, num_envs=num_envs, **made_with), options
        return _make_copies(name, num_envs, **made_with), options


def _source(name: str, mode: Any) -> str | EnvSpec:
    """A registered environment for `make_vec`, with the arguments that it is registered with.

    `make_vec` takes those that have the name of an argument of its own, or of `make`, such as
    `max_episode_steps`, for that; `make` gives them to the constructor, and so does the result.
    """
    module, _, id = name.rpartition(":")
    if module:
        with suppress(ImportError):  # which `make_vec` explains
            importlib.import_module(module)
    spec = registry.get(id)
    if spec is None or "vector_entry_point" in (mode, getattr(mode, "value", None)):
        return name
    if mode is None and spec.vector_entry_point is not None:
        return name
    taken = {*inspect.signature(gymnasium.make).parameters, *inspect.signature(make_vec).parameters}
    own = {key: value for key, value in spec.kwargs.items() if key in taken}
    if not own:
        return name
    entry = spec.entry_point
    creator: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    bound: Any = partial(creator, **own)
    if hasattr(creator, "metadata"):
        bound.metadata = creator.metadata  # `make` reads the render modes there
    rest = {key: value for key, value in spec.kwargs.items() if key not in own}
    return replace(spec, entry_point=bound, kwargs=rest)


def _make_copies(
    make_one: Callable[..., Any],
    num_envs: int,
    vectorization_mode: Any,
    vector_kwargs: None | dict[str, Any] = None,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    max_episode_steps: None | int = None,
    **kwargs: Any,
) -> AnyVectorEnv:
    """A vector environment of copies; the adapter counts `max_episode_steps`."""
    mode = getattr(vectorization_mode, "value", vectorization_mode)
    vectorized = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}.get(mode)
    if vectorized is None:
        raise AdapterError(
            f"`vectorization_mode` of copies must be 'sync' or 'async'; got {vectorization_mode!r}."
        )

    def make() -> Any:
        env = make_one(**kwargs)
        for wrapper in wrappers or ():
            env = wrapper(env)
        check_spaces(env)
        return env

    return cast(AnyVectorEnv, vectorized([make] * num_envs, **(vector_kwargs or {})))


def check_spaces(env: Any) -> None:
    """Check that a single environment has its two spaces.

    Raises:
        AdapterError: Names the one that is missing, or is no space.

    """
    if not isinstance(env, gymnasium.Env):
        return
    for name, example in (
        ("observation_space", "Box(-1.0, 1.0, (3,))"),
        ("action_space", "Discrete(2)"),
    ):
        try:
            value: Any = getattr(env, name)
        except AttributeError as error:
            value = str(error)
        if isinstance(value, gymnasium.Space):
            continue
        is_wrapper = isinstance(env, gymnasium.Wrapper)
        calls = "call `super().__init__(env)` first, or " if is_wrapper else ""
        raise AdapterError(
            f"`{name}` of {type(env).__name__} must be a space of Gymnasium; got {value!r}. In its "
            f"constructor, {calls}set it, such as `self.{name} = gymnasium.spaces.{example}`."
        )


def _split_options(adapter: type, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the adapter, and keyword arguments of `gymnasium.make_vec`."""
    made_with = dict(kwargs)
    if made_with.get("wrappers"):
        made_with["wrappers"] = load_wrappers(made_with["wrappers"])
    options = pop_options(adapter, made_with)
    mode = options.pop("autoreset_mode", None)
    vectorized = made_with.get("vectorization_mode")
    if getattr(vectorized, "value", vectorized) == "async":
        made_with["vector_kwargs"] = start_method() | (made_with.get("vector_kwargs") or {})
    if vectorized is None and any(kwargs.get(key) is not None for key in _NEEDS_SYNC):
        vectorized = made_with["vectorization_mode"] = "sync"
    if getattr(vectorized, "value", vectorized) in ("sync", "async"):
        if mode is not None:
            vector_kwargs = made_with.get("vector_kwargs") or {}
            made_with["vector_kwargs"] = {**vector_kwargs, "autoreset_mode": parse_mode(mode)}
        if options.get("max_episode_steps") is not None:
            made_with["max_episode_steps"] = -1  # Gymnasium's value for no limit of its own
        return options, made_with
    # A class of the environment's own: it has one mode, and counts the limit itself.
    if mode is not None:
        options["autoreset_mode"] = mode
    if options.get("max_episode_steps") is not None:
        made_with["max_episode_steps"] = options.pop("max_episode_steps")
    return options, made_with
