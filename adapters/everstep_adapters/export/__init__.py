"""Everstep environments as environments of Gymnasium and TorchRL: the inverse of the adapters.

`to_gymnasium` declares the autoreset mode that the environment's episode keys imply:

* with `final_obs`, **SAME_STEP**: `infos["final_obs"]` holds the final observations;
* with `valid`, **NEXT_STEP**: the env step after the end resets the row and ignores its action;
* with neither, episodes are reset in the same env step and their final observations are lost:
  **SAME_STEP**, and the infos hold none;
* without episode keys no episode ends, or all end at a `horizon`, in the mode that is asked for.

A TorchRL environment is stepped first and its finished rows are reset afterwards by the caller; an
Everstep environment resets these rows itself. The environment of `to_torchrl` therefore returns the
final observations from `step`, stores those that open the next episodes, and returns these from
`reset` with a `"_reset"` mask.
"""

from .gymnasium import to_gymnasium
from .sb3 import to_sb3
from .torchrl import to_torchrl

__all__ = ["to_gymnasium", "to_sb3", "to_torchrl"]
