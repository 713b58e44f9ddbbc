"""Objects of other libraries: the line that an error names makes them work."""

import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import everstep
from everstep.errors import AdapterError


def hinted(env: Any) -> str:
    """The program that the error names."""
    with pytest.raises(AdapterError, match="No adapter can wrap") as error:
        everstep.wrap(env)
    found = re.search(r"This wraps it: `(.+?)`\. Env", str(error.value))
    assert found, error.value
    return found[1]


def pair() -> Any:
    """Two agents whose episodes are truncated after 3 env steps."""
    from pettingzoo import ParallelEnv

    class Pair(ParallelEnv):  # type: ignore[type-arg]
        metadata = {"name": "pair"}  # noqa: RUF012
        possible_agents = ["a", "b"]  # noqa: RUF012
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(-1, 1, (3,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.agents, self.t = list(self.possible_agents), 0
            return self.all(np.zeros(3, np.float32)), self.all({})

        def step(self, actions: Any) -> Any:
            self.t += 1
            obs = self.all(np.full(3, self.t / 10, np.float32))
            returned = (obs, *map(self.all, (1.0, False, self.t == 3, {})))
            self.agents = [] if self.t == 3 else self.agents
            return returned

        def all(self, value: Any) -> dict[str, Any]:
            return dict.fromkeys(self.agents, value)

    return Pair()


@pytest.mark.filterwarnings("ignore")
def test_supersuit_resets_in_the_same_step_with_final_observations() -> None:
    supersuit = pytest.importorskip("supersuit")
    vector = supersuit.pettingzoo_env_to_vec_env_v1(pair())
    env = everstep.wrap(supersuit.concat_vec_envs_v1(vector, 2, num_cpus=0, base_class="gymnasium"))
    assert env.num_envs == 4
    assert env.describe()["resets"] == "SAME_STEP, from its class"
    env.reset()
    action = torch.zeros(4, 1, dtype=torch.int64)
    rows = [env.step(action).clone() for _ in range(4)]
    assert [row["truncated"].all().item() for row in rows] == [False, False, True, False]
    torch.testing.assert_close(rows[2]["final_obs"], torch.full((4, 3), 0.3))
    assert rows[2]["obs"].eq(0).all()


@pytest.mark.parametrize(
    ("module", "name", "line"),
    [
        ("gym.core", "Env", "everstep.make(lambda: GymV26CompatibilityV0(env=env), 1)"),
        (
            "vmas.simulator.environment.environment",
            "Environment",
            "everstep.wrap(envs.VmasWrapper(env), time_limit=env.max_steps)",
        ),
    ],
)
def test_libraries_that_are_not_installed_here(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, line: str
) -> None:
    found = ModuleType(module)
    kind = type(name, (), {"step": lambda self, action: None})
    setattr(found, name, kind)
    monkeypatch.setitem(sys.modules, module, found)
    assert hinted(kind()).endswith(line)


def test_nothing_is_said_of_other_objects() -> None:
    with pytest.raises(AdapterError) as error:
        everstep.wrap(object())
    assert "This wraps it" not in str(error.value)


class Box:
    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: Any) -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class Choices:
    n = 3


class Plain:
    """The old gym's interface, and no base class, as Crafter has without gym."""

    observation_space = Box(0, 255, (2, 2, 3), np.uint8)
    action_space = Choices()

    def reset(self) -> Any:
        self.t = 0
        return np.zeros((2, 2, 3), np.uint8)

    def step(self, action: int) -> Any:
        self.t += 1
        done = self.t % 3 == 0
        obs = np.full((2, 2, 3), 10 * self.t + action, np.uint8)
        return obs, float(action), done, {"discount": float(self.t == 3)}


def test_an_object_with_the_old_interface_is_wrapped() -> None:
    program = hinted(Plain())
    names: dict[str, Any] = {"env": Plain(), "everstep": everstep}
    imports, made = program.rsplit("; ", 1)
    exec(imports, names)
    env = eval(made, names)
    env.seed(0)
    assert env.reset().unique().tolist() == [0]
    rows = [env.step(torch.ones(1, 1, dtype=torch.int64)).clone() for _ in range(3)]
    assert [row["obs"].unique().tolist() for row in rows] == [[11], [21], [31]]
    assert [bool(row["truncated"]) for row in rows] == [False, False, True]
    assert not any(row["terminated"] for row in rows)
    assert {float(row["rewards"]) for row in rows} == {1.0}
    env.close()
