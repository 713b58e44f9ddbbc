"""What every algorithm offers."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, Generic, TypeVar

import psutil
import torch
from tensordict import TensorDict
from torch import optim
from torch.amp.grad_scaler import GradScaler
from torchrl.data import Composite

from ..data import AlgorithmHparams, AlgorithmState, CollectStats, MemoryStats, StepStats
from ..env import Env
from ..policies import GenericPolicyBase
from ..schedulers import EntropyScheduler, LRScheduler

_AlgorithmHparams = TypeVar("_AlgorithmHparams", bound=AlgorithmHparams)
_AlgorithmState = TypeVar("_AlgorithmState", bound=AlgorithmState)
_Policy = TypeVar("_Policy", bound=GenericPolicyBase[Any])


class GenericAlgorithmBase(ABC, Generic[_AlgorithmHparams, _AlgorithmState, _Policy]):
    """Base of algorithms that alternate between `collect` and `step`."""

    #: The rollout, `[num_envs, horizon + 1]`: a view of the storage that `collect` fills and
    #: `step` learns from, without a copy. After `step` it still holds the rollout.
    buffer: TensorDict

    #: Spec of the buffer's elements, without the batch dimensions.
    buffer_spec: Composite

    #: Weight of the entropy bonus, over environment transitions learned from.
    entropy_scheduler: EntropyScheduler

    #: What experience is collected from.
    env: Env

    #: Gradient scaling of float16 training; disabled otherwise.
    grad_scaler: GradScaler

    #: Hyperparameters, resolved and read-only.
    hparams: _AlgorithmHparams

    #: Learning rate, over environment transitions learned from.
    lr_scheduler: LRScheduler

    #: What updates the policy's model.
    optimizer: optim.Optimizer

    #: What acts in `collect` and learns in `step`.
    policy: _Policy

    #: Counters.
    state: _AlgorithmState

    @abstractmethod
    def collect(
        self, *, env_config: None | dict[str, Any] = None, deterministic: bool = False
    ) -> CollectStats:
        """Fill the buffer with a rollout."""

    @abstractmethod
    def step(self) -> StepStats:
        """Update the policy with the rollout."""

    @abstractmethod
    def evaluating(self) -> AbstractContextManager[None]:
        """Collect in here without leaving a trace in what is learned from or counted."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that training continues from."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""

    @property
    def horizons_per_env_reset(self) -> int:
        """Rollouts between resets of all environments; negative resets once."""
        return int(self.hparams.horizons_per_env_reset)

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
        return values | {"model": None} | classes
