"""EnvPool's environments with Gymnasium's interface: many in one process, stepped by threads.

Episodes end as in the mode NEXT_STEP of `everstep_adapters.gymnasium`: the row after the one that
is done is the reset. An episode whose task fails in the same env step in which its time is up
counts as truncated: EnvPool reports the two alike.
"""

from .env import EnvPoolEnv

__all__ = ["EnvPoolEnv"]
