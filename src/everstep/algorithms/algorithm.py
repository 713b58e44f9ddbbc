"""PPO and A2C in the order in which they run: collect, estimate, learn, step."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch

from ..data import (
    AlgorithmHparams,
    AlgorithmState,
    CollectStats,
    DataKeys,
    RecurrentAlgorithmHparams,
    RecurrentAlgorithmState,
    StepStats,
)
from ..env_calls import EnvCalls
from ..episodes import to_floats
from ..errors import ConfigError, DivergedError, EnvError, NotBufferedError
from ..fused import MinibatchGradients, actor, gradients
from ..graphs import CUDAGraph, is_static
from ..hyperparameters import Hyperparameters, RecurrentHyperparameters
from ..objectives import ENTROPY_EVERY, ActorCritic, add_ons
from ..policies import Actor, GenericPolicyBase, Policy, RecurrentPolicy, check_policy, model_mode
from ..registry import EnvSource
from ..resolve import build_env, closed_on_error, device_problem
from ..restoring import Snapshot, loading
from ..rollouts import Minibatch
from ..specs import Leaves
from ..updates import Meter, total
from . import estimates
from . import snapshot as snapshots
from .build import build_parts
from .estimates import stopwatch, update_statistics
from .operations import WorkerOperations
from .recording import Collected, Recorder, optimizer_steps

_log = logging.getLogger(__name__)

_Hparams = TypeVar("_Hparams", bound=AlgorithmHparams)
_State = TypeVar("_State", bound=AlgorithmState)
_Policy = TypeVar("_Policy", bound=GenericPolicyBase[Any])


class OnPolicyAlgorithm(
    WorkerOperations[_Hparams, _State, _Policy], Generic[_Hparams, _State, _Policy]
):
    """On-policy training of any kind of policy: PPO by default, A2C, or another objective.

    Args:
        env_cls: Environment class, factory, or an environment already made.
        config: Hyperparameters; defaults if None.

    Raises:
        ConfigError: Lists every hyperparameter that breaks a rule.
        EnvError: If the environment's specs cannot be used.

    """

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.env!r}, {self.policy!r}, horizon={self.rollout.horizon})"
        )

    def __init__(self, env_cls: EnvSource, /, config: None | Hyperparameters = None) -> None:
        config = (config or self.config_cls()).validate()
        self._check_kind(config)
        if config.seed is not None:
            torch.manual_seed(config.seed)
        env, config = build_env(env_cls, config)
        with closed_on_error(env, env_cls):
            self.parts = build_parts(
                env, config, policy_cls=self.policy_cls, hparams_cls=self.hparams_cls
            )
        self.calls = EnvCalls(env)
        self.state = self.state_cls()
        self.recorder = Recorder(CUDAGraph if self.config.cuda_graphs else None)
        #: Terms of the loss, and whether the update has ended.
        self.meter = Meter(self.rollout.device)
        #: Recurrent states `[N, …]` after the last vector step; None at the start of episodes.
        self.states: None | Leaves = None
        #: Whether the environment is where the last rollout ended.
        self.continues = False
        self.is_evaluating = False
        #: Whether bonuses have seen the environment.
        self.is_prepared = not self.bonuses
        self._reward_scale: None | torch.Tensor = None
        self._rows_to_learn = 0
        #: Leaves of observations that were seen outside of their bounds.
        self._warned: set[str] = set()
        self._fused: None | MinibatchGradients = None

    # ---- collect ------------------------------------------------------------------------------

    def collect(
        self, *, env_config: None | dict[str, Any] = None, deterministic: bool = False
    ) -> CollectStats:
        """Fill the buffer with a rollout, and return its statistics.

        Environments are reset first if `horizons_per_env_reset` says so, or if the last call
        failed; otherwise they continue.

        Args:
            env_config: Passed to the environment's reset, if there is one.
            deterministic: Whether actions are the distribution's mode rather than samples; the
                model is in eval mode then.

        Raises:
            EnvError: If the environment breaks its protocol.
            NonFiniteError: If it returns NaN or infinity; the policy is unchanged.

        """
        elapsed_ms = stopwatch()
        self._end_open_update()
        self._prepare()
        self.calls.begin()
        precision = self.config.matmul_precision
        before = Snapshot.of_tensors(snapshots.running_statistics(self.parts).values())
        with before.on_error():
            mode = model_mode(self.policy.model, training=not deterministic, precision=precision)
            with torch.inference_mode(False), torch.no_grad(), mode:
                was_reset = self._begin(env_config)
                try:
                    collected = self._roll_out_or_replay(deterministic)
                except IndexError:
                    self.rollout.find_fault()  # models index by choices, which may not exist
                    raise
            # NaN marks a statistic that does not exist, such as a mean without an episode.
            found = to_floats(collected.statistics) | self.calls.metrics()
            if found.pop("beyond", 0.0):
                self._warn_of_bounds()
            stats = self.reducer.statistics({k: x for k, x in found.items() if x == x})
            self._check_rollout(finite=bool(stats.pop("finite")), lost=int(stats.pop("lost")))
        self.states, self._reward_scale = collected.states, collected.reward_scale
        self._rows_to_learn = int(stats["env/steps"])
        self.state.reward_scale = stats.pop("reward_scale", 1.0)
        self.state.horizons += 1
        if isinstance(self.state, RecurrentAlgorithmState):
            self.state.seqs = self._first_sequence()
        self.state.buffered = self.continues = True
        resets = self.rollout.num_envs * self.reducer.size * was_reset
        counts: dict[str, Any] = {"env/steps": self._rows_to_learn, "env/resets": resets}
        counts |= {key: int(stats[key]) for key in ("episodes/count",) if key in stats}
        counts |= self.calls.statistics
        return cast(CollectStats, {**stats, **counts, "profiling/collect_ms": elapsed_ms()})

    def _prepare(self) -> None:
        """Let bonuses look at the environment, once, before the first rollout to learn from."""
        if problem := device_problem(self.policy.device, self.env):
            raise ConfigError(problem)
        if not self.is_prepared and not self.is_evaluating:
            self.continues = False
            with self.reducer.joined():
                for bonus in self.bonuses:
                    bonus.prepare(self.env)
            self.is_prepared = True

    def _begin(self, env_config: None | dict[str, Any]) -> bool:
        """Write the first observations; whether the environments were reset."""
        every = int(self.config.horizons_per_env_reset)
        due = self.state.horizons % every == 0 if every > 0 else self.state.horizons == 0
        reset = due or not self.continues
        self.state.buffered = self.continues = False
        if reset:
            self.calls.reset(self.rollout, env_config)
            self.calls.metrics()  # those of a rollout that failed are discarded
            self.states = None
            self.episodes.reset()
        else:
            self.calls.carry(self.rollout)
        return reset

    def _roll_out_or_replay(self, deterministic: bool) -> Collected:
        states = self._initial_states(0) if self.states is None else self.states
        recorder = self.recorder
        recorder.begin(self.parts)
        if deterministic or self.is_evaluating or recorder.collection.refused is not None:
            return self._roll_out(states, deterministic=deterministic)
        resets, settings = self._changing_resets(), self.calls.settings
        return recorder.roll_out(
            self.parts, self._roll_out, states, resets=resets, settings=settings
        )

    def _roll_out(
        self, states: Leaves, resets: None | torch.Tensor = None, *, deterministic: bool = False
    ) -> Collected:
        """Act, step and write until the rollout is full.

        Args:
            states: Recurrent states before the first vector step, `[N, …]`.
            resets: Sequences that reset the states, bool `[S]`; None if the host decides.
            deterministic: Whether actions are the distribution's mode.

        """
        policy, rollout = self.policy, self.rollout
        has_states = bool(states)
        has_episodes = has_states and DataKeys.FIRST in rollout.episode_keys
        with policy.keep_casts():
            acts = actor(policy, rollout, deterministic=deterministic) or Actor(
                policy, rollout, deterministic=deterministic
            )
            for t in range(rollout.horizon):
                if has_states and t % rollout.seq_len == 0:
                    states = self._begin_sequence(t // rollout.seq_len, states, resets)
                actions, states = acts.act(t, states)
                self.calls.step(rollout, t, actions)
                if has_episodes:
                    if rollout.final_obs:
                        estimates.value_final_row(policy, rollout, t, states)
                    states = policy.next_states(states, rollout.first_at(t))
            acts.finish(states)
            statistics, scale = estimates.complete(self.parts, evaluating=self.is_evaluating)
            return Collected(statistics, states, scale)

    def _begin_sequence(self, sequence: int, states: Leaves, resets: None | torch.Tensor) -> Leaves:
        """Store the recurrent states of a sequence, which are reset first if that is due."""
        if resets is not None:
            pairs = zip(self._initial_states(), states, strict=True)
            states = tuple(torch.where(resets[sequence], new, old) for new, old in pairs)
        elif self._is_reset(sequence):
            states = self._initial_states()
        self.rollout.write_states(sequence, states)
        return states

    def _is_reset(self, sequence: int) -> bool:
        every = self._sequences_per_reset()
        return every > 0 and (self._first_sequence() + sequence) % every == 0

    def _changing_resets(self) -> tuple[bool, ...]:
        """Which sequences of this rollout reset states; empty if it is the same in every one."""
        every, count = self._sequences_per_reset(), self.rollout.horizon // self.rollout.seq_len
        is_same = every < 0 or count % every == 0
        return () if is_same else tuple(map(self._is_reset, range(count)))

    def _sequences_per_reset(self) -> int:
        return cast(int, getattr(self.config, "seqs_per_state_reset", -1))

    def _first_sequence(self) -> int:
        return self.state.horizons * (self.rollout.horizon // self.rollout.seq_len)

    def _initial_states(self, sequence: None | int = None) -> Leaves:
        """States at the start of episodes; any before a sequence that resets them itself."""
        policy, rollout = self.policy, self.rollout
        if sequence is not None and self._is_reset(sequence):
            return policy.memory.zeros(rollout.num_envs, device=rollout.device)
        return policy.memory.flatten(policy.init_states(rollout.num_envs))

    def _warn_of_bounds(self) -> None:
        """Log a warning for each leaf that is outside of its bounds, once."""
        for name, text in self.rollout.beyond_bounds().items():
            if name not in self._warned:
                _log.warning("%s. It is trained with; the space says too little.", text)
                self._warned.add(name)

    def _check_rollout(self, *, finite: bool, lost: int) -> None:
        if not finite:
            self.rollout.find_fault()
        if self.config.on_missing_final == "error" and lost:
            raise EnvError(
                f"{lost} truncated rows have no final observation to bootstrap from. "
                "Let the environment return `final_obs`, or set `on_missing_final`."
            )

    # ---- estimate, learn, step ----------------------------------------------------------------

    def estimate(self, reward_scale: None | torch.Tensor = None) -> torch.Tensor:
        """Fill in advantages and returns; the explained variance of the values, 0-d.

        Args:
            reward_scale: Divisor of the environment's rewards, 0-d; None for the rollout's own.

        """
        scale = self._reward_scale if reward_scale is None else reward_scale
        learnable = self.policy.learnable(self.rollout)
        return estimates.estimate_advantages(
            self.rollout, self.config, self.streams, learnable, scale, self.reducer
        )

    def learn(self, steps: Iterable[Iterator[Minibatch]]) -> None:
        """Take optimizer steps, until the meter ends the update.

        Args:
            steps: Minibatches of each, in chunks.

        """
        autograd = self.config.policy_loss_addons or self.grad_scaler.is_enabled()
        self._fused = None if autograd else gradients(self.policy, self.objective, self._fused)
        for i, chunks in enumerate(steps):
            if isinstance(self.objective, ActorCritic):
                self.objective.measures_entropy = is_static() or i % ENTROPY_EVERY == 0
            with self.policy.keep_casts():
                added = [self._add_gradients(chunk) for chunk in chunks]
            self.updater.pending = True
            terms = {name: total([each[name] for each in added]) for name in added[0]}
            terms = self.reducer.gradients(self.updater.flats, terms)
            self.meter.add(terms)
            if self.meter.has_ended():
                self.updater.zero_grad()
                break
            self.updater.step(mask=self.meter.mask)

    def _add_gradients(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Add a minibatch's gradients to those of the parameters; the terms of its loss."""
        if self._fused is None:
            terms = self._losses(minibatch)
        else:
            terms = self._add_bonuses(minibatch, self._fused(minibatch))
        if terms["total"].requires_grad:
            self.updater.backward(terms["total"])
            terms = {name: term.detach() for name, term in terms.items()}
        return self.reducer.counted(terms, minibatch.weight)

    def _losses(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each."""
        distribution, values = self.policy.evaluate(minibatch)
        minibatch, values = self.policy.in_deviations(minibatch, values)
        terms = self.objective(minibatch, distribution, values)
        terms = add_ons(self.config.policy_loss_addons, minibatch, distribution, values, terms)
        return self._add_bonuses(minibatch, terms)

    def _add_bonuses(
        self, minibatch: Minibatch, terms: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        for bonus in self.bonuses:
            loss = bonus.losses(minibatch)
            terms = {**terms, bonus.name: loss, "total": terms["total"] + loss}
        return terms

    def step(self) -> StepStats:
        """Update the policy with the rollout, and return the update's statistics.

        Raises:
            NotBufferedError: If `collect` was not called before.
            DivergedError: If no minibatch had finite gradients; the policy is unchanged.

        """
        elapsed_ms = stopwatch()
        self._take_rollout("step")
        self.updater.check_trained(self.parameters())
        mode = model_mode(self.policy.model, training=True, precision=self.config.matmul_precision)
        with (
            Snapshot.of_tensors(self.policy.model.buffers()).on_error(),
            torch.inference_mode(False),
            torch.enable_grad(),
            mode,
        ):
            explained_variance = self._update()
            others = {**self.updater.totals(), "explained_variance": explained_variance}
            stats = self.meter.read(others)
            # Gradient scaling skips steps until it has found its scale.
            if stats["skipped"] == stats["steps"] and not self.grad_scaler.is_enabled():
                raise DivergedError(
                    "No minibatch of this update had finite gradients, so the weights are as "
                    "before. Lower the learning rate, or bound rewards and observations."
                )
        found = estimates.coefficients(self.parts) | update_statistics(stats)
        self._end_update()
        return cast(StepStats, {**found, "profiling/step_ms": elapsed_ms()})

    def _update(self) -> torch.Tensor:
        """Estimate and learn, eagerly or recorded; the explained variance of the values, 0-d."""
        config, recorder, scale = self.config, self.recorder, self._reward_scale
        recorder.begin(self.parts)
        is_recorded = recorder.update.refused is None
        if is_recorded:
            self.updater.hold_rates()
        self.updater.begin()
        adapted = self.lr_scheduler if config.lr_schedule_kind == "adaptive" else None
        self.meter.begin(config.target_kl_div, adapted, recorded=is_recorded)
        if is_recorded:
            explained_variance = recorder.estimate(self.parts, self.estimate, scale)
            recorder.learn(self.parts, self.learn, self.meter)
        else:
            explained_variance = self.estimate(scale)
            self.learn(optimizer_steps(self.parts, self.chunk_size))
        return explained_variance

    def _take_rollout(self, caller: str) -> None:
        if not self.state.buffered:
            raise NotBufferedError(
                f"{type(self).__name__} is not buffered: call `collect` before `{caller}`."
            )
        self.state.buffered = False

    def _end_update(self) -> None:
        """Update statistics of observations and bonuses, count env steps, move schedules on."""
        with self.reducer.joined():
            self.policy.update_statistics(self.rollout)
            for bonus in self.bonuses:
                bonus.update(self.rollout)
        self.state.env_steps += self._rows_to_learn
        self.follow_schedules()

    def follow_schedules(self) -> None:
        """Set what schedules set to its value after the env steps so far."""
        self.lr_scheduler.step(self.state.env_steps)
        self.objective.entropy_coeff.fill_(self.entropy_scheduler.step(self.state.env_steps))
        if self.config.clip_param_schedule is not None:
            clip_param = self.clip_scheduler.step(self.state.env_steps)
            cast(Any, self.objective).clip_param.fill_(clip_param)

    # ---- checks and state ---------------------------------------------------------------------

    def validate(self) -> None:
        """Try the policy on an observation of zeros, without touching the environment.

        Raises:
            ConfigError: If actions, log-probabilities or values do not have the shapes that the
                environment's specs ask for.

        """
        check_policy(self.policy, self.rollout, self.config)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Collect in the block without changing statistics, counters' episodes or training data.

        The environment itself moves on, and episodes that are open in it with it.
        """
        self._end_open_update()
        statistics, rollout = snapshots.running_statistics(self.parts), self.rollout
        statistics.pop("episodes.open")
        before = Snapshot.of_tensors([*statistics.values(), rollout.reversed_returns[-1]])
        reward_scale = self.state.reward_scale
        self.episodes.finished.zero_()
        self.is_evaluating = True
        try:
            yield
        finally:
            self.is_evaluating = False
            before.restore()
            self.state.reward_scale = reward_scale
            self.state.buffered = False

    def state_dict(self) -> dict[str, Any]:
        """Everything that training continues from: weights, moments, counters, generators, and
        the environment's state if it has `state_dict`.
        """
        return snapshots.state_of(self.parts, self.state, self.states, continues=self.continues)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; environments whose state is not in it are reset.

        Raises:
            CheckpointError: If the state does not fit; nothing is changed then.

        """
        check = partial(snapshots.check_state, self.parts, self.state, state)
        with loading(self.state_dict, self._load, check):
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        """Write a state that fits."""
        snapshots.load_state(self.parts, state)
        memory, device = state["memory"], self.rollout.device
        self.state = type(self.state)(**{**state["counters"], "buffered": False})
        self.states = None if memory is None else tuple(x.to(device) for x in memory)
        self.continues = state["continues"] and state["env"] is not None
        self.is_prepared = True
        self.follow_schedules()


class Algorithm(OnPolicyAlgorithm[AlgorithmHparams, AlgorithmState, Policy]):
    """PPO with a feedforward policy, of the present observation or of windows that end in it.

    See `OnPolicyAlgorithm` for arguments and errors.
    """

    config_cls = Hyperparameters
    hparams_cls = AlgorithmHparams
    policy_cls = Policy
    state_cls = AlgorithmState


class RecurrentAlgorithm(
    OnPolicyAlgorithm[RecurrentAlgorithmHparams, RecurrentAlgorithmState, RecurrentPolicy]
):
    """PPO with a recurrent policy; its config is a `RecurrentAlgorithmConfig`.

    Gradients flow back through the `seq_len` env steps of a sequence, to the states that were
    stored when it was collected. States are reset with every episode, with every reset of the
    environments, and after `seqs_per_state_reset` sequences.

    See `OnPolicyAlgorithm` for arguments and errors.
    """

    config_cls = RecurrentHyperparameters
    hparams_cls = RecurrentAlgorithmHparams
    policy_cls = RecurrentPolicy
    state_cls = RecurrentAlgorithmState
