"""The programs that Everstep is compared with, and what each needs in its interpreter."""

from typing import NamedTuple


class Peer(NamedTuple):
    """A program under `peers/`."""

    #: Name of its module.
    module: str

    #: What its interpreter needs, in pip's words.
    needs: str

    #: Keys of its `options`.
    options: tuple[str, ...] = ()


PEERS = {
    "rl8": Peer("rl8", "torch rl8==1.0.0"),
    "stable-baselines3": Peer(
        "stable_baselines3",
        "torch stable-baselines3",
        ("vectorized", "ppo", "decay_env_steps"),
    ),
    "sb3-contrib": Peer(
        "stable_baselines3",
        "torch stable-baselines3 sb3-contrib",
        ("vectorized", "ppo", "decay_env_steps"),
    ),
    "cleanrl": Peer("cleanrl", "torch gymnasium", ("vectorization",)),
    "torchrl": Peer("torchrl", "torch torchrl gymnasium"),
    "jax": Peer("jax", "torch jax", ("decay_env_steps",)),
    "env": Peer("env", "torch gymnasium envpool", ("vectorization",)),
    "rsl_rl": Peer("rsl_rl", "torch rsl-rl-lib", ("torch_compile_mode",)),
    "skrl": Peer("skrl", "torch skrl"),
    "rl_games": Peer("rl_games", "torch rl-games"),
}

#: Name of our own side.
OURS = "everstep"


def family(peer: str) -> str:
    """The library of a peer: `rl8` of `rl8-tuned`."""
    return peer.removesuffix("-tuned")
