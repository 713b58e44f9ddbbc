"""Acting in a rollout: what an env step needs at once, and what can wait."""

from typing import Any, NamedTuple

import numpy as np
import torch

from ..distributions import Draws, draws_of
from ..graphs import is_static
from ..models import DefaultModel
from ..models._chains import Chain, is_own
from ..models._host_chains import HostChain
from ..rollouts import Rollout
from ..specs import Leaves
from ._base import GenericPolicyBase

#: Rows whose log-probabilities and values are computed at once.
BLOCK_ROWS = 2048

#: The same where environments are stepped meanwhile: few enough for an env step of theirs.
MEANWHILE_ROWS = 512


class Act(NamedTuple):
    """What was done in an env step."""

    #: Actions `[N, …]`, for the environment.
    actions: Leaves
    #: What the policy remembers `[N, …]`, before it is known whether an episode ended.
    states: Leaves


class Actor:
    """Acts with a policy through one rollout, and stores in it what was done.

    Args:
        policy: The policy, whose weights nobody changes meanwhile.
        rollout: Where observations come from, and actions, log-probabilities and values go.
        deterministic: Whether actions are the likeliest.
        meanwhile: Whether environments are stepped while `catch_up` computes.

    """

    def __init__(
        self,
        policy: GenericPolicyBase[Any],
        rollout: Rollout,
        *,
        deterministic: bool,
        meanwhile: bool = False,
    ) -> None:
        self.policy, self.rollout, self.deterministic = policy, rollout, deterministic

    def act(self, t: int, states: Leaves) -> Act:
        """Act in env step `t`, after what is remembered `[N, …]`."""
        obs = self.rollout.obs_at(t)
        sample = self.policy.act(obs, states, deterministic=self.deterministic)
        # Stored before the environment sees them: it may work in place.
        self.rollout.write_sample(t, sample.latents, sample.logp, sample.values)
        return Act(sample.actions, sample.states)

    def catch_up(self) -> None:
        """Do what has waited for enough env steps; `act` was called before."""

    def complete(self, states: Leaves) -> None:
        """Store what has waited for the last env step, and the values of what it led to.

        Args:
            states: What is remembered after it, `[N, …]`.

        """
        rollout = self.rollout
        rollout.values[-1].copy_(self.policy.values(rollout.obs_at(rollout.horizon), states))


class BlockActor(Actor):
    """Draws actions in each env step, and computes their log-probabilities and the values of its
    observations later, for a block of env steps at once.

    With few environments an env step then takes a third of the time of `Policy.act`, because
    operations on few rows cost what they cost on many. Numbers are the same up to rounding.
    """

    def __init__(
        self,
        policy: GenericPolicyBase[Any],
        rollout: Rollout,
        *,
        deterministic: bool,
        meanwhile: bool = False,
    ) -> None:
        super().__init__(policy, rollout, deterministic=deterministic)
        self._model: DefaultModel = policy.model
        num_envs = rollout.num_envs
        steps = min(rollout.horizon, max(1, BLOCK_ROWS // num_envs))
        #: Env steps whose log-probabilities and values are computed at once.
        self._at_once = min(steps, max(1, MEANWHILE_ROWS // num_envs)) if meanwhile else steps
        weight = next(self._model.policy.parameters())
        #: What the policy's network gives in each env step of a block, `[S, N, width]`.
        self._outputs = weight.new_empty(steps, num_envs, self._model.policy[-1].out_features)
        self._network = self._make_network()
        self._critic = Chain(self._model.vf_model, min(self._at_once * num_envs, BLOCK_ROWS))
        self._draws = self._make_draws()
        # The same memory: a row of an array costs a fifth of one of a tensor.
        self._output_rows, self._obs_rows = self._outputs.numpy(), rollout.obs[0].numpy()
        self._action_rows = rollout.actions[0].numpy()
        # Env steps: the last one, the block's first and the one behind it, those that are stored.
        self._t, self._start, self._end, self._stored = 0, 0, 0, 0

    def _make_network(self) -> Chain | HostChain:
        network, rows = self._model.policy, self.rollout.num_envs
        if HostChain.suits(network, rows):
            return HostChain(network, rows)
        return Chain(network, min(rows, BLOCK_ROWS))

    def _make_draws(self) -> None | Draws:
        kind = draws_of(self.policy.distribution_cls)
        if kind is None or not self._model.outputs.are_views:
            return None
        return kind(self._features(slice(None)), len(self._outputs), self._model)

    # Observations that are not finite are found when the rollout is complete.
    @np.errstate(all="ignore")
    def act(self, t: int, states: Leaves) -> Act:
        """See `Actor.act`."""
        if t == self._end:
            self._open(t)
        self._t, step = t, t - self._start
        self._respond(t, step)
        if self._draws is None:
            distribution = self.policy._distribution(self._model.outputs(self._outputs[step]))
            latents = distribution.latents(deterministic=self.deterministic)
            actions = distribution.actions(latents)
            self.rollout.write_actions(t, (latents,))
            return Act((actions,), states)
        drawn = self._draws.mode(step) if self.deterministic else self._draws.sample(step)
        # Stored before the environment sees them: it may work in place.
        self._action_rows[t] = drawn
        return Act((torch.from_numpy(drawn),), states)

    def _respond(self, t: int, step: int) -> None:
        """Fill the outputs of an env step of the block."""
        if isinstance(self._network, Chain):
            self._network(self._seen(self.rollout.obs_at(t)), self._outputs[step])
        elif self.policy.normalizer is None:
            self._network(self._obs_rows[t], self._output_rows[step])
        else:
            seen = self._seen(self.rollout.obs_at(t))
            self._network(seen.numpy(), self._output_rows[step])

    def catch_up(self) -> None:
        """See `Actor.catch_up`. The last env steps wait for what the very last one leads to."""
        done = self._t + 1
        is_due = done == self._end or done - self._stored == self._at_once
        if is_due and done < self.rollout.horizon:
            self._store(done)

    def complete(self, states: Leaves) -> None:
        """See `Actor.complete`."""
        self._store(self._end)

    def _seen(self, obs: Leaves) -> torch.Tensor:
        """What the networks see of observations, `[B, …]`."""
        return obs[0] if self.policy.normalizer is None else self.policy.normalizer(obs)[0]

    def _open(self, t: int) -> None:
        """Begin a block of env steps with `t`."""
        self._start, self._end = t, min(t + len(self._outputs), self.rollout.horizon)
        if self._draws is not None and not self.deterministic:
            self._draws.refresh()

    def _store(self, end: int) -> None:
        """Complete the env steps before `end` in the rollout."""
        rollout, start = self.rollout, self._stored
        self._stored = end
        features = self._features(slice(start - self._start, end - self._start))
        distribution = self.policy._distribution(features)
        (actions,) = rollout.actions
        logp = distribution.latents_logp(actions[start:end].flatten(0, 1))
        rollout.logp[start:end].flatten(0, 1).copy_(logp)
        end += end == rollout.horizon  # what the last env step led to has a value, too
        seen = self._seen(tuple(leaf[start:end].flatten(0, 1) for leaf in rollout.obs))
        self._critic(seen, rollout.values[start:end].flatten(0, 1))

    def _features(self, steps: slice) -> dict[str, torch.Tensor]:
        """Features `[S·N, …]` of some env steps of the block."""
        features: dict[str, torch.Tensor] = self._model.outputs(self._outputs[steps].flatten(0, 1))
        return features


def make_actor(
    policy: GenericPolicyBase[Any],
    rollout: Rollout,
    *,
    deterministic: bool = False,
    meanwhile: bool = False,
) -> Actor:
    """What acts with a policy through a rollout, as fast as its model allows.

    Args:
        policy: The policy, whose weights nobody changes meanwhile.
        rollout: Where observations come from, and actions, log-probabilities and values go.
        deterministic: Whether actions are the likeliest.
        meanwhile: Whether environments are stepped while it catches up.

    """
    model = policy.model
    can_wait = (
        policy.device.type == "cpu"
        and not is_static()  # no graph sees what NumPy does
        and not policy.memory.paths
        and policy.critic is None
        and not policy.is_autocast
        and rollout.action.is_plain
        and is_own(policy, "act", GenericPolicyBase)
        and is_own(policy, "values", GenericPolicyBase)
        and isinstance(model, DefaultModel)
        and model.are_chains()
        and all(_is_numpys(x) for x in (*rollout.obs, *rollout.actions, *model.policy.parameters()))
    )
    kind = BlockActor if can_wait else Actor
    return kind(policy, rollout, deterministic=deterministic, meanwhile=meanwhile)


def _is_numpys(x: torch.Tensor) -> bool:
    """Whether NumPy has numbers of this dtype."""
    return x.dtype != torch.bfloat16
