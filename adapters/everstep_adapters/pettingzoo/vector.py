"""Several PettingZoo environments as a vector environment of Gymnasium."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from everstep.env.formats import check_held
from everstep.errors import EnvError

from ..common.first_calls import check_reward, to_flag
from ..common.returned import Returned
from .agents import joint_space


class AgentsVectorEnv(VectorEnv[Any, Any, Any]):
    """Agents of several parallel environments as rows, ordered environment by environment.

    It resets an environment in the env step in which the last of its agents ended. Agents that are
    not controlled act at random.

    Args:
        envs: Parallel environments of one kind. `close` closes them.
        agents: Names of the agents that are rows, in each of them.

    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    #: Whether each row begins an episode, bool `[num_envs]`.
    first: npt.NDArray[np.bool_]

    #: Whether an action of the row's agent caused it, bool `[num_envs]`.
    valid: npt.NDArray[np.bool_]

    def __init__(self, envs: Sequence[Any], agents: Sequence[str]) -> None:
        self.envs, self.agents = list(envs), list(agents)
        self.num_envs = len(self.envs) * len(self.agents)
        kinds = "observation_space", "action_space"
        joint = [joint_space(self.envs[0], kind, self.agents) for kind in kinds]
        self.single_observation_space, self.single_action_space = joint
        own = {x: tuple(getattr(self.envs[0], kind)(x) for kind in kinds) for x in self.agents}
        self._returned = {x: Returned(obs, f"obs[{x!r}]") for x, (obs, _) in own.items()}
        #: Observation and action space of each agent, if they differ: rows are padded then.
        self.own_spaces = None if all(list(x) == joint for x in own.values()) else own
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = getattr(self.envs[0], "render_mode", None)
        self.first = np.zeros(self.num_envs, np.bool_)
        self.valid = np.zeros(self.num_envs, np.bool_)
        self._has_integers = _has_integers(self.single_observation_space)
        self._nothing = _zeros(self.single_observation_space)
        #: Observation of each row, and of each environment all its agents' and those that ended.
        self._rows: list[Any] = [self._nothing] * self.num_envs
        self._seen: list[dict[str, Any]] = [{} for _ in self.envs]
        self._ended: list[set[str]] = [set() for _ in self.envs]

    def reset(
        self, *, seed: None | int = None, options: None | dict[str, Any] = None
    ) -> tuple[Any, dict[str, Any]]:
        """Observations of all agents after resetting every environment; `i` gets `seed + i`."""
        for i, env in enumerate(self.envs):
            if seed is not None:
                for j, agent in enumerate(env.possible_agents):
                    if agent not in self.agents:
                        env.action_space(agent).seed((seed + i) * len(env.possible_agents) + j)
            self._restart(i, seed=None if seed is None else seed + i, options=options)
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A vector step of every environment; see the module `everstep_adapters.pettingzoo`."""
        self.first[:] = self.valid[:] = False
        rewards = np.zeros(self.num_envs)
        flags = np.zeros((2, self.num_envs), np.bool_)
        infos: dict[str, Any] = {}
        done = [self._step_one(i, actions, rewards, flags, infos) for i in range(len(self.envs))]
        if flags.any():
            infos |= {"final_obs": self._batch(), "_final_obs": flags.any(0)}
        for i in np.flatnonzero(done).tolist():
            self._restart(i)
            self.first[self._slice(i)] = True
        return self._batch(), rewards, flags[0], flags[1], infos

    def _step_one(
        self, i: int, actions: Any, rewards: Any, flags: Any, infos: dict[str, Any]
    ) -> bool:
        """Step environment `i` and write its rows; whether all its agents ended."""
        env, ended, start = self.envs[i], self._ended[i], i * len(self.agents)
        row_of = {agent: start + k for k, agent in enumerate(self.agents)}
        acting = [agent for agent in env.agents if agent not in ended]
        sent = {
            x: self._action(x, actions[row_of[x]]) if x in row_of else self._sample(i, x)
            for x in acting
        }
        self._seen[i], earned, *kinds, own_infos = env.step(sent)
        for agent in acting:
            flags_by_name = zip(kinds, ("terminations", "truncations"), strict=True)
            over = [to_flag(x.get(agent, False), f"{y}[{agent!r}]") for x, y in flags_by_name]
            if any(over):
                ended.add(agent)
            elif agent not in env.agents:
                raise EnvError(
                    f"Agent {agent!r} of {env} left the environment and was neither terminated nor "
                    "truncated. Set its flag in the environment."
                )
            if (row := row_of.get(agent)) is not None:
                check_reward(earned[agent], f"rewards[{agent!r}]")
                self.valid[row], rewards[row], flags[:, row] = True, earned[agent], over
                if info := own_infos.get(agent):
                    infos.update(self._add_info(infos, info, row))
        for agent, row in row_of.items():
            self.first[row] = agent in env.agents and agent not in (*acting, *ended)
            if agent in self._seen[i]:
                self._rows[row] = self._observation(agent, self._seen[i][agent])
            elif flags[1, row] or (agent in env.agents and agent not in ended):
                state = "was truncated" if flags[1, row] else "goes on"
                raise EnvError(
                    f"`obs` of {env} lacks agent {agent!r}, which {state}: `step` must return an "
                    "observation of each such agent."
                )
        return set(env.agents) <= ended

    def _restart(self, i: int, **options: Any) -> None:
        """Reset environment `i`."""
        returned = self.envs[i].reset(**options)
        self._seen[i] = returned[0] if isinstance(returned, tuple) else returned
        self._ended[i] = set()
        if missing := {*self.agents} & {*self.envs[i].agents} - self._seen[i].keys():
            raise EnvError(
                f"`obs` of {self.envs[i]} lacks agents {sorted(missing)}: `reset` must return an "
                "observation of each agent in `agents`."
            )
        self._rows[self._slice(i)] = [
            self._observation(x, self._seen[i][x]) if x in self._seen[i] else self._nothing
            for x in self.agents
        ]

    def _observation(self, agent: str, seen: Any) -> Any:
        """An agent's observation as wide as a row."""
        self._returned[agent].check(seen)
        if self.own_spaces is None or not isinstance(self.single_observation_space, Box):
            return seen
        value, space = np.asarray(seen), self.own_spaces[agent][0]
        row = np.zeros(self.single_observation_space.shape, space.dtype)
        row[: len(value)] = value
        return row

    def other_bounds(self) -> None | tuple[str, Box]:
        """An agent whose actions have other bounds than those of all, and its space.

        One map from [-1, 1] to the bounds is not every agent's then.
        """
        joint = self.single_action_space
        for agent, (_, space) in (self.own_spaces or {}).items():
            if not isinstance(space, Box) or not space.shape:
                continue
            assert isinstance(joint, Box)
            count = space.shape[0]
            if (space.low != joint.low[:count]).any() or (space.high != joint.high[:count]).any():
                return agent, space
        return None

    def _action(self, agent: str, action: Any) -> Any:
        """An agent's own action, of a row's."""
        if self.own_spaces is None:
            return action
        space = self.own_spaces[agent][1]
        if isinstance(space, Box) and space.shape:
            return np.clip(action[: space.shape[0]], space.low, space.high)
        if isinstance(space, Discrete) and action >= space.n:
            raise EnvError(
                f"The action of agent {agent!r} must be one of {space}; got {action}. Its policy "
                "must have its own spaces: set `policies` to 'agent' or 'group'."
            )
        return action

    def _sample(self, i: int, agent: str) -> Any:
        """A random action of an agent that is not controlled, within its `action_mask`."""
        seen = self._seen[i].get(agent)
        mask = seen.get("action_mask") if isinstance(seen, dict) else None
        return self.envs[i].action_space(agent).sample(mask)

    def _slice(self, i: int) -> slice:
        return slice(i * len(self.agents), (i + 1) * len(self.agents))

    def _batch(self) -> Any:
        """The rows' observations, in new memory."""
        space = self.single_observation_space
        for row in self._rows if self._has_integers else ():
            _check_integers(row, space, "obs")  # Gymnasium's `concatenate` would wrap them
        out: Any = create_empty_array(space, n=self.num_envs)
        return concatenate(space, self._rows, out)

    def render(self) -> Any:
        """The result of the first environment's `render`."""
        return self.envs[0].render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def __str__(self) -> str:
        return f"{len(self.envs)} x {self.envs[0]}, {len(self.agents)} agents each"


def _leaf_spaces(space: Any) -> Iterator[tuple[Any, Any]]:
    """Indices and spaces of the parts of a space that has parts."""
    children = getattr(space, "spaces", ())
    yield from children.items() if hasattr(children, "items") else enumerate(children)


def _has_integers(space: Any) -> bool:
    """Whether values of a space have leaves of integers or flags."""
    if getattr(space, "dtype", None) is not None:
        return np.dtype(space.dtype).kind in "biu"
    return any(_has_integers(child) for _, child in _leaf_spaces(space))


def _check_integers(value: Any, space: Any, name: str) -> None:
    """Check that the integers of an observation can be held by their spaces."""
    if getattr(space, "dtype", None) is not None:
        check_held(np.asarray(value), np.dtype(space.dtype), name)
        return
    for index, child in _leaf_spaces(space):
        _check_integers(value[index], child, f"{name}[{index!r}]")


def _zeros(space: Any) -> Any:
    """An observation of zeros, of agents that are not there yet."""
    return next(iter(iterate(batch_space(space, 1), create_empty_array(space, n=1))))
