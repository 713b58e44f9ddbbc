"""Policies without recurrence: of the present observation, or of a window that ends in it."""

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import TensorSpec

from ..core.rollouts import Minibatch, Rollout
from ..data import DataKeys
from ..distributions import Distribution
from ..env.specs import Leaves, Structure
from ..errors import ConfigError
from ..models import Model, RecurrentModel
from ..views import ViewKind
from ._base import GenericPolicyBase
from ._core import model_mode
from ._saving import KINDS
from ._windows import Windows

#: Recurrent state of a windowed policy: the number of observations of the episode so far.
AGE = Structure((("age",),), (torch.Size([]),), (torch.int64,))


class Policy(GenericPolicyBase[Model]):
    """A feedforward policy.

    If the model's `view_requirements` ask for past observations, it acts on windows, and its
    recurrent state is the age of the episode. Otherwise it has none.
    """

    @staticmethod
    def _default_model_cls(observation_spec: TensorSpec, action_spec: TensorSpec, /) -> Any:
        return Model.default_model_cls(observation_spec, action_spec)

    def _prepare(self) -> None:
        model: Any = self.model
        if isinstance(model, RecurrentModel):
            raise ConfigError(
                f"`model_cls` {type(model).__name__} is a RecurrentModel, and the policy "
                "feedforward: use RecurrentTrainer, RecurrentAlgorithmConfig, or `recurrent: true`."
            )
        self._windows = Windows.of(self.model, self._observation)
        if self._windows is not None:
            self.history, self.memory = self._windows.history, AGE

    def init_states(self, n: int, /) -> TensorDict:
        """Ages at the start of `n` episodes; nothing without windows."""
        ages = self.memory.zeros(n, device=self.device)
        return TensorDict(dict(zip(("age",), ages, strict=False)), [n], device=self.device)

    def next_states(self, states: Leaves, first: torch.Tensor) -> Leaves:
        """Ages `[N]`, 0 where an episode starts."""
        return tuple(x.masked_fill(first.squeeze(-1), 0) for x in states)

    def _respond(self, obs: Leaves, states: Leaves) -> tuple[Distribution, torch.Tensor, Leaves]:
        features, values = self._forward(obs, states)
        return self._distribution(features), values, tuple(age + 1 for age in states)

    def learnable(self, rollout: Rollout) -> torch.Tensor:
        """Rows that enter the losses, bool `[T, N, 1]`."""
        rows = super().learnable(rollout)
        if self._windows is not None and self.model.drop_size:
            return rows & (rollout.states[0] >= self.model.drop_size).unsqueeze(-1)
        return rows

    def evaluate(self, minibatch: Minibatch) -> tuple[Distribution, torch.Tensor]:
        """The distribution now over each row's actions, and its values `[B, K]`."""
        obs = minibatch.obs
        if not self.history:
            obs = tuple(leaf.flatten(0, 1) for leaf in obs)
        features, values = self._forward(obs, minibatch.states)
        return self._distribution(features), values

    def _forward(self, obs: Leaves, states: Leaves) -> tuple[Any, torch.Tensor]:
        """Features and values `[B, K]` of observations or windows."""
        obs = self._normalization()(obs)
        if self._windows is None:
            batch_size = [obs[0].shape[0]]
            seen = {DataKeys.OBS: self._observation.unflatten(obs, batch_size)}
            batch = TensorDict(seen, batch_size=batch_size)
        else:
            batch = self._windows.batch(obs, states[0])
        features, values = self._run(batch)
        present = obs if self._windows is None else tuple(leaf[:, -1] for leaf in obs)
        return features, self._all_values(values, present)

    def _run(self, batch: TensorDict) -> tuple[Any, torch.Tensor]:
        with self._autocast:
            features = self.model(batch)
            values = self.model.value_function()
        return features, values

    def sample(
        self,
        batch: TensorDict,
        /,
        *,
        kind: ViewKind = "last",
        deterministic: bool = False,
        inplace: bool = False,
        requires_grad: bool = False,
        return_actions: bool = True,
        return_logp: bool = False,
        return_values: bool = False,
        return_views: bool = False,
    ) -> TensorDict:
        """Act in a batch of sequences that begin with an episode.

        Args:
            batch: Batch `[B, T]` with observations under `"obs"`; or the model's input under
                `"views"`.
            kind: `"last"` to act on the last row of each sequence, `"all"` to act on every row.
            deterministic: Whether to take the distribution's mode rather than a sample; the model
                is in eval mode then.
            inplace: Whether to store the results in `batch` as well.
            requires_grad: Whether gradients are tracked.
            return_actions: Whether to return `"actions"`, as an environment executes them.
            return_logp: Whether to return their log-probabilities, `"logp"`.
            return_values: Whether to return `"values"`.
            return_views: Whether to return the model's input, `"views"`.

        Returns:
            Batch `[B]`, or `[B·T]` with rows b·T + t, of `"features"` and the requested results.

        Raises:
            ValueError: If `inplace` is set, but not one row is returned for each of the
                batch's.

        """
        with (
            torch.set_grad_enabled(requires_grad),
            model_mode(self.model, training=not deterministic),
        ):
            views = self._views(batch, kind)
            features, _ = self._run(views)
            out = self._outputs(
                TensorDict({}, batch_size=views.batch_size, device=batch.device),
                features,
                deterministic=deterministic,
                return_actions=return_actions,
                return_logp=return_logp,
                return_values=return_values,
            )
        if return_views:
            out[DataKeys.VIEWS] = views
        if inplace:
            if out.numel() != batch.numel():
                raise ValueError(
                    f"`inplace` needs one result for each of the batch's {batch.numel()} rows, "
                    f"but kind {kind!r} gives {out.numel()}. Drop it, or use kind='all'."
                )
            batch.update(out.reshape(batch.batch_size))
        return out

    def _views(self, batch: TensorDict, kind: ViewKind) -> TensorDict:
        if DataKeys.VIEWS in batch.keys():  # noqa: SIM118  a TensorDict has no `in`
            views = batch[DataKeys.VIEWS]
            assert isinstance(views, TensorDict)
            return views
        if self.normalizer is not None:
            leaves = self.normalizer(self._observation.flatten(batch[DataKeys.OBS]))
            obs = self._observation.unflatten(leaves, list(batch.batch_size))
            batch = TensorDict({DataKeys.OBS: obs}, batch.batch_size, device=batch.device)
        return self.model.apply_view_requirements(batch, kind=kind)


KINDS["Policy"] = Policy
