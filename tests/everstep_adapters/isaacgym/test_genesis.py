"""Genesis' own locomotion example, as its users hold it: rows beside those that it returned.

pip install genesis-world
git clone https://github.com/Genesis-Embodied-AI/Genesis
EVERSTEP_GENESIS=Genesis python -m pytest -m long tests/everstep_adapters/isaacgym/test_genesis.py
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep import Trainer

gs = pytest.importorskip("genesis")

EXAMPLES = Path(os.environ.get("EVERSTEP_GENESIS", "")) / "examples" / "locomotion"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="set EVERSTEP_GENESIS to a checkout"),
]

NUM_ENVS = 32


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    """The example's `Go2Env` with its training's settings, but episodes of half a second."""
    gs.init(backend=gs.cpu, logging_level="error")
    # Later versions refuse this option of the viewer, which is off.
    text = (EXAMPLES / "go2_env.py").read_text()
    module: dict[str, Any] = {}
    exec("\n".join(x for x in text.splitlines() if "max_FPS" not in x), module)
    # The rest of the file imports rsl_rl.
    tree = ast.parse((EXAMPLES / "go2_train.py").read_text())
    function = next(x for x in tree.body if getattr(x, "name", "") == "get_cfgs")
    exec(compile(ast.Module([function], []), "go2_train.py", "exec"), module)
    settings = module["get_cfgs"]()
    settings[0]["episode_length_s"] = 0.5
    yield module["Go2Env"](NUM_ENVS, *settings)
    gs.destroy()


def test_rows_are_those_that_the_environment_returned(
    env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    step = env.step

    def recorded(action: torch.Tensor) -> Any:
        obs, rewards, ended, extras = step(action)
        late = extras["time_outs"].bool().clone()
        seen.append((action.clone(), obs["policy"].clone(), rewards.clone(), ended.clone(), late))
        return obs, rewards, ended, extras

    monkeypatch.setattr(env, "step", recorded)
    wrapped = everstep.wrap(env)
    wrapped.reset()
    terminated = truncated = 0
    for i in range(120):
        action = (0.3 if i < 60 else 3.0) * torch.randn(NUM_ENVS, 12)  # it falls over later
        row = wrapped.step(action)
        sent, obs, rewards, ended, late = seen[-1]
        assert torch.equal(sent, action)
        assert torch.equal(row["obs"], obs)
        assert torch.equal(row["rewards"][:, 0], rewards)
        assert torch.equal(row["first"][:, 0], ended)
        assert torch.equal(row["truncated"][:, 0], ended & late)
        assert torch.equal(row["terminated"][:, 0], ended & ~late)
        terminated, truncated = (
            terminated + row["terminated"].sum(),
            truncated + row["truncated"].sum(),
        )
    assert terminated > 50
    assert truncated > 50


def test_it_is_trained(env: Any) -> None:
    with Trainer(env, run_dir=None, horizon=24) as trainer:
        trainer.run(total_env_steps=2 * 24 * NUM_ENVS)
        assert trainer.state["algorithm/steps"] == 2
