"""Distillation: a student learns to act as a teacher, which may see more than the student does.

Every rollout is the student's own, and the teacher says what it would have done in each env step:
DAgger with β = 0, of which the update is behaviour cloning.

Source: arXiv 1011.0686 (DAgger); arXiv 2010.11251 (a privileged teacher of a walking robot).
"""

import copy
import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, ClassVar

import torch

from .core.hyperparameters import Resolved
from .core.rollouts import Minibatch, Rollout
from .core.validation import signature_of, unknown_name
from .distributions import Distribution, Normal
from .env.specs import Leaves, described, leaf_specs, options, spec_to_dict
from .errors import CheckpointError, ConfigError
from .objectives import CLIPPING, ActorCritic
from .policies import Follower, PolicyCore, load_policy

#: What a distribution is made of, by the features that a model may return.
_LABELS = ("mean", "log_std", "logits", "action_mask")


class Distillation:
    """The objective of a student: its divergence from a teacher, with a value loss.

    loss = divergence + vf_coeff · value loss − entropy coefficient · entropy

    It is given as `objective=Distillation(…)`, or in a file as `objective: {distillation: {teacher:
    …}}`.

    Args:
        teacher: A policy, or the path of its file or of its run. In the record of a run a path can
            be repeated, a policy cannot.
        loss: `"kl"` for KL(teacher ‖ student), or `"mse"` for the mean squared difference of the
            means of normal distributions, which leaves the student's deviations as they are.
        teacher_obs: Name of the leaf of the observation that the teacher sees, `a.b` if it is
            nested, where the teacher's own observations are no mapping. None: a mapping's leaves
            are found by their names.

    Raises:
        ConfigError: If an argument is not allowed.

    """

    #: See `ActorCritic`.
    default_num_sgd_iters = 4
    episodic_num_sgd_iters = 4
    ignores: ClassVar[Mapping[str, str]] = {
        **CLIPPING,
        **dict.fromkeys(
            ("normalize_advantages", "critic_warmup"), "the objective has no advantages"
        ),
    }

    def __init__(
        self,
        teacher: PolicyCore[Any] | str | os.PathLike[str],
        *,
        loss: str = "kl",
        teacher_obs: None | str = None,
    ) -> None:
        if loss not in ("kl", "mse"):
            raise ConfigError(f"`objective.distillation.loss` must be kl or mse; got {loss!r}.")
        if not isinstance(teacher, PolicyCore | str | os.PathLike):
            raise ConfigError(
                "`objective.distillation.teacher` expected a policy, or the path of a policy or a "
                f"run; got {teacher!r}."
            )
        if teacher_obs is not None and not isinstance(teacher_obs, str):
            raise ConfigError(
                "`objective.distillation.teacher_obs` expected the name of a leaf; got "
                f"{teacher_obs!r}."
            )
        self.teacher, self.loss, self.teacher_obs = teacher, loss, teacher_obs
        self._loaded: None | PolicyCore[Any] = None

    def __repr__(self) -> str:
        return f"Distillation({self.teacher!r}, loss={self.loss!r})"

    def as_config(self) -> dict[str, Any]:
        """Description for a file, which makes the same objective; paths are absolute."""
        teacher: Any = self.teacher
        if not isinstance(teacher, PolicyCore):
            teacher = str(FilePath(teacher).absolute())
        named = {"teacher": teacher, "loss": self.loss, "teacher_obs": self.teacher_obs}
        return {"distillation": named}

    def __call__(self, config: Resolved, *, entropy_coeff: torch.Tensor) -> "Distilling":
        """The loss; see `objectives.ActorCritic`."""
        return Distilling(config, entropy_coeff=entropy_coeff, description=self)

    def load(self, device: torch.device) -> PolicyCore[Any]:
        """The teacher, in eval mode, whose parameters nothing trains.

        Raises:
            ConfigError: If there is none.

        """
        if self._loaded is None or self._loaded.device != device:
            if isinstance(self.teacher, PolicyCore):
                loaded: PolicyCore[Any] = copy.copy(self.teacher)
                loaded.is_wired = False
                loaded.model = copy.deepcopy(self.teacher.model)
                loaded.normalizer = copy.deepcopy(self.teacher.normalizer)
                loaded = loaded.to(device)
            else:
                try:
                    loaded = load_policy(self.teacher, device=device)
                except (CheckpointError, OSError) as error:
                    raise ConfigError(
                        f"`objective.distillation.teacher`: {error} Name the file that "
                        "`policy.save` wrote, or the directory of a run, or give the policy itself."
                    ) from error
            loaded.critic = None
            loaded.model.eval().requires_grad_(False)
            self._loaded = loaded
        return self._loaded


class Distilling(ActorCritic):
    """The loss of a `Distillation`.

    Args:
        config: Hyperparameters.
        entropy_coeff: Weight of the entropy bonus, 0-d.
        description: Teacher, and how it is followed.

    """

    def __init__(
        self, config: Resolved, *, entropy_coeff: torch.Tensor, description: Distillation
    ) -> None:
        super().__init__(config, entropy_coeff=entropy_coeff)
        self.description = description
        #: The teacher, and what it remembers.
        self.follower: Follower
        #: Features of the teacher's distribution for each row, `[T, N, …]`, and their names.
        self.labels: Leaves = ()
        self.label_names: tuple[str, ...] = ()

    @property
    def followers(self) -> list[Follower]:
        """Policies that remember something from one rollout to the next."""
        return [self.follower]

    def setup(self, policy: PolicyCore[Any], previous: Any = None) -> None:
        """Take the teacher of a policy that is trained.

        Args:
            policy: The student.
            previous: The objective that this one takes the place of; None for the first one.

        Raises:
            ConfigError: If the teacher does not fit.

        """
        if isinstance(previous, Distilling) and previous.description is self.description:
            self.follower = previous.follower
            self.labels, self.label_names = previous.labels, previous.label_names
            return
        teacher = self.description.load(policy.device)
        places = _places(teacher, policy, self.description.teacher_obs)
        _check_actions(teacher, policy, self.description.loss)
        self.follower = Follower(teacher, lambda leaves: tuple(leaves[i] for i in places))

    def follow(self, rollout: Rollout, *, was_reset: bool, resets: Any = ()) -> None:
        """Label each row of a rollout with the teacher's distribution.

        Args:
            rollout: Complete rollout.
            was_reset: Whether environments were reset before it.
            resets: Ignored: the teacher remembers whole episodes.

        """
        followed = self.follower.follow(rollout, was_reset=was_reset)
        for t, (_, distribution) in enumerate(followed):
            features = distribution.features
            if not self.labels:
                self.label_names = tuple(x for x in _LABELS if x in {*features.keys()})
                rows = (features[name] for name in self.label_names)
                self.labels = tuple(x.new_zeros(rollout.horizon, *x.shape) for x in rows)
            for storage, name in zip(self.labels, self.label_names, strict=True):
                storage[t].copy_(features[name])
        # Observations of rows that are not valid may be NaN, which a weight of 0 does not remove.
        invalid = ~rollout.valid
        for x in self.labels:
            x.masked_fill_(invalid.view(*invalid.shape[:2], *(1,) * (x.ndim - 2)), 0)

    def gain(self, logp: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """Not used: the gain depends on the distribution."""
        raise NotImplementedError

    def gain_of(
        self, distribution: Distribution, logp: torch.Tensor, minibatch: Minibatch
    ) -> torch.Tensor:
        """The negative divergence of each row, `[B, 1]`."""
        features = dict(zip(self.label_names, minibatch.labels, strict=True))
        teacher: Any = type(distribution)(features, distribution.model)
        if self.description.loss == "mse":
            assert isinstance(distribution, Normal)  # checked when the teacher was set up
            squares = (distribution.mean - teacher.mean).square()
            rows: torch.Tensor = squares.flatten(1).mean(-1, keepdim=True)
        else:
            rows = teacher.kl_divergence(distribution)
        return -rows.masked_fill(minibatch.weight == 0, 0.0)


#: Objectives that have options, by the names that files use.
DESCRIBED = {"distillation": Distillation}


def make_objective_of(chosen: Any) -> Any:
    """The objective of a description such as `{"distillation": {…}}`; others as they are.

    Raises:
        ConfigError: If a name or an option is unknown.

    """
    if not isinstance(chosen, Mapping):
        return chosen
    if len(chosen) != 1:
        raise ConfigError(
            "`objective` expected a name, a class, or one name with options, such as "
            f"{{'distillation': {{'teacher': 'runs/teacher'}}}}; got {dict(chosen)!r}."
        )
    ((name, given),) = chosen.items()
    if name not in DESCRIBED:
        raise ConfigError(
            f"`objective.{name}`: unknown; objectives with options are {', '.join(DESCRIBED)}."
        )
    known = [*signature_of(DESCRIBED[name]).parameters]
    given = given if isinstance(given, Mapping) else {"": given}
    if unknown := [key for key in given if key not in known]:
        raise ConfigError(
            [f"`objective.{name}.{x}`: {unknown_name('option', str(x), known)}." for x in unknown]
        )
    if "teacher" not in given:
        raise ConfigError(
            f"`objective.{name}.teacher`: required, and missing; give the path of a policy or a "
            "run."
        )
    return DESCRIBED[name](**given)


def _places(
    teacher: PolicyCore[Any], policy: PolicyCore[Any], teacher_obs: None | str
) -> tuple[int, ...]:
    """Where the leaves of a teacher's observation are among those of the environment's.

    Raises:
        ConfigError: If one is not, or is another.

    """
    own, seen = (leaf_specs(x._spec[0]) for x in (policy, teacher))
    names = [".".join(path) for path in own]
    where = "`objective.distillation.teacher`"
    if teacher_obs is not None:
        if teacher_obs not in names:
            raise ConfigError(
                "`objective.distillation.teacher_obs` must name a leaf of the observation, "
                f"{', '.join(names)}; got {teacher_obs!r}."
            )
        if len(seen) > 1:
            raise ConfigError(
                "`objective.distillation.teacher_obs` names one leaf, and the teacher sees "
                f"{described(teacher._spec[0])}; got {teacher_obs!r}. Leave it out."
            )
        paths = [[*own][names.index(teacher_obs)]]
    else:
        paths = [*seen]
    problems = []
    for path, leaf in zip(paths, seen.values(), strict=True):
        name = ".".join(path) or "its observation"
        if path not in own:
            problems.append(
                f"{where} sees {name} ({described(leaf)}), which the environment does not "
                f"return; it returns {described(policy._spec[0])}. Name the leaf that the teacher "
                "sees in `teacher_obs`, or let the environment return it; `actor_obs` of "
                "`model_config` keeps it from the student."
            )
        elif _form(leaf) != _form(own[path]):
            problems.append(
                f"{where} sees {name} as {described(leaf)}; the environment returns "
                f"{described(own[path])}. Train the teacher on this environment's observations."
            )
    if problems:
        raise ConfigError(problems)
    return tuple([*own].index(path) for path in paths)


def _form(leaf: Any) -> tuple[Any, ...]:
    """Shape, dtype and choices of a leaf; bounds of measured numbers do not matter."""
    return leaf.shape, leaf.dtype, options(leaf) if not leaf.dtype.is_floating_point else []


def _check_actions(teacher: PolicyCore[Any], policy: PolicyCore[Any], loss: str) -> None:
    """Raise if the actions of teacher and student are not distributed over the same space."""
    where = "`objective.distillation.teacher`"
    taken, given = policy._spec[1], teacher._spec[1]
    if spec_to_dict(taken) != spec_to_dict(given):
        ours, theirs = (f"{described(x)} within {_bounds(x)}" for x in (taken, given))
        raise ConfigError(
            f"{where} must have the environment's actions, {ours}; got {theirs}. Train the teacher "
            "on this environment's actions."
        )
    own, other = policy.distribution_cls, teacher.distribution_cls
    if own is not other:
        raise ConfigError(
            f"{where} must have the student's distribution of actions, {own.__name__}; got "
            f"{other.__name__}. Set `distribution_cls` of the student to it."
        )
    if loss == "mse" and not issubclass(own, Normal):
        raise ConfigError(
            "`objective.distillation.loss` mse is for normal distributions of actions; got "
            f"{own.__name__}. Set it to kl."
        )
    if loss == "kl" and own.kl_divergence is Distribution.kl_divergence:
        raise ConfigError(
            f"`objective.distillation.loss` kl needs {own.__name__}.kl_divergence, which it does "
            "not have. Define it."
        )


def _bounds(spec: Any) -> str:
    """The bounds of a spec's leaves, for messages."""
    spaces: list[Any] = [getattr(leaf, "space", None) for leaf in leaf_specs(spec).values()]
    pairs = [(x.low, x.high) for x in spaces if hasattr(x, "low")]
    return ", ".join(f"{low.tolist()} to {high.tolist()}" for low, high in pairs) or "no bounds"
