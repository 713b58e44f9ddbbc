"""Acting in blocks: actions in every vector step, log-probabilities and values for many at once.

An operation on few rows costs what it costs on many, so with few environments a vector step takes a
third of the time of `Policy.act`. The numbers are the same up to rounding; random numbers are
drawn for a whole block.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..distributions import Categorical, Distribution, Normal
from ..distributions._base import action_dtype
from ..policies import GenericPolicyBase
from ..rollouts import Rollout
from ..specs import Leaves
from .mlp import InferenceMLP

Array = npt.NDArray[Any]
Features = Mapping[str, torch.Tensor]

#: Rows whose log-probabilities and values are computed at once.
BLOCK_ROWS = 2048


def _gumbel(noise: torch.Tensor, features: Features) -> None:
    # The race of `Categorical.sample`: argmax p/E = argmax log p - log E.
    noise.exponential_().log_().neg_()


def _normal(noise: torch.Tensor, features: Features) -> None:
    torch.randn(noise.shape, out=noise)
    noise.mul_(features["log_std"].detach().exp().view_as(noise))


# Features that are not finite are reported when the rollout is complete.
_add = np.errstate(all="ignore")(lambda *arrays: np.add(*arrays))

#: Distributions, of exactly these classes, whose noise is drawn ahead: the feature that noise is
#: added to, a function that draws it, one that adds it, and one from the sum to actions.
_NOISE: dict[type[Distribution], tuple[str, Any, Any, Any]] = {
    Categorical: ("logits", _gumbel, np.add, lambda x: x.argmax(-1)),
    Normal: ("mean", _normal, _add, lambda x: x),
}


class Noise:
    """Noise of `S` vector steps, drawn at once, and the actions it makes of their features.

    The caller fills the features `[S·N, …]` vector step by vector step. Noise is added by NumPy,
    whose operations cost less than PyTorch's on few rows.
    """

    def __init__(
        self, kind: type[Distribution], features: Features, steps: int, model: Any
    ) -> None:
        name, self._draw, self._add, self._choose = _NOISE[kind]
        centre = features[name].detach().unflatten(0, (steps, -1))
        self._features, self._noise = features, torch.empty_like(centre)
        self._centres, self._noises = centre.numpy(), self._noise.numpy()
        self._sum = np.empty_like(self._centres[0])
        default = torch.int64 if kind is Categorical else centre.dtype
        self._dtype = torch.empty(0, dtype=action_dtype(model, default)).numpy().dtype

    def draw(self) -> None:
        """Draw the noise of the next `S` vector steps."""
        self._draw(self._noise, self._features)

    def actions(self, step: int, *, deterministic: bool) -> Array:
        """Actions of a vector step of the block, `[N, …]`, in new memory."""
        x = self._centres[step]
        if not deterministic:
            x = self._add(x, self._noises[step], self._sum)
        chosen: Array = self._choose(x)
        return chosen.astype(self._dtype, copy=chosen is x)


class BlockActor:
    """Acts through one rollout, as `policies.Actor` does, with an eligible policy on a CPU."""

    def __init__(
        self, policy: GenericPolicyBase[Any], rollout: Rollout, *, deterministic: bool
    ) -> None:
        self.policy, self.rollout, self.deterministic = policy, rollout, deterministic
        self._model = model = policy.model
        steps = min(rollout.horizon, max(1, BLOCK_ROWS // rollout.num_envs))
        rows = min(steps * rollout.num_envs, BLOCK_ROWS)
        #: Outputs of the policy's network in a block, `[S, N, width]`.
        self._outputs = torch.empty(
            steps, rollout.num_envs, model.policy[-1].out_features, dtype=policy.dtype
        )
        self._network = InferenceMLP(model.policy, min(rollout.num_envs, BLOCK_ROWS))
        self._critic = InferenceMLP(model.vf_model, rows)
        kind = policy.distribution_cls
        self._noise: None | Noise = None
        if kind in _NOISE and model.outputs.are_views:
            self._noise = Noise(kind, self._features(slice(None)), steps, model)
        self._normalized = policy._normalization()
        # Indexing a tensor costs a microsecond; an array is indexed in a fifth of that.
        self._rows, self._action_rows = self._outputs.unbind(), rollout.actions[0].numpy()
        self._start, self._end = 0, 0  # the block's vector steps

    def act(self, t: int, states: Leaves) -> tuple[Leaves, Leaves]:
        """See `policies.Actor.act`."""
        if t == self._end:
            self._next_block()
        outputs, (x,) = self._rows[t - self._start], self._normalized(self.rollout.obs_at(t))
        self._network(x, outputs)
        if self._noise is None:
            distribution = self.policy._distribution(self._model.outputs(outputs))
            latents = distribution.latents(deterministic=self.deterministic)
            self.rollout.write_actions(t, (latents,))
            return (distribution.actions(latents),), states
        actions = self._noise.actions(t - self._start, deterministic=self.deterministic)
        # Stored before the environment sees them: it may work in place.
        self._action_rows[t] = actions
        return (torch.from_numpy(actions),), states

    def finish(self, states: Leaves) -> None:
        """See `policies.Actor.finish`."""
        self._store()

    def _next_block(self) -> None:
        """Store the block that is complete, and begin the next one."""
        if self._end:
            self._store()
        self._start = self._end
        self._end = min(self._start + len(self._outputs), self.rollout.horizon)
        if self._noise is not None and not self.deterministic:
            self._noise.draw()

    def _store(self) -> None:
        """Write the block's log-probabilities and values to the rollout."""
        rollout, start, end = self.rollout, self._start, self._end
        distribution = self.policy._distribution(self._features(slice(end - start)))
        (actions,) = rollout.actions
        logp = distribution.latents_logp(actions[start:end].flatten(0, 1))
        rollout.logp[start:end].flatten(0, 1).copy_(logp)
        end += end == rollout.horizon  # the observation after the last vector step has a value, too
        obs = tuple(leaf[start:end].flatten(0, 1) for leaf in rollout.obs)
        self._critic(self._normalized(obs)[0], rollout.values[start:end].flatten(0, 1))

    def _features(self, steps: slice) -> dict[str, torch.Tensor]:
        """Features `[S·N, …]` of some vector steps of the block."""
        features: dict[str, torch.Tensor] = self._model.outputs(self._outputs[steps].flatten(0, 1))
        return features
