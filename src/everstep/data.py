"""Types that the whole library shares: keys, devices, views of hyperparameters, statistics."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from typing_extensions import NotRequired, TypedDict

if TYPE_CHECKING:
    from gymnasium import VectorizeMode
    from gymnasium.vector import AutoresetMode

#: Anything PyTorch accepts as a device.
Device = str | torch.device


#: What a `symmetry` reflects; each may be a function, which a file names by its dotted path.
REFLECTED = ("observation", "action")


class DataKeys:
    """Names of the elements of observations, rollouts and batches."""

    #: Observations that the policy acts on.
    OBS = "obs"
    #: The environment's reward for the action of the same row.
    REWARDS = "rewards"
    #: Targets of the value function: advantage plus value.
    RETURNS = "returns"
    #: Outputs of the model that parametrise the action distribution.
    FEATURES = "features"
    #: True for the options of an action that are allowed; in an observation and among features.
    ACTION_MASK = "action_mask"
    #: Actions of the policy.
    ACTIONS = "actions"
    #: Log-probability of the action at the time it was taken.
    LOGP = "logp"
    #: Value estimates, one column a reward stream.
    VALUES = "values"
    #: Elements of a window that has a `PADDING_MASK`.
    INPUTS = "inputs"
    #: True where an element of `INPUTS` is padding.
    PADDING_MASK = "padding_mask"
    #: Preprocessed inputs to a model.
    VIEWS = "views"
    #: Advantages, as the objective uses them.
    ADVANTAGES = "advantages"
    #: Recurrent model states.
    STATES = "states"
    #: Recurrent hidden states, usually under `STATES`.
    HIDDEN_STATES = "hidden_states"
    #: Recurrent cell states, usually under `STATES`.
    CELL_STATES = "cell_states"
    #: Discounted sums of past rewards; rewards are divided by their standard deviation.
    REVERSED_DISCOUNTED_RETURNS = "reversed_discounted_returns"

    #: True where the task ended because of this action: the return ends here.
    TERMINATED = "terminated"
    #: True where a time limit ended the episode: the return is bootstrapped.
    TRUNCATED = "truncated"
    #: True where the observation returned with this row is the first of an episode.
    FIRST = "first"
    #: Last observation before the reset; defined where an episode ended and `FIRST` is True.
    FINAL_OBS = "final_obs"
    #: False where the row is not the result of the policy's action.
    VALID = "valid"


#: Episode keys that an environment may declare in `Env.episode_keys`.
EPISODE_KEYS = frozenset(
    {DataKeys.TERMINATED, DataKeys.TRUNCATED, DataKeys.FIRST, DataKeys.FINAL_OBS, DataKeys.VALID}
)


class AlgorithmHparams(Mapping[str, Any]):
    """Read-only view of an algorithm's resolved hyperparameters.

    Every field of the algorithm's config is an attribute and a key, with `"auto"` resolved.

    Args:
        config: Resolved config, a dataclass.
        num_minibatches: Minibatches per epoch.

    """

    _config: Any

    #: Minibatches per epoch.
    num_minibatches: int

    def __init__(self, config: Any, /, *, num_minibatches: int) -> None:
        object.__setattr__(self, "_config", config)
        object.__setattr__(self, "num_minibatches", num_minibatches)

    @property
    def device_type(self) -> str:
        """Type of the device, such as `"cpu"` or `"cuda"`."""
        return torch.device(self._config.device).type

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(
            f"`hparams.{name}` is read-only: set it in the config and build again."
        )

    def __getitem__(self, name: str) -> Any:
        if name not in set(self):
            raise KeyError(name)
        return getattr(self._config, name)

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self._config))

    def __len__(self) -> int:
        return len(fields(self._config))

    def __repr__(self) -> str:
        _, _, given = repr(self._config).partition("(")
        return f"{type(self).__name__}({given}"


@dataclass(kw_only=True)
class AlgorithmState:
    """Counters of an algorithm while it trains."""

    #: True between `Algorithm.collect` and `Algorithm.step`.
    buffered: bool = False

    #: Number of horizons collected, evaluation on the shared environment included.
    horizons: int = 0

    #: Env steps that updates have learned from; schedules count these.
    env_steps: int = 0

    #: Divisor of the rewards of the last rollout; 1 if rewards are not normalised.
    reward_scale: float = 1.0

    #: Whether a reward differed from 0 so far, in a rollout to learn from.
    rewarded: bool = False

    #: Whether an episode ended by itself so far, in a rollout to learn from.
    ended: bool = False

    #: `horizons` at the last reset of all environments.
    opened: int = 0


class RecurrentAlgorithmHparams(AlgorithmHparams):
    """Read-only view of a recurrent algorithm's resolved hyperparameters."""


@dataclass(kw_only=True)
class RecurrentAlgorithmState(AlgorithmState):
    """Counters of a recurrent algorithm while it trains."""

    #: Number of sequences collected, evaluation on the shared environment included.
    seqs: int = 0


class _Meaning(NamedTuple):
    """A statistic's meaning and unit, a row of the page of statistics."""

    text: str
    unit: str


_EnvSteps = Annotated[
    int,
    _Meaning(
        "env steps of all environments since the training began; in results of "
        "`Algorithm.collect` and `eval`, those of the rollouts",
        "env steps",
    ),
]
_EnvResets = Annotated[
    int, _Meaning("environments that were reset before the rollout", "environments")
]
_AlgorithmCollects = Annotated[
    int, _Meaning("rollouts, those of evaluations on the training environment included", "rollouts")
]
_AlgorithmSteps = Annotated[int, _Meaning("updates", "updates")]
_EpisodesCount = Annotated[int, _Meaning("episodes that ended in the rollout", "episodes")]
_EpisodeReturns = Annotated[
    float,
    _Meaning(
        "undiscounted returns of episodes that ended in the rollout, from their beginning; the "
        "standard deviation is that of the population (÷ n)",
        "reward",
    ),
]
_EpisodesLengthMean = Annotated[
    float, _Meaning("length of episodes that ended in the rollout", "env steps")
]
_EpisodesReturnMean100 = Annotated[
    float,
    _Meaning(
        "mean return of the last 100 episodes that ended, or of all if there are fewer", "reward"
    ),
]
_RolloutReturns = Annotated[
    float, _Meaning("sum of rewards over the rollout, over environments", "reward")
]
_Rewards = Annotated[float, _Meaning("rewards in the rollout", "reward")]
_LossesPolicy = Annotated[
    float,
    _Meaning(
        "clipped surrogate, which is maximised; of a distillation the negative divergence "
        "from the teacher",
        "advantage",
    ),
]
_LossesVf = Annotated[
    float, _Meaning("value loss, before `vf_coeff`", "scaled reward, by `vf_loss`")
]
_LossesEntropy = Annotated[
    float,
    _Meaning(
        "mean entropy of the policy; if its coefficient is 0, it is measured in every eighth "
        "optimizer step, from the first. Absent if the distribution cannot compute it",
        "nats",
    ),
]
_LossesTotal = Annotated[
    float, _Meaning("what is minimised: `vf_coeff`·vf − policy − entropy coefficient·entropy", "")
]
_Coefficients = Annotated[float, _Meaning("weights, learning rate and ε of the update", "")]
_MonitorsKlDiv = Annotated[
    float,
    _Meaning("approximate KL divergence from the policy that collected to the updated one", "nats"),
]
_MonitorsClipFraction = Annotated[
    float,
    _Meaning(
        "fraction of rows whose probability ratio differs from 1 by more than `clip_param`",
        "0 to 1",
    ),
]
_MonitorsExplainedVariance = Annotated[
    float,
    _Meaning(
        "1 − variance of the value's errors ÷ variance of its targets, before the update",
        "at most 1",
    ),
]
_MonitorsGradNorm = Annotated[float, _Meaning("norm of the gradients, before clipping", "")]
_MonitorsSkippedUpdates = Annotated[
    int,
    _Meaning(
        "optimizer steps that were skipped because gradients were not finite", "optimizer steps"
    ),
]
_Durations = Annotated[float, _Meaning("duration of the rollout, and of the update", "ms")]
_ProfilingEnvMs = Annotated[
    float,
    _Meaning(
        "part of the rollout in the environment's `step`. Nothing is waited for: of a "
        "simulator on a GPU it is the time to launch its work. Absent where a graph was "
        "replayed",
        "ms",
    ),
]
_ProfilingLogMs = Annotated[
    float,
    _Meaning(
        "duration of the loggers' work since the train step before, and processor time of "
        "trackers' threads",
        "ms",
    ),
]
_Memory = Annotated[
    int, _Meaning("memory of the training device; on a CPU, of the machine", "bytes")
]
_MemoryPercent = Annotated[float, _Meaning("fraction of the memory that is in use", "%")]


#: Running totals of a trainer.
TrainerState = TypedDict(
    "TrainerState",
    {
        "algorithm/collects": _AlgorithmCollects,
        "algorithm/steps": _AlgorithmSteps,
        "env/steps": _EnvSteps,
    },
)

#: Statistics that `Algorithm.collect` returns, without `episodes/*` if no episode ended.
CollectStats = TypedDict(
    "CollectStats",
    {
        "env/resets": _EnvResets,
        "env/steps": _EnvSteps,
        "profiling/collect_ms": _Durations,
        "profiling/env_ms": NotRequired[_ProfilingEnvMs],
        "returns/min": _RolloutReturns,
        "returns/max": _RolloutReturns,
        "returns/mean": _RolloutReturns,
        "returns/std": _RolloutReturns,
        "rewards/min": _Rewards,
        "rewards/max": _Rewards,
        "rewards/mean": _Rewards,
        "rewards/std": _Rewards,
        "episodes/count": NotRequired[_EpisodesCount],
        "episodes/return_mean": NotRequired[_EpisodeReturns],
        "episodes/return_std": NotRequired[_EpisodeReturns],
        "episodes/return_min": NotRequired[_EpisodeReturns],
        "episodes/return_max": NotRequired[_EpisodeReturns],
        "episodes/return_mean_100": NotRequired[_EpisodesReturnMean100],
        "episodes/length_mean": NotRequired[_EpisodesLengthMean],
    },
)

#: Statistics that `Trainer.eval` returns: `CollectStats` with the prefix `"eval/"`.
EvalCollectStats = TypedDict(
    "EvalCollectStats",
    {
        "eval/env/resets": int,
        "eval/env/steps": int,
        "eval/profiling/collect_ms": float,
        "eval/profiling/env_ms": NotRequired[float],
        "eval/returns/min": float,
        "eval/returns/max": float,
        "eval/returns/mean": float,
        "eval/returns/std": float,
        "eval/rewards/min": float,
        "eval/rewards/max": float,
        "eval/rewards/mean": float,
        "eval/rewards/std": float,
        "eval/episodes/count": NotRequired[int],
        "eval/episodes/return_mean": NotRequired[float],
        "eval/episodes/return_std": NotRequired[float],
        "eval/episodes/return_min": NotRequired[float],
        "eval/episodes/return_max": NotRequired[float],
        "eval/episodes/return_mean_100": NotRequired[float],
        "eval/episodes/length_mean": NotRequired[float],
    },
)

#: Memory of the training device, bytes and percent.
MemoryStats = TypedDict(
    "MemoryStats",
    {"memory/free": _Memory, "memory/total": _Memory, "memory/percent": _MemoryPercent},
    total=False,
)

#: Statistics that `Algorithm.step` returns.
StepStats = TypedDict(
    "StepStats",
    {
        "coefficients/entropy": _Coefficients,
        "coefficients/vf": _Coefficients,
        "coefficients/lr": _Coefficients,
        "coefficients/clip_param": _Coefficients,
        "losses/entropy": _LossesEntropy,
        "losses/policy": _LossesPolicy,
        "losses/vf": _LossesVf,
        "losses/total": _LossesTotal,
        "monitors/kl_div": _MonitorsKlDiv,
        "monitors/clip_fraction": _MonitorsClipFraction,
        "monitors/explained_variance": _MonitorsExplainedVariance,
        "monitors/grad_norm": _MonitorsGradNorm,
        "monitors/skipped_updates": _MonitorsSkippedUpdates,
        "profiling/step_ms": _Durations,
    },
)


#: What a trainer's loggers took.
LoggingStats = TypedDict("LoggingStats", {"profiling/log_ms": _ProfilingLogMs})


class TrainStats(CollectStats, MemoryStats, StepStats, TrainerState, LoggingStats):
    """Statistics that `Trainer.step` and `Trainer.run` return."""


#: Name of a statistic, such as `"episodes/return_mean"`.
TrainStatKey = str

#: How the learning rate changes: along a schedule, or adapted to the policy's KL divergence.
LRScheduleKind = Literal["interp", "step", "adaptive"]

#: How a schedule interpolates between its points: linearly, or as a step function.
ScheduleKind = Literal["interp", "step"]

#: Schedules of the budget that have a name.
ScheduleName = Literal["linear", "constant_then_linear"]

#: Format of an exported policy: MLflow's directory, an ONNX file, or one of `torch.export`.
ExportFormat = Literal["mlflow", "onnx", "torch-export"]


class Parity(NamedTuple):
    """Comparison of a policy with its exported program."""

    #: Observations that both were given.
    observations: int

    #: Largest absolute difference between outputs.
    difference: float


#: Key of an entry of a TensorDict.
NestedKey = str | Sequence[str]


class AdapterOptions(TypedDict, total=False):
    """Options of Everstep's own adapters, for type checkers: each adapter takes some of them.

    Options of other adapters are passed as `**options`, of type `dict[str, Any]`.
    """

    action_bounds: Literal["auto", "clip", "rescale"]
    action_key: None | NestedKey
    agents: None | str | Sequence[str]
    all_agents: bool
    autoreset_mode: "None | str | AutoresetMode"
    categorical_actions: bool
    done_is: None | Literal["terminated", "truncated"]
    done_key: None | NestedKey
    final_obs_key: None | str
    max_episode_length: None | float
    max_episode_steps: None | int
    metrics: None | Sequence[str] | Sequence[str | Sequence[str]]
    observation_keys: None | str | Sequence[str] | Sequence[Any] | Sequence[NestedKey]
    random_phase: bool
    reset_style: None | str
    reward_key: None | NestedKey
    step_timeout: None | float
    terminated_key: None | NestedKey
    time_limit: None | int
    time_outs: None | str


class WrapOptions(AdapterOptions, total=False):
    """Options of `wrap`."""

    device: None | Device
    horizon: None | int
    num_envs: None | int
    params: Any


class MakeOptions(AdapterOptions, total=False):
    """Options of `make` and `factory` for a spec string.

    `env_kwargs` are arguments of the environment itself.
    """

    env_kwargs: dict[str, Any]
    key: None | str | os.PathLike[str]
    python: None | str | os.PathLike[str]
    render_mode: None | str
    server: None | str | Sequence[str]
    vector_kwargs: None | dict[str, Any]
    vectorization_mode: "None | str | VectorizeMode"
    wrappers: None | str | Sequence[str | Callable[..., Any] | dict[str, Any]]
