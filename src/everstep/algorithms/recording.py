"""The leaves of a training, recorded as graphs and replayed: rollout, estimate, optimizer steps.

Where an environment cannot be recorded, what acts in it is. Graphs get recurrent states and reward
scales as arguments and return them. They hold operations and addresses, so everything that changes
is in tensors that are written in place.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ..core.graphs import (
    Graph,
    Replayed,
    Same,
    generators_of,
    is_compiled,
    key_of,
    snapshot_of,
)
from ..core.restoring import Snapshot
from ..core.rollouts import Minibatch, Sequences
from ..env.specs import Leaves
from ..errors import ConfigError
from ..policies import Actor, Sample, autocast_of, check_policy
from .build import Parts, mixes_rows
from .snapshot import running_statistics
from .updates import Meter

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


class Recorder:
    """Records the rollout, the estimate of advantages and optimizer steps, and replays them.

    Args:
        graph_cls: Kind of graph; None to record nothing.

    """

    def __init__(self, graph_cls: None | type[Graph] = None) -> None:
        cls, pool = graph_cls or Graph, None if graph_cls is None else graph_cls.shared_pool()
        self.collection = Replayed("collection", cls, pool)
        self.acting = Replayed("acting", cls, pool)
        self.estimates = Replayed("estimate of advantages", cls, pool)
        self.revisions = Replayed("recomputed advantages", cls, pool)
        self.update = Replayed("update", cls, pool)
        self._records = graph_cls is not None
        #: Config that recording was last checked with.
        self._checked: Any = None
        if graph_cls is None:
            self.collection.refused = self.update.refused = "nothing is recorded"
            self.acting.refused = "nothing is recorded"
        #: Arguments of the graphs, by name.
        self._held: dict[str, torch.Tensor] = {}
        #: Number of rollouts and updates. Within one nothing is replaced that recorded work
        #: depends on; between them, anything may be.
        self.version = 0

    @property
    def graphs(self) -> tuple[Replayed, ...]:
        """Everything that is recorded."""
        return self.collection, self.acting, self.estimates, self.revisions, self.update

    def begin(self, parts: Parts) -> None:
        """Begin a rollout or an update: keys of recordings are computed once in each."""
        self.version += 1
        if self._records and self._checked is not parts.config:
            self._check(parts)

    def _hold(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A copy of an argument, in memory that stays where it is."""
        if name not in self._held or self._held[name].shape != x.shape:
            self._held[name] = torch.empty_like(x)
        return self._held[name].copy_(x)

    def roll_out(
        self,
        parts: Parts,
        roll_out: RollOut,
        states: Leaves,
        *,
        resets: tuple[bool, ...],
        settings: Any,
    ) -> Collected:
        """Run a rollout.

        Args:
            parts: The algorithm's parts.
            roll_out: The rollout, given recurrent states and which sequences reset them.
            states: Recurrent states before the first vector step, `[N, …]`.
            resets: Whether each of its sequences resets the states; empty if the same ones do in
                every rollout.
            settings: Settings of PyTorch that the environment runs in.

        """
        device = parts.rollout.device
        held = tuple(self._hold(f"states.{i}", x) for i, x in enumerate(states))
        given = None
        if resets:
            given = self._hold("resets", torch.tensor(resets).to(device))

        def work() -> tuple[dict[str, torch.Tensor], None | torch.Tensor]:
            collected = roll_out(held, given)
            for own, x in zip(held, collected.states, strict=True):
                own.copy_(x)
            return collected.statistics, collected.reward_scale

        with _on(device):
            statistics, reward_scale = self.collection(
                work,
                version=self.version,
                key=lambda: {
                    "settings": settings,
                    **_key_of_both(parts),
                    **key_of(parts.env, "env"),
                },
                snapshots=lambda: _before_rollout(parts, held),
                generators=lambda: generators_of(parts.env),
            )
        self._forget_all_after_failure()
        return Collected(statistics, held, reward_scale)

    def act(self, parts: Parts, obs: Leaves, states: Leaves) -> Sample:
        """A sample of the policy, in memory that the next one overwrites.

        Args:
            parts: The algorithm's parts.
            obs: Observations `[N, …]`.
            states: Recurrent states before them, `[N, …]`; those after them in the sample stay.

        """
        held = tuple(self._hold(f"obs.{i}", x) for i, x in enumerate(obs))
        kept = tuple(self._hold(f"states.{i}", x) for i, x in enumerate(states))

        def work() -> Sample:
            with parts.policy.own_casts():
                sample: Sample = parts.policy.act(held, kept, deterministic=False)
            for own, x in zip(kept, sample.states, strict=True):
                own.copy_(x)
            return sample._replace(states=kept)

        with _on(parts.rollout.device):
            sample = self.acting(
                work,
                version=self.version,
                key=lambda: _key_of_both(parts, gradients=False),
                snapshots=lambda: _before_acting(parts, kept),
            )
        self._forget_all_after_failure()
        return sample

    def estimate(
        self, parts: Parts, estimate: Estimate, reward_scale: None | torch.Tensor
    ) -> torch.Tensor:
        """Fill in advantages; the explained variance of the values, 0-d."""
        scale = None if reward_scale is None else self._hold("reward scale", reward_scale)
        with _on(parts.rollout.device):
            # A copy: the graphs share memory, and that of the optimizer steps is replayed next.
            return self.estimates(
                lambda: estimate(scale),
                version=self.version,
                key=lambda: {"config": Same(parts.config), "streams": parts.streams},
                snapshots=tuple,  # estimates are written whole
            ).clone()

    def revise(
        self,
        parts: Parts,
        revise: Callable[[None | torch.Tensor], None],
        reward_scale: None | torch.Tensor,
    ) -> None:
        """Fill in values and advantages anew, after `estimate`, whose reward scale is held."""
        scale = None if reward_scale is None else self._held["reward scale"]
        with _on(parts.rollout.device):
            self.revisions(
                lambda: revise(scale),
                version=self.version,
                key=lambda: {"streams": parts.streams, **_key_of_both(parts, gradients=False)},
                snapshots=lambda: _before_acting(parts, ()),
            )
        self._forget_all_after_failure()

    def learn(self, parts: Parts, learn: Learn, meter: Meter, epochs: int) -> None:
        """Take the optimizer steps of an update, some in each graph."""
        with _on(parts.rollout.device):
            for steps, order in _orders(parts, epochs):
                held = None if order is None else self._hold("order", order)
                self.update(
                    lambda steps=steps, held=held: learn(_recorded_steps(parts, steps, held)),  # type: ignore[misc]
                    version=self.version,
                    key=lambda steps=steps: {"steps": steps, **_key_of_update(parts)},  # type: ignore[misc]
                    snapshots=lambda: _before_update(parts, meter),
                )
        self._forget_all_after_failure()

    def _check(self, parts: Parts) -> None:
        """Refuse work that cannot be recorded with this config; each config is checked once."""
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
        if getattr(parts.policy.model, "exploration", None) is not None:
            reason = "state-dependent exploration keeps its noise for several vector steps"
            if self.collection.refused is None:  # whose graph has it: no warning
                self.acting.refused = reason
            else:
                self.acting.refuse(reason)
        self.update.refuse_for(both + _against_update(parts))

    def _forget_all_after_failure(self) -> None:
        """A failed capture may leave the other graphs with outdated random generators."""
        if any(work.has_failed for work in self.graphs):
            for work in self.graphs:
                work.forget()
                work.has_failed = False


class RecordedActor(Actor):
    """An actor whose policy is recorded; see `Actor`.

    Args:
        recorder: What records it.
        parts: The algorithm's parts.

    """

    def __init__(self, recorder: Recorder, parts: Parts) -> None:
        super().__init__(parts.policy, parts.rollout, deterministic=False)
        self._recorder, self._parts = recorder, parts

    def sample(self, t: int, states: Leaves) -> Sample:
        """See `Actor.sample`; an environment may keep the actions."""
        sample = self._recorder.act(self._parts, self.rollout.obs_at(t), states)
        return sample._replace(actions=tuple(x.clone() for x in sample.actions))


def _orders(parts: Parts, epochs: int) -> Iterator[tuple[int, None | torch.Tensor]]:
    """Optimizer steps of a graph, and the order of their sequences `[steps, …]`, for each replay.

    The order is None where it is always the same.
    """
    config, count = parts.config, parts.sequences_per_rollout
    minibatches = 1 if config.accumulate_grads else count // parts.minibatch_size
    steps = epochs * minibatches
    each = steps if steps <= MAX_STEPS else 1
    if parts.minibatch_size == count or (each == steps and not config.shuffle_minibatches):
        yield from [(each, None)] * (steps // each)
        return
    make = torch.randperm if config.shuffle_minibatches else torch.arange
    orders = [make(count, device=parts.rollout.device) for _ in range(epochs)]
    for order in torch.cat(orders).view(steps, -1).split(each):
        yield each, order


def _recorded_steps(
    parts: Parts, steps: int, order: None | torch.Tensor
) -> Iterator[Iterator[Minibatch]]:
    """Minibatches of the optimizer steps of a graph, gathered in an order that is held."""
    sequences, size = sequences_of(parts), parts.minibatch_size
    joint = parts.config.accumulate_grads
    for i in range(steps):
        if order is not None:
            indices: list[Any] = list(order[i].split(size))
        elif size == sequences.count:
            indices = [None]
        else:
            epoch = [slice(k, k + size) for k in range(0, sequences.count, size)]
            indices = epoch if joint else [epoch[i % len(epoch)]]
        yield sequences.step(indices, parts.chunk_size, joint=joint)


def sequences_of(parts: Parts) -> Sequences:
    """The rollout as sequences, with the data of bonuses, objective and symmetry."""
    cache = {bonus.name: bonus.cache for bonus in parts.bonuses} or None
    sequences: Sequences = parts.policy.sequences(
        parts.rollout,
        cache=cache,
        standardized=parts.config.normalize_advantages == "minibatch",
        labels=getattr(parts.objective, "labels", ()),
        more_states=parts.mirror.states if parts.mirror else (),
    )
    return sequences


def optimizer_steps(parts: Parts, epochs: int, chunk: None | int) -> Iterator[Iterator[Minibatch]]:
    """Minibatches of each optimizer step of an update, epoch by epoch; see `Sequences.epochs`."""
    config, device = parts.config, parts.rollout.device
    return sequences_of(parts).epochs(
        epochs,
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


def _key_of_both(parts: Parts, *, gradients: bool = True) -> dict[str, Any]:
    """Addresses of weights, and of their gradients, and everything that is configured."""
    key: dict[str, Any] = {
        "config": Same(parts.config),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "autocast": autocast_of(parts.rollout.device),
    }
    for prefix, module in _modules(parts).items():
        for name, x in (*module.named_parameters(), *module.named_buffers()):
            gradient = x.grad.data_ptr() if gradients and x.grad is not None else None
            key[f"{prefix}.{name}"] = (x.data_ptr(), x.requires_grad, gradient)
        key[f"{prefix}.training"] = tuple(m.training for m in module.modules())
    return key


def _before_rollout(parts: Parts, states: Leaves) -> list[Snapshot]:
    """Snapshots of what a rollout changes."""
    return [
        Snapshot.of_tensors([*running_statistics(parts).values(), *states]),
        snapshot_of(parts.env),
        Snapshot.of_random_states(parts.rollout.device),
    ]


def _before_acting(parts: Parts, states: Leaves) -> list[Snapshot]:
    """Snapshots of what acting changes."""
    buffers = [x for module in _modules(parts).values() for x in module.buffers()]
    return [
        Snapshot.of_tensors([*buffers, *states]),
        Snapshot.of_random_states(parts.rollout.device),
    ]


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


def _before_update(parts: Parts, meter: Meter) -> list[Snapshot]:
    """Snapshots of what optimizer steps change: weights, moments, rates, counters, gradients."""
    optimizer = parts.optimizer
    values = [x for group in optimizer.param_groups for x in (*group["params"], group["lr"])]
    values += [x for module in _modules(parts).values() for x in module.buffers()]
    values += [x for state in optimizer.state.values() for x in state.values()]
    values += [*meter.tensors(), parts.updater.grad_norm, parts.updater.skipped]
    values += parts.updater.flats
    return [
        Snapshot.of_tensors(x for x in values if isinstance(x, torch.Tensor)),
        Snapshot.of_random_states(parts.rollout.device),
    ]
