"""Policies with a recurrent state."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Composite, TensorSpec

from ..core.graphs import is_static
from ..core.rollouts import Minibatch
from ..data import DataKeys
from ..distributions import Distribution
from ..env.specs import Leaves, Structure
from ..errors import ConfigError
from ..models import Model, RecurrentModel
from ._base import GenericPolicyBase
from ._core import in_full, model_mode
from ._saving import KINDS


class RecurrentPolicy(GenericPolicyBase[RecurrentModel]):
    """A recurrent policy: states carry over from one env step to the next.

    They are reset where an episode starts, also inside of sequences.
    """

    is_recurrent = True

    #: Context in which one call of the model resets states where bool `[B, L, 1]` says, or None.
    #: The native way sets it. Without one, the model is called for each piece between resets.
    resetting: None | Callable[[torch.Tensor], None | AbstractContextManager[None]] = None

    @staticmethod
    def _default_model_cls(observation_spec: TensorSpec, action_spec: TensorSpec, /) -> Any:
        return RecurrentModel.default_model_cls(observation_spec, action_spec)

    def _prepare(self) -> None:
        model: Any = self.model
        name = f"`model_cls` {type(model).__name__}"
        if isinstance(model, Model):
            raise ConfigError(
                f"{name} is a feedforward Model, and the policy recurrent: use Trainer, "
                "AlgorithmConfig, or `recurrent: false`; or a RecurrentModel."
            )
        state_spec = getattr(model, "state_spec", None)
        if not isinstance(state_spec, Composite):
            raise ConfigError(
                f"{name} has no `state_spec` (got {state_spec!r}): set a Composite of the specs of "
                "one environment's state in its constructor; an empty one where there is none."
            )
        self.memory = Structure.of(state_spec)

    @property
    def state_spec(self) -> Composite:
        """Spec of one environment's recurrent state."""
        return self.model.state_spec

    def init_states(self, n: int, /) -> TensorDict:
        """Recurrent states at the start of `n` episodes, batch `[n]`."""
        return self.model.init_states(n)

    def next_states(self, states: Leaves, first: torch.Tensor) -> Leaves:
        """Recurrent states `[N, …]`, reset where an episode starts."""
        opened = self.memory.flatten(self.model.init_states(len(first)))
        return tuple(
            torch.where(first.view(-1, *(1,) * (x.ndim - 1)), new, x)
            for new, x in zip(opened, states, strict=True)
        )

    def _respond(self, obs: Leaves, states: Leaves) -> tuple[Distribution, torch.Tensor, Leaves]:
        features, values, states = self._forward(tuple(x.unsqueeze(1) for x in obs), states)
        return self._distribution(features), values, states

    def evaluate(self, minibatch: Minibatch) -> tuple[Distribution, torch.Tensor]:
        """The distribution now over each row's actions, and its values `[B·L, K]`."""
        obs, states, first = minibatch.obs, minibatch.states, minibatch.first
        if first is None or first.shape[1] == 1:
            features, values, _ = self._forward(obs, states)
        elif self.resetting is not None and (context := self.resetting(first)) is not None:
            with context:
                features, values, _ = self._forward(obs, states)
        else:
            features, values = self._step_through(obs, states, first)
        return self._distribution(features), values

    def _step_through(
        self, obs: Leaves, states: Leaves, first: torch.Tensor
    ) -> tuple[Any, torch.Tensor]:
        """Features and values of sequences `[B, L]` in which episodes may start."""
        rows: list[tuple[Any, torch.Tensor]] = []
        bounds = [0, *_openings(first), first.shape[1]]
        for start, end in pairwise(bounds):
            if start:  # the stored states are already those of the first step
                states = self.next_states(states, first[:, start])
            piece = tuple(x[:, start:end] for x in obs)
            features, values, states = self._forward(piece, states)
            rows.append((features, values))
        count = len(first)

        def join(pieces: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([x.unflatten(0, (count, -1)) for x in pieces], 1).flatten(0, 1)

        keys = list(rows[0][0].keys())
        joined: Any = {key: join([features[key] for features, _ in rows]) for key in keys}
        if isinstance(rows[0][0], TensorDict):
            joined = TensorDict(joined, [first.shape[0] * first.shape[1]])
        return joined, join([values for _, values in rows])

    def _forward(self, obs: Leaves, states: Leaves) -> tuple[Any, torch.Tensor, Leaves]:
        """Features and values of sequences `[B, L]`, `[B·L, …]`, and the states after them."""
        obs = self._normalization()(obs)
        size = list(obs[0].shape[:2])
        batch = TensorDict({DataKeys.OBS: self._observation.unflatten(obs, size)}, size)
        before = self.memory.unflatten(tuple(x.unsqueeze(1) for x in states), [size[0], 1])
        assert isinstance(before, TensorDict)
        with self._autocast:
            features, after = self.model(batch, before)
            values = self.model.value_function()
        leaves = self.memory.flatten(after)
        # Stored states have the spec's dtype; the next env step must see the same numbers.
        states = tuple(x.to(d) for x, d in zip(leaves, self.memory.dtypes, strict=True))
        flat = tuple(x.flatten(0, 1) for x in obs)
        return in_full(features), self._all_values(values, flat), states

    def sample(
        self,
        batch: TensorDict,
        /,
        states: None | TensorDict = None,
        *,
        deterministic: bool = False,
        inplace: bool = False,
        requires_grad: bool = False,
        return_actions: bool = True,
        return_logp: bool = False,
        return_values: bool = False,
    ) -> tuple[TensorDict, TensorDict]:
        """Act in every row of a batch of sequences.

        Args:
            batch: Batch `[B, T]` with observations under `"obs"`.
            states: Recurrent states before each sequence, batch `[B, 1]` (of more, the first is
                taken); None at the start of episodes.
            deterministic: Whether to take the distribution's mode rather than a sample; the model
                is in eval mode then.
            inplace: Whether to store the results in `batch` as well.
            requires_grad: Whether gradients are tracked.
            return_actions: Whether to return `"actions"`, as an environment executes them.
            return_logp: Whether to return their log-probabilities, `"logp"`.
            return_values: Whether to return `"values"`.

        Returns:
            Batch `[B·T]` with rows b·T + t, of `"features"` and the requested results; and the
            states after the last rows, batch `[B]`.

        """
        count = batch.batch_size[0]
        with (
            torch.set_grad_enabled(requires_grad),
            model_mode(self.model, training=not deterministic),
        ):
            before = self.init_states(count) if states is None else states[:, 0]
            features, _, after = self._forward(
                self._observation.flatten(batch[DataKeys.OBS]), self.memory.flatten(before)
            )
            out = self._outputs(
                TensorDict({}, batch_size=[batch.numel()], device=batch.device),
                features,
                deterministic=deterministic,
                return_actions=return_actions,
                return_logp=return_logp,
                return_values=return_values,
            )
        if inplace:
            batch.update(out.reshape(batch.batch_size))
        left = self.memory.unflatten(after, [count])
        assert isinstance(left, TensorDict)
        return out, left


KINDS["RecurrentPolicy"] = RecurrentPolicy


def _openings(first: torch.Tensor) -> list[int]:
    """Steps `t > 0` of sequences at which states may be reset, from bool `[B, L, 1]`.

    On a CPU those at which some do, and the model is called once for all steps between them. On
    accelerators all, without looking: nothing waits, and shapes stay what they are.
    """
    if first.device.type != "cpu" or is_static():
        return list(range(1, first.shape[1]))
    return [t for t, opens in enumerate(first.any(0).flatten().tolist()) if opens and t]
