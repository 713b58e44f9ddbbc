"""The parts of an algorithm as attributes, and the parts of an update as single operations."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, fields, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import psutil
import torch
from tensordict import TensorDict
from torch import nn, optim
from torch.amp.grad_scaler import GradScaler
from torchrl.data import Composite

from ..bonuses import Bonus, Stream
from ..core.episodes import EpisodeTracker, to_floats
from ..core.fast import eligible
from ..core.hyperparameters import LIVE, Hyperparameters, RecurrentHyperparameters, Resolved
from ..core.normalizers import RunningMoments
from ..core.ranks import Reducer
from ..core.rollouts import Minibatch, Rollout
from ..core.synonyms import PYTORCHRL_NAMES
from ..data import AlgorithmHparams, AlgorithmState, CollectStats, MemoryStats, StepStats
from ..env import Env
from ..errors import ConfigError, DivergedError, NotBufferedError
from ..objectives import PPO, Objective
from ..policies import GenericPolicyBase, model_mode
from ..schedulers import ClipScheduler, EntropyScheduler, LRScheduler
from ..symmetry import Mirror
from .build import Parts
from .estimates import statistic
from .pytorchrl import PytorchrlOperations
from .recording import optimizer_steps
from .resolve import rollouts_per_reset
from .snapshot import Numbers, as_tensor, buffers_of, copies, merge, moments_of, replace_numbers
from .updates import Updater

_Hparams = TypeVar("_Hparams", bound=AlgorithmHparams)
_State = TypeVar("_State", bound=AlgorithmState)
_Policy = TypeVar("_Policy", bound=GenericPolicyBase[Any])


def _change(name: str) -> str:
    return f"call `update_algorithm_parameter({name!r}, …)`"


_BUILD = "set `{}` in the config and build a new algorithm"

#: What to do instead of replacing a part; for all others, to build a new algorithm.
_INSTEAD = {
    "bonuses": _BUILD.format("bonuses"),
    "clip_scheduler": _change("clip_param_schedule"),
    "entropy_scheduler": _change("entropy_coeff_schedule"),
    "env": "build a new algorithm with the other environment; `set_weights` gives it these weights",
    "lr_scheduler": _change("lr_schedule"),
    "minibatch_size": _change("sgd_minibatch_size"),
    "mirror": _BUILD.format("symmetry"),
    "objective": _BUILD.format("objective"),
    "optimizer": f"{_BUILD.format('optimizer_cls')}; for another learning rate, {_change('lr')}",
    "policy": "call `set_weights(…)` for other weights, or build a new algorithm with `model=…`",
}

#: Names of hyperparameters, which are no attributes of algorithms.
_HYPERPARAMETERS = frozenset({f.name for f in fields(RecurrentHyperparameters)}) | {
    *PYTORCHRL_NAMES
}


#: Attributes of an algorithm that its parts are.
_PARTS = tuple(f.name for f in fields(Parts))

#: Names that cannot be set: other parts hold references to them.
_WIRED = {*_PARTS, *_HYPERPARAMETERS}


class MinibatchesOfUpdate(Iterator[Minibatch]):
    """The minibatches of one update.

    The update ends after the last minibatch, with `close`, when this object is deleted, or when the
    algorithm collects the next rollout. After that rollout, asking for a minibatch is an error.

    Args:
        algorithm: The algorithm.

    """

    def __init__(self, algorithm: "WorkerOperations[Any, Any, Any]") -> None:
        self.algorithm = algorithm
        self._minibatches = algorithm._minibatches(weakref.ref(self))
        self._is_superseded = False

    def __next__(self) -> Minibatch:
        if self._is_superseded:
            raise NotBufferedError(
                "This update has ended, because the algorithm has collected another rollout since: "
                "call `minibatches` again."
            )
        return next(self._minibatches)

    def close(self) -> None:
        """End the update, if it has begun."""
        self._minibatches.close()

    def supersede(self) -> None:
        """End the update, because another rollout follows."""
        self._is_superseded = True
        self.close()


class WorkerOperations(PytorchrlOperations, ABC, Generic[_Hparams, _State, _Policy]):
    """Operations of a parameter server or a pool of workers, in place of `step`.

    Workers call `collect`, then `compute_gradients` for each of `minibatches`. The server calls
    `apply_gradients`, then sends `get_weights` to everybody's `set_weights`.
    """

    #: Classes of hyperparameters, policy and counters of this kind of algorithm.
    config_cls: type[Hyperparameters] = Hyperparameters
    hparams_cls: type[_Hparams]
    policy_cls: type[_Policy]
    state_cls: type[_State]

    #: Counters.
    state: _State

    # The parts, which are described in `Parts`: attributes that cannot be set.
    bonuses: tuple[Bonus, ...]
    buffer: TensorDict
    buffer_spec: Composite
    clip_scheduler: ClipScheduler
    config: Resolved
    discounted_returns: RunningMoments
    entropy_scheduler: EntropyScheduler
    env: Env
    episodes: EpisodeTracker
    grad_scaler: GradScaler
    hparams: _Hparams
    lr_scheduler: LRScheduler
    minibatch_size: int
    mirror: None | Mirror
    objective: Objective
    optimizer: optim.Optimizer
    policy: _Policy
    reducer: Reducer
    rollout: Rollout
    streams: tuple[Stream, ...]
    updater: Updater

    #: Sequences of a forward pass in an update; None for a whole minibatch. It can be set.
    chunk_size: None | int

    _rows_to_learn: int

    #: The update whose minibatches are being asked for.
    _open_update: "None | weakref.ref[MinibatchesOfUpdate]" = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what is not wired to other parts, and no hyperparameter."""
        if name == "parts":
            vars(self).update({part: getattr(value, part) for part in _PARTS})
        elif name == "chunk_size":
            self.parts = replace(self.parts, chunk_size=value)
            return
        elif name in _WIRED or getattr(getattr(type(self), name, self), "fset", self) is None:
            instead = _INSTEAD.get(name, "build a new algorithm")
            if name in _HYPERPARAMETERS and name not in _INSTEAD:
                is_live = name in LIVE or name in PYTORCHRL_NAMES
                instead = _change(name) if is_live else _BUILD.format(name)
            raise FrozenInstanceError(
                f"`{type(self).__name__}.{name}` cannot be set: the algorithm's other parts would "
                f"go on with the one that they have. Instead, {instead}."
            )
        super().__setattr__(name, value)

    @abstractmethod
    def collect(
        self, *, env_config: None | dict[str, Any] = None, deterministic: bool = False
    ) -> CollectStats:
        """Fill the buffer with a rollout, and return its statistics."""

    @abstractmethod
    def estimate(self, reward_scale: None | torch.Tensor = None) -> torch.Tensor:
        """Fill in advantages and returns; the explained variance of the values, 0-d."""

    @abstractmethod
    def _revise(self, *, in_step: bool) -> None:
        """Fill in values, advantages and returns anew, with the policy as it is now."""

    @abstractmethod
    def hold_policy(self) -> None:
        """Let the update train the values alone, if `critic_warmup` says so."""

    @abstractmethod
    def step(self) -> StepStats:
        """Update the policy with the rollout, and return the update's statistics."""

    @abstractmethod
    def _take_rollout(self, caller: str) -> None: ...

    @abstractmethod
    def _end_update(self, lr: None | float = None) -> None: ...

    @abstractmethod
    def _losses(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each."""

    # ---- the record ---------------------------------------------------------------------------

    @property
    def horizons_per_env_reset(self) -> int:
        """Rollouts between resets of all environments; negative: no such number."""
        return rollouts_per_reset(self.config)

    def memory_stats(self) -> MemoryStats:
        """Memory of the device, in bytes and percent."""
        if self.hparams.device_type == "cuda":
            free, total = torch.cuda.mem_get_info(self.hparams.device)
        else:
            memory = psutil.virtual_memory()
            free, total = memory.available, memory.total
        return {
            "memory/free": free,
            "memory/total": total,
            "memory/percent": 100 * (total - free) / total,
        }

    @property
    def params(self) -> dict[str, Any]:
        """Everything that a record of this training should name, by name."""
        classes = {
            "env_cls": type(self.env).__name__,
            "model_cls": type(self.policy.model).__name__,
            "distribution_cls": self.policy.distribution_cls.__name__,
            "optimizer_cls": type(self.optimizer).__name__,
        }
        config = self.hparams._config
        values = {field.name: getattr(config, field.name) for field in fields(config)}
        facts = {"native": self.general_way or True, "episodic": bool(self.rollout.episode_keys)}
        return values | {"model": None} | facts | classes

    @property
    def general_way(self) -> None | str:
        """Reason why training does not take the native way; None if it does."""
        return self._needs_autograd() or eligible(self.policy, self.objective, self.optimizer)

    def _needs_autograd(self) -> None | str:
        """Reason why autograd has to differentiate whatever policy and objective are."""
        if self.config.policy_loss_addons:
            return "`policy_loss_addons` are differentiated by autograd"
        if self.mirror:
            return "`symmetry` is differentiated by autograd"
        if self.grad_scaler.is_enabled():
            return "gradient scaling of float16 needs autograd"
        return None

    # ---- gradients ----------------------------------------------------------------------------

    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters, then those of bonuses: the order of lists of gradients."""
        bonuses = [p for bonus in self.bonuses for p in bonus.parameters()]
        return [*self.policy.model.parameters(), *bonuses]

    def minibatches(self) -> Iterator[Minibatch]:
        """The minibatches of an update, epoch by epoch, in the order of `step`.

        Asking for the first minibatch estimates the advantages. The end of the iterator ends the
        update: transitions are counted, schedules and statistics move on. So does leaving a loop
        early; if the iterator is still referenced, the update ends with the next `collect`.
        `target_kl_div` is not applied.

        With `accumulate_grads`, the gradients of one epoch's minibatches add up to one step's.

        Raises:
            NotBufferedError: If `collect` was not called before.

        """
        if not self.state.buffered:
            self._take_rollout("minibatches")  # raises now, rather than in the first iteration
        return MinibatchesOfUpdate(self)

    def _minibatches(
        self, update: "weakref.ref[MinibatchesOfUpdate]"
    ) -> Generator[Minibatch, None, None]:
        self._take_rollout("minibatches")
        self._open_update = update
        self.reducer.check_alike("Algorithm.minibatches", {})
        self.estimate()
        self.hold_policy()
        state, horizons = self.state, self.state.horizons
        try:
            yield from chain.from_iterable(self._optimizer_steps(None, in_step=False))
        finally:
            if self._open_update is update:
                self._open_update = None
            # Not if there is another rollout by now, or training continued from a checkpoint.
            if self.state is state and state.horizons == horizons:
                self.reducer.check_alike("Algorithm.minibatches", {})
                self._end_update()

    def _end_open_update(self) -> None:
        """End an update that is still open, before its rollout is overwritten."""
        update = None if self._open_update is None else self._open_update()
        if update is not None and update.algorithm is self:  # not of what this is a copy of
            update.supersede()

    def _epochs(self, *, in_step: bool) -> Iterator[int]:
        """Numbers of epochs of an update that follow each other without new advantages.

        With `recompute_advantages` they are computed anew before the next number is given.
        """
        if not self.config.recompute_advantages:
            yield self.num_epochs
            return
        for epoch in range(self.num_epochs):
            if epoch:
                self._revise(in_step=in_step)
            yield 1

    def _optimizer_steps(
        self, chunk: None | int, *, in_step: bool
    ) -> Iterator[Iterator[Minibatch]]:
        """Minibatches of each optimizer step of an update, in chunks of so many sequences."""
        for count in self._epochs(in_step=in_step):
            yield from optimizer_steps(self.parts, count, chunk)

    def compute_loss(self, batch: Minibatch) -> Any:
        """The loss of a minibatch, for `backward`; nothing is changed.

        Args:
            batch: One of `minibatches`.

        Returns:
            With PPO: value loss, policy loss, entropy and the loss, 0-d each: loss = value_loss +
            action_loss − entropy coefficient · dist_entropy, plus the terms of bonuses and add-ons.
            The entropy is 0 if the distribution cannot compute it.
            With A2C or another objective: the loss, 0-d.

        """
        if not isinstance(self.objective, PPO):
            return self._terms(batch)["total"]
        self.objective.measures_entropy = True
        terms = self._terms(batch)
        value_loss, action_loss = self.config.vf_coeff * terms["vf"], -terms["policy"]
        unknown = torch.zeros_like(value_loss)
        return value_loss, action_loss, terms.get("entropy", unknown), terms["total"]

    def _terms(self, batch: Minibatch) -> dict[str, torch.Tensor]:
        with torch.enable_grad(), model_mode(self.policy.model, training=True):
            return self._losses(batch)

    def compute_gradients(
        self, batch: Minibatch, grads_to_cpu: bool = True
    ) -> tuple[list[None | torch.Tensor], dict[str, float]]:
        """Gradients of a minibatch's loss, not clipped, and its statistics; no step is taken.

        They are also stored for `apply_gradients`.

        Args:
            batch: One of `minibatches`.
            grads_to_cpu: Whether the gradients are moved to the CPU, for other processes.

        Returns:
            A gradient for each of `parameters()`, None if the loss does not depend on it; and
            `losses/*` and `monitors/*` as `step` reports them.

        """
        terms = self._terms(batch)
        gradients = self.updater.gradients(terms["total"], self.parameters())
        self.updater.put(self._by_parameter(gradients))
        if grads_to_cpu:
            gradients = [None if g is None else g.cpu() for g in gradients]
        return gradients, to_floats({statistic(name): x.detach() for name, x in terms.items()})

    def apply_gradients(self, gradients: None | Sequence[None | Numbers] = None) -> None:
        """Clip, and take an optimizer step.

        Args:
            gradients: For each of `parameters()` a tensor, of any device, or an array; None counts
                as zeros. Without it, those of the last `compute_gradients`.

        Raises:
            DivergedError: If a gradient is not finite; the weights are unchanged.
            ValueError: If gradients do not fit the parameters, or there are none.

        """
        if gradients is not None:
            self.updater.put(self._by_parameter(gradients))
        if not self.updater.pending:
            raise ValueError(
                "There are no gradients to apply: call `compute_gradients` before, or pass them."
            )
        self.updater.step()
        # Gradient scaling skips steps on purpose. One sync: gradients come one at a time here.
        if not self.grad_scaler.is_enabled() and bool(self.updater.skipped):
            raise DivergedError(
                "The gradients are not finite, so the weights are as before. Lower the learning "
                "rate, or bound rewards and observations."
            )

    def _by_parameter(
        self, gradients: Sequence[None | Numbers]
    ) -> dict[nn.Parameter, torch.Tensor]:
        parameters = self.parameters()
        if len(gradients) != len(parameters):
            raise ValueError(
                f"There are {len(parameters)} parameters; got {len(gradients)} gradients. Pass one "
                "for each of `parameters()`, None if there is none."
            )
        by_parameter = {}
        for i, (p, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if gradient is None:
                continue
            if gradient.shape != p.shape:
                raise ValueError(
                    f"Parameter {i} has shape {list(p.shape)}; its gradient has "
                    f"{list(gradient.shape)}. Pass them in the order of `parameters()`."
                )
            by_parameter[p] = as_tensor(gradient)
        return by_parameter

    # ---- weights and moments ------------------------------------------------------------------

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the model's weights and of those of bonuses, by name, on the CPU."""
        return copies(self._weights())

    def set_weights(self, weights: Mapping[str, Numbers]) -> None:
        """Replace weights, in place; the optimizer continues with them.

        Args:
            weights: Result of `get_weights`, or `policy.model.state_dict()` without bonuses;
                tensors, of any device, or arrays.

        Raises:
            CheckpointError: If names or shapes differ; nothing is changed then.

        """
        replace_numbers(self._weights(), weights, "The weights do not fit the model")

    def _weights(self) -> dict[str, torch.Tensor]:
        """The weights themselves; statistics of bonuses are not among them."""
        named = [(f"bonuses.{bonus.name}", bonus) for bonus in self.bonuses]
        return dict(self.policy.model.state_dict()) | {
            f"{prefix}.{name}": p for prefix, bonus in named for name, p in bonus.named_parameters()
        }

    def get_moments(self) -> dict[str, torch.Tensor]:
        """A copy of the moments that observations and rewards are normalised by, on the CPU.

        These are the moments of `normalize_observations`, of `normalize_rewards="running"`, and of
        bonuses: numbers of rows, means and variances, by name.
        """
        return copies(buffers_of(moments_of(self.parts)))

    def set_moments(self, moments: Mapping[str, Numbers]) -> None:
        """Replace moments, in place.

        Args:
            moments: Result of `get_moments`; tensors, of any device, or arrays.

        Raises:
            CheckpointError: If names or shapes differ; nothing is changed then.

        """
        own = buffers_of(moments_of(self.parts))
        replace_numbers(own, moments, "The moments do not fit this algorithm's")

    def merge_moments(self, found: Sequence[Mapping[str, Numbers]]) -> None:
        """Merge the moments of workers into this algorithm's, in place.

        The moments are then those of all rows of all workers.

        Args:
            found: `get_moments` of each worker; it must have begun with this algorithm's moments,
                or with none.

        Raises:
            CheckpointError: If names or shapes differ, or a worker has fewer rows than this
                algorithm; nothing is changed then.

        """
        merge(moments_of(self.parts), found)

    def _check_kind(self, config: Hyperparameters) -> None:
        """Raise an error if a config is for the other kind of policy, or for several."""
        if config.policies != "shared":
            raise ConfigError(
                f"`policies` {config.policies!r} makes several policies, and {type(self).__name__} "
                "has one: call `config.build(env)`, or give the config to a trainer."
            )
        given, wanted = (
            issubclass(cls, RecurrentHyperparameters) for cls in (type(config), self.config_cls)
        )
        if given is not wanted:
            raise ConfigError(
                f"{type(config).__name__} is for {'recurrent' if given else 'feedforward'} "
                f"policies: pass {'RecurrentAlgorithmConfig' if wanted else 'AlgorithmConfig'}, or "
                "call `build`."
            )
