"""PPO: collect a rollout, estimate advantages, go through it in minibatches."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.amp.grad_scaler import GradScaler
from torchrl.data import Composite, Unbounded

from ..advantages import (
    bootstrap_values,
    gae,
    masked_moments,
    reversed_discounted_returns,
    standardize,
    vanishes,
)
from ..data import (
    AlgorithmHparams,
    AlgorithmState,
    CollectStats,
    DataKeys,
    StepStats,
)
from ..env import Env, EnvFactory
from ..episodes import EpisodeTracker, reward_statistics, to_floats
from ..errors import DivergedError, EnvError, NotBufferedError
from ..hyperparameters import Hyperparameters
from ..objectives import PPO, Objective
from ..policies import Policy, model_mode
from ..rollouts import Minibatch, Rollout
from ..schedulers import EntropyScheduler, LRScheduler
from ..specs import Leaves, Structure
from ..updates import Updater
from . import _resuming as resuming
from ._base import GenericAlgorithmBase
from ._building import build_env, check_policy, closed_on_error, resolve_minibatch
from ._final_values import value_final_obs


class Algorithm(GenericAlgorithmBase[AlgorithmHparams, AlgorithmState, Policy]):
    """PPO with a feedforward policy.

    Args:
        env_cls: Environment class, factory, or an environment already made.
        config: Hyperparameters; defaults where None.

    Raises:
        ConfigError: Lists every hyperparameter that breaks a rule.
        EnvError: Where the environment's specs are not usable.

    """

    #: What an update minimises.
    objective: Objective

    #: Storage of the rollout.
    rollout: Rollout

    #: The optimizer's side of an update.
    updater: Updater

    def __init__(self, env_cls: EnvFactory | Env, /, config: None | Hyperparameters = None) -> None:
        config = (config or Hyperparameters()).validate()
        if config.seed is not None:
            torch.manual_seed(config.seed)
        self.env, config = build_env(env_cls, config)
        with closed_on_error(self.env, unless=env_cls):
            self._assemble(config)

    def _assemble(self, config: Hyperparameters) -> None:
        """Everything but the environment, from a config whose environment is resolved."""
        if config.seed is not None and hasattr(self.env, "seed"):
            self.env.seed(config.seed)
        device = torch.device(config.device)
        self.policy = self._build_policy(config, device)
        length = self.policy.seq_len
        num_envs, horizon = cast(int, config.num_envs), cast(int, config.horizon)
        config = resolve_minibatch(config, sequences=num_envs * horizon // length)
        self.minibatch_size = cast(int, config.sgd_minibatch_size)
        self.config = config
        self.hparams = AlgorithmHparams(
            config,
            num_minibatches=num_envs * horizon // length // self.minibatch_size,
        )
        self.rollout = Rollout(
            num_envs,
            horizon,
            observation=Structure.of(self.env.observation_spec),
            action=Structure.of(self.env.action_spec),
            memory=self.policy.memory,
            episode_keys=frozenset(getattr(self.env, "episode_keys", ())),
            seq_len=length,
            dtype=torch.get_default_dtype(),
            device=device,
        )
        self.buffer = self.rollout.view()
        self.buffer_spec = self._buffer_spec()
        self.grad_scaler = GradScaler(
            device.type, enabled=config.enable_amp and config.amp_dtype == "float16"
        )
        self.updater = Updater(
            self.policy.model.parameters(),
            optimizer_cls=config.optimizer_cls,
            optimizer_config=config.optimizer_config or {"lr": 1e-3},
            max_grad_norm=config.max_grad_norm,
            grad_scaler=self.grad_scaler,
        )
        self.optimizer = self.updater.optimizer
        self.lr_scheduler = LRScheduler(
            self.optimizer, schedule=config.lr_schedule, kind=config.lr_schedule_kind
        )
        self.entropy_scheduler = EntropyScheduler(
            config.entropy_coeff,
            schedule=config.entropy_coeff_schedule,
            kind=config.entropy_coeff_schedule_kind,
        )
        coeff = torch.tensor(self.entropy_scheduler.coeff, device=device)
        self.objective = PPO(config, entropy_coeff=coeff)
        self.episodes = EpisodeTracker(num_envs, device=device)
        self.state = AlgorithmState()
        self.states: Leaves = ()
        self.continues = False  # whether the environment stands where the last rollout ended
        self._rows_to_learn = 0

    def _build_policy(self, config: Hyperparameters, device: torch.device) -> Policy:
        dtype = getattr(torch, config.amp_dtype)
        return Policy(
            self.env.observation_spec,
            self.env.action_spec,
            model=config.model,
            model_cls=config.model_cls,
            model_config=config.model_config,
            distribution_cls=config.distribution_cls,
            device=device,
            autocast=torch.autocast(device.type, dtype=dtype) if config.enable_amp else None,
        )

    def _buffer_spec(self) -> Composite:
        one = Unbounded(1, device=self.rollout.device)
        spec = {DataKeys.OBS: self.env.observation_spec, DataKeys.ACTIONS: self.env.action_spec}
        keys = sorted(self.buffer.keys())
        return Composite({key: spec.get(key, one) for key in keys}, device=self.rollout.device)

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
        elapsed_ms = _stopwatch()
        with torch.no_grad(), model_mode(self.policy.model, training=not deterministic):
            was_reset = self._begin(env_config)
            tracked = {name: x.clone() for name, x in self.episodes.state_dict().items()}
            for t in range(self.rollout.horizon):
                self._transition(t, deterministic)
            tensors = self._end()
        # NaN marks a statistic that does not exist, such as a mean without an episode.
        stats = {name: value for name, value in to_floats(tensors).items() if value == value}
        if not stats.pop("finite"):
            self.episodes.load_state_dict(tracked)
            self.rollout.find_non_finite()
        if self.config.on_missing_final == "error" and stats["lost"]:
            self.episodes.load_state_dict(tracked)
            raise EnvError(
                f"{stats['lost']:.0f} truncated rows have no final observation to bootstrap from. "
                "Let the environment return `final_obs`, or set `on_missing_final`."
            )
        self._rows_to_learn = int(stats["env/steps"])
        self.state.reward_scale = stats.pop("reward_scale", 1.0)
        self.state.horizons += 1
        self.state.buffered = self.continues = True
        stats.pop("lost")
        found: dict[str, Any] = {
            **stats,
            "env/steps": self._rows_to_learn,
            "env/resets": self.rollout.num_envs * was_reset,
            "profiling/collect_ms": elapsed_ms(),
        }
        if "episodes/count" in stats:
            found["episodes/count"] = int(stats["episodes/count"])
        return cast(CollectStats, found)

    def _begin(self, env_config: None | dict[str, Any]) -> bool:
        """Put the first observations in place; whether the environments were reset."""
        every = self.horizons_per_env_reset
        due = self.state.horizons % every == 0 if every > 0 else self.state.horizons == 0
        reset = due or not self.continues
        self.state.buffered = self.continues = False
        if reset:
            self.rollout.open(self.env.reset(config=env_config))
            self.states = self.policy.init_states(self.rollout.num_envs)
            self.episodes.reset()
        else:
            self.rollout.carry()
        return reset

    def _transition(self, t: int, deterministic: bool) -> None:
        """One env step in every environment."""
        rollout = self.rollout
        if t % rollout.seq_len == 0:
            rollout.write_states(t // rollout.seq_len, self.states)
        actions, logp, values, states = self.policy.act(
            rollout.obs_at(t), self.states, deterministic=deterministic
        )
        # Stored before the environment sees them: it may work in place.
        rollout.write_sample(t, actions, logp, values)
        outcome = self.env.step(rollout.action.unflatten(actions, [rollout.num_envs]))
        rollout.write_outcome(t, outcome)
        self.states = self.policy.next_states(states, rollout.first_at(t))

    def _end(self) -> dict[str, torch.Tensor]:
        """Complete the rollout; its statistics, still on the device."""
        rollout, config = self.rollout, self.config
        rollout.close_rows()
        last = self.policy.values(rollout.obs_at(rollout.horizon), self.states)
        rollout.values[-1].copy_(last)
        lost = value_final_obs(self.policy, rollout, config.on_missing_final)
        rewards = rollout.rewards[:-1, :, :1]
        tensors = {
            "finite": rollout.is_finite(),
            "lost": lost,
            **reward_statistics(rewards, rollout.valid),
        }
        if rollout.episode_keys:
            tensors |= self.episodes.update(rewards, rollout.valid, rollout.done)
        if config.normalize_rewards:
            rollout.reversed_returns[1:] = reversed_discounted_returns(
                rewards, rollout.reversed_returns[0], rollout.done, gamma=config.gamma
            )
            _, scale = masked_moments(rollout.reversed_returns[1:], rollout.valid)
            largest = rollout.reversed_returns[1:].abs().max()
            self._reward_scale = torch.where(vanishes(scale, largest), 1.0, scale)
            tensors["reward_scale"] = self._reward_scale
        return tensors

    # ---- step ---------------------------------------------------------------------------------

    def step(self) -> StepStats:
        """Update the policy with the rollout, and return the update's statistics.

        Raises:
            NotBufferedError: Where `collect` was not called before.
            DivergedError: Where no minibatch had finite gradients; the weights are as before.

        """
        if not self.state.buffered:
            raise NotBufferedError(
                f"{type(self).__name__} is not buffered: call `collect` before `step`."
            )
        elapsed_ms = _stopwatch()
        self.state.buffered = False
        with torch.enable_grad(), model_mode(self.policy.model, training=True):
            explained_variance = self._estimate_advantages()
            sums, steps = self._learn()
        stats = to_floats({**sums, "explained_variance": explained_variance})
        # Gradient scaling skips on purpose until it has found its scale.
        if stats["skipped"] == steps and not self.grad_scaler.is_enabled():
            raise DivergedError(
                "No minibatch of this update had finite gradients, so the weights are as before. "
                "Lower the learning rate, or bound rewards and observations."
            )
        self.state.env_steps += self._rows_to_learn
        means = {key: value / steps for key, value in stats.items()}
        found: dict[str, Any] = {
            **self._coefficients(),
            **{f"losses/{key}": means[key] for key in ("policy", "vf", "entropy", "total")},
            **{f"monitors/{key}": means[key] for key in ("kl_div", "clip_fraction", "grad_norm")},
            "monitors/explained_variance": stats["explained_variance"],
            "monitors/skipped_updates": int(stats["skipped"]),
        }
        self.follow_schedules()
        return cast(StepStats, found | {"profiling/step_ms": elapsed_ms()})

    @torch.no_grad()
    def _estimate_advantages(self) -> torch.Tensor:
        """Fill in advantages and returns; how much of the returns' variance the values explain."""
        rollout, config = self.rollout, self.config
        rewards, values = rollout.rewards[:-1], rollout.values[:-1]
        if config.normalize_rewards:
            rewards = rewards / (self._reward_scale + 1e-8)
        following = bootstrap_values(
            rollout.values[1:], rollout.terminated, rollout.final, rollout.final_values
        )
        advantages = gae(
            rewards,
            values,
            following,
            rollout.done,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            known=rollout.known & rollout.valid,
        )
        rollout.returns[:-1] = advantages + values
        combined = advantages.sum(-1, keepdim=True)
        learnable = rollout.known & rollout.valid
        if config.normalize_advantages:
            combined = standardize(combined, learnable)
        rollout.advantages[:-1] = combined
        _, error = masked_moments(advantages[..., :1], learnable)
        _, spread = masked_moments(rollout.returns[:-1, :, :1], learnable)
        return 1 - error.square() / spread.square().clamp(min=1e-12)

    def _learn(self) -> tuple[dict[str, torch.Tensor], int]:
        """Go through the rollout; sums of the statistics, and over how many optimizer steps."""
        config, updater = self.config, self.updater
        sequences = self.policy.sequences(self.rollout, self.rollout.known & self.rollout.valid)
        joint = config.accumulate_grads
        sums: dict[str, torch.Tensor] = {}
        updater.begin()
        steps = 0
        for _ in range(config.num_sgd_iters):
            minibatches = sequences.minibatches(
                self.minibatch_size,
                shuffle=config.shuffle_minibatches,
                joint=joint,
                permute=self._permutation,
            )
            for minibatch in minibatches:
                losses = self._losses(minibatch)
                _add(sums, losses)
                steps += not joint
                if self._must_stop(losses["kl_div"]):
                    return sums | updater.totals(), steps
                updater.backward(losses["total"])
                if not joint:
                    updater.step()
            if joint:
                updater.step()
                steps += 1
        return sums | updater.totals(), steps

    def _losses(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        distribution, values = self.policy.evaluate(minibatch)
        return self.objective(minibatch, distribution, values)

    def _must_stop(self, kl_div: torch.Tensor) -> bool:
        target = self.config.target_kl_div
        return target is not None and float(kl_div) > target  # one sync: needed to stop early

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
        check_policy(self.policy, self.rollout)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Collect in here without leaving a trace in what is learned from or counted.

        The environment itself moves on, and episodes that are open in it with it.
        """
        tracked = {name: x.clone() for name, x in self.episodes.state_dict().items()}
        filtered = self.rollout.reversed_returns[-1].clone()
        self.episodes.finished.zero_()
        try:
            yield
        finally:
            self.episodes.load_state_dict({**tracked, "open": self.episodes.open.clone()})
            self.rollout.reversed_returns[-1].copy_(filtered)
            self.state.buffered = False

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


def _add(sums: dict[str, torch.Tensor], terms: dict[str, torch.Tensor]) -> None:
    for name, term in terms.items():
        term = term.detach()
        sums[name] = sums[name] + term if name in sums else term


def _stopwatch() -> Any:
    """A function that returns the milliseconds since this call."""
    start = time.perf_counter_ns()
    return lambda: (time.perf_counter_ns() - start) / 1e6
