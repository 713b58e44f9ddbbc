"""Pools: vector environments in C++ whose threads step many games or simulations in one process.

ALE's Atari games end episodes as the modes NEXT_STEP (the default) and SAME_STEP of
`everstep_adapters.gymnasium`; EnvPool's environments as NEXT_STEP: the row after the one that is
done is the reset. An episode of EnvPool whose task fails in the same env step in which its time is
up counts as truncated: EnvPool reports the two alike.
"""

from .ale import ALEEnv
from .envpool import EnvPoolEnv

__all__ = ["ALEEnv", "EnvPoolEnv"]
