"""Collection and update as graphs: when, and with what."""

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch

from ..data import RecurrentAlgorithmState
from ..errors import ConfigError
from ..graphs import Graph, Replayed
from ..models._chains import is_compiled
from . import _dependencies as dependencies
from ._building import mixes_rows
from ._learning import Learning

if TYPE_CHECKING:
    from ._algorithm import OnPolicyAlgorithm

#: Most env steps of a rollout that is one graph: each takes 20 to 90 nodes, and time to capture.
MAX_ENV_STEPS = 512


class Graphs:
    """The graphs of an algorithm: one of a rollout, and two of an update.

    Args:
        graph_cls: What records; None where nothing is recorded.

    """

    def __init__(self, graph_cls: None | type[Graph]) -> None:
        cls, pool = graph_cls or Graph, None if graph_cls is None else graph_cls.shared_pool()
        #: Each is done eagerly at first, then recorded, then replayed.
        self.collection = Replayed("collection", cls, pool)
        self.estimates = Replayed("estimate of advantages", cls, pool)
        self.update = Replayed("update", cls, pool)
        self._states: tuple[torch.Tensor, ...] = ()
        self._learning: None | Learning = None
        self._is_checked = graph_cls is None
        if graph_cls is None:
            self.collection.refused = self.update.refused = "nothing is recorded"

    def _check(self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> None:
        """Refuse, once, what is known to be impossible."""
        if self._is_checked:
            return
        self._is_checked = True
        with suppress(ConfigError):  # what distributions find out once, they find out here
            algorithm.validate()
        for work in self._works():
            work.watched = not is_compiled(algorithm.policy.model)
        if not getattr(algorithm.env, "capturable", False):
            # As most environments are: nothing to warn of.
            self.collection.refused = "the environment is not `capturable`"
        else:
            self.collection.refuse_for(_against_collection(algorithm))
        self.update.refuse_for(_against_update(algorithm))

    def _forget_all_where_refused(self) -> None:
        """A capture that fails may leave the other graphs with generators of the past."""
        if any(work.has_failed for work in self._works()):
            for work in self._works():
                work.forget()
                work.has_failed = False

    def _works(self) -> tuple[Replayed, ...]:
        return self.collection, self.estimates, self.update

    def roll_out(
        self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]", deterministic: bool
    ) -> dict[str, torch.Tensor]:
        """Fill the rollout behind its first observations; its statistics."""
        self._check(algorithm)
        if deterministic or algorithm.is_evaluating or self.collection.refused is not None:
            return algorithm._roll_out(deterministic)
        with _on(algorithm.rollout.device):
            return self._roll_out(algorithm)

    def _roll_out(self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, torch.Tensor]:
        remembered = algorithm._remembered()
        if not self._states:
            self._states = tuple(x.clone() for x in remembered)
        for own, x in zip(self._states, remembered, strict=True):
            own.copy_(x)
        tensors = self.collection(
            lambda: self._between_states(algorithm),
            key=lambda: dependencies.of_collection(algorithm),
            keep=lambda: dependencies.keep_for_collection(algorithm, self._states),
            generators=lambda: dependencies.generators_of(algorithm.env),
        )
        self._forget_all_where_refused()
        # What an env step sets in Python, no replay does.
        algorithm.states = self._states
        algorithm._reward_scale = tensors.get("reward_scale")
        state, rollout = algorithm.state, algorithm.rollout
        if isinstance(state, RecurrentAlgorithmState):
            state.seqs = (state.horizons + 1) * (rollout.horizon // rollout.seq_len)
        return tensors

    def _between_states(
        self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]"
    ) -> dict[str, torch.Tensor]:
        """A rollout that begins and ends with what is remembered in the same tensors."""
        algorithm.states = self._states
        tensors = algorithm._roll_out(False)
        assert algorithm.states is not None
        for own, x in zip(self._states, algorithm.states, strict=True):
            own.copy_(x)
        return tensors

    def learn(
        self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]"
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Learn from the rollout; sums of the statistics, and over how many optimizer steps.

        Where the host does not know how many, they are among the sums, as `steps`.
        """
        self._check(algorithm)
        if self.update.refused is not None:
            return algorithm._estimate_and_learn()
        with _on(algorithm.rollout.device):
            return self._learn(algorithm), 0

    def _learn(self, algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> dict[str, torch.Tensor]:
        # A copy of an algorithm has what remembers the original.
        if self._learning is None or not self._learning.is_of(algorithm):
            self._learning = Learning(algorithm)
        learning = self._learning
        learning.begin()
        explained_variance = self.estimates(
            algorithm._estimate_advantages,
            key=lambda: dependencies.of_estimates(algorithm),
            keep=lambda: _put_nothing_back,
        )
        for _ in learning.pieces():
            self.update(
                learning.learn,
                key=lambda: dependencies.of_update(algorithm),
                keep=lambda: dependencies.keep_for_update(algorithm, learning.tensors()),
            )
        self._forget_all_where_refused()
        return {**learning.totals(), "explained_variance": explained_variance}


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Where streams and generators are those of this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _put_nothing_back() -> None:
    """Estimates are only written where they are written anew."""


def _against_collection(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> list[str]:
    """Why the collection of this algorithm cannot be a graph."""
    rollout, reasons = algorithm.rollout, _against_both(algorithm)
    if rollout.horizon > MAX_ENV_STEPS:
        reasons.append(f"`horizon` is {rollout.horizon}, and graphs have {MAX_ENV_STEPS} env steps")
    if rollout.final_obs and mixes_rows([algorithm.policy.model]):
        reasons.append("final observations would be valued together with rows that are none")
    return reasons


def _against_update(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> list[str]:
    """Why the update of this algorithm cannot be a graph."""
    reasons = _against_both(algorithm)
    if algorithm.grad_scaler.is_enabled():
        reasons.append("gradient scaling of float16 asks the host whether to take a step")
    elif not algorithm.updater.skips_on_device:
        name = type(algorithm.optimizer).__name__
        reasons.append(f"{name} without `fused` asks the host whether gradients are finite")
    return reasons


def _against_both(algorithm: "OnPolicyAlgorithm[Any, Any, Any]") -> list[str]:
    return ["`bonuses` keep what they find outside of the graph"] if algorithm.bonuses else []
