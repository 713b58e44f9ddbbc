"""Gymnasium vector environments, in any autoreset mode, as Everstep environments.

How an episode ends in the rows that `GymnasiumEnv.step` returns (row `t` holds what happened
because of action `t`):

* **NEXT_STEP**: the observation of the row that is done is the final one. The following row is
  the reset: `first` and not `valid`, its action is ignored, its reward is 0 and its other flags
  are False, whatever the environment returns.
* **SAME_STEP**: the row that is done is also `first`: its observation opens the next episode, and
  `final_obs` holds the one before the reset.
* **DISABLED**: the adapter resets the rows that are done, at once; the rows are those of SAME_STEP.

With `max_episode_steps` the adapter also ends episodes itself, as in SAME_STEP.
"""

from .env import GymnasiumEnv

__all__ = ["GymnasiumEnv"]
