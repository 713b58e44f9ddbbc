"""The TorchRL environment that `to_torchrl` returns."""

from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from everstep.data import DataKeys, Device
from everstep.env import Env
from everstep.env.specs import Leaves, Structure, leaf_specs
from everstep.errors import AdapterError

from ..common.endings import same_step
from .horizon import render_env, seed_env

#: True in the first row of an episode; the key of TorchRL's own `InitTracker`, which does not
#: recognise invalid rows.
IS_INIT = "is_init"

#: The flags by which TorchRL ends episodes.
_DONE = ("done", "terminated", "truncated")

#: What TorchRL, or the exported environment, writes beside the observation.
RESERVED = frozenset({"action", "reward", *_DONE, "next", "_reset", "_step", "valid", IS_INIT})


class EverstepEnvBase(EnvBase):  # type: ignore[misc]
    """An Everstep environment as a TorchRL environment of batch size `[num_envs]`.

    See `to_torchrl`. All that it returns is in memory of its own.

    Args:
        env: Environment.
        observation_path: Keys under which the observation lies; none for the root.

    """

    batch_locked = True

    #: The Everstep environment.
    env: Env

    def __init__(self, env: Env, observation_path: tuple[str, ...]) -> None:
        super().__init__(device=torch.device(env.device), batch_size=[env.num_envs])
        self.env = env
        self._observation = Structure.of(env.observation_spec)
        self._paths = [(*observation_path, *path) for path in self._observation.paths]
        self._has_invalid = DataKeys.VALID in env.episode_keys
        self._rewards_dtype = torch.get_default_dtype()
        #: The observation to act on next, and the rows whose episodes ended before it.
        self._obs: Any = None
        self._ended: None | torch.Tensor = None
        #: The rows whose observation to act on next opens an episode.
        self._opened = self._flags(True)
        self._set_specs()
        self.is_closed = False

    def _set_specs(self) -> None:
        rows = [*self.batch_size, 1]
        common = {"shape": self.batch_size, "device": self.device}

        def flag() -> TensorSpec:
            return Categorical(2, shape=torch.Size(rows), dtype=torch.bool, device=self.device)

        def batched(spec: TensorSpec) -> TensorSpec:
            return spec.to(self.device).expand(*self.batch_size, *spec.shape)

        observation = Composite(**common)
        leaves = leaf_specs(self.env.observation_spec).values()
        for path, leaf in zip(self._paths, leaves, strict=True):
            observation[path] = batched(leaf)
        if self._has_invalid:
            observation[DataKeys.VALID], observation[IS_INIT] = flag(), flag()
        self.observation_spec = observation
        self.full_action_spec = Composite(action=batched(self.env.action_spec), **common)
        self.reward_spec = Unbounded(rows, dtype=self._rewards_dtype, device=self.device)
        self.full_done_spec = Composite({key: flag() for key in _DONE}, **common)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The results of a vector step, with the final observation of rows whose episode ended."""
        self._check_step(tensordict)
        outcome = self.env.step(tensordict.get("action"))
        terminated = self._flag(outcome, DataKeys.TERMINATED)
        truncated = self._flag(outcome, DataKeys.TRUNCATED)
        self._obs, self._ended = outcome[DataKeys.OBS], terminated | truncated
        rewards = outcome[DataKeys.REWARDS]
        out = self._observed(self._before_reset(outcome, terminated, truncated))
        out.set("reward", rewards.to(self._rewards_dtype, copy=True))
        out.set("done", self._ended.clone())
        out.set("terminated", terminated)
        out.set("truncated", truncated)
        if self._has_invalid:
            self._opened = self._flag(outcome, DataKeys.FIRST)
            out.set(DataKeys.VALID, self._flag(outcome, DataKeys.VALID))
            out.set(IS_INIT, self._opened & ~self._ended)
        return out

    def _reset(
        self,
        tensordict: None | TensorDictBase = None,
        *,
        config: None | dict[str, Any] = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        """First observations: of every row, or of those that `"_reset"` marks.

        Rows whose episodes ended were reset by the environment already.
        """
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None or not self._is_reset(mask.reshape(self.num_envs, 1)):
            self._obs = self.env.reset(config=config)
            self._opened = self._flags(True)
        self._ended = None
        leaves = self._observation.flatten(self._obs)
        out = self._observed(tuple(leaf.clone() for leaf in leaves))
        out.update({key: self._flags(False) for key in _DONE})
        if self._has_invalid:
            out.set(DataKeys.VALID, self._flags(True))
            out.set(IS_INIT, self._opened.clone())
        return out

    def _is_reset(self, mask: torch.Tensor) -> bool:
        """Whether the rows of the mask are reset already; False if all rows are to be reset.

        Raises:
            AdapterError: If the mask has other rows.

        """
        if self._ended is not None and torch.equal(mask, self._ended):  # one sync, as TorchRL has
            return True
        if bool(mask.all()):
            return False
        ended = [] if self._ended is None else _rows(self._ended)
        raise AdapterError(
            f"Rows {_rows(mask)} are to be reset, but episodes ended in rows {ended}: "
            f"{type(self.env).__name__} resets those itself, and others only all together. "
            "End episodes in the environment rather than in a transform such as "
            "`StepCounter(max_steps)`, or reset every row."
        )

    def _check_step(self, tensordict: TensorDictBase) -> None:
        if tensordict.get("_step", None) is not None:
            raise AdapterError(
                f"{type(self.env).__name__} steps every row, so no row can be left out by `_step`. "
                "Roll out with `break_when_any_done=False`, not with `break_when_all_done=True`."
            )
        if self._ended is not None and bool(self._ended.any()):  # one sync, as TorchRL has
            raise AdapterError(
                f"The episodes of rows {_rows(self._ended)} ended, and have to be reset before the "
                "next env step. Use `step_and_maybe_reset`, or `reset` with a `_reset` mask."
            )

    def _before_reset(
        self, outcome: TensorDict, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> Leaves:
        """Observations after the action and before any reset, `[N, …]`."""
        leaves = self._observation.flatten(outcome[DataKeys.OBS])
        if DataKeys.FIRST not in self.env.episode_keys:
            return tuple(leaf.clone() for leaf in leaves)
        assert self._ended is not None
        was_reset = outcome[DataKeys.FIRST] & self._ended
        final = None
        if DataKeys.FINAL_OBS in self.env.episode_keys:
            final = self._observation.flatten(outcome[DataKeys.FINAL_OBS])
        return same_step(was_reset, terminated, truncated & was_reset, leaves, final)

    def _observed(self, leaves: Leaves) -> TensorDict:
        observed = dict(zip(self._paths, leaves, strict=True))
        return TensorDict(observed, batch_size=self.batch_size, device=self.device)

    def _flag(self, outcome: TensorDict, key: str) -> torch.Tensor:
        """A flag of each row, bool `[N, 1]`; False without episodes."""
        if key not in self.env.episode_keys:
            return self._flags(False)
        return cast(torch.Tensor, outcome[key].clone())

    def _flags(self, value: bool) -> torch.Tensor:
        return torch.full((self.num_envs, 1), value, dtype=torch.bool, device=self.device)

    @property
    def num_envs(self) -> int:
        """Number of rows."""
        return self.env.num_envs

    def _set_seed(self, seed: None | int) -> None:
        if seed is not None:
            seed_env(self.env, seed)

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the environment's `render`."""
        return render_env(self.env)

    def to(self, device: Device) -> "EverstepEnvBase":
        """The environment itself, if it is on `device`.

        Raises:
            AdapterError: If it is on another one.

        """
        wanted = torch.device(device)
        if wanted.type != self.device.type or wanted.index not in (None, self.device.index):
            raise AdapterError(
                f"{type(self.env).__name__} was made on {self.device} and cannot be moved to "
                f"{device}. Make it there."
            )
        return self

    def close(self, **kwargs: Any) -> None:
        """Close the environment."""
        if not self.is_closed:
            super().close(**kwargs)
            self.env.close()

    def __del__(self) -> None:
        """Do nothing, unlike TorchRL's: the wrapped environment may be in use."""


def _rows(mask: torch.Tensor) -> list[int]:
    """Indices of the marked rows."""
    return cast(list[int], mask.flatten().nonzero().flatten().tolist())
