"""ALE's vector environments: Atari games in one process, stepped and preprocessed by threads.

Episodes end in the manner of NEXT_STEP (its default) or of SAME_STEP, as
`everstep_adapters.gymnasium` describes them.
"""

from .env import ALEEnv

__all__ = ["ALEEnv"]
