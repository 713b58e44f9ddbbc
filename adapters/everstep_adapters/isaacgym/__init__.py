"""Tasks with IsaacGym's interfaces as Everstep environments.

When a task resets an environment whose episode has ended decides what its rows look like (row `t`
holds what happened because of action `t`). There are four reset styles, which the interface does
not show:

* **A** (`next_step_after_physics`): in the next env step, after the physics. The row that ends
  returns the final observation; the physics of the row after it are discarded.
* **B** (`next_step_before_physics`): in the next env step, before the physics. The row that ends
  returns the final observation; the action of the row after it acts on the state of the reset,
  which was never observed. In A and B that row is `first` and not `valid`, its reward is 0 whatever
  the task computes, and the task is given an action of 0 in it.
* **C** (`same_step`): in the env step that ends the episode. The row is done and `first`, and the
  final observation is lost, unless the task puts it into `extras`.
* **D** (`external`): when `reset_done` is called. The adapter calls it after each env step. The row
  is done and `first`; `final_obs` is what `step` had returned.
"""

from .env import IsaacGymEnv

__all__ = ["IsaacGymEnv"]
