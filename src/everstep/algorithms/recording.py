"""Collection and update behind one `Executor`: eager, or recorded as graphs and replayed.

Graphs get recurrent states and reward scales as arguments and return them. They hold operations and
addresses, so everything that changes is in tensors that are written in place.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import ConfigError
from ..graphs import (
    Graph,
    Replayed,
    Same,
    generators_of,
    is_compiled,
    key_of,
    undo_object,
    undo_random,
    undo_tensors,
)
from ..policies import autocast_of, check_policy
from ..rollouts import Minibatch, Sequences
from ..schedulers import LRScheduler
from ..specs import Leaves
from ..updates import Meter
from .build import Parts, mixes_rows
from .snapshot import put_back, snapshot

#: Most vector steps of a recorded rollout: each has 20 to 90 nodes, which take time to capture.
MAX_HORIZON = 512

#: Most optimizer steps of an update that is one graph, of 120 to 350 nodes each; longer updates
#: replay a graph of a single optimizer step.
MAX_STEPS = 32


class Collected(NamedTuple):
    """Results of a rollout, still on the device."""

    #: Statistics, 0-d each.
    statistics: dict[str, torch.Tensor]
    #: Recurrent states after the last vector step, `[N, …]`.
    states: Leaves
    #: Divisor of the environment's rewards, 0-d; None for none.
    reward_scale: None | torch.Tensor


#: Takes recurrent states, and which sequences reset them, bool `[S]` (None: the host decides).
RollOut = Callable[[Leaves, None | torch.Tensor], Collected]
Estimate = Callable[[None | torch.Tensor], torch.Tensor]
Learn = Callable[[Iterable[Iterator[Minibatch]]], None]


class Executor:
    """Runs collection and updates eagerly, or records them and replays the recording.

    Args:
        graph_cls: Kind of graph; None to record nothing.

    """

    def __init__(self, graph_cls: None | type[Graph] = None) -> None:
        cls, pool = graph_cls or Graph, None if graph_cls is None else graph_cls.shared_pool()
        self.collection = Replayed("collection", cls, pool)
        self.estimates = Replayed("estimate of advantages", cls, pool)
        self.update = Replayed("update", cls, pool)
        self._records = graph_cls is not None
        #: Config that recording was last checked with.
        self._checked: Any = None
        if graph_cls is None:
            self.collection.refused = self.update.refused = "nothing is recorded"
        # Arguments of the graphs: recurrent states, which sequences reset them, reward scale,
        # order of the sequences.
        self._states: Leaves = ()
        self._resets: None | torch.Tensor = None
        self._scale: None | torch.Tensor = None
        self._order: None | torch.Tensor = None

    @property
    def graphs(self) -> tuple[Replayed, ...]:
        """Everything that is recorded."""
        return self.collection, self.estimates, self.update

    def collect(
        self,
        parts: Parts,
        roll_out: RollOut,
        states: Leaves,
        *,
        resets: tuple[bool, ...],
        settings: Any,
        eager: bool,
    ) -> Collected:
        """Run a rollout.

        Args:
            parts: The algorithm's parts.
            roll_out: The rollout, given recurrent states and which sequences reset them.
            states: Recurrent states before the first vector step, `[N, …]`.
            resets: Whether each of its sequences resets the states; empty if the same ones do in
                every rollout.
            settings: Settings of PyTorch that the environment runs in.
            eager: Whether not to record.

        """
        self.check(parts)
        if eager or self.collection.refused is not None:
            return roll_out(states, None)
        if not self._states:
            self._states = tuple(x.clone() for x in states)
        for own, x in zip(self._states, states, strict=True):
            own.copy_(x)
        if resets:
            given = torch.tensor(resets)
            self._resets = given.to(parts.rollout.device) if self._resets is None else self._resets
            self._resets.copy_(given)

        def work() -> tuple[dict[str, torch.Tensor], None | torch.Tensor]:
            collected = roll_out(self._states, self._resets)
            for own, x in zip(self._states, collected.states, strict=True):
                own.copy_(x)
            return collected.statistics, collected.reward_scale

        with _on(parts.rollout.device):
            statistics, reward_scale = self.collection(
                work,
                key=lambda: {
                    "settings": settings,
                    **_key_of_both(parts),
                    **key_of(parts.env, "env"),
                },
                undo=lambda: _undo_collection(parts, self._states),
                generators=lambda: generators_of(parts.env),
            )
        self._forget_all_after_failure()
        return Collected(statistics, self._states, reward_scale)

    def learn(
        self,
        parts: Parts,
        estimate: Estimate,
        learn: Learn,
        meter: Meter,
        adapted: None | LRScheduler,
        reward_scale: None | torch.Tensor,
    ) -> torch.Tensor:
        """Run an update; the explained variance of the values, 0-d.

        Args:
            parts: The algorithm's parts.
            estimate: Fills in advantages, given the reward scale; the explained variance.
            learn: Takes optimizer steps, given their minibatches.
            meter: Meter of the update.
            adapted: Learning rates to adapt to the KL divergence; None for none.
            reward_scale: Divisor of the environment's rewards, 0-d; None for none.

        """
        config, updater = parts.config, parts.updater
        with _on(parts.rollout.device):
            updater.hold_rates()
            updater.begin()
            meter.begin(config.target_kl_div, adapted)
            if reward_scale is not None:
                self._scale = torch.empty_like(reward_scale) if self._scale is None else self._scale
                reward_scale = self._scale.copy_(reward_scale)
            # A copy: the graphs share memory, and that of the optimizer steps is replayed next.
            explained_variance = self.estimates(
                lambda: estimate(reward_scale),
                key=lambda: {"config": Same(config), "streams": parts.streams},
                undo=lambda: lambda: None,  # estimates are written whole
            ).clone()
            for steps in self._recorded_orders(parts):
                self.update(
                    partial(self._learn_recorded, parts, learn, steps),
                    key=lambda: _key_of_update(parts),
                    undo=lambda: _undo_update(parts, meter.tensors()),
                )
        self._forget_all_after_failure()
        return explained_variance

    def _learn_recorded(self, parts: Parts, learn: Learn, steps: int) -> None:
        learn(self._recorded_steps(parts, steps))

    def _recorded_orders(self, parts: Parts) -> Iterator[int]:
        """Optimizer steps of a graph, for each replay, with the order of its sequences in place."""
        config, count = parts.config, parts.sequences_per_rollout
        minibatches = 1 if config.accumulate_grads else count // parts.minibatch_size
        steps = int(config.num_sgd_iters) * minibatches
        each = steps if steps <= MAX_STEPS else 1
        if parts.minibatch_size == count or (each == steps and not config.shuffle_minibatches):
            self._order = None
            for _ in range(steps // each):
                yield each
            return
        device = parts.rollout.device
        is_drawn = config.shuffle_minibatches
        orders = [
            torch.randperm(count, device=device) if is_drawn else torch.arange(count, device=device)
            for _ in range(int(config.num_sgd_iters))
        ]
        for order in torch.cat(orders).view(steps, -1).split(each):
            if self._order is None or self._order.shape != order.shape:
                self._order = torch.empty_like(order)
            self._order.copy_(order)
            yield each

    def _recorded_steps(self, parts: Parts, steps: int) -> Iterator[Iterator[Minibatch]]:
        """Minibatches of the optimizer steps of a graph, gathered in the order that is in place."""
        sequences, size = sequences_of(parts), parts.minibatch_size
        joint = parts.config.accumulate_grads
        for i in range(steps):
            if self._order is not None:
                indices: list[Any] = list(self._order[i].split(size))
            elif size == sequences.count:
                indices = [None]
            else:
                epoch = [slice(k, k + size) for k in range(0, sequences.count, size)]
                indices = epoch if joint else [epoch[i % len(epoch)]]
            yield sequences.step(indices, parts.chunk_size, joint=joint)

    def check(self, parts: Parts) -> None:
        """Refuse what is known to be impossible, once for each config."""
        if not self._records or self._checked is parts.config:
            return
        is_first, self._checked = self._checked is None, parts.config
        if not is_first:
            if self.update.refused is None:
                self.update.refuse_for(_against_update(parts))
            return
        with suppress(ConfigError):  # what distributions look up once, they look up here
            check_policy(parts.policy, parts.rollout, parts.config)
        for work in self.graphs:
            work.watched = not is_compiled(parts.policy.model)
        both = ["`bonuses` store data outside of the graph"] if parts.bonuses else []
        if getattr(parts.env, "capturable", False):
            self.collection.refuse_for(both + _against_collection(parts))
        else:  # as most environments: no warning
            self.collection.refused = "the environment is not `capturable`"
        self.update.refuse_for(both + _against_update(parts))

    def _forget_all_after_failure(self) -> None:
        """A failed capture may leave the other graphs with outdated random generators."""
        if any(work.has_failed for work in self.graphs):
            for work in self.graphs:
                work.forget()
                work.has_failed = False


def sequences_of(parts: Parts) -> Sequences:
    """The rollout as sequences, with the data of bonuses."""
    cache = {bonus.name: bonus.cache for bonus in parts.bonuses} or None
    sequences: Sequences = parts.policy.sequences(
        parts.rollout, cache=cache, standardized=parts.config.normalize_advantages == "minibatch"
    )
    return sequences


def optimizer_steps(parts: Parts, chunk: None | int) -> Iterator[Iterator[Minibatch]]:
    """Minibatches of each optimizer step of an update, epoch by epoch; see `Sequences.epochs`."""
    config, device = parts.config, parts.rollout.device
    return sequences_of(parts).epochs(
        int(config.num_sgd_iters),
        parts.minibatch_size,
        chunk=chunk,
        shuffle=config.shuffle_minibatches,
        joint=config.accumulate_grads,
        permute=partial(torch.randperm, device=device),
        reducer=parts.reducer,
    )


def _on(device: torch.device) -> Any:
    """Context in which streams and generators are those of the device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _against_collection(parts: Parts) -> list[str]:
    """Reasons why the collection cannot be recorded."""
    rollout, reasons = parts.rollout, []
    if rollout.horizon > MAX_HORIZON:
        reasons.append(f"`horizon` is {rollout.horizon}, and graphs have at most {MAX_HORIZON}")
    if rollout.final_obs and mixes_rows(parts.policy.model):
        reasons.append("final observations would be valued together with other rows")
    return reasons


def _against_update(parts: Parts) -> list[str]:
    """Reasons why the update cannot be recorded."""
    if parts.grad_scaler.is_enabled():
        return ["gradient scaling of float16 asks the host whether to take a step"]
    if parts.config.normalize_advantages == "minibatch" and parts.reducer.size > 1:
        return ["each minibatch's advantages are standardised over all ranks"]
    if parts.updater.skips_on_device:
        return []
    name = type(parts.optimizer).__name__
    return [f"{name} without `fused` asks the host whether gradients are finite"]


# ---- keys and undo ----------------------------------------------------------------------------


def _modules(parts: Parts) -> dict[str, nn.Module]:
    policy = parts.policy
    modules = {"model": policy.model, "normalizer": policy.normalizer, "critic": policy.critic}
    return {name: module for name, module in modules.items() if module is not None}


def _key_of_both(parts: Parts) -> dict[str, Any]:
    """Addresses of weights, and everything that is configured."""
    key: dict[str, Any] = {
        "config": Same(parts.config),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "autocast": autocast_of(parts.rollout.device),
    }
    for prefix, module in _modules(parts).items():
        for name, x in (*module.named_parameters(), *module.named_buffers()):
            gradient = None if x.grad is None else x.grad.data_ptr()
            key[f"{prefix}.{name}"] = (x.data_ptr(), x.requires_grad, gradient)
        key[f"{prefix}.training"] = tuple(m.training for m in module.modules())
    return key


def _undo_collection(parts: Parts, states: Leaves) -> Callable[[], None]:
    """A function that undoes a rollout."""
    statistics = snapshot(parts)
    steps = undo_tensors(states), undo_object(parts.env), undo_random(parts.rollout.device)

    def undo() -> None:
        put_back(parts, statistics)
        for step in steps:
            step()

    return undo


def _key_of_update(parts: Parts) -> dict[str, Any]:
    """Everything that an update depends on, beside numbers in tensors."""
    key = {"objective": Same(parts.objective), "chunk_size": parts.chunk_size}
    optimizer = parts.optimizer
    groups = [{k: x for k, x in g.items() if k != "params"} for g in optimizer.param_groups]
    for i, values in enumerate([*groups, *optimizer.state.values()]):
        for name, value in values.items():
            is_tensor = isinstance(value, torch.Tensor)
            key[f"optimizer.{i}.{name}"] = value.data_ptr() if is_tensor else value
    return key | _key_of_both(parts)


def _undo_update(parts: Parts, counted: list[torch.Tensor]) -> Callable[[], None]:
    """A function that undoes optimizer steps: weights, moments, learning rates, counters."""
    optimizer = parts.optimizer
    tensors = [x for group in optimizer.param_groups for x in (*group["params"], group["lr"])]
    tensors += [x for module in _modules(parts).values() for x in module.buffers()]
    tensors += [x for state in optimizer.state.values() for x in state.values()]
    tensors += [*counted, *parts.updater.totals().values()]
    steps = (
        undo_tensors(x for x in tensors if isinstance(x, torch.Tensor)),
        undo_random(parts.rollout.device),
        parts.updater.zero_grad,
    )

    def undo() -> None:
        for step in steps:
            step()

    return undo
