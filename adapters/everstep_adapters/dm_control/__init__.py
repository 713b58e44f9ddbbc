"""Environments of dm_control, and others with dm_env's interface, as Everstep environments.

Each is a Gymnasium environment here, and copies of it are stepped one after another or in processes
by Gymnasium's vector environments; the module `everstep_adapters.gymnasium` says how the rows are
reset. The discount of the last `TimeStep` says how an episode ended: 0 is a termination, anything
above a truncation, as by the time limits of the suite.
"""

from .env import DMControlEnv

__all__ = ["DMControlEnv"]
