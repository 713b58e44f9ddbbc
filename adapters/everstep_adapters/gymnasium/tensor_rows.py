"""Rows and actions of vector environments that use tensors: nothing goes through the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict

from everstep.data import DataKeys
from everstep.env.formats import numpy_dtype
from everstep.env.specs import Structure
from everstep.errors import EnvError

from ..common.endings import align, next_step, same_step
from ..common.handoff import as_array, as_tensor, overlaps
from ..common.rounding import RoundingWatch
from ..common.specs import compose_spec
from .actions import Actions
from .final_observations import as_returned, final_key, is_one_a_row, keep_final
from .modes import AnyVectorEnv, pending_survives_reset
from .rows import check_shape, pick
from .specs import Part, where


def needs_host(parts: Sequence[Part], mode: AutoresetMode) -> bool:
    """Whether rows in `mode` need the host.

    The reset of single rows does, and so does the check for a lost observation without NaN.
    """
    has_nan = any(part.spec.dtype.is_floating_point for part in parts)
    return mode.name == "DISABLED" or (mode.name == "SAME_STEP" and not has_nan)


class TensorActions:
    """Actions for environments that take tensors, or arrays of another library on a device.

    Args:
        actions: Conversion of actions.
        like: What the environment returned: actions go to its device, as its kind of array.

    """

    def __init__(self, actions: Actions, like: Any) -> None:
        self._actions, self._like = actions, like
        self._device = as_tensor(like).device
        actions.form.on(self._device)  # copied here, not between vector steps

    def to_env(self, action: torch.Tensor) -> Any:
        """Actions for the environment, never the caller's memory."""
        action = action.detach().to(self._device)
        return as_array(self._actions.to_tensor_env(action), self._like)


class _Leaf:
    """One leaf of an observation, and its place in what environments return."""

    def __init__(self, part: Part, num_envs: int, device: torch.device) -> None:
        self.part, self._num_envs, self._device = part, num_envs, device
        self._shape = torch.Size([num_envs, *(part.space.shape or ())])
        self._start = None if part.start is None else torch.tensor(part.start, device=device)
        self._watch = RoundingWatch.of(
            where(DataKeys.OBS, part.path), part.space.dtype, numpy_dtype(part.spec.dtype)
        )

    def read(self, batch: Any, name: str) -> torch.Tensor:
        """A batch's values, as their spec has them: the environment's own tensor, if it fits."""
        values = self._read(batch, name, self._shape, self._watch)
        return values.reshape(self._num_envs, *self.part.spec.shape)

    def read_row(self, observation: Any, name: str) -> torch.Tensor:
        """The values of one environment's observation."""
        return self._read(observation, name, self._shape[1:]).reshape(self.part.spec.shape)

    def _read(
        self,
        observation: Any,
        name: str,
        shape: torch.Size,
        watch: None | RoundingWatch = None,
    ) -> torch.Tensor:
        name = where(name, self.part.path)
        value = pick(observation, self.part.path, name)
        tensor = as_tensor(value, name=name)
        check_shape(tensor.shape, shape, name)
        if watch is not None:
            watch.look(tensor)
        is_immutable = not isinstance(value, torch.Tensor)
        tensor = _move(tensor, self._device, self.part.spec.dtype, name, copy=is_immutable)
        return tensor if self._start is None else tensor - self._start


class TensorRows:
    """Rows of an environment that returns tensors; episodes end as in `endings`.

    Observations of the right device and dtype are the environment's own tensors, without a copy;
    all else is new in every vector step, and nothing is ever written to. There is no host
    synchronisation while the environment's tensors are on the rows' device. The mode is one for
    which `needs_host` is False.

    Args:
        env: The environment.
        parts: Leaves of the observation.
        device: Device of the rows.
        mode: When the environment resets itself.

    """

    def __init__(
        self, env: AnyVectorEnv, parts: Sequence[Part], device: torch.device, mode: AutoresetMode
    ) -> None:
        self._num_envs, self._device = env.num_envs, device
        self._leaves = [_Leaf(part, env.num_envs, device) for part in parts]
        specs = {part.key: part.spec for part in parts}
        self._structure = Structure.of(compose_spec(specs, device))
        self._is_next_step = mode.name == "NEXT_STEP"
        self._paths = [part.path for part in parts]
        self._overwrites = None if self._is_next_step else keep_final(env)
        self._survives_reset = pending_survives_reset(env)
        self._pending = torch.zeros(env.num_envs, 1, dtype=torch.bool, device=device)
        self._is_checked = False

    def reset(self, observation: Any) -> torch.Tensor | TensorDict:
        """The first observation."""
        if not self._survives_reset:
            self._pending = torch.zeros_like(self._pending)
        return self._show(self._read(observation, DataKeys.OBS))

    def step(self, returned: tuple[Any, Any, Any, Any, dict[str, Any]]) -> TensorDict:
        """The row of a vector step, from what the environment's `step` returned.

        Raises:
            EnvError: If that does not fit the environment's spaces or its mode.

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
        end(rows, obs, observation, infos)
        return TensorDict(rows, batch_size=[self._num_envs], device=self._device)

    # ---- where episodes end -------------------------------------------------------------------

    def _end_next_step(
        self,
        rows: dict[str, Any],
        obs: list[torch.Tensor],
        observation: Any,
        infos: dict[str, Any],
    ) -> None:
        returned = (
            rows[key] for key in (DataKeys.REWARDS, DataKeys.TERMINATED, DataKeys.TRUNCATED)
        )
        rows |= next_step(self._pending, *returned)
        self._pending = rows[DataKeys.TERMINATED] | rows[DataKeys.TRUNCATED]
        if not self._is_checked and final_key(infos) is not None:
            self._check_mode(obs, infos)

    def _end_same_step(
        self,
        rows: dict[str, Any],
        obs: list[torch.Tensor],
        observation: Any,
        infos: dict[str, Any],
    ) -> None:
        flags = rows[DataKeys.TERMINATED], rows[DataKeys.TRUNCATED]
        done = flags[0] | flags[1]
        available, final = self._final(obs, infos, done)
        if self._overwrites is not None:
            flat = available.view(-1)
            returned = as_returned(self._paths, observation, infos)
            unsure, _ = self._overwrites.look(obs, final, flat, *returned)
            available = available & ~unsure.view(-1, 1)
        rows[DataKeys.FIRST] = done
        leaves = same_step(done, *flags, obs, final, available)
        rows[DataKeys.FINAL_OBS] = self._show(leaves)

    def _final(
        self, obs: list[torch.Tensor], infos: dict[str, Any], done: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Rows `[num_envs, 1]` with a final observation in the infos, and the leaves of it.

        The leaves hold anything in other rows.
        """
        key = final_key(infos)
        if key is None:
            return torch.zeros_like(done), obs
        final = infos[key]
        if is_one_a_row(final):
            available = np.array([value is not None for value in final])
            leaves = [tensor.clone() for tensor in obs]
            for i in np.flatnonzero(available).tolist():
                for leaf, tensor in zip(self._leaves, leaves, strict=True):
                    tensor[i] = leaf.read_row(final[i], key)
            return self._column(available, torch.bool, f"_{key}"), leaves
        if f"_{key}" in infos:
            done = done & self._column(infos[f"_{key}"], torch.bool, f"_{key}")
        return done, self._read(final, key)

    def _check_mode(self, obs: list[torch.Tensor], infos: dict[str, Any]) -> None:
        """At the first end of an episode: the environment must not have reset itself already.

        Waits for the device, only for environments whose infos hold final observations.
        """
        available, final = self._final(obs, infos, self._pending)
        for leaf, there in zip(obs, final, strict=True):
            differs = (leaf != there) & ~((leaf != leaf) & (there != there))  # NaN equals NaN
            if bool((differs & align(available, leaf)).any()):
                raise EnvError(
                    "The environment reset itself in the env step that ended an episode: its infos "
                    "hold a final observation, and the one returned is another. Its mode was taken "
                    "to be NEXT_STEP. Pass `autoreset_mode='SAME_STEP'`."
                )
        self._is_checked = bool(available.any())

    # ---- reading and showing ------------------------------------------------------------------

    def _read(self, observation: Any, name: str) -> list[torch.Tensor]:
        return [leaf.read(observation, name) for leaf in self._leaves]

    def _column(self, value: Any, dtype: torch.dtype, name: str) -> torch.Tensor:
        """A flag or rewards `[num_envs, 1]` in memory of their own."""
        tensor = as_tensor(value, name=name)
        if tensor.numel() != self._num_envs:
            raise EnvError(
                f"`{name}` must have shape ({self._num_envs},); got {tuple(tensor.shape)}."
            )
        return _move(tensor, self._device, dtype, name, copy=True).view(-1, 1)

    def _show(self, leaves: Sequence[torch.Tensor]) -> torch.Tensor | TensorDict:
        return self._structure.unflatten(tuple(leaves), [self._num_envs])


def _move(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype, name: str, *, copy: bool
) -> torch.Tensor:
    """`tensor` on `device` in `dtype`."""
    if not torch.can_cast(tensor.dtype, dtype):
        raise EnvError(f"`{name}` must have a dtype that fits {dtype}; got {tensor.dtype}.")
    return tensor.to(device, dtype, non_blocking=overlaps(tensor.device, device), copy=copy)
