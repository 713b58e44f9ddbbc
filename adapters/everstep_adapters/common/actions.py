"""Checks and bounds of actions, the same in every adapter."""

from typing import Literal

import torch
from torchrl.data import Bounded, TensorSpec

from everstep.env.specs import is_bound
from everstep.errors import AdapterError

#: How real-valued actions are brought inside their bounds. `"clip"` sends the nearest action
#: inside. `"rescale"` maps -1 to the lower and 1 to the upper bound, linearly, then clips;
#: dimensions without two bounds are only clipped. `"auto"` rescales if a dimension has two.
ActionBounds = Literal["auto", "clip", "rescale"]

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class ActionCheck:
    """Check of an action's type, shape and kind of dtype.

    Args:
        num_envs: Number of actions in a batch.
        spec: Spec of one environment's action.

    """

    def __init__(self, num_envs: int, spec: TensorSpec) -> None:
        self._shape, self._dtype = torch.Size([num_envs, *spec.shape]), spec.dtype
        self._dtypes = _FLOATS if spec.dtype in _FLOATS else _INTEGERS | {spec.dtype}

    def __call__(self, action: object) -> torch.Tensor:
        """The action itself, if it fits.

        Raises:
            AdapterError: If its type, shape or kind of dtype is another.

        """
        if not isinstance(action, torch.Tensor):
            raise AdapterError(f"An action must be a tensor; got {type(action).__name__}.")
        if action.shape != self._shape:
            raise AdapterError(
                f"An action must have shape {tuple(self._shape)}, `num_envs` and then "
                f"`action_spec.shape`; got {tuple(action.shape)}."
            )
        if action.dtype not in self._dtypes:
            raise AdapterError(
                f"An action must have the dtype {self._dtype} or one of its kind; "
                f"got {action.dtype}."
            )
        return action


def check_action_bounds(bounds: str, *, is_real: bool, space: object) -> None:
    """Check the option `action_bounds`.

    Args:
        bounds: The option.
        is_real: Whether actions are real numbers.
        space: Description of the actions, for the error.

    Raises:
        AdapterError: If actions that are no real numbers are rescaled.

    """
    if bounds == "rescale" and not is_real:
        raise AdapterError(
            f"`action_bounds='rescale'` needs actions of floating point; got {space}. Use 'clip'."
        )


def unit_to_bounds(
    low: torch.Tensor, high: torch.Tensor, bounds: ActionBounds, name: str
) -> None | tuple[torch.Tensor, torch.Tensor]:
    """Scale and offset of the map from [-1, 1] to the bounds; 1 and 0 where a bound is missing.

    Args:
        low: Lower bounds.
        high: Upper bounds.
        bounds: How actions are brought inside them.
        name: Name of the action in the error.

    Returns:
        None if actions are only clipped, as where `"auto"` would change nothing.

    Raises:
        AdapterError: If actions are to be rescaled and no dimension has finite bounds.

    """
    finite = is_bound(low) & is_bound(high)
    is_unit = ((low == -1) & (high == 1)) | ~finite
    if bounds == "clip" or (bounds == "auto" and bool(is_unit.all())):
        return None
    if not bool(finite.any()):
        raise AdapterError(
            f"`action_bounds='rescale'` needs a dimension with finite bounds; `{name}` has "
            f"low={low.tolist()}, high={high.tolist()}. Use 'clip'."
        )
    # Halved first: the difference of two large bounds would overflow.
    half_low, half_high = low.div(2).where(finite, -0.5), high.div(2).where(finite, 0.5)
    return half_high - half_low, half_high + half_low


def rescaled_spec(spec: TensorSpec) -> TensorSpec:
    """Spec of actions before they are rescaled: from -1 to 1 where a dimension has two bounds."""
    if not isinstance(spec, Bounded):
        return spec
    low, high = spec.space.low, spec.space.high
    both = is_bound(low) & is_bound(high)
    low, high = low.masked_fill(both, -1.0), high.masked_fill(both, 1.0)
    return Bounded(low=low, high=high, shape=spec.shape, device=spec.device, dtype=spec.dtype)
