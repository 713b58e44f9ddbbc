"""Operations and names of pytorchrl: acting steps, live hyperparameters, factories."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, cast

import torch
from torch import nn
from torchrl.data import Bounded
from typing_extensions import Self

from ..bonuses import make_bonuses
from ..core.hyperparameters import LIVE, Hyperparameters
from ..core.synonyms import PYTORCHRL_DEFAULTS, PYTORCHRL_FIELDS, PYTORCHRL_NAMES, PYTORCHRL_OPTIONS
from ..core.validation import unknown_name
from ..data import DataKeys, Device
from ..env.registry import EnvSource
from ..env.specs import Leaves, leaf_specs
from ..errors import ConfigError
from ..policies import GenericPolicyBase, model_mode
from ..schedulers import HOLDS, MOST, ClipScheduler, EntropyScheduler, LRScheduler, count_of
from .build import Parts, changed_parts, compared
from .resolve import build_env, closed_on_error, divisors_of, sequences_of

#: Model or policy to train; None for a default model.
Actor = None | nn.Module | GenericPolicyBase[Any]


def _renamed(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters by names of fields, if only the name differs."""
    return {PYTORCHRL_FIELDS.get(name, name): value for name, value in hyperparameters.items()}


def _as_fields(hyperparameters: Mapping[str, Any], config: Hyperparameters) -> dict[str, Any]:
    """Fields of a config; and `num_mini_batch`, if it is given.

    Args:
        hyperparameters: By the names of fields, and `PYTORCHRL_NAMES`.
        config: Everything else.

    """
    named = _renamed(hyperparameters)
    options = {x: named.pop(x) for x in PYTORCHRL_OPTIONS[config.lr is not None :] if x in named}
    if options:
        before = named.get("optimizer_config", config.optimizer_config)
        default = {"lr": 1e-3} if config.lr is None else {}
        named["optimizer_config"] = {**(before or default), **options}
    if "use_clipped_value_loss" in named:
        distance = named.get("clip_param", config.clip_param)
        clipped = named.pop("use_clipped_value_loss")
        named.setdefault("vf_clip_param", distance if clipped else None)
    return named


def _minibatch_size(num_mini_batch: int, config: Hyperparameters) -> int:
    """Sequences a minibatch, if a rollout is split into `num_mini_batch` of them.

    Args:
        num_mini_batch: Minibatches a rollout.
        config: Config whose `num_envs` and `horizon` are resolved.

    Raises:
        ConfigError: If they cannot be equally large.

    """
    steps = cast(int, config.num_envs) * cast(int, config.horizon)
    sequences = steps // getattr(config, "seq_len", 1)
    if not isinstance(num_mini_batch, int) or num_mini_batch < 1 or sequences % num_mini_batch:
        raise ConfigError(
            f"`num_mini_batch` must divide {sequences_of(config, sequences)}; "
            f"got {num_mini_batch!r}. Try {' or '.join(map(str, divisors_of(sequences)[:4]))}."
        )
    return sequences // num_mini_batch


#: Learning rates, which optimizers read in every step.
_RATES = tuple(name for name in PYTORCHRL_OPTIONS if name.startswith("lr"))

#: Schedules that set a value in place of the value itself.
_SCHEDULES = {"entropy_coeff": "entropy_coeff_schedule", "clip_param": "clip_param_schedule"}
_SCHEDULES |= dict.fromkeys(_RATES, "lr_schedule")


class PytorchrlOperations:
    """Operations and names that pytorchrl's algorithms have beside those of `WorkerOperations`."""

    config_cls: type[Hyperparameters]

    #: The parts of the algorithm.
    parts: Parts

    follow_schedules: Callable[[], None]

    # ---- acting -------------------------------------------------------------------------------

    @torch.no_grad()
    def acting_step(
        self, obs: Any, rhs: Any, done: Any, deterministic: bool = False
    ) -> tuple[Any, Any, Any, dict[str, torch.Tensor]]:
        """Act in one vector step, on observations from anywhere.

        Args:
            obs: Observations `[N, …]`; windows `[N, history + 1, …]` where the policy has a
                history.
            rhs: Recurrent states that the last call returned; None at the start of episodes.
            done: Nonzero where the env step before ended an episode, `[N]` or `[N, 1]`: recurrent
                states are reset there.
            deterministic: Whether to take the distribution's mode rather than a sample; the model
                is in eval mode then.

        Returns:
            The actions as they were sampled, to learn from; the actions to execute, within the
            bounds of the action spec; the recurrent states, zeros `[N, 1]` for a feedforward
            policy; and `"values"` `[N, K]` and `"logp"` `[N, 1]`.

        """
        policy, action = self.parts.policy, self.parts.rollout.action
        leaves = tuple(x.to(policy.device) for x in self.parts.rollout.observation.flatten(obs))
        n = len(leaves[0])
        states: Leaves = ()
        if policy.memory.paths:
            before = policy.memory.flatten(policy.init_states(n) if rhs is None else rhs)
            opens = torch.as_tensor(done, device=policy.device).bool().view(n, 1)
            states = policy.next_states(before, opens)
        with model_mode(policy.model, training=not deterministic):
            sample = policy.act(leaves, states, deterministic=deterministic)
        states_after: Any = torch.zeros(n, 1, device=policy.device)
        if policy.memory.paths:
            states_after = policy.memory.unflatten(sample.states, [n])
        executed = action.unflatten(self._within_bounds(sample.actions), [n])
        other = {DataKeys.VALUES: sample.values, DataKeys.LOGP: sample.logp}
        return action.unflatten(sample.latents, [n]), executed, states_after, other

    def _within_bounds(self, actions: Leaves) -> Leaves:
        specs = leaf_specs(self.parts.env.action_spec).values()
        return tuple(
            x.clamp(spec.space.low.to(x), spec.space.high.to(x)) if isinstance(spec, Bounded) else x
            for x, spec in zip(actions, specs, strict=True)
        )

    # ---- names --------------------------------------------------------------------------------

    @property
    def gamma(self) -> float:
        """Discount."""
        return cast(float, self.parts.config.gamma)

    @property
    def mini_batch_size(self) -> int:
        """Transitions a minibatch."""
        return self.parts.minibatch_size * int(self.parts.policy.seq_len)

    @property
    def num_epochs(self) -> int:
        """How often an update goes through the rollout."""
        return count_of(self.parts.config.num_sgd_iters, self.parts.lr_scheduler.total)

    @property
    def num_mini_batch(self) -> int:
        """Minibatches an epoch."""
        return int(self.parts.hparams.num_minibatches)

    @property
    def num_test_episodes(self) -> int:
        """Complete episodes a test."""
        return int(self.parts.config.num_test_episodes)

    @property
    def start_steps(self) -> int:
        """Env steps of random actions before training: none."""
        return 0

    @property
    def test_every(self) -> None | int:
        """Updates between tests; None for no tests."""
        return cast("None | int", self.parts.config.test_every)

    @property
    def update_every(self) -> int:
        """Env steps between updates: those of a rollout."""
        return self.parts.rollout.num_envs * self.parts.rollout.horizon

    # ---- hyperparameters ----------------------------------------------------------------------

    @property
    def schedule_end(self) -> None | int:
        """Env steps after which the learning rate or `clip_param` is 0 for good: nothing is
        learned from then on. None if their schedules do not end in 0.
        """
        schedulers = self.parts.lr_scheduler.scheduler, self.parts.clip_scheduler.scheduler
        ends = [getattr(scheduler, "end", None) for scheduler in schedulers]
        return min((end for end in ends if end is not None), default=None)

    @property
    def annealed_to(self) -> None | int:
        """Env steps of the budget, if anything depends on it: where schedules with names end in
        0.
        """
        if isinstance(self.parts.config.num_sgd_iters, list):
            return self.parts.lr_scheduler.total
        return next((x.total for x in self._schedulers if x.is_of_budget), None)

    @property
    def _schedulers(self) -> tuple[LRScheduler, EntropyScheduler, ClipScheduler]:
        parts = self.parts
        return parts.lr_scheduler, parts.entropy_scheduler, parts.clip_scheduler

    def anneal(self, total: int) -> None:
        """Set the budget: of `num_sgd_iters`, and of schedules that have names or are functions."""
        for scheduler in self._schedulers:
            scheduler.anneal(total)
        self.follow_schedules()

    def update_algorithm_parameter(self, parameter_name: str, new_parameter_value: Any) -> None:
        """Change a hyperparameter; the next loss, rollout or optimizer step has the new value.

        Args:
            parameter_name: A field of the config; `lr`, `lr_pi` or `lr_v`; or `num_epochs`,
                `num_mini_batch`, `entropy_coef`, `value_loss_coef`, `use_clipped_value_loss`.
            new_parameter_value: The value; checked as it is when an algorithm is built.

        Raises:
            ConfigError: If the name is unknown, the value breaks a rule, a schedule sets the
                value, or only a new algorithm can have it; nothing is changed then.

        """
        config, field = self.parts.config, parameter_name
        values = _as_fields({parameter_name: new_parameter_value}, config)
        if "num_mini_batch" in values:
            values = {"sgd_minibatch_size": _minibatch_size(new_parameter_value, config)}
        ((field, value),) = values.items()
        if callable(value) and field in MOST:
            parameter_name = field = f"{field}_schedule"
            values = {field: value}
        self._check_change(parameter_name, field)
        config = replace(config, **values).validate()
        rates = parameter_name in (*_RATES, "lr_schedule")
        self.parts = changed_parts(self.parts, config, rates=rates)
        if self.parts.reducer.size > 1:  # it calls schedules that are functions
            self.parts.reducer.note(compared({field: value}))
        self.follow_schedules()

    def _check_change(self, name: str, field: str) -> None:
        """Raise an error if the hyperparameter is unknown, or cannot be changed."""
        config = self.parts.config
        names = [*(field.name for field in fields(config)), *PYTORCHRL_NAMES]
        if name not in names:
            raise ConfigError(f"`{name}`: {unknown_name('hyperparameter', name, names)}.")
        if field not in LIVE and name not in _RATES:
            raise ConfigError(
                f"`{name}` is part of what the algorithm is built of: set it in the config, and "
                "build a new algorithm."
            )
        schedule = _SCHEDULES.get(name if name in _RATES else field)
        if schedule is not None and getattr(config, schedule) not in (None, *HOLDS):
            raise ConfigError(
                f"`{name}` is set by `{schedule}`: change that, or set it to None before."
            )

    @classmethod
    def create_factory(
        cls, **hyperparameters: Any
    ) -> tuple[Callable[[Device, Actor, EnvSource], Self], str]:
        """A function that makes algorithms, and the algorithm's name, such as `"PPO"`.

        The function takes a device, a model or a policy to train (None for a default one), and an
        environment, made or a class or function that makes it.

        Args:
            **hyperparameters: Fields of the config; `lr`, `lr_pi`, `lr_v`, `eps`; `num_epochs`,
                `num_mini_batch`, `entropy_coef`, `value_loss_coef`, `use_clipped_value_loss`.
                Others have pytorchrl's defaults, or else those of the config.

        Raises:
            ConfigError: Lists every name that is unknown.

        """
        names = [*(field.name for field in fields(cls.config_cls)), *PYTORCHRL_NAMES]
        unknown = [name for name in hyperparameters if name not in names]
        if unknown:
            what = "hyperparameter"
            raise ConfigError([f"`{x}`: {unknown_name(what, x, names)}." for x in unknown])
        name = _algorithm_name(hyperparameters)
        given = _as_fields(_with_defaults(name, hyperparameters), cls.config_cls())
        num_mini_batch = given.pop("num_mini_batch", None)

        def create_algo_instance(device: Device, actor: Actor, envs: EnvSource) -> Any:
            config = cls.config_cls(**{**given, "device": device, **_trained(actor)}).validate()
            env, config = build_env(envs, config)
            with closed_on_error(env, envs):
                if num_mini_batch is not None:
                    size = _minibatch_size(num_mini_batch, config)
                    config = replace(config, sgd_minibatch_size=size)
                algorithm = cast(Any, cls)(env, config)
                algorithm.validate()
            if isinstance(actor, GenericPolicyBase) and actor.normalizer is not None:
                algorithm.policy.normalizer.load_state_dict(actor.normalizer.state_dict())
            return algorithm

        return create_algo_instance, name


def _algorithm_name(hyperparameters: dict[str, Any]) -> str:
    """`"PPO"`, `"A2C"`, `"RND_PPO"`."""
    objective = hyperparameters.get("objective", "ppo")
    bonuses = make_bonuses(hyperparameters.get("bonuses") or ())
    names = [*(bonus.name for bonus in bonuses), getattr(objective, "__name__", objective)]
    return "_".join(names).upper()


def _with_defaults(name: str, hyperparameters: dict[str, Any]) -> dict[str, Any]:
    defaults = dict(PYTORCHRL_DEFAULTS.get(name) or PYTORCHRL_DEFAULTS.get(name.split("_")[-1], {}))
    if {"lr", "lr_schedule"} & hyperparameters.keys():  # one learning rate, not two
        defaults.pop("optimizer_config", None)
    return {**defaults, **_renamed(hyperparameters)}


def _trained(actor: Actor) -> dict[str, Any]:
    """The fields that make an algorithm train `actor`."""
    if not isinstance(actor, GenericPolicyBase):
        return {} if actor is None else {"model": actor}
    found: dict[str, Any] = {"model": actor.model, "distribution_cls": actor.distribution_cls}
    found["normalize_values"] = actor.value_normalizer is not None
    if actor.normalizer is not None:
        found |= {"normalize_observations": True, "clip_observations": actor.normalizer.clip}
    return found
