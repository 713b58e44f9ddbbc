"""Rows and actions of vector environments that speak tensors: nothing goes through the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.errors import EnvError

from ..common.handoff import borrow, lend
from .final_observations import FINAL_KEYS
from .rows import pick, start_of
from .spaces import Actions, Part, where

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode

#: DLPack's number for memory of the host.
_HOST = 1


def is_of_tensors(value: Any) -> bool:
    """Whether such values need not go through the host: tensors, and arrays on a device."""
    if isinstance(value, torch.Tensor):
        return True
    find_device = getattr(value, "__dlpack_device__", None)
    return find_device is not None and int(find_device()[0]) != _HOST


def can_stay(parts: Sequence[Part], mode: "AutoresetMode") -> bool:
    """Whether rows in `mode` need no host.

    Resetting single rows does, and so does noticing a lost observation that has no NaN.
    """
    has_nan = any(part.spec.dtype.is_floating_point for part in parts)
    return mode.name == "NEXT_STEP" or (mode.name == "SAME_STEP" and has_nan)


class TensorActions:
    """Actions for environments that take tensors, or arrays of another library on a device.

    Args:
        actions: How they are sent.
        like: What the environment returned: actions go to its device, as its kind.

    """

    def __init__(self, actions: Actions, like: Any) -> None:
        self._actions, self._like = actions, like
        self._device = borrow(like).device

    def to_env(self, action: torch.Tensor) -> Any:
        """What the environment is sent, never the caller's memory."""
        return lend(self._actions.to_tensor_env(action, self._device), self._like)


class _Leaf:
    """One leaf of an observation, and the way to it in what environments return."""

    def __init__(self, part: Part, num_envs: int, device: torch.device) -> None:
        self.part, self._num_envs, self._device = part, num_envs, device
        self._shape = torch.Size([num_envs, *(part.space.shape or ())])
        start = start_of(part)
        self._start = None if start is None else torch.tensor(start, device=device)

    def read(self, batch: Any, name: str) -> torch.Tensor:
        """A batch's values, as their spec has them: the environment's own tensor, if it fits."""
        taken = self._take(batch, where(name, self.part.path), self._shape)
        return taken.reshape(self._num_envs, *self.part.spec.shape)

    def read_row(self, observation: Any, name: str) -> torch.Tensor:
        """The values of one environment's observation."""
        taken = self._take(observation, where(name, self.part.path), self._shape[1:])
        return taken.reshape(self.part.spec.shape)

    def _take(self, observation: Any, name: str, shape: torch.Size) -> torch.Tensor:
        value = pick(observation, self.part.path, name)
        tensor = borrow(value, name=name)
        if tensor.shape != shape:
            raise EnvError(
                f"`{name}` must have shape {tuple(shape)}, as the environment's spaces say; "
                f"got {tuple(tensor.shape)}."
            )
        is_immutable = not isinstance(value, torch.Tensor)
        tensor = _move(tensor, self._device, self.part.spec.dtype, name, copy=is_immutable)
        return tensor if self._start is None else tensor - self._start


class TensorRows:
    """What `step` returns where the environment returns tensors; episodes end as in `_episodes`.

    Observations of the right device and dtype are the environment's own tensors, without a copy;
    all else is new in every env step, and nothing is ever written to. There is no host
    synchronisation while the environment's tensors are on the rows' device. Modes are those that
    `can_stay` allows.

    Args:
        parts: Leaves of the observation.
        num_envs: Number of rows.
        device: Device of the rows.
        mode: When the environment resets itself.
        survives_reset: A row that was done is reset once more in the env step after a reset.

    """

    def __init__(
        self,
        parts: Sequence[Part],
        num_envs: int,
        device: torch.device,
        mode: "AutoresetMode",
        *,
        survives_reset: bool = False,
    ) -> None:
        self._num_envs, self._device = num_envs, device
        self._leaves = [_Leaf(part, num_envs, device) for part in parts]
        self._is_next_step = mode.name == "NEXT_STEP"
        self._survives_reset = survives_reset
        self._pending = torch.zeros(num_envs, 1, dtype=torch.bool, device=device)
        self._is_checked = False

    def reset(self, observation: Any) -> torch.Tensor | TensorDict:
        """What is acted on first."""
        if not self._survives_reset:
            self._pending = torch.zeros_like(self._pending)
        return self._show(self._read(observation, DataKeys.OBS))

    def step(self, returned: tuple[Any, Any, Any, Any, dict[str, Any]]) -> TensorDict:
        """The rows, from what the environment's `step` returned.

        Raises:
            EnvError: Where that does not fit the environment's spaces or its mode.

        """
        observation, rewards, terminated, truncated, infos = returned
        obs = self._read(observation, DataKeys.OBS)
        rows = {
            DataKeys.OBS: self._show(obs),
            DataKeys.REWARDS: self._column(rewards, torch.get_default_dtype(), DataKeys.REWARDS),
            DataKeys.TERMINATED: self._column(terminated, torch.bool, DataKeys.TERMINATED),
            DataKeys.TRUNCATED: self._column(truncated, torch.bool, DataKeys.TRUNCATED),
        }
        end = self._end_next_step if self._is_next_step else self._end_same_step
        end(rows, obs, infos)
        return TensorDict(rows, batch_size=[self._num_envs], device=self._device)

    # ---- where episodes end -------------------------------------------------------------------

    def _end_next_step(
        self, rows: dict[str, Any], obs: list[torch.Tensor], infos: dict[str, Any]
    ) -> None:
        pending, valid = self._pending, ~self._pending
        rows[DataKeys.REWARDS] = torch.where(pending, 0.0, rows[DataKeys.REWARDS])
        for flag in (DataKeys.TERMINATED, DataKeys.TRUNCATED):
            rows[flag] = rows[flag] & valid
        rows |= {DataKeys.FIRST: pending, DataKeys.VALID: valid}
        self._pending = rows[DataKeys.TERMINATED] | rows[DataKeys.TRUNCATED]
        if not self._is_checked and any(key in infos for key in FINAL_KEYS):
            self._check_mode(obs, infos)

    def _end_same_step(
        self, rows: dict[str, Any], obs: list[torch.Tensor], infos: dict[str, Any]
    ) -> None:
        done = rows[DataKeys.TERMINATED] | rows[DataKeys.TRUNCATED]
        wanted = rows[DataKeys.TRUNCATED] & ~rows[DataKeys.TERMINATED]
        found, final = self._final(obs, infos, done)
        lost = wanted & ~found
        rows[DataKeys.FIRST] = done
        rows[DataKeys.FINAL_OBS] = self._show(
            [
                torch.where(_as(found, leaf), there, _lost(leaf, lost))
                for leaf, there in zip(obs, final, strict=True)
            ]
        )

    def _final(
        self, obs: list[torch.Tensor], infos: dict[str, Any], done: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Rows `[num_envs, 1]` that left an observation before their reset, and the leaves of it.

        The leaves hold anything in other rows.
        """
        key = next((key for key in FINAL_KEYS if key in infos), None)
        if key is None or infos[key] is None:
            return torch.zeros_like(done), obs
        final = infos[key]
        if isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype.kind == "O"):
            return self._final_of_rows(final, obs, key)
        found = done
        if f"_{key}" in infos:
            found = found & self._column(infos[f"_{key}"], torch.bool, f"_{key}")
        return found, self._read(final, key)

    def _final_of_rows(
        self, final: Any, obs: list[torch.Tensor], key: str
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """See `_final`; from one observation for each row, `None` where there is none."""
        found = [value is not None for value in final]
        leaves = [tensor.clone() for tensor in obs]
        for i in np.flatnonzero(found).tolist():
            for leaf, tensor in zip(self._leaves, leaves, strict=True):
                tensor[i] = leaf.read_row(final[i], key)
        return self._column(np.array(found), torch.bool, f"_{key}"), leaves

    def _check_mode(self, obs: list[torch.Tensor], infos: dict[str, Any]) -> None:
        """Once, where an episode has ended: an environment that resets itself at once betrays it.

        It waits for the device, for environments whose infos hold final observations only.
        """
        found, final = self._final(obs, infos, self._pending)
        for leaf, there in zip(obs, final, strict=True):
            differs = (leaf != there) & ~((leaf != leaf) & (there != there))  # NaN equals NaN
            if bool((differs & _as(found, leaf)).any()):
                raise EnvError(
                    "The environment reset itself in the env step that ended an episode: its infos "
                    "hold a final observation, and the one returned is another. Its mode was taken "
                    "to be NEXT_STEP. Pass `autoreset_mode='SAME_STEP'`."
                )
        self._is_checked = bool(found.any())

    # ---- reading and showing ------------------------------------------------------------------

    def _read(self, observation: Any, name: str) -> list[torch.Tensor]:
        return [leaf.read(observation, name) for leaf in self._leaves]

    def _column(self, value: Any, dtype: torch.dtype, name: str) -> torch.Tensor:
        """A flag or rewards `[num_envs, 1]` in memory of their own."""
        tensor = borrow(value, name=name)
        if tensor.numel() != self._num_envs:
            raise EnvError(
                f"`{name}` must have shape ({self._num_envs},); got {tuple(tensor.shape)}."
            )
        return _move(tensor, self._device, dtype, name, copy=True).view(-1, 1)

    def _show(self, leaves: list[torch.Tensor]) -> torch.Tensor | TensorDict:
        if self._leaves[0].part.path == ():
            return leaves[0]
        shown = TensorDict({}, batch_size=[self._num_envs], device=self._device)
        for leaf, tensor in zip(self._leaves, leaves, strict=True):
            shown.set(leaf.part.key, tensor)
        return shown


def _move(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype, name: str, *, copy: bool
) -> torch.Tensor:
    """`tensor` there and thus; towards the host it waits, as what is on its way cannot be read."""
    if not torch.can_cast(tensor.dtype, dtype):
        raise EnvError(f"`{name}` must have a dtype that fits {dtype}; got {tensor.dtype}.")
    return tensor.to(device, dtype, non_blocking=device.type == "cuda", copy=copy)


def _as(rows: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """`rows` `[num_envs, 1]` with as many dimensions as `leaf`."""
    return rows.view(-1, *(1,) * (leaf.ndim - 1))


def _lost(leaf: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`leaf`, NaN in `rows`; integers have no NaN and stay."""
    return torch.where(_as(rows, leaf), torch.nan, leaf) if leaf.is_floating_point() else leaf
