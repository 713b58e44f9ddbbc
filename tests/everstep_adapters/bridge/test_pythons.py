"""Environments of real libraries in other Pythons.

`EVERSTEP_BRIDGE_ENVS` names a folder of virtual environments, which `.ci/bridge` makes.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import everstep
from everstep.testing import run_checks
from everstep_adapters.bridge import BridgeEnv
from everstep_adapters.gymnasium import GymnasiumEnv
from tests.everstep_adapters.bridge.test_bridge import assert_continues, assert_equal

TOYS = "tests.everstep_adapters.bridge.bridge_toys"
ROOT = Path(__file__).parents[3]


def python(name: str) -> str:
    folder = os.environ.get("EVERSTEP_BRIDGE_ENVS", "")
    path = Path(folder) / name / "bin" / "python"
    if not folder or not path.exists():
        pytest.skip(f"needs the virtual environment {name} of `.ci/bridge`")
    return str(path)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("py36", "gym:CartPole-v1"),  # gym 0.17
        ("py37", f"{TOYS}:stable_baselines"),
        ("py38", "gym:CartPole-v1"),  # gym 0.21
        ("py38", "gym:Pendulum-v1"),
        ("py38", "procgen:coinrun"),
        ("py39", "gym:CartPole-v1"),  # gym 0.26
        ("py313", "gymnasium:CartPole-v1"),
    ],
)
def test_it_obeys_the_protocol(name: str, entry: str) -> None:
    interpreter = python(name)

    def make(num_envs: int, horizon: None | int = None, device: Any = "cpu") -> BridgeEnv:
        return BridgeEnv.make(entry, num_envs, python=interpreter, horizon=horizon, device=device)

    results = run_checks(make)
    assert [str(x.violation) for x in results if x.status == "failed"] == []


@pytest.mark.parametrize("name", ["py38", "py39"])
def test_cartpole_is_gymnasiums_bit_for_bit_but_for_the_start(name: str) -> None:
    """The physics are the same; from the same state and actions, so are all results."""
    import gymnasium

    with BridgeEnv.make("gym:CartPole-v1", 1, python=python(name)) as env:
        env.seed(1)
        own: Any = gymnasium.make("CartPole-v1")
        own.reset(seed=0)
        obs = env.reset()
        own.unwrapped.state = np.array(obs[0].tolist(), np.float64)
        for t in range(30):
            row = env.step(torch.tensor([t % 2]).view(env.num_envs, *env.action_spec.shape))
            expected, reward, terminated, _, _ = own.step(t % 2)
            assert np.allclose(row["final_obs"][0].numpy(), expected, atol=1e-6)
            assert float(row["rewards"]) == reward
            assert bool(row["terminated"]) == terminated
            if terminated:
                break


def test_a_newer_gymnasium_is_as_in_process() -> None:
    """CartPole's and its seeds' code is the same in both versions."""
    import gymnasium

    own = GymnasiumEnv(
        SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP
        )
    )
    with BridgeEnv.make("gymnasium:CartPole-v1", 3, python=python("py313")) as env:
        for each in (env, own):
            each.seed(5)
        assert_equal(env.reset(), own.reset())
        torch.manual_seed(0)
        for _ in range(200):
            action = own.action_spec.rand(torch.Size([3]))
            assert_equal(env.step(action), own.step(action))
    own.close()


#: Steps the environment where it is, and keeps what it returns.
ALONE = """
import sys
import numpy as np
from tests.everstep_adapters.bridge.bridge_toys import stable_baselines
env = stable_baselines(3)
env.seed(5)
obs, rows = [env.reset()], []
for t in range(200):
    found, rewards, done, infos = env.step(np.array([t % 2, t // 2 % 2, t % 3 % 2]))
    late = [bool(x.get("TimeLimit.truncated")) for x in infos]
    final = [x.get("terminal_observation", found[i]) for i, x in enumerate(infos)]
    obs.append(found)
    rows.append(np.stack([rewards, done & ~np.array(late), done & late]))
    rows[-1] = np.concatenate([rows[-1].T, np.stack(final)], 1)
np.savez(sys.argv[1], obs=np.stack(obs), rows=np.stack(rows))
"""


def test_stable_baselines_vec_env_is_as_in_its_own_process(tmp_path: Path) -> None:
    interpreter = python("py37")
    file = tmp_path / "rows.npz"
    subprocess.run([interpreter, "-W", "ignore", "-c", ALONE, str(file)], check=True, cwd=ROOT)
    own = np.load(file)
    with BridgeEnv.make(f"{TOYS}:stable_baselines", 3, python=interpreter) as env:
        assert "DummyVecEnv" in env.describe()["environment"]
        env.seed(5)
        assert np.array_equal(env.reset().numpy(), own["obs"][0])
        ends = 0
        for t in range(200):
            row: Any = env.step(torch.tensor([[t % 2], [t // 2 % 2], [t % 3 % 2]]))
            flags = torch.cat([row["rewards"], row["terminated"], row["truncated"]], 1)
            final = row["final_obs"]
            assert np.array_equal(row["obs"].numpy(), own["obs"][t + 1])
            assert np.array_equal(flags.numpy(), own["rows"][t][:, :3])
            ended = (row["terminated"] | row["truncated"]).flatten().numpy()
            assert np.array_equal(final.numpy()[ended], own["rows"][t][ended][:, 3:])
            ends += int(ended.sum())
        assert ends > 10


def test_procgens_seed_decides_its_levels() -> None:
    interpreter = python("py38")

    def frames(seed: int) -> torch.Tensor:
        with BridgeEnv.make("procgen:coinrun", 2, python=interpreter) as env:
            env.seed(seed)
            first: Any = env.reset()
            again: Any = env.step(torch.zeros(2, *env.action_spec.shape, dtype=torch.int64))
            return torch.stack([first["rgb"].clone(), again["obs"]["rgb"].clone()])

    assert torch.equal(frames(1), frames(1))
    assert not torch.equal(frames(1), frames(2))


def test_procgen_continues_from_its_state() -> None:
    interpreter = python("py38")
    assert_continues(lambda: BridgeEnv.make("procgen:coinrun", 2, python=interpreter))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "entry"), [("py36", "gym:CartPole-v1"), ("py38", "procgen:coinrun")]
)
def test_they_train(name: str, entry: str) -> None:
    factory = everstep.factory(f"bridge:{entry}", env_kwargs={"python": python(name)})
    with everstep.Trainer(factory, seed=0, num_envs=4, horizon=16, run_dir=None) as trainer:
        trainer.run(total_env_steps=128)
        assert trainer.state["env/steps"] >= 128


@pytest.mark.learning
def test_cartpole_of_gym_is_learned() -> None:
    factory = everstep.factory("bridge:gym:CartPole-v1", env_kwargs={"python": python("py38")})
    with everstep.Trainer(factory, seed=0, run_dir=None) as trainer:
        stats = trainer.run(total_env_steps=100_000)
    assert stats["episodes/return_mean_100"] >= 475
