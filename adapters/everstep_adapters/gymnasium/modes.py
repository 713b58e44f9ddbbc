"""Autoreset modes that vector environments declare, and what their classes are known to do."""

from typing import Any, NamedTuple, cast

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from everstep.errors import AdapterError

from ..common.autoreset import MODE_OPTION, parse_mode
from ..common.libraries import is_loaded_instance

_SUPERSUIT = (
    ("concat_vec_env", "ConcatVecEnv"),
    ("markov_vector_wrapper", "MarkovVectorEnv"),
    ("multiproc_vec", "ProcConcatVec"),
)

AnyVectorEnv = VectorEnv[Any, Any, Any]


class DeclaredMode(NamedTuple):
    """An autoreset mode and where it was declared."""

    mode: AutoresetMode

    #: Such as "its metadata".
    source: str


def resolve_mode(env: AnyVectorEnv, override: None | str | AutoresetMode) -> DeclaredMode:
    """The mode of `env`: the override, else its attribute, else its metadata.

    Raises:
        AdapterError: If nothing declares a mode, or what is declared is no mode.

    """
    declarations = [
        (override, "the option `autoreset_mode`"),
        (getattr(env, "autoreset_mode", None), "its attribute"),
        (_from_metadata(env), "its metadata"),
        # Wrappers do not forward attributes.
        (getattr(env.unwrapped, "autoreset_mode", None), "the attribute of what is wrapped"),
        (_from_metadata(env.unwrapped), "the metadata of what is wrapped"),
        ("NEXT_STEP" if _is_functional(env.unwrapped) else None, "its class"),
        ("SAME_STEP" if _is_supersuit(env.unwrapped) else None, "its class"),
    ]
    for declared, source in declarations:
        if declared is not None:
            return DeclaredMode(parse_mode(declared), source)
    raise AdapterError(f"{env} does not say when it resets itself. {MODE_OPTION}")


def _from_metadata(env: AnyVectorEnv) -> object:
    """The mode in the metadata; `None` if there is none.

    The base class's own dictionary is skipped: an environment that writes its mode there, as ALE's
    does, writes it for every class that has no metadata.
    """
    metadata = getattr(env, "metadata", None)
    if metadata is None or metadata is VectorEnv.metadata:
        return None
    return metadata.get("autoreset_mode")


def resets_single_rows(env: AnyVectorEnv) -> bool:
    """Whether `reset(options={"reset_mask": …})` is known to reset the masked rows only.

    Other environments ignore the mask silently and reset every row.
    """
    base = env.unwrapped
    if isinstance(base, AsyncVectorEnv):
        return bool(base.shared_memory)
    return isinstance(base, SyncVectorEnv) or bool(getattr(base, "resets_single_rows", False))


def has_own_reset(env: AnyVectorEnv) -> bool:
    """Whether a wrapper has another `reset` than Gymnasium's base classes of wrappers.

    Gymnasium's `RecordEpisodeStatistics` forgets all rows if some are reset.
    """
    while env is not env.unwrapped:
        if type(env).reset.__module__ != VectorEnv.__module__:
            return True
        env = cast(Any, env).env
    return False


def pending_survives_reset(env: AnyVectorEnv) -> bool:
    """Whether a row that was done is reset once more in the env step after a reset of all rows.

    The workers of an `AsyncVectorEnv` without shared memory keep their flag over a reset, and so
    do Gymnasium's JAX environments (1.1 to 1.4).
    """
    base = env.unwrapped
    if isinstance(base, AsyncVectorEnv):
        return not base.shared_memory
    return _is_functional(base)


def _is_functional(env: object) -> bool:
    """Whether `env` is one of Gymnasium's in JAX, some of which lack metadata."""
    return is_loaded_instance(env, "gymnasium.envs.functional_jax_env", "FunctionalJaxVectorEnv")


def _is_supersuit(env: object) -> bool:
    """Whether `env` is one of SuperSuit's, which say nothing and reset where all agents ended."""
    return any(is_loaded_instance(env, f"supersuit.vector.{x}", y) for x, y in _SUPERSUIT)
