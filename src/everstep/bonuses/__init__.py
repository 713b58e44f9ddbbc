"""Bonuses: rewards that come from the agent rather than from the environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.names import dotted_name
from ..core.rules import term_problems
from ..errors import ConfigError
from ._base import Bonus, Stream
from ._rnd import RandomNetworkDistillation
from ._streams import add_critics, streams_of, write_reward

__all__ = [
    "BONUSES",
    "Bonus",
    "RandomNetworkDistillation",
    "Stream",
    "add_critics",
    "make_bonuses",
    "streams_of",
    "write_reward",
]

#: Bonuses by the names that files use.
BONUSES: dict[str, Callable[..., Bonus]] = {"rnd": RandomNetworkDistillation}


def make_bonuses(chosen: Sequence[Bonus | Mapping[str, Any]]) -> tuple[Bonus, ...]:
    """Bonuses from objects, or from descriptions such as `{"rnd": {…}}` and `{Class: {…}}`.

    Raises:
        ConfigError: If a name or an option is unknown, or bonuses have no names of their own.

    """
    given: Any = chosen
    listed = [given] if isinstance(given, str) else given
    made = tuple(one if isinstance(one, Bonus) else _make(one) for one in listed)
    for bonus in made:
        if not isinstance(getattr(bonus, "stream", None), Stream):
            raise ConfigError(
                f"`bonuses` {type(bonus).__name__} has no `stream`: set `self.stream = "
                "Stream(gamma, weight)` when it is made."
            )
    if problems := term_problems("bonuses", made):
        raise ConfigError(problems)
    weights = {bonus.extrinsic_weight for bonus in made}
    if len(weights) > 1:
        raise ConfigError(
            "`bonuses` must agree on the weight of the environment's advantages; got "
            f"{', '.join(map(str, sorted(weights)))}."
        )
    return made


def _make(described: Any) -> Bonus:
    if not isinstance(described, Mapping) or len(described) != 1:
        raise ConfigError(
            "`bonuses` expected objects, or mappings such as {'rnd': {'gamma_intrinsic': 0.99}}; "
            f"got {described!r}."
        )
    ((name, options),) = described.items()
    make = name if callable(name) else BONUSES.get(name)
    if make is None:
        raise ConfigError(f"`bonuses` has {name!r}; known are {', '.join(BONUSES)}, and classes.")
    try:
        return make(**(options or {}))
    except (TypeError, ValueError) as error:
        shown = name if isinstance(name, str) else dotted_name(name)
        raise ConfigError(f"`bonuses` {shown}: {error}") from error
