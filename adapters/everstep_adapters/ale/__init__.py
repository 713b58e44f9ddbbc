"""ALE's vector environments: Atari games in one process, stepped and preprocessed by threads.

Episodes end as in the modes NEXT_STEP (the default) and SAME_STEP of
`everstep_adapters.gymnasium`.
"""

from .env import ALEEnv

__all__ = ["ALEEnv"]
