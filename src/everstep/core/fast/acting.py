"""Acting natively: forward, draw, log-probability and value in one call a vector step.

Noise is drawn as the general way draws it, so that a seed gives the same actions up to rounding.
"""

import ctypes
from typing import Any

import torch

from ...distributions import SquashedNormal
from ...distributions._base import action_dtype
from ...env.specs import Leaves, options
from ...models._encoders import ACTION_MASK
from ...policies import GenericPolicyBase
from ..rollouts import Rollout
from .library import Acting, Engine, Library, addresses
from .model import CATEGORICAL, NativeModel, Observations, kind_of


class NativeActor:
    """Acts through rollouts, as `policies.Actor` does, with an eligible policy on a CPU."""

    policy: GenericPolicyBase[Any]
    rollout: Rollout

    def __init__(self) -> None:
        self._native = NativeModel()
        self._library: Library
        self._engine: Engine

    def __deepcopy__(self, memo: Any) -> "NativeActor":
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), ()

    def begin(
        self, policy: GenericPolicyBase[Any], rollout: Rollout, *, deterministic: bool
    ) -> None:
        """Begin a rollout; until its end, weights must not change."""
        self.policy, self.rollout, self.deterministic = policy, rollout, deterministic
        self._model = model = policy.model
        self._observations = Observations(policy)
        self._library, self._engine = self._native.begin(policy, self._observations, trains=False)
        self._library.pack(self._engine.address, self._engine.is_double)
        count, width = rollout.num_envs, model.policy[-1].out_features
        self._outputs = torch.empty(count, width, dtype=policy.dtype)
        kind = kind_of(policy)
        is_choice = kind == CATEGORICAL
        default = torch.int64 if is_choice else policy.dtype
        fits = kind is not None and action_dtype(model, default) is default
        #: What actions are executed by, if not as they are drawn.
        self._squash: Any = None
        # Other distributions draw from the outputs themselves.
        self._draws: Any = None
        if fits:
            sizes = options(model.action_spec) if is_choice else []
            shape = (count, len(sizes), max(sizes)) if is_choice else rollout.actions[0].shape[1:]
            # Of choices what `exponential_` takes logarithms of, one at a time.
            noise = torch.empty(shape, dtype=torch.float64 if is_choice else policy.dtype)
            self._draws = noise.uniform_ if is_choice else noise.normal_
            address = None if deterministic else noise.data_ptr()
            if policy.distribution_cls is SquashedNormal:
                features = model.outputs(torch.zeros(count, width, dtype=policy.dtype))
                self._squash = policy._distribution(features)
            self._kept = noise, rollout.obs
            self._is_whole = self._observations.reads(rollout.obs)
            whole = tuple(x.flatten(0, 1) for x in rollout.obs) if self._is_whole else None
            self._pointers = addresses([] if whole is None else self._observations(whole))
            self._acting = Acting(
                engine=self._engine.address,
                is_double=self._engine.is_double,
                rows=count,
                obs=ctypes.addressof(self._pointers),
                is_whole=self._is_whole,
                noise=address,
                outputs=self._outputs.data_ptr(),
                values=rollout.values.data_ptr(),
                actions=rollout.actions[0].data_ptr(),
                logp=rollout.logp.data_ptr(),
            )
            self._address = ctypes.addressof(self._acting)
        self._fixed = (self._engine.address, self._engine.is_double, count)

    def act(self, t: int, states: Leaves) -> tuple[Leaves, Leaves]:
        """See `policies.Actor.act`."""
        if self._draws is None:
            return self._sample(t), states
        if not self.deterministic:
            self._draws()
        if not self._is_whole:
            seen = self.rollout._obs[t]
            obs, mask = self._observations(seen), self._observations.mask(seen)
            pointers = addresses(obs)
            self._acting.obs = ctypes.addressof(pointers)
            self._acting.allowed = None if mask is None else mask.data_ptr()
        taken = self.rollout._actions[t][0]
        # A copy, because the environment may work in place; `clone` takes twice as long.
        given = torch.empty_like(taken)
        self._library.act(self._address, t, given.data_ptr())
        return (given if self._squash is None else self._squash.actions(taken),), states

    def _sample(self, t: int) -> Leaves:
        """Actions of a distribution that draws from the outputs itself."""
        seen = self.rollout._obs[t]
        obs, mask = self._observations(seen), self._observations.mask(seen)
        places = self._outputs.data_ptr(), self.rollout._values[t].data_ptr()
        self._library.respond(*self._fixed, addresses(obs), *places)
        features = self._model.outputs(self._outputs)
        features |= {} if mask is None else {ACTION_MASK: mask}
        distribution = self.policy._distribution(features)
        latents = distribution.latents(deterministic=self.deterministic)
        self.rollout.write_actions(t, (latents,))
        self.rollout.logp[t].copy_(distribution.latents_logp(latents))
        return (distribution.actions(latents),)

    def finish(self, states: Leaves) -> None:
        """See `policies.Actor.finish`."""
        rollout = self.rollout
        last = self._observations(rollout._obs[-1])
        self._library.respond(*self._fixed, addresses(last), None, rollout.values[-1].data_ptr())
