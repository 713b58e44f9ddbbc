"""Gymnasium's autoreset modes by name."""

from typing import TYPE_CHECKING

from everstep.errors import AdapterError

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

#: The option that names a mode, in error messages.
MODES = (
    "Pass `autoreset_mode=` with what the environment does when an episode has ended: 'NEXT_STEP' "
    "(the next step resets it and ignores the action), 'SAME_STEP' (the same step returns the next "
    "episode's observation) or 'DISABLED' (it waits for a reset)."
)


def parse_mode(declared: object) -> "AutoresetMode":
    """The mode that `declared` is or names: `"NEXT_STEP"`, `"NextStep"` and `"next_step"` are one.

    Raises:
        AdapterError: Where it is no mode.

    """
    from gymnasium.vector import AutoresetMode

    if isinstance(declared, AutoresetMode):
        return declared
    spelled = str(declared).replace("_", "").lower()
    for mode in AutoresetMode:
        if mode.value.lower() == spelled:
            return mode
    raise AdapterError(f"{declared!r} is not a time at which environments are reset. {MODES}")
