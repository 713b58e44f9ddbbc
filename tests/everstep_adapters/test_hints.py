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
