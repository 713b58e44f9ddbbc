"""Rows of vector environments that return tensors: nothing goes through the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.errors import EnvError

from ._finals import FINAL_KEYS
from ._handoff import borrow
from ._spaces import Part, where

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode


class TensorRows:
    """What `step` returns where the environment returns tensors; episodes end as in `_episodes`.

    Observations of the right device and dtype are the environment's own tensors, without a copy;
    all else is new in every env step, and nothing is ever written to. There is no host
    synchronisation. Modes are NEXT_STEP and SAME_STEP.

    Args:
        parts: Leaves of the observation.
        num_envs: Number of rows.
        device: Device of the rows.
        mode: When the environment resets itself.

    """

    def __init__(
        self,
        parts: Sequence[Part],
        num_envs: int,
        device: torch.device,
        mode: "AutoresetMode",
    ) -> None:
        self._parts, self._num_envs, self._device = parts, num_envs, device
        self._shapes = [torch.Size([num_envs, *(part.space.shape or ())]) for part in parts]
        self._is_next_step = mode.name == "NEXT_STEP"
        self._pending = torch.zeros(num_envs, 1, dtype=torch.bool, device=device)

    def reset(self, observation: Any) -> torch.Tensor | TensorDict:
        """What is acted on first."""
        self._pending = torch.zeros_like(self._pending)
        return self._show(self._read(observation, DataKeys.OBS))

    def step(self, returned: tuple[Any, Any, Any, Any, dict[str, Any]]) -> TensorDict:
        """The rows, from what the environment's `step` returned.

        Raises:
            EnvError: Where that does not fit the environment's spaces.

        """
        observation, rewards, terminated, truncated, infos = returned
        obs = self._read(observation, DataKeys.OBS)
        rows = {
            DataKeys.OBS: self._show(obs),
            DataKeys.REWARDS: self._column(rewards, torch.get_default_dtype(), DataKeys.REWARDS),
            DataKeys.TERMINATED: self._column(terminated, torch.bool, DataKeys.TERMINATED),
            DataKeys.TRUNCATED: self._column(truncated, torch.bool, DataKeys.TRUNCATED),
        }
        self._end(rows, obs, infos)
        return TensorDict(rows, batch_size=[self._num_envs], device=self._device)

    def _end(self, rows: dict[str, Any], obs: list[torch.Tensor], infos: dict[str, Any]) -> None:
        """Complete the rows: which of them open an episode, and what was seen before."""
        if self._is_next_step:
            pending, valid = self._pending, ~self._pending
            rows[DataKeys.REWARDS] = torch.where(pending, 0.0, rows[DataKeys.REWARDS])
            for flag in (DataKeys.TERMINATED, DataKeys.TRUNCATED):
                rows[flag] = rows[flag] & valid
            rows |= {DataKeys.FIRST: pending, DataKeys.VALID: valid}
            self._pending = rows[DataKeys.TERMINATED] | rows[DataKeys.TRUNCATED]
            return
        done = rows[DataKeys.TERMINATED] | rows[DataKeys.TRUNCATED]
        wanted = rows[DataKeys.TRUNCATED] & ~rows[DataKeys.TERMINATED]
        rows[DataKeys.FIRST] = done
        rows[DataKeys.FINAL_OBS] = self._show(self._final(obs, infos, done, wanted))

    def _final(
        self, obs: list[torch.Tensor], infos: dict[str, Any], done: torch.Tensor, wanted: Any
    ) -> list[torch.Tensor]:
        """Observations before a reset; NaN where one is wanted and lost, `obs` where none is."""
        key = next((key for key in FINAL_KEYS if key in infos), None)
        if key is None:
            return [_lost(leaf, wanted) for leaf in obs]
        found = done
        if f"_{key}" in infos:
            found = found & self._column(infos[f"_{key}"], torch.bool, f"_{key}")
        final = self._read(infos[key], key)
        return [
            torch.where(_as(found, leaf), there, _lost(leaf, wanted & ~found))
            for leaf, there in zip(obs, final, strict=True)
        ]

    # ---- reading ------------------------------------------------------------------------------

    def _read(self, observation: Any, name: str) -> list[torch.Tensor]:
        return [
            self._leaf(observation, part, shape, where(name, part.path))
            for part, shape in zip(self._parts, self._shapes, strict=True)
        ]

    def _leaf(self, value: Any, part: Part, shape: torch.Size, name: str) -> torch.Tensor:
        try:
            for index in part.path:
                value = value[index]
        except (LookupError, TypeError) as error:
            raise EnvError(f"`{name}` is missing in what the environment returned.") from error
        tensor = borrow(value, name=name)
        if tensor.shape != shape:
            raise EnvError(
                f"`{name}` must have shape {tuple(shape)}, as the environment's spaces say; "
                f"got {tuple(tensor.shape)}."
            )
        tensor = tensor.to(self._device, part.spec.dtype, non_blocking=True)
        start = getattr(part.space, "start", None)
        if start is not None:
            tensor = tensor - torch.as_tensor(start, device=self._device)
        return tensor.reshape(self._num_envs, *part.spec.shape)

    def _column(self, value: Any, dtype: torch.dtype, name: str) -> torch.Tensor:
        """A flag or rewards `[num_envs, 1]` in memory of their own."""
        tensor = borrow(value, name=name)
        if tensor.numel() != self._num_envs:
            raise EnvError(
                f"`{name}` must have shape ({self._num_envs},); got {tuple(tensor.shape)}."
            )
        return tensor.to(self._device, dtype, non_blocking=True, copy=True).view(-1, 1)

    def _show(self, leaves: list[torch.Tensor]) -> torch.Tensor | TensorDict:
        if self._parts[0].path == ():
            return leaves[0]
        shown = TensorDict({}, batch_size=[self._num_envs], device=self._device)
        for part, leaf in zip(self._parts, leaves, strict=True):
            shown.set(part.key, leaf)
        return shown


def _as(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """`rows` `[num_envs, 1]` with as many dimensions as `leaf`."""
    return rows.view(-1, *(1,) * (leaf.ndim - 1))


def _lost(leaf: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`leaf`, NaN in `rows`; integers have no NaN and stay."""
    return torch.where(_as(rows, leaf), torch.nan, leaf) if leaf.is_floating_point() else leaf
