"""Ids that a library registers in Gymnasium when it is imported."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest

import everstep
from everstep.errors import AdapterError


@pytest.fixture
def minigrid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of this name, which registers an environment when it is imported."""
    text = """
import gymnasium
gymnasium.register("MiniGrid-Toy-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
"""
    (tmp_path / "minigrid.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "minigrid", raising=False)
    yield
    gymnasium.registry.pop("MiniGrid-Toy-v0", None)
    sys.modules.pop("minigrid", None)


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize("spec", ["gymnasium:MiniGrid-Toy-v0", "MiniGrid-Toy-v0"])
def test_an_id_of_a_known_module_is_made_as_the_error_says(spec: str) -> None:
    with pytest.raises(AdapterError) as error:
        everstep.make(spec, 1)
    found = re.search(r"'(gymnasium:minigrid:[^']+)'", str(error.value))
    assert found, error.value
    assert "pip install" not in str(error.value)
    with everstep.make(found[1], 2) as env:
        assert env.reset().shape == (2, 4)


@pytest.mark.parametrize(
    ("id", "module"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("BabyAI-GoToObj-v0", "minigrid"),
        ("highway-fast-v0", "highway_env"),
        ("PandaReach-v3", "panda_gym"),
        ("FetchPickAndPlaceDense-v4", "gymnasium_robotics"),
        ("AntMaze_UMaze-v5", "gymnasium_robotics"),
    ],
)
def test_the_module_of_an_id_that_is_not_installed(
    id: str, module: str, hide: Callable[[str], None]
) -> None:
    hide(module)
    with pytest.raises(AdapterError, match=f"pip install {module}, and write .*:{module}:{id}"):
        everstep.make(f"gymnasium:{id}", 1)
    with pytest.raises(AdapterError, match=f"pip install {module}$"):
        everstep.make(f"gymnasium:{module}:{id}", 1)


def test_no_module_is_named_for_other_ids() -> None:
    with pytest.raises(AdapterError) as error:
        everstep.make("gymnasium:Grid-v0", 1)
    assert "pip install" not in str(error.value)
