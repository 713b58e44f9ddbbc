"""Learning natively: a minibatch's gradients, or a whole optimizer step, in one call."""

import ctypes
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...distributions import SquashedNormal
from ...env.specs import Leaves
from ...objectives import ENTROPY_EVERY, PPO, ActorCritic
from ...policies import GenericPolicyBase
from ..rollouts import Minibatch, Rollout
from .adam import AdamStep
from .library import (
    REFUSED,
    RESULTS,
    SKIPPED,
    STEPPED,
    Batch,
    Loss,
    Optimizer,
    Parameter,
    addresses,
)
from .model import CATEGORICAL, NativeModel, Observations, kind_of

KL, NORM = RESULTS.index("kl_div"), RESULTS.index("norm")


class Learner:
    """Adds the gradients of a minibatch's loss to those of the parameters."""

    def __init__(self) -> None:
        self._native = NativeModel()

    def __deepcopy__(self, memo: Any) -> "Learner":
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()

    def begin(self, policy: GenericPolicyBase[Any], objective: ActorCritic) -> None:
        """Begin an update of an eligible policy; until its end, tensors must not be replaced."""
        self._policy, self._objective = policy, objective
        self._observations = Observations(policy)
        self._library, self._engine = self._native.begin(policy, self._observations, trains=True)
        self._loss = _loss_of(objective)
        is_choice = kind_of(policy) == CATEGORICAL
        self._action_dtype = torch.int64 if is_choice else policy.dtype
        #: Whether entropies are estimated with samples.
        self._is_sampled = policy.distribution_cls is SquashedNormal

    def __call__(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each; see `Objective`."""
        assert isinstance(minibatch.actions, torch.Tensor)
        tensors = {
            "actions": minibatch.actions.to(self._action_dtype).contiguous(),
            "logp": minibatch.logp.contiguous(),
            "advantages": minibatch.advantages.contiguous(),
            "returns": minibatch.returns.contiguous(),
            "values": minibatch.values.contiguous(),
            "weight": minibatch.weight.contiguous(),
        }
        obs = tuple(leaf.flatten(0, 1) for leaf in minibatch.obs)
        batch = self._batch(len(minibatch.logp), obs, tensors)
        if self._is_sampled:
            self._draw(batch, len(minibatch.logp))
        results = np.zeros(len(RESULTS))
        self._call(batch)(None, results.ctypes.data)
        return self._terms(torch.from_numpy(results).to(self._policy.dtype))

    def value(self, rollout: Rollout) -> None:
        """Fill in the values of all observations, with the weights as they are now."""
        engine = self._engine.address, self._engine.is_double
        leaves = self._observations(tuple(leaf.flatten(0, 1) for leaf in rollout.obs))
        rows = rollout.values.shape[:2].numel()
        self._library.pack(*engine)
        self._library.respond(*engine, rows, addresses(leaves), None, rollout.values.data_ptr())

    def learn(
        self,
        rollout: Rollout,
        orders: Iterable[None | torch.Tensor],
        size: int,
        updater: Any,
        *,
        chunk: None | int,
        standardized: bool,
        target_kl: None | float,
    ) -> tuple[dict[str, torch.Tensor], bool]:
        """Take optimizer steps on a whole rollout, until one is refused.

        Args:
            rollout: Complete rollout, with advantages.
            orders: Order of the rows in each epoch; None for that of the rollout.
            size: Rows a minibatch.
            updater: Takes the steps that the optimizer has to take itself.
            chunk: Rows whose noise is drawn at once; None for a minibatch.
            standardized: Whether to standardise advantages over each minibatch.
            target_kl: Divergence that ends the update; None for none.

        Returns:
            Terms of the loss in each step, `[steps]`; fewer of a term that only some steps measure.
            And whether the last step was refused, because its divergence is NaN or too large.

        """
        count = rollout.horizon * rollout.num_envs
        obs = tuple(leaf[: rollout.horizon].flatten(0, 1) for leaf in rollout.obs)
        batch = self._batch(size, obs, self._tensors_of(rollout))
        batch.standardized = standardized
        call = self._call(batch)
        quick, adam, structure = None, None, None
        found: list[npt.NDArray[np.float64]] = []
        steps, is_refused = 0, False
        for order in orders:
            if order is None and size < count:
                order = torch.arange(count)
            results = np.empty((-(-count // size), len(RESULTS)))
            address, distance = results.ctypes.data, results.strides[0]
            index = None if order is None else order.data_ptr()
            for i in range(len(results)):
                batch.index = None if index is None else index + 8 * size * i
                if self._is_sampled:
                    # An entropy that has no weight is measured in some steps only.
                    self._objective.measures_entropy = steps % ENTROPY_EVERY == 0
                    self._draw(batch, chunk or size)
                if updater._quick_step is not quick:
                    quick = updater._quick_step
                    adam = _AdamOfLibrary(quick, updater.max_grad_norm, target_kl)
                    structure = ctypes.addressof(adam.structure)
                outcome = call(structure, address + distance * i)
                if adam is None:  # the optimizer has no state yet, or is not Adam
                    outcome = self._step(updater, float(results[i, KL]), target_kl)
                elif outcome == SKIPPED:
                    updater.skipped += 1
                steps += 1
                if is_refused := outcome == REFUSED:
                    break
            found.append(results[: i + 1])
            if is_refused:
                break
        self._objective.measures_entropy = True  # so that the terms have it
        rows = np.concatenate(found)
        if adam is not None:
            updater.grad_norm += float(rows[:, NORM].sum())
        updater.pending = False
        terms = self._terms(torch.from_numpy(rows).to(rollout.dtype))
        if not self._objective.uses_entropy and "entropy" in terms:
            terms["entropy"] = terms["entropy"][::ENTROPY_EVERY]
        return terms, is_refused

    @staticmethod
    def _step(updater: Any, kl_div: float, target_kl: None | float) -> int:
        if target_kl is not None and not kl_div <= target_kl:  # NaN exceeds the target, too
            updater.zero_grad()
            return REFUSED
        updater.step()
        return STEPPED

    def _draw(self, batch: Any, chunk: int) -> None:
        """Draw the noise that entropies of a minibatch are estimated with."""
        batch.noise = None
        if self._objective.needs_entropy:
            shape = self._policy._action.shapes[0]
            batch.drawn = torch.empty(batch.rows, *shape, dtype=self._policy.dtype)
            for rows in batch.drawn.split(chunk):
                rows.normal_()
            batch.noise = batch.drawn.data_ptr()

    def _terms(self, results: torch.Tensor) -> dict[str, torch.Tensor]:
        """Terms of the loss from results `[…, RESULTS]`."""
        policy, vf, entropy, kl_div, clip_fraction, bounds, _ = results.unbind(-1)
        objective = self._objective
        terms = objective.total(policy, vf, entropy if objective.needs_entropy else None)
        if coeff := objective.config.bounds_loss_coeff:
            terms = {**terms, "bounds": bounds, "total": terms["total"] + coeff * bounds}
        return terms | {"kl_div": kl_div, "clip_fraction": clip_fraction}

    def _call(self, batch: Any) -> Callable[[None | int, int], int]:
        """A function that computes gradients, from addresses of an `Optimizer` and of results."""
        engine = self._engine
        arguments = engine.address, engine.is_double, *map(ctypes.addressof, (batch, self._loss))
        return functools.partial(self._library.learn, *arguments)

    def _batch(self, rows: int, obs: Leaves, tensors: dict[str, torch.Tensor]) -> Any:
        """A `Batch` of so many rows, of observations `[B, …]` and the other tensors."""
        leaves, allowed = self._observations(obs), self._observations.mask(obs)
        if allowed is not None:
            tensors = {**tensors, "allowed": allowed}
        pointers = addresses(leaves)
        batch = Batch(
            rows=rows,
            obs=ctypes.addressof(pointers),
            **{name: x.data_ptr() for name, x in tensors.items()},
        )
        batch.kept = leaves, tensors, pointers  # as long as the batch
        return batch

    def _tensors_of(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """The rollout's rows in the dtypes that the library reads, without copies if they fit."""
        mask = self._policy.learnable(rollout).contiguous()
        return {
            **({} if mask.numpy().all() else {"mask": mask}),  # to look it up by row takes time
            "actions": rollout.actions[0][: rollout.horizon].to(self._action_dtype).contiguous(),
            "logp": rollout.logp,
            "advantages": rollout.advantages,
            "returns": rollout.returns,
            "values": rollout.values,
        }


class _AdamOfLibrary:
    """The optimizer of an `AdamStep` as the library sees it."""

    def __init__(self, quick: AdamStep, max_norm: None | float, target_kl: None | float) -> None:
        rows = []
        for group, (values, grads, means, squares, _, steps), options in quick._groups:
            for tensors in zip(values, grads, means, squares, steps, strict=True):
                pointers = (x.data_ptr() for x in tensors)
                numbers = (float(group["lr"]), options["beta1"], options["beta2"], options["eps"])
                flags = int(group["decoupled_weight_decay"]), int(options["maximize"])
                rows.append(
                    Parameter(
                        *pointers, tensors[0].numel(), *numbers, options["weight_decay"], *flags
                    )
                )
        self._rows = (Parameter * len(rows))(*rows)
        bounds = (math.nan if x is None else x for x in (max_norm, target_kl))
        #: The structure.
        self.structure = Optimizer(len(rows), self._rows, *bounds)


def _loss_of(objective: ActorCritic) -> Any:
    config = objective.config

    def bound(x: None | float) -> float:
        return math.nan if x is None else float(x)

    is_ppo = isinstance(objective, PPO)
    return Loss(
        is_ppo=is_ppo,
        uses_entropy=objective.uses_entropy,
        is_mse=config.vf_loss == "mse",
        clip=float(objective.clip_param),
        dual_clip=bound(config.dual_clip_param),
        vf_coeff=config.vf_coeff,
        vf_clip=bound(config.vf_clip_param),
        entropy_coeff=float(objective.entropy_coeff),
        bounds_coeff=config.bounds_loss_coeff,
    )
