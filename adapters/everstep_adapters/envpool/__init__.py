"""EnvPool's environments: many in one process, stepped by threads, in Gymnasium's semantics.

Episodes end in the manner of NEXT_STEP, as `everstep_adapters.gymnasium` describes it: the row
after the one that is done is the reset. An episode whose task fails in the very env step in which
its time is up counts as truncated: EnvPool does not tell the two apart.
"""

from .env import EnvPoolEnv

__all__ = ["EnvPoolEnv"]
