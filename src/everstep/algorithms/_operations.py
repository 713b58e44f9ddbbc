"""The parts of an update as single operations, for whoever trains with several processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torchrl.data import Bounded
from typing_extensions import Self

from ..data import AlgorithmHparams, AlgorithmState, DataKeys, Device
from ..env import Env, EnvFactory
from ..episodes import to_floats
from ..errors import DivergedError
from ..objectives import PPO
from ..policies import GenericPolicyBase, model_mode
from ..rollouts import Minibatch
from ..specs import Leaves, leaf_specs
from . import _factory as factories
from . import _settings as settings
from . import _sharing as sharing
from ._algorithm import OnPolicyAlgorithm
from ._sharing import Numbers
from ._statistics import statistic

_Hparams = TypeVar("_Hparams", bound=AlgorithmHparams)
_State = TypeVar("_State", bound=AlgorithmState)
_Policy = TypeVar("_Policy", bound=GenericPolicyBase[Any])


class WorkerOperations(
    OnPolicyAlgorithm[_Hparams, _State, _Policy], Generic[_Hparams, _State, _Policy]
):
    """What a parameter server or a pool of workers drives training by, in place of `step`.

    Where experience is collected: `collect`, then `compute_gradients` of each of `minibatches`.
    Where weights are kept: `apply_gradients`, then `get_weights` for everybody's `set_weights`.
    """

    # ---- acting -------------------------------------------------------------------------------

    @torch.no_grad()
    def acting_step(
        self, obs: Any, rhs: Any, done: Any, deterministic: bool = False
    ) -> tuple[Any, Any, Any, dict[str, torch.Tensor]]:
        """What the policy does in one env step, wherever the observations come from.

        Args:
            obs: Observations `[N, …]`; windows `[N, history + 1, …]` where the policy has a
                history.
            rhs: What the policy remembers, as the last call returned it; None where episodes open.
            done: Nonzero where the env step before ended an episode, so that `obs` opens one,
                `[N]` or `[N, 1]`: what is remembered starts anew there.
            deterministic: Whether to take the distribution's mode rather than a sample; the model
                is in eval mode then.

        Returns:
            The actions as they were drawn, which is what is learned from; the actions that an
            environment executes, within the bounds of the action spec; what the policy remembers,
            zeros `[N, 1]` where it remembers nothing; and `"values"` `[N, K]` and `"logp"`
            `[N, 1]`.

        """
        policy, action = self.policy, self.rollout.action
        leaves = tuple(x.to(policy.device) for x in self.rollout.observation.flatten(obs))
        n = len(leaves[0])
        states: Leaves = ()
        if policy.memory.paths:
            before = policy.memory.flatten(policy.init_states(n) if rhs is None else rhs)
            opens = torch.as_tensor(done, device=policy.device).bool().view(n, 1)
            states = policy.next_states(before, opens)
        with model_mode(policy.model, training=not deterministic):
            sample = policy.act(leaves, states, deterministic=deterministic)
        remembered: Any = torch.zeros(n, 1, device=policy.device)
        if policy.memory.paths:
            remembered = policy.memory.unflatten(sample.states, [n])
        executed = action.unflatten(self._within_bounds(sample.actions), [n])
        other = {DataKeys.VALUES: sample.values, DataKeys.LOGP: sample.logp}
        return action.unflatten(sample.latents, [n]), executed, remembered, other

    def _within_bounds(self, actions: Leaves) -> Leaves:
        specs = leaf_specs(self.env.action_spec).values()
        return tuple(
            x.clamp(spec.space.low.to(x), spec.space.high.to(x)) if isinstance(spec, Bounded) else x
            for x, spec in zip(actions, specs, strict=True)
        )

    # ---- gradients ----------------------------------------------------------------------------

    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters, then those of bonuses: what gradients are listed by."""
        bonuses = [p for bonus in self.bonuses for p in bonus.parameters()]
        return [*self.policy.model.parameters(), *bonuses]

    def minibatches(self) -> Iterator[Minibatch]:
        """The minibatches of an update, epoch by epoch, in the order in which `step` takes them.

        Advantages are estimated once, and normalised over this rollout. When the iterator ends,
        also where a loop is left early, the update does: the transitions are counted, schedules
        and statistics move on. `target_kl_div` is for whoever looks at `compute_gradients`.

        With `accumulate_grads`, the gradients of one epoch's minibatches add up to one step's.

        Raises:
            NotBufferedError: Where `collect` was not called before.

        """
        self._take_rollout("minibatches")
        self._estimate_advantages()
        return self._update()

    def _update(self) -> Iterator[Minibatch]:
        state, horizons = self.state, self.state.horizons
        try:
            yield from chain.from_iterable(self._optimizer_steps(chunk=None))
        finally:
            # Not where the rollout is another one by now, or training went on from a checkpoint.
            if self.state is state and state.horizons == horizons:
                self._take_in(self.rollout)
                state.env_steps += self._rows_to_learn
                self.follow_schedules()

    def compute_loss(self, batch: Minibatch) -> Any:
        """The loss of a minibatch, with gradients to follow; nothing is changed.

        Args:
            batch: One of `minibatches`.

        Returns:
            With PPO: what the values, the policy and the entropy contribute, and the loss, 0-d
            each: loss = value_loss + action_loss − entropy coefficient · dist_entropy, and what
            bonuses and add-ons add. The entropy is 0 where it has no weight.
            With A2C, or an objective of your own: the loss, 0-d.

        """
        terms = self._terms(batch)
        if not isinstance(self.objective, PPO):
            return terms["total"]
        value_loss, action_loss = self.config.vf_coeff * terms["vf"], -terms["policy"]
        return value_loss, action_loss, terms["entropy"], terms["total"]

    def _terms(self, batch: Minibatch) -> dict[str, torch.Tensor]:
        with torch.enable_grad(), model_mode(self.policy.model, training=True):
            return self._losses(batch)

    def compute_gradients(
        self, batch: Minibatch, grads_to_cpu: bool = True
    ) -> tuple[list[None | torch.Tensor], dict[str, float]]:
        """Gradients of a minibatch's loss, not clipped, and its statistics; no step is taken.

        They are also kept for `apply_gradients`.

        Args:
            batch: One of `minibatches`.
            grads_to_cpu: Whether the gradients are on the CPU, for other processes, or stay on
                the device.

        Returns:
            A gradient for each of `parameters()`, None for those that the loss does not reach;
            and `losses/*` and `monitors/*` as `step` reports them.

        """
        terms = self._terms(batch)
        gradients = self.updater.gradients(terms["total"], self.parameters())
        self.updater.put(self._by_parameter(gradients))
        if grads_to_cpu:
            gradients = [None if g is None else g.cpu() for g in gradients]
        info = to_floats({statistic(name): term.detach() for name, term in terms.items()})
        return gradients, info

    def apply_gradients(self, gradients: None | Sequence[None | Numbers] = None) -> None:
        """Clip, and take an optimizer step.

        Args:
            gradients: For each of `parameters()` a tensor, of any device, or an array; None counts
                as zeros. Without it, those that `compute_gradients` has found last.

        Raises:
            DivergedError: Where a gradient is not finite; the weights are as before.
            ValueError: Where gradients do not fit the parameters, or there are none.

        """
        if gradients is not None:
            self.updater.put(self._by_parameter(gradients))
        if not self.updater.pending:
            raise ValueError(
                "There are no gradients to apply: call `compute_gradients` before, or pass them."
            )
        self.updater.step()
        # Gradient scaling skips on purpose. One sync: gradients come one at a time here.
        if not self.grad_scaler.is_enabled() and bool(self.updater.skipped):
            raise DivergedError(
                "The gradients are not finite, so the weights are as before. Lower the learning "
                "rate, or bound rewards and observations."
            )

    def _by_parameter(
        self, gradients: Sequence[None | Numbers]
    ) -> dict[nn.Parameter, torch.Tensor]:
        parameters = self.parameters()
        if len(gradients) != len(parameters):
            raise ValueError(
                f"There are {len(parameters)} parameters; got {len(gradients)} gradients. Pass one "
                "for each of `parameters()`, None where there is none."
            )
        found = {}
        for i, (p, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if gradient is None:
                continue
            if gradient.shape != p.shape:
                raise ValueError(
                    f"Parameter {i} has shape {list(p.shape)}; its gradient has "
                    f"{list(gradient.shape)}. Pass them in the order of `parameters()`."
                )
            found[p] = sharing.tensor(gradient)
        return found

    # ---- weights ------------------------------------------------------------------------------

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the model's weights and of those of bonuses, by name, on the CPU."""
        return sharing.copied(self._weights())

    def set_weights(self, weights: Mapping[str, Numbers]) -> None:
        """Take over weights, in place; the optimizer goes on with them.

        Args:
            weights: What `get_weights` returned, or `policy.model.state_dict()` where there are no
                bonuses; tensors, of any device, or arrays.

        Raises:
            CheckpointError: Where names or shapes are others; nothing is changed then.

        """
        sharing.take_over(self._weights(), weights, "weights do not fit the model")

    def _weights(self) -> dict[str, torch.Tensor]:
        """The weights themselves; what bonuses know of observations is not among them."""
        named = [(f"bonuses.{bonus.name}", bonus) for bonus in self.bonuses]
        return dict(self.policy.model.state_dict()) | {
            f"{prefix}.{name}": p for prefix, bonus in named for name, p in bonus.named_parameters()
        }

    def get_moments(self) -> dict[str, torch.Tensor]:
        """A copy of what observations and rewards are normalised by, by name, on the CPU.

        These are the moments of `normalize_observations`, of `normalize_rewards="running"`, and of
        bonuses: numbers of rows, means and variances of all that was seen.
        """
        return sharing.copied(sharing.buffers_of(sharing.moments_of(self)))

    def set_moments(self, moments: Mapping[str, Numbers]) -> None:
        """Take over moments, in place.

        Args:
            moments: What `get_moments` returned; tensors, of any device, or arrays.

        Raises:
            CheckpointError: Where names or shapes are others; nothing is changed then.

        """
        own = sharing.buffers_of(sharing.moments_of(self))
        sharing.take_over(own, moments, "moments do not fit this algorithm's")

    def merge_moments(self, found: Sequence[Mapping[str, Numbers]]) -> None:
        """Take in what workers have seen since they had this algorithm's moments, in place.

        The moments are then those of everything that all of them have ever seen.

        Args:
            found: `get_moments` of each worker, whose moments were this algorithm's, or none, when
                it began to collect.

        Raises:
            CheckpointError: Where names or shapes are others, or a worker has seen less than this
                algorithm; nothing is changed then.

        """
        sharing.merge(sharing.moments_of(self), found)

    # ---- hyperparameters ----------------------------------------------------------------------

    @property
    def gamma(self) -> float:
        """Discount."""
        return self.config.gamma

    @property
    def mini_batch_size(self) -> int:
        """Transitions a minibatch."""
        return self.minibatch_size * self.policy.seq_len

    @property
    def num_epochs(self) -> int:
        """How often an update goes through the rollout."""
        return int(self.config.num_sgd_iters)

    @property
    def num_mini_batch(self) -> int:
        """Minibatches an epoch."""
        return self.hparams.num_minibatches

    @property
    def num_test_episodes(self) -> int:
        """Complete episodes a test."""
        return self.config.num_test_episodes

    @property
    def start_steps(self) -> int:
        """Env steps of random actions before training: none."""
        return 0

    @property
    def test_every(self) -> None | int:
        """Updates between tests; None for no tests."""
        return self.config.test_every

    @property
    def update_every(self) -> int:
        """Transitions between updates: those of a rollout."""
        return self.rollout.num_envs * self.rollout.horizon

    def update_algorithm_parameter(self, parameter_name: str, new_parameter_value: Any) -> None:
        """Change a hyperparameter; the next loss, rollout or optimizer step has the new value.

        Args:
            parameter_name: A field of the config; `lr`, `lr_pi` or `lr_v`; or `num_epochs`,
                `num_mini_batch`, `entropy_coef`, `value_loss_coef`, `use_clipped_value_loss`.
            new_parameter_value: The value; checked as it is when an algorithm is built.

        Raises:
            ConfigError: Where the name is unknown, the value breaks a rule, a schedule sets the
                value, or only a new algorithm can have it; nothing is changed then.

        """
        settings.change(self, parameter_name, new_parameter_value)

    @classmethod
    def create_factory(
        cls, **hyperparameters: Any
    ) -> tuple[
        Callable[[Device, None | nn.Module | GenericPolicyBase[Any], EnvFactory | Env], Self], str
    ]:
        """A function that makes algorithms, and the name of what they do, such as `"PPO"`.

        The function takes a device, what is to be trained (a model or a policy; None for a
        default one), and an environment (made, or what makes it).

        Args:
            **hyperparameters: Fields of the config; `lr`, `lr_pi`, `lr_v`, `eps`; `num_epochs`,
                `num_mini_batch`, `entropy_coef`, `value_loss_coef`, `use_clipped_value_loss`. What
                is left out has pytorchrl's defaults, or else those of the config.

        Raises:
            ConfigError: Lists every name that is unknown.

        """
        return factories.create_factory(cls, hyperparameters)
