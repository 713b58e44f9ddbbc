"""Checks of specs, and of single rows."""

from torchrl.data import TensorSpec

from ..data import DataKeys
from ..env.specs import Leaves, Path, leaf_specs
from ._player import Player, Row, traces
from ._results import NotApplicable, Violation
from ._structure import with_index
from ._subject import Subject


def check_specs(subject: Subject) -> None:
    """Specs describe one environment on the device; episode keys are known and go together."""
    for num_envs in subject.num_envs_choices:
        with Player(subject, num_envs) as player:
            _check_spec_devices(player)
            _check_size(player, num_envs, subject)


def _check_spec_devices(player: Player) -> None:
    device = with_index(player.env.device)
    for name in ("observation_spec", "action_spec"):
        for path, leaf in leaf_specs(getattr(player.env, name)).items():
            leaf_device = None if leaf.device is None else with_index(leaf.device)
            if leaf_device not in (None, device):
                where = ".".join((name, *path))
                rule = f"Specs must be on the environment's device, {device}."
                raise Violation(f"`{where}`", rule, leaf_device, "Make the spec with `device=`.")


def _check_size(player: Player, num_envs: int, subject: Subject) -> None:
    env = player.env
    agents = getattr(env, "rows_per_env", 1)
    if env.num_envs != -(-num_envs // agents) * agents:
        fix = (
            "Make as many, set `num_envs_choices` to the environment's number, or declare the rows "
            "of an environment's agents: `env.rows_per_env = 3`."
        )
        rule = f"It must be the requested number, {num_envs}, up to whole environments of agents."
        raise Violation("`num_envs`", rule, env.num_envs, fix)
    if with_index(env.device) != with_index(subject.device):
        rule = f"It must be the requested device, {subject.device}."
        raise Violation("`device`", rule, env.device, "Pass the device on to the environment.")


def check_rows(subject: Subject) -> None:
    """Results of `reset` and `step` are as declared, finite, and within the specs' bounds."""
    for trace in traces(subject):
        specs = leaf_specs(trace.observation_spec.cpu())
        for rows in trace.segments:
            for t, row in enumerate(rows):
                when = f"env step {t} after a reset, with {trace.num_envs} in a batch"
                for obs, then in ((row.obs, "the reset"), (row.next_obs, when))[t > 0 :]:
                    _check_finite(specs, obs, then)
                    _check_bounds(specs, obs, DataKeys.OBS, then)
                _check_rewards(row, when)
                if row.final_obs:
                    _check_bounds(specs, _known_final(row), DataKeys.FINAL_OBS, when)


def _check_rewards(row: Row, when: str) -> None:
    rewards = row.rewards[row.valid]
    if not rewards.isfinite().all():
        received = f"{rewards[~rewards.isfinite()][0].item()} at {when}"
        fix = "Bound the environment's rewards."
        raise Violation("`rewards`", "They must be finite.", received, fix)


def _known_final(row: Row) -> Leaves:
    """The final observations that are not lost."""
    known = row.done & row.first
    for leaf in row.final_obs:
        known = known & leaf.isfinite().flatten(1).all(-1)
    return tuple(leaf[known] for leaf in row.final_obs)


def _check_finite(specs: dict[Path, TensorSpec], leaves: Leaves, when: str) -> None:
    for path, leaf in zip(specs, leaves, strict=True):
        if not leaf.isfinite().all():
            name = ".".join((DataKeys.OBS, *path))
            bad = leaf[~leaf.isfinite()][0].item()
            rule = "Observations must be finite, also in rows that are not valid."
            fix = "Return zeros if there is nothing to observe, and bound the rest."
            raise Violation(f"`{name}`", rule, f"{bad} at {when}", fix)


def _check_bounds(specs: dict[Path, TensorSpec], leaves: Leaves, key: str, when: str) -> None:
    for (path, spec), leaf in zip(specs.items(), leaves, strict=True):
        if len(leaf) and not spec.is_in(leaf):
            raise Violation(
                f"`{'.'.join((key, *path))}`",
                f"It must be within its spec, a {type(spec).__name__} of shape {list(spec.shape)}.",
                f"values from {leaf.min().item()} to {leaf.max().item()} at {when}",
                "Fix the observation, or widen the spec (`Unbounded` if there is no bound).",
            )


def check_description(subject: Subject) -> None:
    """`describe` returns what was detected, as a mapping of strings to strings."""
    with Player(subject, subject.num_envs_choices[0]) as player:
        describe = getattr(player.env, "describe", None)
        if describe is None:
            raise NotApplicable("the environment has no `describe`")
        described = describe()
        lines = described.items() if isinstance(described, dict) else [(None, None)]
        if not all(isinstance(text, str) and text for line in lines for text in line):
            fix = "Return `{'family': 'Gymnasium', …}`."
            raise Violation("`describe`", "It must return strings by name.", described, fix)
