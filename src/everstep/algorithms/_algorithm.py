"""PPO: collect a rollout, estimate advantages, go through it in minibatches."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, cast

import torch

from ..advantages import reversed_discounted_returns
from ..data import AlgorithmHparams, AlgorithmState, CollectStats, DataKeys, StepStats
from ..env import is_asynchronous
from ..episodes import reward_statistics, to_floats
from ..errors import DivergedError, EnvError, NotBufferedError
from ..objectives import add_ons
from ..policies import Actor, GenericPolicyBase, make_actor, model_mode
from ..rollouts import Minibatch, Rollout, Sequences
from ..specs import Leaves
from . import _bonuses as bonuses
from . import _bookkeeping as bookkeeping
from . import _resuming as resuming
from ._analytic import analytic_gradients
from ._assembly import Assembled
from ._building import check_policy
from ._estimates import estimate_advantages, scale_rewards
from ._final_values import value_final_obs, value_final_row
from ._normalizing import take_in
from ._statistics import Sums, stopwatch, update_statistics
from ._stepping import Step, step_after, step_meanwhile

_Hparams = TypeVar("_Hparams", bound=AlgorithmHparams)
_State = TypeVar("_State", bound=AlgorithmState)
_Policy = TypeVar("_Policy", bound=GenericPolicyBase[Any])


class OnPolicyAlgorithm(Assembled[_Hparams, _State, _Policy], Generic[_Hparams, _State, _Policy]):
    """PPO with a policy of any kind: `collect` and `step` exist here, once.

    Args:
        env_cls: Environment class, factory, or an environment already made.
        config: Hyperparameters; defaults where None.

    Raises:
        ConfigError: Lists every hyperparameter that breaks a rule.
        EnvError: Where the environment's specs are not usable.

    """

    # ---- collect ------------------------------------------------------------------------------

    def collect(
        self, *, env_config: None | dict[str, Any] = None, deterministic: bool = False
    ) -> CollectStats:
        """Fill the buffer with a rollout, and return its statistics.

        Environments are reset first where `horizons_per_env_reset` says so, or where the last
        call failed; otherwise they go on where they stand.

        Args:
            env_config: Passed to the environment's reset, where there is one.
            deterministic: Whether actions are the distribution's mode rather than samples; the
                model is in eval mode then.

        Raises:
            EnvError: Where the environment breaks its protocol.
            NonFiniteError: Where it returns NaN or infinity; the policy is untouched.

        """
        elapsed_ms = stopwatch()
        self._prepare()
        with bookkeeping.undone_on_error(self), self._precision():
            mode = model_mode(self.policy.model, training=not deterministic)
            with torch.no_grad(), mode:
                was_reset = self._begin(env_config)
                tensors = self.graphs.roll_out(self, deterministic)
            # NaN marks a statistic that does not exist, such as a mean without an episode.
            stats = {name: value for name, value in to_floats(tensors).items() if value == value}
            self._refuse(finite=bool(stats.pop("finite")), lost=int(stats.pop("lost")))
        self._rows_to_learn = int(stats["env/steps"])
        self.state.reward_scale = stats.pop("reward_scale", 1.0)
        self.state.horizons += 1
        self.state.buffered = self.continues = True
        found: dict[str, Any] = {
            **stats,
            "env/steps": self._rows_to_learn,
            "env/resets": self.rollout.num_envs * was_reset,
            "profiling/collect_ms": elapsed_ms(),
        }
        if "episodes/count" in stats:
            found["episodes/count"] = int(stats["episodes/count"])
        return cast(CollectStats, found)

    def _prepare(self) -> None:
        """Let bonuses look at the environment, once, before the first rollout to learn from."""
        if not self.is_prepared and not self.is_evaluating:
            self.continues = False
            bonuses.prepare(self.bonuses, self.env)
            self.is_prepared = True

    def _begin(self, env_config: None | dict[str, Any]) -> bool:
        """Put the first observations in place; whether the environments were reset."""
        every = self.horizons_per_env_reset
        due = self.state.horizons % every == 0 if every > 0 else self.state.horizons == 0
        reset = due or not self.continues
        self.state.buffered = self.continues = False
        if reset:
            self.rollout.open(self.env.reset(config=env_config))
            self.states = None
            self.episodes.reset()
        else:
            self.rollout.carry()
        return reset

    def _refuse(self, *, finite: bool, lost: int) -> None:
        """Raise where a rollout cannot be learned from."""
        if not finite:
            self.rollout.find_non_finite()
        if self.config.on_missing_final == "error" and lost:
            raise EnvError(
                f"{lost} truncated rows have no final observation to bootstrap from. "
                "Let the environment return `final_obs`, or set `on_missing_final`."
            )

    def _roll_out(self, deterministic: bool) -> dict[str, torch.Tensor]:
        """The rollout behind its first observations; its statistics, still on the device."""
        with self.policy.keep_casts():
            meanwhile = is_asynchronous(self.env)
            actor = make_actor(
                self.policy, self.rollout, deterministic=deterministic, meanwhile=meanwhile
            )
            step = step_meanwhile if meanwhile else step_after
            for t in range(self.rollout.horizon):
                self._transition(t, actor, step)
            actor.complete(self._remembered())
            return self._end()

    def _transition(self, t: int, actor: Actor, step: Step) -> None:
        """One env step in every environment."""
        rollout = self.rollout
        if t % rollout.seq_len == 0:
            self._open_sequence(t // rollout.seq_len)
        actions, states = actor.act(t, self._remembered())
        action = rollout.action.unflatten(actions, [rollout.num_envs])
        outcome = step(self.env, action, actor.catch_up)
        rollout.write_outcome(t, outcome)
        self._remember(t, states)

    def _open_sequence(self, sequence: int) -> None:
        """Keep what is remembered where a sequence begins."""
        self.rollout.write_states(sequence, self._remembered())

    def _remembered(self) -> Leaves:
        """What the policy remembers, `[N, …]`."""
        if self.states is None:
            policy, rollout = self.policy, self.rollout
            self.states = policy.memory.flatten(policy.init_states(rollout.num_envs))
        return self.states

    def _remember(self, t: int, states: Leaves) -> None:
        """Carry over what is remembered after env step `t`, anew where an episode opened."""
        rollout, policy = self.rollout, self.policy
        self.states = states
        if states and DataKeys.FIRST in rollout.episode_keys:
            if rollout.final_obs:
                value_final_row(policy, rollout, t, states)
            self.states = policy.next_states(states, rollout.first_at(t))

    def _end(self) -> dict[str, torch.Tensor]:
        """Complete the rollout; its statistics, still on the device."""
        rollout, config = self.rollout, self.config
        rollout.close_rows()
        lost = value_final_obs(self.policy, rollout, config.on_missing_final)
        means = {}
        if not self.is_evaluating:
            means = bonuses.write_rewards(self.bonuses, rollout)
        rewards = rollout.rewards[:-1, :, :1]
        tensors = {
            "finite": rollout.is_finite(),
            "lost": lost,
            **reward_statistics(rewards, rollout.valid),
            **means,
        }
        if rollout.episode_keys:
            tensors |= self.episodes.update(rewards, rollout.valid, rollout.done)
        if config.normalize_rewards:
            rollout.reversed_returns[1:] = reversed_discounted_returns(
                rewards, rollout.reversed_returns[0], rollout.done, gamma=config.gamma
            )
            running = self.discounted_returns if config.normalize_rewards == "running" else None
            tensors["reward_scale"] = self._reward_scale = scale_rewards(rollout, running)
        return tensors

    # ---- step ---------------------------------------------------------------------------------

    def step(self) -> StepStats:
        """Update the policy with the rollout, and return the update's statistics.

        Raises:
            NotBufferedError: Where `collect` was not called before.
            DivergedError: Where no minibatch had finite gradients; the weights are as before.

        """
        elapsed_ms = stopwatch()
        self._take_rollout("step")
        mode = model_mode(self.policy.model, training=True)
        with torch.enable_grad(), mode, self._precision():
            sums, steps = self.graphs.learn(self)
        stats = to_floats(sums)
        steps = int(stats.pop("steps", steps))
        # Gradient scaling skips on purpose until it has found its scale.
        if stats["skipped"] == steps and not self.grad_scaler.is_enabled():
            raise DivergedError(
                "No minibatch of this update had finite gradients, so the weights are as before. "
                "Lower the learning rate, or bound rewards and observations."
            )
        self._take_in(self.rollout)
        self.state.env_steps += self._rows_to_learn
        found: dict[str, Any] = {**self._coefficients(), **update_statistics(stats, steps)}
        self.follow_schedules()
        return cast(StepStats, found | {"profiling/step_ms": elapsed_ms()})

    def _take_rollout(self, caller: str) -> None:
        """The rollout is learned from now, and only once."""
        if not self.state.buffered:
            raise NotBufferedError(
                f"{type(self).__name__} is not buffered: call `collect` before `{caller}`."
            )
        self.state.buffered = False

    def _estimate_advantages(self) -> torch.Tensor:
        """Fill in advantages and returns; how much of the returns' variance the values explain."""
        rollout = self.rollout
        learnable = self.policy.learnable(rollout)
        return estimate_advantages(
            rollout, self.config, self.streams, learnable, self._reward_scale
        )

    def _estimate_and_learn(self) -> tuple[dict[str, torch.Tensor], int]:
        """Learn from the rollout; see `_learn`."""
        explained_variance = self._estimate_advantages()
        sums, steps = self._learn()
        return {**sums, "explained_variance": explained_variance}, steps

    def _learn(self) -> tuple[dict[str, torch.Tensor], int]:
        """Go through the rollout; sums of the statistics, and over how many optimizer steps."""
        updater, sums = self.updater, Sums()
        updater.begin()
        steps = 0
        gradients = self._gradients()
        for chunks in self._optimizer_steps(self.chunk_size):
            steps += 1
            terms = self._accumulate(chunks, gradients)
            sums.add(terms)
            if self._must_stop(terms["kl_div"], is_first=steps == 1):
                updater.refuse(terms["kl_div"].isnan())
                break
            updater.step()
        return sums.totals() | updater.totals(), steps

    def _accumulate(
        self,
        chunks: Iterator[Minibatch],
        gradients: Callable[[Minibatch], dict[str, torch.Tensor]],
    ) -> dict[str, torch.Tensor]:
        """Add up the gradients of one optimizer step; its statistics."""
        terms = Sums()
        with self.policy.keep_casts():
            for chunk in chunks:
                terms.add(gradients(chunk))
        self.updater.pending = True
        return terms.totals()

    def _gradients(self) -> Callable[[Minibatch], dict[str, torch.Tensor]]:
        """What adds the gradients of a minibatch to those that there are; returns its terms."""
        if self.config.policy_loss_addons or self.grad_scaler.is_enabled():
            return self._differentiate
        self._analytic = analytic_gradients(self.policy, self.objective, self._analytic)
        if self._analytic is None:
            return self._differentiate
        return self._differentiate_bonuses if self.bonuses else self._analytic

    def _differentiate_bonuses(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, where all but the bonuses' own gradients are written out."""
        assert self._analytic is not None
        losses = bonuses.add_losses(self.bonuses, minibatch, self._analytic(minibatch))
        if losses["total"].requires_grad:
            self.updater.backward(losses["total"])
        return losses

    def _differentiate(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Terms of the loss, once their gradients are added."""
        losses = self._losses(minibatch)
        self.updater.backward(losses["total"])
        return losses

    def _optimizer_steps(self, chunk: None | int) -> Iterator[Iterator[Minibatch]]:
        """What each optimizer step of an update sees, epoch by epoch, `chunk` sequences at once."""
        config, sequences = self.config, self._sequences()
        for _ in range(cast(int, config.num_sgd_iters)):
            yield from sequences.steps(
                self.minibatch_size,
                chunk=chunk,
                shuffle=config.shuffle_minibatches,
                joint=config.accumulate_grads,
                permute=self._permutation,
            )

    def _sequences(self) -> Sequences:
        return self.policy.sequences(self.rollout, kept=bonuses.kept_by(self.bonuses))

    def _losses(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        distribution, values = self.policy.evaluate(minibatch)
        terms = self.objective(minibatch, distribution, values)
        terms = add_ons(self.config.policy_loss_addons, minibatch, distribution, values, terms)
        return bonuses.add_losses(self.bonuses, minibatch, terms)

    def _must_stop(self, kl_div: torch.Tensor, *, is_first: bool) -> bool:
        """Whether the policy has moved too far; or the learning rate adapted to how far it has."""
        target = self.config.target_kl_div
        if target is None:
            return False
        found = float(kl_div)  # one sync: needed to stop early
        if self.config.lr_schedule_kind != "adaptive":
            return not found <= target  # NaN is too far, too
        if not is_first:  # before the first minibatch the policy has not moved
            self.lr_scheduler.adapt(math.inf if math.isnan(found) else found, target)
        return False

    def _take_in(self, rollout: Rollout) -> None:
        """Take a rollout into the statistics of observations, and into those of bonuses."""
        take_in(self.policy, rollout)
        for bonus in self.bonuses:
            bonus.update(rollout)

    def _permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, device=self.rollout.device)

    def follow_schedules(self) -> None:
        """Set learning rate and entropy weight to what they are after the transitions so far."""
        self.lr_scheduler.step(self.state.env_steps)
        self.objective.entropy_coeff.fill_(self.entropy_scheduler.step(self.state.env_steps))

    def _coefficients(self) -> dict[str, float]:
        return {
            "coefficients/entropy": self.entropy_scheduler.coeff,
            "coefficients/vf": self.config.vf_coeff,
            "coefficients/lr": float(self.optimizer.param_groups[0]["lr"]),
        }

    # ---- checks and state ---------------------------------------------------------------------

    def validate(self) -> None:
        """Try the policy on an observation of zeros, without touching the environment.

        Raises:
            ConfigError: Where actions, log-probabilities or values do not have the shapes that
                the environment's specs ask for.

        """
        check_policy(self.policy, self.rollout, self.config)

    def evaluating(self) -> AbstractContextManager[None]:
        """Collect in here without leaving a trace in what is learned from or counted.

        The environment itself moves on, and episodes that are open in it with it.
        """
        return bookkeeping.evaluating(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything that training continues from: weights, moments, counters, generators, and
        the environment where it offers its state.
        """
        return resuming.state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; exactly, where the environment offers its state.

        Otherwise the environments are reset by the next `collect`.
        """
        resuming.restore(self, state)
