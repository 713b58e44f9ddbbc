"""The check of `capturable`: `step` has no operation that a CUDA graph cannot record."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..core.graphs import waits
from ._player import Player
from ._results import NotApplicable, Violation
from ._subject import Subject

#: Vector steps that are watched.
_STEPS = 16


class _Forbidding(TorchDispatchMode):
    """Raises if an operation would wait for the device, or its output shape depends on data."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: None | dict[str, Any] = None
    ) -> Any:
        if waits(func, args, kwargs or {}):
            raise Violation(
                "`capturable`",
                "`step` never waits for the device: no value is read on the host, and no shape "
                "depends on data.",
                f"the operation {func.overloadpacket.__name__}",
                "Use `torch.where` and `masked_fill` rather than indices and `if`; or do not "
                "declare `capturable`.",
            )
        return func(*args, **(kwargs or {}))


def check_capturable(subject: Subject) -> None:
    """If an environment is `capturable`, it steps without waiting for its device."""
    with Player(subject, seed=subject.seed) as player:
        if not getattr(player.env, "capturable", False):
            raise NotApplicable("the environment does not declare `capturable`")
        player.reset()
        for _ in range(_STEPS):
            action = player.choose()
            with _Forbidding():  # type: ignore[no-untyped-call]
                player.step_as_is(action)
