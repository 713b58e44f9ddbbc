"""What the adapter found out about a TorchRL environment, in words."""

from importlib.metadata import version
from typing import Any

from torchrl.data import Bounded, Composite, TensorSpec, Unbounded

from everstep.specs import leaf_specs, options

from .actions import OneHotActions
from .calls import called
from .keys import STEP_COUNT
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
    told = _in_words(adapter.observation_spec)
    if len(seen) == 1:
        told = f"{spelled(list(seen))}: {told}"
    return f"{told} (left out: {spelled(left_out)})" if left_out else told


def _action(adapter: Any) -> str:
    told = f"{spelled([adapter._key])}: {_in_words(adapter.action_spec)}"
    return f"{told}, sent one-hot" if isinstance(adapter._actions, OneHotActions) else told


def _final_observations(adapter: Any) -> str:
    if adapter._has_final:
        return "what the environment returned under `next`; where that is NaN they are lost"
    return "lost, the environment resets itself: `on_missing_final` decides"


def _in_words(spec: TensorSpec) -> str:
    """Kind, shape and dtype of a spec's only leaf, or of each."""
    leaves = leaf_specs(spec)
    told = [
        f"{_kind(leaf)} {list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
        for leaf in leaves.values()
    ]
    if not isinstance(spec, Composite):
        return told[0]
    return ", ".join(f"{'.'.join(path)}: {t}" for path, t in zip(leaves, told, strict=True))


def _kind(leaf: TensorSpec) -> str:
    """The public name of a spec's class, with its numbers of options."""
    for kind in (Bounded, Unbounded):
        if isinstance(leaf, kind):
            return str(kind.__name__)
    counts = options(leaf)
    counted = f"{counts[0]}" if len(set(counts)) == 1 else ", ".join(map(str, counts))
    return f"{type(leaf).__name__}({counted})"
