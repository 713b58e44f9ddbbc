"""Statistics of a train step, with what `everstep.data` says about them."""

from typing import Any

from typing_extensions import get_type_hints

from everstep.data import TrainStats


def statistics() -> dict[Any, list[str]]:
    """Names by meaning and unit; the meanings are in the order in which they are declared."""
    rows: dict[Any, list[str]] = {}
    for base in TrainStats.__orig_bases__:
        for name, hint in get_type_hints(base, include_extras=True).items():
            # NotRequired[Annotated[int, meaning]], or without NotRequired
            annotated = hint if hasattr(hint, "__metadata__") else hint.__args__[0]
            names = rows.setdefault(annotated.__metadata__[0], [])
            names += [name] if name not in names else []
    return rows
