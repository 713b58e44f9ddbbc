"""Environments written as functions in JAX, as Everstep environments.

gymnax, Brax, MuJoCo Playground, Craftax and Jumanji describe one environment by a `reset` and a
`step` without side effects. The adapter runs `num_envs` of them, with their resets, in one compiled
call a vector step: a row that is done is also `first`, its `obs` opens the next episode, drawn with
a key of its own, and `final_obs` is what the step returned, before the reset. The libraries' own
wrappers that reset environments are not used: they replace the final observation, and Brax's starts
every episode in the same state.

`terminated` is an end by the task. An end by the clock is `truncated`: the env step is computed
with and without the clock, or the adapter counts.
"""

from .env import BraxEnv, CraftaxEnv, GymnaxEnv, JaxEnv, JumanjiEnv, PlaygroundEnv

__all__ = ["BraxEnv", "CraftaxEnv", "GymnaxEnv", "JaxEnv", "JumanjiEnv", "PlaygroundEnv"]
