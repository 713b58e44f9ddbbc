"""Every hyperparameter, declared once."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn, optim
from typing_extensions import Self

from .data import LRScheduleKind, ScheduleKind
from .distributions import Distribution
from .errors import ConfigError
from .validation import (
    STRICT,
    Integer,
    InvalidError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Schedule,
    validate,
)

Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass
class Hyperparameters:
    """Hyperparameters of on-policy training.

    Fields that say `"auto"` are resolved when the algorithm is built, from the environment;
    `Algorithm.hparams` shows the result. Nothing is checked before `validate`.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    model: None | nn.Module = None
    """Model instance to train. Excludes `model_cls`."""

    model_cls: None | Callable[..., Any] = None
    """Model class, or function of (observation spec, action spec, **model_config). None: a
    default that fits the environment's specs."""

    model_config: None | dict[str, Any] = None
    """Keyword arguments of the model class."""

    distribution_cls: None | type[Distribution] = None
    """Action distribution. None: a default that fits the environment's action spec."""

    horizon: PositiveInt | Literal["auto"] = "auto"
    """Env steps a rollout, in each environment. `"auto"`: the environment's own, else its
    family's, else 32."""

    horizons_per_env_reset: Integer | Literal["auto"] = "auto"
    """Rollouts between resets of all environments; negative resets once, at the start. `"auto"`:
    1 where episodes never end by themselves, else -1."""

    num_envs: PositiveInt | Literal["auto"] = "auto"
    """Parallel environments. `"auto"`: the environment's own, else its family's, else 8192."""

    optimizer_cls: type[optim.Optimizer] = optim.Adam
    """Optimizer class."""

    objective: str | Callable[..., Any] = "ppo"
    """What an update minimises: `"ppo"`, `"a2c"`, or a class such as `everstep.objectives.PPO`."""

    bonuses: Sequence[Any] = field(default_factory=list)
    """Rewards of the agent's own: objects such as `everstep.bonuses.RandomNetworkDistillation()`,
    or what they are made of, such as `{"rnd": {"gamma_intrinsic": 0.99}}`."""

    policy_loss_addons: Sequence[Any] = field(default_factory=list)
    """Terms of your own that are added to the loss; see `everstep.objectives.LossAddOn`."""

    optimizer_config: None | dict[str, Any] = None
    """Keyword arguments of the optimizer class. None: a learning rate of 1e-3. `lr_pi` and `lr_v`
    are learning rates of the policy, and of what only the values depend on."""

    accumulate_grads: bool = False
    """Whether all minibatches of an epoch share one optimizer step: the gradient is that of the
    whole rollout, the memory that of one minibatch."""

    enable_amp: bool = False
    """Whether models run under autocast, in collection and update. Losses stay in float32."""

    lr_schedule: None | Schedule = None
    """Learning rate over environment transitions, as (transitions, learning rate) points that
    start at 0. None: constant."""

    lr_schedule_kind: LRScheduleKind = "step"
    """`"step"` jumps to a point's value and holds it, `"interp"` draws straight lines, and
    `"adaptive"` follows no schedule: after a minibatch the learning rate is multiplied by 1.5 where
    the KL divergence is below half of `target_kl_div`, and divided by 1.5 where above twice."""

    entropy_coeff: NonNegativeFloat = 0.0
    """Weight of the entropy bonus. Ignored with `entropy_coeff_schedule`."""

    entropy_coeff_schedule: None | Schedule = None
    """Weight of the entropy bonus over environment transitions. None: `entropy_coeff`."""

    entropy_coeff_schedule_kind: ScheduleKind = "step"
    """`"step"` jumps to a point's value and holds it, `"interp"` draws straight lines."""

    gae_lambda: Fraction = 0.95
    """λ of generalised advantage estimation: 0 trusts the value function, 1 the returns."""

    gamma: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Discount of the next env step's reward."""

    sgd_minibatch_size: None | PositiveInt = None
    """Sequences (transitions, for a feedforward policy) a minibatch; must divide their number in
    a rollout. None: the whole rollout."""

    num_sgd_iters: PositiveInt | Literal["auto"] = "auto"
    """Epochs: how often an update goes through the rollout. `"auto"`: 1 for A2C, else 4."""

    shuffle_minibatches: bool = True
    """Whether every epoch draws its minibatches anew."""

    clip_param: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε of the clipped surrogate: how far the ratio of probabilities may leave 1."""

    vf_clip_param: None | PositiveFloat = 5.0
    """How far a value may move from its previous estimate before the loss stops rewarding it.
    None: values are not clipped."""

    dual_clip_param: None | Annotated[float, Field(gt=1)] = None
    """Bound of the surrogate where the advantage is negative, times that advantage. Around 5
    where large updates make continuous actions unstable. None: no bound."""

    vf_coeff: PositiveFloat = 1.0
    """Weight of the value loss."""

    target_kl_div: None | PositiveFloat = None
    """Approximate KL divergence above which an update stops early; what the learning rate is
    adapted to with `lr_schedule_kind="adaptive"`, and then no update stops. None: never."""

    max_grad_norm: None | PositiveFloat = 5.0
    """Norm that gradients are clipped to. None: gradients are not clipped."""

    normalize_advantages: bool = True
    """Whether advantages are centred and scaled to unit standard deviation over the rollout."""

    normalize_rewards: bool | Literal["running"] = True
    """Whether rewards are divided by the standard deviation of their discounted sums so far in
    the episode (arXiv 2005.12729): of this rollout's, or with `"running"` of all rollouts'."""

    normalize_observations: bool = False
    """Whether observations are centred and scaled to unit variance, by statistics of all
    observations so far. They are part of the policy and change after updates only."""

    clip_observations: None | PositiveFloat = 10.0
    """Largest absolute value of a normalised observation. None: not clipped."""

    device: torch.device | str = "auto"
    """Device of environment, rollout and policy. `"auto"`: the environment's own, else CUDA where
    there is one, else the CPU."""

    cuda_graphs: bool | Literal["auto"] = "auto"
    """Whether updates, and the collection from environments that are `capturable`, are CUDA graphs.
    `"auto"`: on CUDA devices. What cannot be one goes on eagerly, and the log says why."""

    compile: bool | str = False
    """Whether the model's `forward` is compiled by `torch.compile`, or the backend that does it.
    Compiling takes half a minute or more where nothing is cached, and needs a C++ compiler on a
    CPU. Default models of perceptrons are slower with it on a CPU than without."""

    matmul_precision: None | Literal["highest", "high", "medium"] = None
    """Precision of products of float32 matrices in collection and update: `"high"` is TensorFloat32
    where the device has it, `"medium"` bfloat16. None: as the process has it."""

    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Autocast's dtype. float16 brings gradient scaling."""

    on_missing_final: Literal["mask", "approximate", "terminate", "error"] = "mask"
    """What happens to a truncated row whose final observation is lost: leave it out of the losses
    (`"mask"`), bootstrap the value of the observation it acted on (`"approximate"`), treat it as
    terminated (`"terminate"`), or raise (`"error"`)."""

    vf_loss: Literal["smooth_l1", "mse"] = "smooth_l1"
    """Value loss: Huber's with threshold 1, or half the squared error."""

    seed: None | NonNegativeInt = None
    """Seed of PyTorch's generators and of the environment. None: neither is touched."""

    test_every: None | PositiveInt = None
    """Updates between tests, which `Trainer.run` makes in an evaluation environment. None: no
    tests."""

    num_test_episodes: PositiveInt = 5
    """Complete episodes a test."""

    def validate(self) -> Self:
        """A checked copy.

        Raises:
            ConfigError: Lists every field that breaks a rule.

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
        """The rules between fields that this config breaks, one message each."""
        problems = []
        if self.model is not None and self.model_cls is not None:
            problems.append(
                "`model` and `model_cls` are mutually exclusive; both were given. Drop one."
            )
        if self.horizons_per_env_reset == 0:
            problems.append(
                "`horizons_per_env_reset` must not be 0: use 1 to reset before every rollout, "
                "or -1 to reset once."
            )
        if self.seed is not None and self.seed >= 2**63:
            problems.append(f"`seed` must be below 2**63; got {self.seed}.")
        if self.target_kl_div is not None and self.accumulate_grads:
            problems.append(
                "`target_kl_div` stops between minibatches, which `accumulate_grads` joins into "
                "one step: drop one of them."
            )
        problems += self._adaptive_problems()
        for name in ("lr_schedule", "entropy_coeff_schedule"):
            problems += _schedule_problems(name, getattr(self, name))
        return problems + self._device_problems() + self._optimizer_problems()

    def _adaptive_problems(self) -> list[str]:
        if self.lr_schedule_kind != "adaptive":
            return []
        problems = []
        if self.target_kl_div is None:
            problems.append(
                "`lr_schedule_kind` 'adaptive' follows `target_kl_div`: set that, to 0.01 say."
            )
        if self.lr_schedule is not None:
            problems.append(
                "`lr_schedule` and `lr_schedule_kind` 'adaptive' exclude each other: drop one."
            )
        return problems

    def _device_problems(self) -> list[str]:
        if self.device == "auto":
            return []
        try:
            device = torch.device(self.device)
        except RuntimeError:
            return [
                "`device` expected 'auto' or a device such as 'cpu' or 'cuda:0'; "
                f"got {self.device!r}."
            ]
        if self.cuda_graphs is True and device.type != "cuda":
            return [no_graphs_on(device)]
        count = torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= count:
            return [f"`device` {device} is not available: PyTorch sees {count} CUDA devices."]
        return []

    def _optimizer_problems(self) -> list[str]:
        """Options that the optimizer refuses; an optimizer of a single number costs nothing."""
        options, rates = self.optimizer_options()
        problems = _number_problems(self.optimizer_cls, {**options, **rates})
        if problems:
            return problems
        if rates and self.lr_schedule is not None:
            problems.append(
                f"`optimizer_config` has {' and '.join(rates)}, and `lr_schedule` sets one "
                "learning rate for all parameters: drop one of them."
            )
        for rate in (options.get("lr"), *rates.values()):
            chosen = options if rate is None else {**options, "lr": rate}
            try:
                self.optimizer_cls([nn.Parameter(torch.zeros(1))], **chosen)
            except (TypeError, ValueError) as error:
                name = self.optimizer_cls.__name__
                return [*problems, f"`optimizer_config`: invalid option for {name}: {error}."]
        return problems

    def optimizer_options(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Keyword arguments of the optimizer class, and the learning rates `lr_pi` and `lr_v`."""
        options = dict({"lr": 1e-3} if self.optimizer_config is None else self.optimizer_config)
        names = [name for name in ("lr_pi", "lr_v") if name in options]
        rates: dict[str, float] = {name: options.pop(name) for name in names}
        return options, rates


def no_graphs_on(device: torch.device) -> str:
    """What to say where CUDA graphs are asked for on another device."""
    return f"`cuda_graphs` True needs a CUDA device; got `device` {device}. Set it to 'auto'."


def _number_problems(optimizer_cls: Callable[..., Any], options: dict[str, Any]) -> list[str]:
    """Options that must be numbers, because their defaults are, and are not."""
    defaults = {k: p.default for k, p in inspect.signature(optimizer_cls).parameters.items()}
    rate = defaults.get("lr") if _is_number(defaults.get("lr")) else 1e-3
    defaults |= {"lr": rate, "lr_pi": rate, "lr_v": rate}
    problems = []
    for name, value in options.items():
        default = defaults.get(name)
        if _is_number(default):
            expected, fits = "a number", _is_number(value)
        elif isinstance(default, tuple) and all(map(_is_number, default)):
            default, expected = list(default), f"a list of {len(default)} numbers"
            fits = isinstance(value, list | tuple) and len(value) == len(default)
            fits = fits and all(map(_is_number, value))
        else:
            continue
        if not fits and (value is not None or name in ("lr", "lr_pi", "lr_v")):
            problems.append(
                f"`optimizer_config` {name} must be {expected}; got {value!r}. Try {default}."
            )
    return problems


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)


def _schedule_problems(name: str, schedule: None | list[tuple[int, float]]) -> list[str]:
    if schedule is None:
        return []
    counts = [count for count, _ in schedule]
    problems = []
    if not schedule or counts[0] != 0:
        problems.append(f"`{name}` must start at 0 transitions; got {schedule!r}.")
    if counts != sorted(set(counts)):
        problems.append(f"`{name}` must count transitions upwards; got {counts}.")
    if any(value < 0 for _, value in schedule):
        problems.append(f"`{name}` must not be negative; got {schedule!r}.")
    return problems


@dataclass
class RecurrentHyperparameters(Hyperparameters):
    """Hyperparameters of on-policy training with a recurrent policy."""

    seq_len: PositiveInt = 4
    """Env steps that gradients flow back through; must divide `horizon`."""

    seqs_per_state_reset: Integer | Literal["auto"] = "auto"
    """Sequences between resets of all recurrent states; negative for none but those of
    environments and episodes. `seq_len * seqs_per_state_reset` must divide
    `horizon * horizons_per_env_reset`. `"auto"`: 8 where episodes never end by themselves (or as
    many as there are between resets, if 8 do not fit), else -1."""

    def problems(self) -> list[str]:
        """The rules between fields that this config breaks, one message each."""
        problems = super().problems()
        if self.seqs_per_state_reset == 0:
            problems.append(
                "`seqs_per_state_reset` must not be 0: use 1 to reset states before every "
                "sequence, or -1 to reset them with their environments."
            )
        return problems
