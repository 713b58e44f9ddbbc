"""Environments that live in another Python, such as Procgen, gym 0.21 or a pinned simulator.

`server.py` runs in the other interpreter, which needs NumPy and the environment, and nothing of
Everstep. `client.py` is a vector environment of Gymnasium whose rows it steps, and `tasks.py` a
task with IsaacGym's interfaces; `env.py` wraps them as `GymnasiumEnv` and `IsaacGymEnv` wrap any
other.
"""

from .env import BridgeEnv

__all__ = ["BridgeEnv"]
