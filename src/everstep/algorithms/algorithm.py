"""PPO and A2C in the order in which they run: collect, estimate, learn, step."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch

from ..core.episodes import to_floats
from ..core.fast import Learner, NativeActor, actor, learner, recurrence, rows
from ..core.graphs import CUDAGraph, is_static
from ..core.hyperparameters import Hyperparameters, RecurrentHyperparameters
from ..core.losses import check_terms, with_term
from ..core.restoring import Snapshot, loading
from ..core.rollouts import Minibatch
from ..data import (
    AlgorithmHparams,
    AlgorithmState,
    CollectStats,
    DataKeys,
    RecurrentAlgorithmHparams,
    RecurrentAlgorithmState,
    StepStats,
)
from ..distillation import make_objective_of
from ..distributions import Distribution
from ..env.calls import EnvCalls
from ..env.registry import EnvSource
from ..env.specs import Leaves
from ..errors import ConfigError, DivergedError, EnvError, NonFiniteError, NotBufferedError
from ..objectives import ENTROPY_EVERY, MONITORS, ActorCritic, add_ons, find_objective
from ..policies import (
    Actor,
    GenericPolicyBase,
    Policy,
    RecurrentPolicy,
    check_policy,
    model_mode,
    preserving,
)
from . import estimates
from . import snapshot as snapshots
from .build import build_parts
from .estimates import stopwatch, update_statistics
from .operations import WorkerOperations
from .recording import Collected, RecordedActor, Recorder
from .resolve import build_env, closed_on_error, device_problem
from .updates import Meter, total

_log = logging.getLogger(__name__)

#: Rollouts without the end of an episode that train the values alone.
WARMUP = 2

#: Parts of the environments that restart apart, of an environment that may never end.
RESTART_TURNS = 8

#: Rollouts without a reward that differs from 0, after which a warning says that.
UNREWARDED = 10

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
        config.objective = make_objective_of(config.objective)
        self._check_kind(config)
        if config.seed is not None:
            torch.manual_seed(config.seed)
        env, config = build_env(env_cls, config)
        # What is made in the caller's `inference_mode` could not be written outside of it.
        with closed_on_error(env, env_cls), torch.inference_mode(False):
            self.parts = build_parts(
                env, config, policy_cls=self.policy_cls, hparams_cls=self.hparams_cls
            )
            #: Terms of the loss, and whether the update has ended.
            self.meter = Meter(self.rollout.device)
        self.calls = EnvCalls(env)
        self.state = self.state_cls()
        self.recorder = Recorder(CUDAGraph if self.config.cuda_graphs else None)
        #: Recurrent states `[N, …]` after the last rollout, empty if the policy has none; None if
        #: the environment is not where that rollout ended, and will be reset.
        self.states: None | Leaves = None
        self.is_evaluating = False
        #: Whether bonuses have seen the environment.
        self.is_prepared = not self.bonuses
        self._reward_scale: None | torch.Tensor = None
        self._rows_to_learn = 0
        #: Rollouts to learn from, of this process, until the first reward that is not 0.
        self._unrewarded = 0
        #: Environments that were reset before the rollout.
        self._resets = 0
        #: The last turn of `staggered_resets` that was taken.
        self._turn = 0
        #: Whether episodes have ended in the last rollout, or are cut off by resets of all.
        self._has_ends = False
        #: Leaves of observations that were seen outside of their bounds.
        self._warned: set[str] = set()
        #: The native ways of now, if they are taken.
        self._actor: None | NativeActor = None
        self._fast: None | Learner = None

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
        with self.collecting(deterministic=deterministic):
            states, was_reset = self.begin(env_config)
            with self.naming_choices():
                collected = self._roll_out_or_replay(states, deterministic)
            found = self.examine(collected, was_reset=was_reset)
        stats = self.accept(collected, found, was_reset=was_reset)
        return cast(CollectStats, {**stats, "profiling/collect_ms": elapsed_ms()})

    @contextmanager
    def collecting(self, *, deterministic: bool) -> Iterator[None]:
        """Context of a rollout; an error in it restores the running statistics.

        `collect` consists of the methods from here to `accept`. `GroupedAlgorithm.collect` calls
        them for several policies that act in one environment.
        """
        self._end_open_update()
        with self.reducer.calling("Algorithm.collect"):
            self._prepare()
            self.calls.begin()
            precision = self.config.matmul_precision
            mode = model_mode(self.policy.model, training=not deterministic, precision=precision)
            before = Snapshot.of_tensors(snapshots.running_statistics(self.parts).values())
            with before.on_error(), torch.inference_mode(False), torch.no_grad(), mode:
                yield

    @contextmanager
    def naming_choices(self) -> Iterator[None]:
        """Context of the model's calls; an `IndexError` becomes the fault in the data, if any."""
        try:
            yield
        except IndexError:
            self.rollout.find_fault()  # models index by choices, which may not exist
            raise

    def examine(self, collected: Collected, *, was_reset: bool) -> dict[str, float]:
        """Statistics of a complete rollout, of all processes.

        Raises:
            EnvError: If final observations are lost, and `on_missing_final` says so.
            NonFiniteError: If a number is not finite.

        """
        self._follow(was_reset=was_reset)
        # NaN marks a statistic that does not exist, such as a mean without an episode.
        found = to_floats(collected.statistics) | self.calls.metrics()
        found["env/resets"] = float(self._resets)
        if found.pop("beyond", 0.0):
            self._warn_of_bounds()
        stats = self.reducer.statistics({k: x for k, x in found.items() if x == x})
        self._check_rollout(finite=bool(stats.pop("finite")), lost=int(stats.pop("lost")))
        return stats

    def accept(
        self, collected: Collected, stats: dict[str, float], *, was_reset: bool
    ) -> dict[str, Any]:
        """Count a rollout, let `step` learn from it, and return its statistics."""
        self.states, self._reward_scale = collected.states, collected.reward_scale
        self._rows_to_learn = int(stats["env/steps"])
        self.state.reward_scale = stats.pop("reward_scale", 1.0)
        self.state.horizons += 1
        if not self.is_evaluating:
            self._look_for_reward(stats)
        if isinstance(self.state, RecurrentAlgorithmState):
            self.state.seqs = self._first_sequence()
        self.state.buffered = True
        names = ("env/steps", "env/resets", "episodes/count")
        counts: dict[str, Any] = {key: int(stats[key]) for key in names if key in stats}
        self._has_ends = not self.rollout.episode_keys or bool(counts.get("episodes/count"))
        if not self.is_evaluating:
            self.state.ended |= self._has_ends
        return {**stats, **counts, **self.calls.statistics}

    def _look_for_reward(self, stats: dict[str, Any]) -> None:
        """Note the first reward that differs from 0, and warn if there was none for long."""
        state = self.state
        has_rows = self._rows_to_learn > 0  # else both extremes are infinite
        state.rewarded |= has_rows and any((stats["rewards/min"], stats["rewards/max"]))
        self._unrewarded += 1
        is_late = self._unrewarded == UNREWARDED and not self.reducer.rank
        if is_late and self._awaits_reward:
            _log.warning(
                "Every reward of %d rollouts was 0, so the policy is not trained yet; it is from "
                "the first other one on. `critic_warmup: 0` trains it from the start; a bonus "
                "(`bonuses: [{rnd: {}}]`) finds rare rewards sooner.",
                UNREWARDED,
            )

    def _prepare(self) -> None:
        """Let bonuses look at the environment, once, before the first rollout to learn from."""
        if problem := device_problem(self.policy.device, self.env):
            raise ConfigError(problem)
        if not self.is_prepared and not self.is_evaluating:
            self.states = None
            with self.reducer.joined():
                for bonus in self.bonuses:
                    bonus.prepare(self.env)
            self.is_prepared = True

    @property
    def continues(self) -> bool:
        """Whether the environment is where the last rollout ended."""
        return self.states is not None

    @property
    def is_reset_due(self) -> bool:
        """Whether `horizons_per_env_reset` asks for a reset of all environments."""
        horizons, every = self.state.horizons, self.horizons_per_env_reset
        if every > 0:
            return horizons % every == 0
        is_asked = self.config.horizons_per_env_reset == "restarts" and not self.state.ended
        is_for_all = is_asked and not self.config.staggered_resets and not self.is_evaluating
        return horizons == 0 or (is_for_all and restarts_at(horizons))

    def begin(
        self, env_config: None | dict[str, Any], *, due: None | bool = None
    ) -> tuple[Leaves, bool]:
        """Write the first observations.

        Args:
            env_config: Passed to the environment's reset, if there is one.
            due: Whether a reset of all environments is due; None for `is_reset_due`.

        Returns:
            Recurrent states before the first vector step, and whether the environments were reset.

        """
        due = self.is_reset_due if due is None else due
        states, self.states = self.states, None  # so that a failed rollout is not continued
        self.state.buffered = False
        if states is not None and not due:
            self.calls.carry(self.rollout)
            return self._stagger(states), False
        self.state.opened, self._resets = self.state.horizons, self.rollout.num_envs
        self._turn = 0
        self.calls.reset(self.rollout, env_config)
        self.calls.metrics()  # those of a rollout that failed are discarded
        self.episodes.reset()
        if self._is_reset(0):  # `begin_sequence` replaces them
            return self.policy.memory.zeros(self.rollout.num_envs, device=self.rollout.device), True
        return self._initial_states(), True

    def _stagger(self, states: Leaves) -> Leaves:
        """Reset the environments whose turn it is; see `staggered_resets`.

        Args:
            states: Recurrent states after the last rollout, `[N, …]`.

        Returns:
            Recurrent states before the next one.

        """
        self._resets = 0
        if not self.config.staggered_resets or self.is_evaluating:
            return states
        is_asked = self.config.horizons_per_env_reset == "restarts"
        due = self._restarts() if is_asked else self._first_ends()
        if not due.any():  # on the host, so that rollouts without resets wait for nothing
            return states
        rows = due.to(self.rollout.device)
        if not is_asked:  # those of which no episode has ended so far
            rows &= self.episodes.open[:, 1] == self._turn * self.rollout.horizon
        self._resets = int((due if is_asked else rows).sum())
        if not self._resets:
            return states
        rows = rows.unsqueeze(1)
        self.calls.reset_rows(self.rollout, rows)
        self.episodes.reset(rows)
        for follower in snapshots.followers_of(self.parts):
            follower.reset_rows(rows)
        return self.policy.next_states(states, rows)

    def _first_ends(self) -> torch.Tensor:
        """Rows whose turn has come since the last rollout, so that first ends differ, `[N]`."""
        limit = cast(int, cast(Any, self.env).max_episode_steps)
        turns = self._turns(-(-limit // self.rollout.horizon))
        before, self._turn = self._turn, self.state.horizons - self.state.opened
        return (before < turns) & (turns <= self._turn)

    def _restarts(self) -> torch.Tensor:
        """Rows to reset because they may never end, bool `[N]`."""
        due = [restarts_at(self.state.horizons + turn) for turn in range(RESTART_TURNS)]
        return torch.tensor(due, device="cpu")[self._turns(RESTART_TURNS)] & (not self.state.ended)

    def _turns(self, count: int) -> torch.Tensor:
        """Each environment's turn, from 0 to `count` - 1, `[N]` on the host."""
        own, size = self.rollout.num_envs, getattr(self.env, "rows_per_env", 1)
        rows = torch.arange(own, device="cpu") + self.reducer.rank * own
        return rows // size * count // (own * self.reducer.size // size)

    def _roll_out_or_replay(self, states: Leaves, deterministic: bool) -> Collected:
        recorder = self.recorder
        recorder.begin(self.parts)
        if deterministic or self.is_evaluating or recorder.collection.refused is not None:
            records = not (deterministic or self.is_evaluating)
            return self._roll_out(states, deterministic=deterministic, records_acting=records)
        resets, settings = self._changing_resets(), self.calls.settings
        return recorder.roll_out(
            self.parts, self._roll_out, states, resets=resets, settings=settings
        )

    def _roll_out(
        self,
        states: Leaves,
        resets: None | torch.Tensor = None,
        *,
        deterministic: bool = False,
        records_acting: bool = False,
    ) -> Collected:
        """Act, step and write until the rollout is full.

        Args:
            states: Recurrent states before the first vector step, `[N, …]`.
            resets: Sequences that reset the states, bool `[S]`; None if the host decides.
            deterministic: Whether actions are the distribution's mode.
            records_acting: Whether to record the policy's part of a vector step, if possible.

        """
        with self.in_rollout(), self.calls.lending(self.rollout):
            acting = self.acting(states, resets, deterministic=deterministic)
            if records_acting and self.recorder.acting.refused is None:
                acting.acts = RecordedActor(self.recorder, self.parts)
            for t in range(self.rollout.horizon):
                self.calls.step(self.rollout, t, acting.act(t))
                if acting.has_episodes:
                    acting.observe(t)
            return acting.finish()

    @contextmanager
    def in_rollout(self) -> Iterator[None]:
        """Context in which the policy acts while its weights stay as they are."""
        with self.policy.keep_casts(), recurrence(self.policy):
            yield

    def acting(
        self, states: Leaves, resets: None | torch.Tensor = None, *, deterministic: bool
    ) -> "Acting":
        """The policy's part in a rollout; see `_roll_out`. Call it in `in_rollout`."""
        self._actor = actor(self.policy, self.rollout, self._actor, deterministic=deterministic)
        acts = self._actor or Actor(self.policy, self.rollout, deterministic=deterministic)
        return Acting(self, acts, states, resets)

    def _follow(self, *, was_reset: bool) -> None:
        """Let symmetry and objective look at a complete rollout, before its states are kept."""
        looking: list[Any] = [x for x in (self.mirror, self.objective) if hasattr(x, "follow")]
        if looking:
            sequences = range(self.rollout.horizon // self.rollout.seq_len)
            resets = [self._is_reset(sequence) for sequence in sequences]
            for each in looking:
                each.follow(self.rollout, was_reset=was_reset, resets=resets)

    def begin_sequence(self, sequence: int, states: Leaves, resets: None | torch.Tensor) -> Leaves:
        """Reset the recurrent states if that is due, store them for a sequence, and return them."""
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
        """Whether each sequence of this rollout resets states; empty if all rollouts are alike."""
        every, count = self._sequences_per_reset(), self.rollout.horizon // self.rollout.seq_len
        is_same = every < 0 or count % every == 0
        return () if is_same else tuple(map(self._is_reset, range(count)))

    def _sequences_per_reset(self) -> int:
        return cast(int, getattr(self.config, "seqs_per_state_reset", -1))

    def _first_sequence(self) -> int:
        return self.state.horizons * (self.rollout.horizon // self.rollout.seq_len)

    def _initial_states(self) -> Leaves:
        """Recurrent states at the start of episodes, `[N, …]`."""
        return self.policy.memory.flatten(self.policy.init_states(self.rollout.num_envs))

    def _warn_of_bounds(self) -> None:
        """Log a warning for each leaf that is outside of its bounds, once."""
        for name, text in self.rollout.beyond_bounds().items():
            if name not in self._warned:
                _log.warning("%s. It is trained with; the space says too little.", text)
                self._warned.add(name)

    def _check_rollout(self, *, finite: bool, lost: int) -> None:
        if not finite:
            self.rollout.find_fault()
            for column, bonus in enumerate(self.bonuses, 1):
                bad = (~self.rollout.rewards[:-1, :, column].isfinite()).nonzero()
                if len(bad):
                    raise NonFiniteError(
                        f"Rewards of the bonus `{bonus.name}` are not finite, first for "
                        f"environment {int(bad[0, 1])} ({len(bad)} rows in all), although what the "
                        "environment returned is. The policy was not changed; fix the bonus."
                    )
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
        return cast(torch.Tensor, self._estimate(reward_scale))

    def _estimate(
        self, reward_scale: None | torch.Tensor, *, explains: bool = True
    ) -> None | torch.Tensor:
        scale = self._reward_scale if reward_scale is None else reward_scale
        learnable = self.policy.learnable(self.rollout)
        return estimates.estimate_advantages(
            self.rollout,
            self.config,
            self.streams,
            learnable,
            scale,
            self.reducer,
            explains=explains,
        )

    def _revise(self, *, in_step: bool) -> None:
        """See `WorkerOperations._revise`; outside of `step` tensors may be others: eagerly."""
        recorder, scale = self.recorder, self._reward_scale
        with torch.no_grad(), model_mode(self.policy.model, training=True):
            if in_step and recorder.update.refused is None:
                recorder.revise(self.parts, self._estimate_again, scale)
            else:
                self._estimate_again(scale, self._fast if in_step else None)
        self.hold_policy()

    def _estimate_again(
        self, reward_scale: None | torch.Tensor, fast: None | Learner = None
    ) -> None:
        """Fill in values, advantages and returns anew, unless a recorded update has ended."""
        parts, ended = self.parts, self.meter.mask
        changed = parts.rollout.values, parts.rollout.final_values
        before = [] if ended is None else [x.clone() for x in changed]
        if fast is None:
            estimates.value_obs(parts.policy, parts.rollout, self.chunk_size or self.minibatch_size)
        else:
            fast.value(parts.rollout)
        estimates.value_final_obs(parts.policy, parts.rollout, parts.config.on_missing_final)
        if ended is not None:
            for x, old in zip(changed, before, strict=True):
                x.copy_(torch.where(ended, old, x))
        self._estimate(reward_scale, explains=False)

    def hold_policy(self) -> None:
        """While `critic_warmup` lasts, set advantages to 0: the update trains the values alone."""
        if self._is_cold or self._awaits_reward:
            self.rollout.advantages.zero_()

    @property
    def _is_cold(self) -> bool:
        """Whether the env steps of `critic_warmup`, or those of its default, last."""
        config, env_steps = self.config, self.config.critic_warmup
        if env_steps is None:
            is_never_reset = self._may_never_end and config.horizons_per_env_reset == -1
            is_needed = is_never_reset and config.lr_schedule_kind != "adaptive"
            env_steps = WARMUP * self._rows_to_learn if is_needed else 0
        return bool(self.state.env_steps < env_steps)

    @property
    def _awaits_reward(self) -> bool:
        """Whether the default of `critic_warmup` waits for the first reward that is not 0."""
        config = self.config
        if self.state.rewarded or self.bonuses or config.critic_warmup is not None:
            return False
        ignored = getattr(find_objective(config.objective), "ignores", {})
        return config.lr_schedule_kind != "adaptive" and "critic_warmup" not in ignored

    @property
    def _may_never_end(self) -> bool:
        """Whether no episode ended in the rollout, and none has to."""
        return not self._has_ends and getattr(self.env, "max_episode_steps", None) is None

    def _preserving(self) -> AbstractContextManager[None]:
        """Context that updates statistics of observations; see `preserve_outputs`."""
        is_trained = self.state.env_steps > 0 and not self._is_cold
        is_asked = self.config.preserve_outputs is not False
        return preserving(self.policy) if is_asked and is_trained else nullcontext()

    def learn(self, steps: Iterable[Iterator[Minibatch]]) -> None:
        """Take optimizer steps, until the meter ends the update.

        Args:
            steps: Minibatches of each, in chunks.

        """
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

    def _find_learner(self) -> None | Learner:
        """The native way to compute gradients; None if autograd differentiates the loss."""
        if self._needs_autograd() is not None:
            return None
        return learner(self.policy, self.objective, self._fast)

    def _takes_whole_steps(self) -> bool:
        """Whether an optimizer step follows each minibatch; only a divergence may prevent it."""
        config = self.config
        comes_between = self.bonuses or config.accumulate_grads or self.reducer.size > 1
        return not comes_between and config.lr_schedule_kind != "adaptive"

    def _learn_at_once(self, fast: Learner) -> None:
        """Take the same optimizer steps as `learn`, each in one call of the native library."""
        config, count = self.config, self.parts.sequences_per_rollout
        is_drawn = config.shuffle_minibatches and self.minibatch_size < count
        terms, has_ended = fast.learn(
            self.rollout,
            (
                torch.randperm(count) if is_drawn else None
                for epochs in self._epochs(in_step=True)
                for _ in range(epochs)
            ),
            self.minibatch_size,
            self.updater,
            chunk=self.chunk_size,
            standardized=config.normalize_advantages == "minibatch",
            target_kl=config.target_kl_div,
        )
        self.meter.add_all(terms, has_ended=has_ended)

    def _add_gradients(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Add a minibatch's gradients to those of the parameters; the terms of its loss."""
        if self._fast is None:
            terms = self._losses(minibatch)
        else:
            terms = self._add_bonuses(minibatch, self._fast(minibatch))
        if terms["total"].requires_grad:
            self.updater.backward(terms["total"])
            terms = {name: term.detach() for name, term in terms.items()}
        return self.reducer.counted(terms, minibatch.weight)

    def _losses(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, 0-d each."""
        if self.mirror is None:
            return self._add_bonuses(minibatch, self._policy_losses(minibatch)[0])
        mirror = self.mirror
        own, mirrored = mirror.minibatch(minibatch, getattr(self.objective, "label_names", ()))
        terms, distribution = self._policy_losses(own)
        if mirror.augment:
            others, for_mirrored = self._policy_losses(mirrored)
            # Monitors are of the rows that were collected.
            halves = {k: (x + others[k]) / 2 for k, x in terms.items() if k not in MONITORS}
            terms = {**terms, **halves}
        else:
            for_mirrored, _ = self.policy.evaluate(mirrored)
        if mirror.mirror_coeff:
            loss = mirror.loss(own, distribution, for_mirrored)
            terms["total"] = terms["total"] + mirror.mirror_coeff * loss
            terms["symmetry"] = loss.detach()
        return self._add_bonuses(own, terms)

    def _policy_losses(self, minibatch: Minibatch) -> tuple[dict[str, torch.Tensor], Distribution]:
        """Terms of the loss without those of bonuses, 0-d each, and the policy's distribution."""
        distribution, values = self.policy.evaluate(minibatch)
        minibatch, values = self.policy.in_deviations(minibatch, values)
        terms = self.objective(minibatch, distribution, values)
        check_terms(terms, "`objective`")
        add_on = self.config.policy_loss_addons
        return add_ons(add_on, minibatch, distribution, values, terms), distribution

    def _add_bonuses(
        self, minibatch: Minibatch, terms: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        for bonus in self.bonuses:
            loss = bonus.losses(minibatch)
            check_terms({"total": loss}, f"`losses` of the bonus `{bonus.name}`")
            terms = with_term(terms, bonus.name, loss, "`bonuses`")
        return terms

    def step(self) -> StepStats:
        """Update the policy with the rollout, and return the update's statistics.

        Raises:
            NotBufferedError: If `collect` was not called before.
            DivergedError: If no minibatch had finite gradients; the policy is unchanged.

        """
        elapsed_ms = stopwatch()
        self.updater.check_trained(self.parameters())
        self._take_rollout("step")
        mode = model_mode(self.policy.model, training=True, precision=self.config.matmul_precision)
        with (
            self.reducer.calling("Algorithm.step"),
            Snapshot.of_tensors(self.policy.model.buffers()).on_error(),
            torch.inference_mode(False),
            torch.enable_grad(),
            mode,
        ):
            explained_variance = self._update()
            others = {
                "grad_norm": self.updater.grad_norm,
                "skipped": self.updater.skipped,
                "explained_variance": explained_variance,
            }
            lr = self.optimizer.param_groups[0]["lr"]
            if isinstance(lr, torch.Tensor):  # of recorded updates
                others["lr"] = lr
            stats = self.meter.read(others)
            lr = float(stats.pop("lr", lr))
            # Gradient scaling skips steps until it has found its scale.
            if stats["skipped"] == stats["steps"] and not self.grad_scaler.is_enabled():
                raise DivergedError(
                    "No minibatch of this update had finite gradients, so the weights are as "
                    "before. Lower the learning rate, or bound rewards and observations."
                )
        found = update_statistics(self.parts, lr, stats)
        self._end_update(lr)
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
        self._fast = None if is_recorded else self._find_learner()
        if is_recorded:
            explained_variance = recorder.estimate(self.parts, self.estimate, scale)
            self.hold_policy()
            for count in self._epochs(in_step=True):
                recorder.learn(self.parts, self.learn, self.meter, count)
            return explained_variance
        explained_variance = self.estimate(scale)
        self.hold_policy()
        if self._fast is not None and self._takes_whole_steps():
            self._learn_at_once(self._fast)
        else:
            with recurrence(self.policy):
                self.learn(self._optimizer_steps(self.chunk_size, in_step=True))
        return explained_variance

    def _take_rollout(self, caller: str) -> None:
        if not self.state.buffered:
            raise NotBufferedError(
                f"{type(self).__name__} is not buffered: call `collect` before `{caller}`."
            )
        self.state.buffered = False

    def _end_update(self, lr: None | float = None) -> None:
        """Update statistics of observations and bonuses, count env steps, move schedules on."""
        with self._preserving(), self.reducer.joined():
            self.policy.update_statistics(self.rollout, rows.column_moments)
            for bonus in self.bonuses:
                bonus.update(self.rollout)
        self.state.env_steps += self._rows_to_learn
        self.follow_schedules(lr)

    def follow_schedules(self, lr: None | float = None) -> None:
        """Set what schedules set to its value after the env steps so far.

        Args:
            lr: The optimizer's learning rate, if it is known: reading it may wait for the device.

        """
        self.lr_scheduler.step(self.state.env_steps, lr)
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
        """Context in which `collect` changes neither statistics, env steps nor training data.

        It still steps the environment, with the episodes that are open in it, and counts
        `horizons`. A rollout that `step` has not used yet is discarded.
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
        state = snapshots.state_of(self.parts, self.state, self.states)
        if not self.is_prepared:  # absent otherwise, as in older checkpoints
            state["is_prepared"] = False
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; environments whose state is not in it are reset.

        Raises:
            CheckpointError: If the state does not fit; nothing is changed then.

        """
        check = partial(snapshots.check_state, self.parts, self.state, state)
        with loading(self.state_dict, self._load, check):
            self._load(state)

    def _load(self, state: dict[str, Any], *, continues: None | bool = None) -> None:
        """Write a state that fits.

        Args:
            state: See `state_dict`.
            continues: Whether the environment is where the last rollout ended; None if the state
                tells, which has the environment's.

        """
        snapshots.load_state(self.parts, state)
        memory, device = state["memory"], self.rollout.device
        self.state = type(self.state)(**{**snapshots.counters_in(state), "buffered": False})
        if continues is None:
            continues = state["continues"] and state["env"] is not None
        self.states = tuple(x.to(device) for x in memory) if continues else None
        self.is_prepared = state.get("is_prepared", True)
        self.follow_schedules()


def restarts_at(n: int) -> bool:
    """Whether n is a sum of the first terms of 1, 1, 2, 1, 1, 2, 4, 1, …

    Source: Luby, Sinclair and Zuckerman 1993, "Optimal speedup of Las Vegas algorithms".
    """
    whole, last = 0, 1  # a part of the sequence is twice the one before it, and its last term
    while 2 * whole + last <= n:
        whole, last = 2 * whole + last, 2 * last
    rest = n - whole
    return not rest or (rest <= whole and restarts_at(rest))


class Acting:
    """A policy's part in a rollout: what comes before and after each vector step.

    Args:
        algorithm: The algorithm, whose rollout is filled.
        acts: Computes the actions, natively or with the model.
        states: Recurrent states before the first vector step, `[N, …]`.
        resets: Sequences that reset the states, bool `[S]`; None if the host decides.

    """

    def __init__(
        self,
        algorithm: OnPolicyAlgorithm[Any, Any, Any],
        acts: NativeActor | Actor,
        states: Leaves,
        resets: None | torch.Tensor,
    ) -> None:
        self.algorithm, self.acts, self.states, self.resets = algorithm, acts, states, resets
        rollout = algorithm.rollout
        self.has_states = bool(states)
        self.has_episodes = self.has_states and DataKeys.FIRST in rollout.episode_keys

    def act(self, t: int) -> Leaves:
        """Actions of vector step `t`, `[N, …]`."""
        algorithm, length = self.algorithm, self.algorithm.rollout.seq_len
        if self.has_states and t % length == 0:
            self.states = algorithm.begin_sequence(t // length, self.states, self.resets)
        actions, self.states = self.acts.act(t, self.states)
        return actions

    def observe(self, t: int) -> None:
        """With `has_episodes`: let recurrent states follow vector step `t`, which was written."""
        policy, rollout = self.algorithm.policy, self.algorithm.rollout
        if rollout.final_obs:
            estimates.value_final_row(policy, rollout, t, self.states)
        self.states = policy.next_states(self.states, rollout.first[t])

    def finish(self) -> Collected:
        """Fill in what a full rollout still lacks, such as final values, and return its results."""
        algorithm = self.algorithm
        self.acts.finish(self.states)
        statistics, scale = estimates.complete(algorithm.parts, evaluating=algorithm.is_evaluating)
        return Collected(statistics, self.states, scale)


class Algorithm(OnPolicyAlgorithm[AlgorithmHparams, AlgorithmState, Policy]):
    """PPO with a feedforward policy, which sees the present observation or the last few.

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
