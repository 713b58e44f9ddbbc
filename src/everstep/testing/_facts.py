"""Facts about an environment: what its adapter detected, whether that is right, and its speed."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torchrl.data import TensorSpec

from ..core.rollouts import unread_of
from ..data import DataKeys
from ..env import Env
from ..env.specs import Structure, leaf_specs
from ..errors import EverstepError
from ._results import CheckResult, Violation
from ._subject import random_actions

#: Keys of rows that end an episode.
_ENDS = frozenset({DataKeys.TERMINATED, DataKeys.TRUNCATED})

#: Vector steps before the clock starts: libraries warm up.
_WARM_UP = 10


def inspect_env(
    make_env: Callable[[], Env], num_steps: int
) -> tuple[dict[str, str], list[CheckResult]]:
    """Facts by name, and the result of the adapter's own check, if it has one.

    What fails is left out: the checks of the protocol report it.

    Args:
        make_env: Makes the environment.
        num_steps: Vector steps over which speed is measured.

    Raises:
        EverstepError: If the adapter cannot make the environment.

    """
    try:
        env = make_env()
    except EverstepError:
        raise
    except Exception:  # whatever an environment may raise
        return {}, []
    facts: dict[str, str] = {}
    probed: list[CheckResult] = []
    with suppress(Exception):
        facts |= _describe(env)
    with suppress(Exception):
        probed += _probe(env)
    with suppress(Exception):
        facts["speed"] = _speed(env, num_steps)
    with suppress(Exception):
        ended, unread = _play(env, num_steps)
        facts["episodes"] = _episodes_text(env, num_steps, ended)
        if unread:
            facts["not read"] = (
                f"{', '.join(f'`{name}`' for name in sorted(unread))}: returned, and training does "
                "not read it; return numbers to log from `metrics()`, and declare what the policy "
                "observes in `observation_spec`"
            )
    with suppress(Exception):
        env.close()
    return facts, probed


def _describe(env: Env) -> dict[str, str]:
    """The environment's own description; else its attributes."""
    if hasattr(env, "describe"):
        return cast(dict[str, str], env.describe())
    return {
        "environment": f"{type(env).__module__}.{type(env).__qualname__}",
        "num_envs": str(env.num_envs),
        "observation": _spec_text(env.observation_spec),
        "action": _spec_text(env.action_spec),
        "episode keys": ", ".join(sorted(env.episode_keys)) or "none: episodes never end",
        "hand-off": f"tensors of its own on {env.device}",
    }


def _spec_text(spec: TensorSpec) -> str:
    leaves = [
        f"{'.'.join(path)}{': ' if path else ''}{type(leaf).__name__} {list(leaf.shape)} "
        f"{str(leaf.dtype).removeprefix('torch.')}"
        for path, leaf in leaf_specs(spec).items()
    ]
    return "; ".join(leaves)


def _probe(env: Any) -> list[CheckResult]:
    """Whether an environment resets itself when its adapter assumes it does.

    An adapter that can find out has `probe()`: it plays the environment, and returns the `mode`
    that was observed, or None, and a `reason`. The mode it assumes is `autoreset_mode`.
    """
    if not hasattr(env, "probe"):
        return []
    rule = "The environment resets itself when its adapter assumes it does."
    evidence, assumed = env.probe(), _mode_name(env.autoreset_mode)
    if evidence.mode is None:
        return [CheckResult("probe", rule, "not applicable", reason=evidence.reason)]
    seen = _mode_name(evidence.mode)
    if seen == assumed:
        return [CheckResult("probe", rule, "passed")]
    violation = Violation(
        "`autoreset_mode`",
        rule,
        f"{assumed}, but it looks like {seen}: {evidence.reason}",
        f"Pass `autoreset_mode='{seen}'`: on this command line, --env-kwargs autoreset_mode={seen}",
    )
    return [CheckResult("probe", rule, "failed", violation=violation)]


def _mode_name(mode: Any) -> str:
    return str(getattr(mode, "name", mode))


def _speed(env: Env, num_steps: int) -> str:
    """Env steps and vector steps per second, with random actions drawn before the clock starts."""
    obs = env.reset()
    actions = [random_actions(env.action_spec, obs, env.num_envs) for _ in range(_WARM_UP)]
    for action in actions:
        obs = env.step(action)["obs"]
    masked = not isinstance(obs, torch.Tensor) and "action_mask" in obs.keys()  # noqa: SIM118
    _synchronize(env)
    start = time.perf_counter()
    for t in range(num_steps):
        # Masks change from row to row, so masked actions are drawn within the time.
        action = random_actions(env.action_spec, obs, env.num_envs) if masked else None
        obs = env.step(actions[t % _WARM_UP] if action is None else action)["obs"]
    _synchronize(env)
    rate = num_steps / (time.perf_counter() - start)
    return (
        f"{rate * env.num_envs:,.0f} env steps/s: "
        f"{rate:,.0f} vector steps/s of {env.num_envs} environments"
    )


def _play(env: Env, num_steps: int) -> tuple[int, set[str]]:
    """How many episodes end under random actions, and what is returned that nothing reads."""
    structure, ended = Structure.of(env.observation_spec), 0
    obs = env.reset()
    unread = unread_of({DataKeys.OBS: obs}, structure, env.episode_keys)
    for _ in range(num_steps):
        outcome = env.step(random_actions(env.action_spec, obs, env.num_envs))
        obs = outcome[DataKeys.OBS]
        unread |= unread_of(dict(outcome.items()), structure, env.episode_keys)
        if _ENDS & env.episode_keys:
            ended += int((outcome[DataKeys.TERMINATED] | outcome[DataKeys.TRUNCATED]).sum())
    return ended, unread


def _episodes_text(env: Env, num_steps: int, ended: int) -> str:
    if not _ENDS & env.episode_keys:
        return "never end, as declared: the environment has no `episode_keys`"
    played = f"in {num_steps * env.num_envs:,} env steps with random actions"
    if ended:
        return f"{ended} ended {played}"
    return (
        f"none ended {played}: if they never end, training sees no return and evaluations do not "
        "finish; bound them, such as with --env-kwargs max_episode_steps=200"
    )


def _synchronize(env: Env) -> None:
    if torch.device(env.device).type == "cuda":
        torch.cuda.synchronize(env.device)
