"""Gymnasium's autoreset modes by name."""

from typing import TYPE_CHECKING

from everstep.errors import AdapterError

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

#: End of the errors about modes: the option that names one.
MODE_OPTION = (
    "Pass `autoreset_mode=` with what the environment does when an episode has ended: 'NEXT_STEP' "
    "(the next step resets it and ignores the action), 'SAME_STEP' (the same step returns the next "
    "episode's observation) or 'DISABLED' (it waits for a reset)."
)


def parse_mode(mode: object) -> "AutoresetMode":
    """A mode, from itself or its name: `"NEXT_STEP"`, `"NextStep"` and `"next_step"` are the same.

    Raises:
        AdapterError: If there is no such mode.

    """
    from gymnasium.vector import AutoresetMode

    if isinstance(mode, AutoresetMode):
        return mode
    name = str(mode).replace("_", "").lower()
    for member in AutoresetMode:
        if member.value.lower() == name:
            return member
    raise AdapterError(f"{mode!r} is not an autoreset mode. {MODE_OPTION}")
