"""A sample of the sweep over Gymnasium's registry, and its page."""

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

from everstep_adapters import GymnasiumEnv

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "evidence" / "gymnasium_registry.md"

pytestmark = [
    # Python 3.12 and JAX warn of forks in a process that has threads, which `AsyncVectorEnv` does.
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*SwigPy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*swigvarlink:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    path = ROOT / "examples" / "adapters" / "gymnasium_registry.py"
    spec = importlib.util.spec_from_file_location("gymnasium_registry_sweep", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "column", "library"),
    [
        ("CartPole-v1", "default", "gymnasium"),
        ("Blackjack-v1", "sync SAME_STEP", "gymnasium"),
        pytest.param("FrozenLake-v1", "async NEXT_STEP", "gymnasium", marks=pytest.mark.slow),
        ("InvertedPendulum-v5", "sync DISABLED", "mujoco"),
        ("LunarLanderContinuous-v3", "sync NEXT_STEP", "Box2D"),
    ],
)
def test_a_sample_of_the_registry_obeys_the_rules(
    name: str, column: str, library: str, sweep: ModuleType
) -> None:
    pytest.importorskip(library)
    [way] = [way for way in sweep.ways(name) if way.column == column]
    assert sweep.fault(name, way, 40) == ""


def test_what_cannot_be_made_is_refused_with_a_reason(sweep: ModuleType) -> None:
    assert "mujoco" in sweep.refusal("Reacher-v2")
    assert "shimmy" in sweep.refusal("GymV21Environment-v0").lower()
    assert sweep.refusal("CartPole-v1") == ""


def test_what_is_wrong_is_numbered_and_explained(sweep: ModuleType) -> None:
    ways = {way.column: "" for way in sweep.ways("A-v0")}
    broken = ways | {"sync SAME_STEP": "one|thing", "async DISABLED": "another"}
    kinds = {"observation": "Box [1] float32", "action": "Discrete(2)"}
    text = sweep.page(
        {
            "A-v0": {**kinds, "ways": ways},
            "B-v0": {**kinds, "ways": broken},
            "C-v0": {"refused": "no way"},
        },
        2000,
    )
    assert "| `A-v0` | Box [1] float32 | Discrete(2) | ✓ | ✓ ✓ ✓ | ✓ ✓ ✓ |" in text
    assert "| `B-v0` | Box [1] float32 | Discrete(2) | ✓ | ✓ (1) ✓ | ✓ ✓ (2) |" in text
    assert "1. one\\|thing\n2. another\n" in text
    assert "| `C-v0` | no way |" in text


def test_the_page_names_every_environment() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if f"Gymnasium {version('gymnasium')}," not in text:
        pytest.skip("the page was written with another version of Gymnasium")
    named = set(re.findall(r"`([\w/]+-v\d+)`", text))
    own = {
        name
        for name, spec in gymnasium.registry.items()
        if "gymnasium.envs" in str(spec.entry_point) or "_raise_" in str(spec.entry_point)
    }
    assert own <= named


def test_the_limit_of_minigrids_environments_is_known() -> None:
    minigrid = pytest.importorskip("minigrid.wrappers")
    make = lambda: minigrid.ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))  # noqa: E731
    assert GymnasiumEnv(SyncVectorEnv([make])).max_episode_steps == 100
