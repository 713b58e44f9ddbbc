"""Marker of environments that were exported from Everstep."""

from everstep.env import Env


class Exported:
    """Base of the environments that `to_torchrl` returns, by which `TorchRLEnv` recognises them."""

    #: The Everstep environment.
    env: Env
