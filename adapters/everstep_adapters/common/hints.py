"""Advice for environments of libraries that another library's wrapper leads to."""

from typing import Any

from .libraries import is_loaded_instance

_IMPORT = "from torchrl import envs"

#: What an environment is, by the module and name of its class, and the line that wraps it as `env`,
#: after the import that the line needs.
_HINTS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        *("vmas.simulator.environment.environment", "Environment", "a VMAS environment", _IMPORT),
        "everstep.wrap(envs.VmasWrapper(env), time_limit=env.max_steps)",
    ),
    (
        *("gym.core", "Env", "an environment of the old gym, which Gymnasium replaces"),
        "from shimmy import GymV26CompatibilityV0",
        "everstep.make(lambda: GymV26CompatibilityV0(env=env), 1)",
    ),
)


#: What environments of the old interface have, whatever their class.
_OLD = ("reset", "step", "action_space", "observation_space")

_OLD_LINE = (
    "from everstep_adapters.gymnasium.old import OldInterface; "
    "everstep.make(lambda: OldInterface(env), 1)"
)


def hint(env: Any) -> str:
    """The line that makes an object of a known library work; empty for others. Imports nothing."""
    for module, name, kind, needed, line in _HINTS:
        if is_loaded_instance(env, module, name):
            return f"It is {kind}. This wraps it: `{needed}; {line}`."
    if isinstance(env, type) or not all(hasattr(env, name) for name in _OLD):
        return ""
    if is_loaded_instance(env, "gymnasium", "Env") or hasattr(env, "num_envs"):
        return ""
    return (
        "It looks like an environment of the old gym, without its base class: `reset` returns an "
        f"observation, `step` four values. This wraps it: `{_OLD_LINE}`."
    )
