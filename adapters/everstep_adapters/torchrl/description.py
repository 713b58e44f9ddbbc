"""What the adapter found out about a TorchRL environment, in words."""

from importlib.metadata import version
from typing import Any

from ..common.specs import describe_spec
from .actions import OneHotActions
from .calls import called
from .keys import STEP_COUNT, told_keys
from .layout import as_key, spelled


def describe(adapter: Any) -> dict[str, str]:
    """What was detected, one short line each.

    Args:
        adapter: The wrapped environment, a `TorchRLEnv`.

    """
    limit = "only the environment's own"
    if adapter.max_episode_steps is not None:
        limit = f"{adapter.max_episode_steps} env steps, by a `StepCounter` of the adapter"
    return {
        "family": f"TorchRL {version('torchrl')}",
        "environment": called(adapter.env),
        "num_envs": _rows(adapter),
        "observation": _observation(adapter),
        "action": _action(adapter),
        "resets": f"in the env step that ends an episode, {adapter._endings.told}",
        "final observations": _final_observations(adapter),
        "limit": limit,
        "hand-off": adapter._handoff.told,
        "seeding": "the environment's `set_seed`",
    }


def _rows(adapter: Any) -> str:
    layout = adapter._layout
    environments = " x ".join(map(str, layout.batch)) or "1"
    if not layout.agents:
        return f"{layout.num_rows} (batch size {list(layout.batch)})"
    return (
        f"{layout.num_rows} ({environments} environments of {layout.agents.numel()} "
        f"`{spelled([layout.group])}`)"
    )


def _observation(adapter: Any) -> str:
    seen = {leaf.key for leaf in adapter._leaves.values()}
    keys = map(as_key, adapter.env.observation_spec.keys(True, True))
    left_out = [key for key in keys if key not in seen and key[-1] != STEP_COUNT]
    told = describe_spec(adapter.observation_spec)
    if len(seen) == 1:
        told = f"{spelled(list(seen))}: {told}"
    return f"{told} (left out: {spelled(left_out)})" if left_out else told


def _action(adapter: Any) -> str:
    told = f"{spelled([adapter._key])}: {describe_spec(adapter.action_spec)}"
    return f"{told}, sent one-hot" if isinstance(adapter._actions, OneHotActions) else told


def _final_observations(adapter: Any) -> str:
    if adapter._has_final:
        return "what the environment returned under `next`; where that is NaN they are lost"
    if told_keys(adapter.env):
        return "the observation of the row that is done"
    return "lost, the environment resets itself: `on_missing_final` decides"
