"""Hyperparameters of training; their annotations are the rules that `validate` checks."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn, optim
from typing_extensions import Self

from ..data import LRScheduleKind, ScheduleKind, ScheduleName
from ..distributions import Distribution
from ..errors import ConfigError
from ..schedulers import MOST
from .rules import (
    add_on_problems,
    compile_problems,
    device_problems,
    optimizer_problems,
    point_problems,
    rollout_problems,
    schedule_problems,
)
from .shown import call, given_fields
from .validation import (
    STRICT,
    Count,
    CountsOfBudgets,
    Integer,
    InvalidError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Schedule,
    ScheduleFunction,
    unknown_name,
    validate,
)

Fraction = Annotated[float, Field(ge=0, le=1)]
Auto = Literal["auto"]

#: Fields that can change while an algorithm trains; everything else is built in.
LIVE = frozenset(
    {
        "accumulate_grads",
        "bounds_loss_coeff",
        "clip_param",
        "clip_param_schedule",
        "clip_param_schedule_kind",
        "clip_rewards",
        "dual_clip_param",
        "entropy_coeff",
        "entropy_coeff_schedule",
        "entropy_coeff_schedule_kind",
        "gae_lambda",
        "gamma",
        "lr_schedule",
        "lr_schedule_kind",
        "max_grad_norm",
        "normalize_advantages",
        "num_sgd_iters",
        "num_test_episodes",
        "on_missing_final",
        "recompute_advantages",
        "reward_scale",
        "sgd_minibatch_size",
        "shuffle_minibatches",
        "target_kl_div",
        "test_every",
        "vf_clip_param",
        "vf_coeff",
        "vf_loss",
    }
)

#: Largest values that make sense: beyond 1e9, squares of a loss leave float32.
LARGEST: dict[str, float] = {
    **dict.fromkeys(("lr", "entropy_coeff", "bounds_loss_coeff", "vf_coeff"), 1000),
    **dict.fromkeys(
        ("horizon", "num_envs", "seq_len", "num_sgd_iters", "num_test_episodes"), 10**7
    ),
    **dict.fromkeys(("vf_clip_param", "dual_clip_param", "target_kl_div", "max_grad_norm"), 1e9),
    **dict.fromkeys(("reward_scale", "clip_rewards", "clip_observations"), 1e9),
}

#: Hyperparameters in which "auto" is resolved; the types of their fields still allow it.
Resolved = Any


@dataclass(repr=False)
class Hyperparameters:
    """Hyperparameters of on-policy training.

    Fields with the value `"auto"` are resolved from the environment when the algorithm is built;
    `Algorithm.hparams` has the result. Many defaults depend on whether episodes end, that is,
    whether the environment has episode keys. Nothing is checked before `validate`.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    model: None | nn.Module = None
    """Model instance to train. Excludes `model_cls`."""

    model_cls: None | Callable[..., Any] = None
    """Model class, or function of (observation spec, action spec, **model_config). None: a
    default that fits the environment's specs."""

    model_config: None | dict[str, Any] = None
    """Keyword arguments of the model class. For environments whose episodes end, default
    feedforward models of vectors have `hiddens` [64, 64] and `activation_fn` "tanh" unless these
    are given, and `log_std_init` -ln(D) / 2 for actions of D > 1 real numbers."""

    distribution_cls: None | type[Distribution] = None
    """Action distribution. None: a default that fits the environment's action spec."""

    horizon: PositiveInt | Literal["auto"] = "auto"
    """Vector steps per rollout: env steps in each environment. `"auto"`: the horizon of the
    environment, else the default of its type, else 32."""

    horizons_per_env_reset: Integer | Literal["restarts", "auto"] = "auto"
    """Rollouts between resets of all environments; negative: one reset, at the start.
    `"restarts"`: until an episode ends by itself, each is reset after 1, 1, 2, 1, 1, 2, 4, …
    rollouts (Luby, Sinclair and Zuckerman 1993): what comes early is not forgotten, and what comes
    late is seen. They begin at eight places of that sequence with `staggered_resets`, else at the
    first. `"auto"`: 1 if the environment has no episode keys, `"restarts"` if it has no
    `max_episode_steps`, else -1."""

    staggered_resets: bool | Auto = "auto"
    """Whether environments are reset one after the other, between rollouts, in their first
    episodes of `max_episode_steps`, or by `"restarts"`: eight environments that begin together
    would end together, and each rollout would see one part of their episodes (arXiv 2511.21011).
    Environments whose first episode has ended by itself are left alone. `"auto"`: yes if episodes
    may be longer than `horizon`, `horizons_per_env_reset` is no number above 0, all agents share a
    policy, and the environment can reset single rows (`resets_rows`)."""

    num_envs: PositiveInt | Literal["auto"] = "auto"
    """Parallel environments. `"auto"`: the number of the environment, else the default of its
    type, else 8192; if episodes end, 64 on a CPU and 4096 on other devices."""

    optimizer_cls: type[optim.Optimizer] = optim.Adam
    """Optimizer class."""

    objective: str | Callable[..., Any] | dict[str, Any] = "ppo"
    """Objective of updates: `"ppo"`, `"a2c"`, a class such as `everstep.objectives.PPO`, an
    `everstep.distillation.Distillation`, or its description, such as `{"distillation": {"teacher":
    "runs/teacher"}}`."""

    policies: Literal["shared", "group", "agent"] | dict[str, list[str]] = "shared"
    """Policies of an environment whose rows are agents: one for all (`"shared"`), one for each
    agent (`"agent"`), one for each group of agents whose names differ in their number (`"group"`),
    or the names of the agents of each policy, by a name for it."""

    bonuses: Sequence[Any] = field(default_factory=list)
    """Intrinsic rewards: objects such as `everstep.bonuses.RandomNetworkDistillation()`, or their
    descriptions, such as `{"rnd": {"gamma_intrinsic": 0.99}}`."""

    policy_loss_addons: Sequence[Any] = field(default_factory=list)
    """Additional terms of the loss; see `everstep.objectives.LossAddOn`."""

    symmetry: Any = None
    """A reflection that minibatches are learned from as well, or that the policy is pulled towards:
    an `everstep.symmetry.Symmetry`, or its description, such as `{"observation": [-1, -1, 1],
    "action": [-1], "augment": true, "mirror_coeff": 0.0}`. None: none."""

    lr: None | NonNegativeFloat | ScheduleFunction = None
    """Learning rate of the optimizer; a function is that of `lr_schedule`. None: `lr` of
    `optimizer_config`; without one, 3e-4 if episodes end, else 1e-3."""

    optimizer_config: None | dict[str, Any] = None
    """Keyword arguments of the optimizer class. `lr_pi` is the learning rate of the policy, `lr_v`
    that of parameters that affect the values alone. Where episodes end, `eps` of Adam and AdamW
    defaults to 1e-5, unless this has a learning rate."""

    accumulate_grads: bool = False
    """Whether to accumulate the gradients of all minibatches of an epoch into one optimizer step:
    the gradient of the whole rollout with the memory of one minibatch."""

    enable_amp: bool = False
    """Whether models run under autocast, in collection and update. Losses stay in float32."""

    lr_schedule: None | Schedule | ScheduleFunction | ScheduleName | Auto = "auto"
    """Learning rate over env steps, as (env steps, learning rate) points that start at 0; or as a
    function of the fraction of the budget of `Trainer.run` that is left, which falls from 1 to 0
    (and is 1 without one), such as `lambda left: 3e-4 * left`. None: constant; `"linear"`: from the
    optimizer's learning rate to 0 over the budget (constant without one);
    `"constant_then_linear"`: constant for 100,000 env steps, at most three quarters of the budget,
    and then to 0. `"auto"`: `"constant_then_linear"` if episodes end, else None."""

    lr_schedule_kind: LRScheduleKind = "step"
    """`"step"`: step function; `"interp"`: linear interpolation; `"adaptive"`: no schedule, after
    each minibatch the learning rate is multiplied by 1.5 if the KL divergence is below half of
    `target_kl_div`, and divided by 1.5 if it is above twice `target_kl_div`."""

    entropy_coeff: NonNegativeFloat | ScheduleFunction = 0.0
    """Weight of the entropy bonus; a function is that of `entropy_coeff_schedule`."""

    entropy_coeff_schedule: None | Schedule | ScheduleFunction = None
    """Weight of the entropy bonus over env steps, as (env steps, weight) points that start at 0, or
    as a function of the fraction of the budget that is left. None: `entropy_coeff`."""

    entropy_coeff_schedule_kind: ScheduleKind = "step"
    """`"step"`: step function; `"interp"`: linear interpolation."""

    gae_lambda: Fraction = 0.95
    """λ of generalised advantage estimation: 0 trusts the value function, 1 the returns."""

    gamma: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Discount of the next env step's reward. `"auto"`: 0.99 if episodes end, else 0.95."""

    sgd_minibatch_size: None | PositiveInt | Auto = "auto"
    """Sequences (transitions, for a feedforward policy) per minibatch; must divide their number in
    a rollout. None: the whole rollout. `"auto"`: a 32nd of the rollout (an 8th with images), but at
    least 64 transitions; the whole rollout for A2C and if episodes do not end."""

    num_sgd_iters: PositiveInt | CountsOfBudgets | Auto = "auto"
    """Epochs per update; also as (budget, epochs) points that start at 0: the last one whose budget
    in env steps that of `Trainer.run` reaches, without a budget the last. `"auto"`: 1 for A2C;
    otherwise 10 if episodes end (4 with images), else 4. If episodes end, rollouts of at most 8,192
    env steps have 20 with budgets below 100,000 (10 with images below 50,000)."""

    recompute_advantages: bool | Auto = "auto"
    """Whether values, advantages and returns are computed again before each epoch but the first,
    with the values that the model has then (after arXiv 2006.05990): for feedforward policies
    without windows. `"auto"`: yes if episodes end and `num_sgd_iters` is `"auto"`, too, else no,
    as in textbooks."""

    shuffle_minibatches: bool = True
    """Whether to shuffle the rollout before every epoch."""

    clip_param: Annotated[float, Field(gt=0, lt=1)] | ScheduleFunction = 0.2
    """ε of the clipped surrogate: bound on the distance of the probability ratio from 1; a function
    is that of `clip_param_schedule`."""

    clip_param_schedule: None | Schedule | ScheduleFunction | ScheduleName = None
    """ε over env steps, as (env steps, ε) points that start at 0, or as a function of the fraction
    of the budget that is left. None: `clip_param`; `"linear"`: from `clip_param` to 0 over the
    budget of `Trainer.run` (constant without one); `"constant_then_linear"`: as for the rate."""

    clip_param_schedule_kind: ScheduleKind = "step"
    """`"step"`: step function; `"interp"`: linear interpolation."""

    vf_clip_param: None | PositiveFloat | Auto = "auto"
    """Distance of a value from its previous estimate beyond which it is clipped in the loss.
    None: values are not clipped. `"auto"`: None if episodes end, else 5."""

    dual_clip_param: None | Annotated[float, Field(gt=1)] = None
    """Lower bound of the surrogate for negative advantages, as a multiple of the advantage; try 5
    if large updates make continuous actions unstable. None: no bound."""

    vf_coeff: PositiveFloat = 1.0
    """Weight of the value loss."""

    bounds_loss_coeff: NonNegativeFloat = 0.0
    """Weight of the loss Σ max(|μ| − 1.1, 0)² on means μ of normal distributions of actions, whose
    bounds count as ±1; dimensions without bounds are taken as if they were bounded by ±1. A
    dimension with one bound may be beyond it by 0.1."""

    target_kl_div: None | PositiveFloat = None
    """Approximate KL divergence above which an update stops early. With `lr_schedule_kind` set to
    `"adaptive"`, the target of the learning rate; updates do not stop early then. None: never."""

    max_grad_norm: None | PositiveFloat | Auto = "auto"
    """Norm that gradients are clipped to. None: gradients are not clipped. `"auto"`: 0.5 if
    episodes end, else 5."""

    normalize_advantages: bool | Literal["minibatch"] = True
    """Whether to centre advantages and scale them to unit standard deviation: over the rollout, or
    with `"minibatch"` over each minibatch (of several processes, over the rows of all)."""

    critic_warmup: None | NonNegativeInt = None
    """Env steps at the start whose updates train the values, with advantages of 0, so that the
    policy does not follow values that are not trained yet; other terms, such as an entropy bonus,
    still move it. None: until a reward differs from 0, unless there are bonuses or the objective
    has no advantages, because they are errors of the values until then; and two rollouts where
    nothing may ever be reset (`horizons_per_env_reset` is -1, no episode ends in them, and the
    environment has episode keys and no `max_episode_steps`), because a small change of the policy
    leads such an environment far away. 0 with `lr_schedule_kind: adaptive`."""

    normalize_rewards: bool | Literal["running", "auto"] = "auto"
    """Whether to divide rewards by the standard deviation of their discounted sums within episodes
    (arXiv 2005.12729): over this rollout, or with `"running"` over all rollouts. `"auto"`: over
    all if episodes end, else over this rollout."""

    reward_scale: PositiveFloat = 1.0
    """Factor of the environment's rewards in advantages and returns, after `normalize_rewards`."""

    clip_rewards: None | PositiveFloat | Auto = "auto"
    """Largest absolute value of a reward in advantages and returns, after `normalize_rewards` and
    `reward_scale`. None: not clipped. `"auto"`: 10 (times `reward_scale`) if rewards are
    normalised, else None."""

    normalize_values: bool = False
    """Whether the model's values are returns minus their mean, divided by their standard deviation.
    The moments of all returns so far are part of the policy and change after updates only.
    Advantages are computed in units of rewards, `vf_loss` and `vf_clip_param` are in units of the
    standard deviation."""

    normalize_observations: bool | Auto = "auto"
    """Whether to centre observations and scale them to unit variance, by statistics of all
    observations so far: numbers of any dtype. Choices are encoded, and images with bounds are
    scaled by these, instead. The statistics are part of the policy and change after updates only;
    observations of the first rollout are not normalised. `"auto"`: yes if episodes end and there
    are numbers other than images."""

    preserve_outputs: None | bool = None
    """Whether the model's first layers change with the statistics of observations, after each
    update from the second on that trains the policy, so that what it computes of an observation
    stays (after arXiv 1602.07714): in default models with biases, without windows and without
    normalised images, unless one of these layers is frozen. None: yes, in those models. A policy
    that changes by itself unlearns, and leads an environment that is never reset far away."""

    clip_observations: None | PositiveFloat = 10.0
    """Largest absolute value of a normalised observation. None: not clipped."""

    device: torch.device | str = "auto"
    """Device of environment, rollout and policy. `"auto"`: the environment's device, else CUDA if
    available, else the CPU."""

    cuda_graphs: bool | Literal["auto"] = "auto"
    """Whether to record updates, and collection from `capturable` environments, as CUDA graphs.
    `"auto"`: on CUDA devices. Work that cannot be recorded runs eagerly; the log has the reason."""

    compile: bool | str = False
    """Whether to compile the model's `forward` with `torch.compile`, or the name of a backend.
    The first compilation takes half a minute or more, and on a CPU needs a C++ compiler. Default
    models of vectors are slower when compiled on a CPU."""

    matmul_precision: None | Literal["highest", "high", "medium"] = None
    """Precision of float32 matrix products in collection and update: `"high"` is TensorFloat32 if
    the device supports it, `"medium"` bfloat16. None: the process's setting."""

    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Dtype of autocast. float16 uses gradient scaling."""

    on_missing_final: Literal["mask", "approximate", "terminate", "error"] = "mask"
    """Treatment of a truncated row without its final observation: exclude it from the losses
    (`"mask"`), bootstrap from the observation that it acted on (`"approximate"`), treat it as
    terminated (`"terminate"`), or raise (`"error"`)."""

    vf_loss: Literal["smooth_l1", "mse", "auto"] = "auto"
    """Value loss: Huber's with threshold 1 (`"smooth_l1"`), or half the squared error (`"mse"`).
    `"auto"`: `"mse"` if episodes end, else `"smooth_l1"`."""

    seed: None | NonNegativeInt = None
    """Seed of PyTorch's generators and of the environment. None: neither is touched."""

    test_every: None | PositiveInt = None
    """Updates between tests by `Trainer.run` in an evaluation environment. None: no tests."""

    num_test_episodes: Count = 5
    """Complete episodes per test."""

    if not TYPE_CHECKING:  # type checkers know the fields

        def __new__(cls, *values, **options):
            """An instance; the error of an unknown field suggests another."""
            parameters = inspect.signature(cls.__init__).parameters
            is_open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            known = list(parameters)[1:]
            unknown = [] if is_open else [name for name in options if name not in known]
            if unknown:
                raise ConfigError([f"`{x}`: {unknown_name('field', x, known)}." for x in unknown])
            return super().__new__(cls)

    def __repr__(self) -> str:
        return call(type(self).__name__, **given_fields(self))

    def __post_init__(self) -> None:
        """Functions that were given as values become schedules, unless there is one already."""
        for name in MOST:
            function, schedule = getattr(self, name), f"{name}_schedule"
            if callable(function) and getattr(self, schedule) in (None, "auto"):
                setattr(self, schedule, function)
                setattr(self, name, _DEFAULTS[name])

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, unless an algorithm is built of this config."""
        if self.__dict__.get("_is_built_in"):
            instead = f"call `update_algorithm_parameter({name!r}, …)`"
            if name not in LIVE:
                instead = "set it in the config of a new algorithm"
            raise FrozenInstanceError(
                f"`{name}` of an algorithm's config cannot be set, because the algorithm is built "
                f"with it: {instead}."
            )
        super().__setattr__(name, value)

    def built_in(self) -> Self:
        """The config itself, whose fields cannot be set from now on: an algorithm has it."""
        self.__dict__["_is_built_in"] = True
        return self

    def validate(self) -> Self:
        """A checked copy.

        Raises:
            ConfigError: Lists all fields that violate a rule.

        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            config = validate(type(self), values)
        except InvalidError as error:
            raise ConfigError([f"`{p.path[0]}`: {p.message}." for p in error.problems]) from None
        problems = config.problems()
        if problems:
            raise ConfigError(problems)
        return config

    def problems(self) -> list[str]:
        """Violated rules between fields, one message each."""
        is_adaptive = self.lr_schedule_kind == "adaptive"
        broken = {
            "`model` and `model_cls` are mutually exclusive; both were given. Drop one.": (
                self.model is not None and self.model_cls is not None
            ),
            f"`model_cls` expected a class or a function that makes a model; got "
            f"{type(self.model_cls).__name__}, a model: pass it as `model`.": (
                isinstance(self.model_cls, nn.Module)
            ),
            "`horizons_per_env_reset` must not be 0: use 1 to reset before every rollout, "
            "or -1 to reset once.": self.horizons_per_env_reset == 0,
            f"`seed` must be below 2**63; got {self.seed}.": (self.seed or 0) >= 2**63,
            "`target_kl_div` stops between minibatches, and `accumulate_grads` makes one step "
            "of them: drop one of the two.": (
                self.target_kl_div is not None and self.accumulate_grads
            ),
            "`lr_schedule_kind` 'adaptive' needs `target_kl_div`: set it, for example to 0.01.": (
                is_adaptive and self.target_kl_div is None
            ),
            "`critic_warmup` and `lr_schedule_kind` 'adaptive' exclude each other: a policy that "
            f"does not change would raise the rate. Drop one; got {self.critic_warmup}.": (
                is_adaptive and bool(self.critic_warmup)
            ),
            "`lr_schedule` and `lr_schedule_kind` 'adaptive' exclude each other: drop one.": (
                is_adaptive and self.lr_schedule not in (None, "auto")
            ),
        }
        problems = [message for message, is_broken in broken.items() if is_broken]
        for name, most in LARGEST.items():
            value = getattr(self, name, None)
            if isinstance(value, int | float) and value > most:
                problems.append(f"`{name}` must be at most {most:,.0f}; got {value}.")
        for name in MOST:
            schedule = f"{name}_schedule"
            if callable(getattr(self, name)):
                problems.append(
                    f"`{name}` is a function, and `{schedule}` is set too: drop one of them."
                )
            problems += schedule_problems(name, getattr(self, schedule))
        if isinstance(self.num_sgd_iters, list):
            points = self.num_sgd_iters
            problems += point_problems("num_sgd_iters", points, LARGEST["num_sgd_iters"])
        problems += compile_problems(self.compile) + add_on_problems(self.policy_loss_addons)
        if isinstance(self.num_envs, int) and isinstance(self.horizon, int):
            problems += rollout_problems(self.num_envs, self.horizon)
        problems += device_problems(self.device, needs_graphs=self.cuda_graphs is True)
        return problems + self._optimizer_problems()

    def without_effect(self, ignored: Mapping[str, str]) -> list[str]:
        """Fields that were set and change nothing beside the others, one message each.

        Args:
            ignored: Fields that the objective does not use, and why.

        """
        idle = {**ignored}
        for name in ("lr", "entropy_coeff", "clip_param"):
            schedule, kind = f"{name}_schedule", f"{name}_schedule_kind"
            is_points = isinstance(getattr(self, schedule), list | tuple)
            if is_points or callable(getattr(self, schedule)):
                idle[name] = f"`{schedule}` replaces it"
            if not is_points and getattr(self, kind) == "interp":
                idle[kind] = f"`{schedule}` has no points to interpolate"
        if {"lr_pi", "lr_v"} <= (self.optimizer_config or {}).keys() and not self.bonuses:
            idle["lr"] = "`lr_pi` and `lr_v` of `optimizer_config` replace it"
        if not self.enable_amp:
            idle["amp_dtype"] = "`enable_amp` is off"
        if not self.normalize_observations:
            idle["clip_observations"] = "observations are not normalised"
            idle["preserve_outputs"] = "observations are not normalised"
        if self.test_every is None:
            idle["num_test_episodes"] = "`test_every` is not set"
        if self.model is not None:
            idle["model_config"] = "`model` is made already"
        defaults = {field.name: field.default for field in fields(self)}
        return [
            f"`{name}` has no effect: {reason}. Drop it."
            for name, reason in idle.items()
            if getattr(self, name) != defaults[name]
        ]

    def _optimizer_problems(self) -> list[str]:
        if callable(self.lr):
            return []  # a problem of its own
        if self.lr is not None and "lr" in (given := self.optimizer_config or {}):
            return [
                f"`lr` and `optimizer_config.lr` are one learning rate; got {self.lr} and "
                f"{given['lr']}. Drop one of them."
            ]
        has_schedule = self.lr_schedule not in (None, "auto")
        options, rates = self.optimizer_options()
        return optimizer_problems(self.optimizer_cls, options, rates, has_schedule=has_schedule)

    def optimizer_options(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Keyword arguments of the optimizer class, and the learning rates `lr_pi` and `lr_v`.

        Tensors are copied: schedules write into a learning rate that is one.
        """
        given = {"lr": 1e-3} if self.optimizer_config is None else self.optimizer_config
        options: dict[str, Any] = {
            k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in given.items()
        }
        if self.lr is not None:
            options["lr"] = self.lr
        return options, {key: options.pop(key) for key in ("lr_pi", "lr_v") if key in options}


#: Values of fields that functions leave when they become schedules.
_DEFAULTS = {name: getattr(Hyperparameters, name) for name in MOST}


@dataclass(repr=False)
class RecurrentHyperparameters(Hyperparameters):
    """Hyperparameters of on-policy training with a recurrent policy."""

    seq_len: PositiveInt | Auto = "auto"
    """Env steps of truncated backpropagation through time; must divide `horizon`. `"auto"`: the
    largest divisor of `horizon` up to 16 if episodes end, else 4."""

    seqs_per_state_reset: Integer | Literal["auto"] = "auto"
    """Sequences between resets of all recurrent states; negative: states are reset with
    environments and episodes only. `seq_len * seqs_per_state_reset` must divide
    `horizon * horizons_per_env_reset`, if that is a number above 0. `"auto"`: 8 if the environment
    has no episode keys (or as many as there are between resets, if 8 do not fit), else -1."""

    def problems(self) -> list[str]:
        """Violated rules between fields, one message each."""
        problems = super().problems()
        if self.seqs_per_state_reset == 0:
            problems.append(
                "`seqs_per_state_reset` must not be 0: use 1 to reset states before every "
                "sequence, or -1 to reset them with their environments."
            )
        return problems
