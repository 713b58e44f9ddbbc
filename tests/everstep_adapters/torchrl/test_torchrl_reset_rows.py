"""Single rows of TorchRL environments are reset between env steps, as those are that have ended."""

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, TransformedEnv

from everstep import AlgorithmConfig
from everstep.errors import ConfigError, EnvError
from everstep.testing import EnvConformance
from everstep_adapters.torchrl import TorchRLEnv
from tests.toys import BOTH, TERMINATED, obs_of

from .torchrl_toys import SCRIPTS, ScriptedEnv, SelfResetting, Team, flag_spec, zeros

MIXED = SCRIPTS["mixed"]


def one(i: int) -> ScriptedEnv:
    return ScriptedEnv([MIXED[i]], [], first_row=i)


def serial() -> SerialEnv:
    return SerialEnv(4, [partial(one, i) for i in range(4)])


class Duo(EnvBase):
    """Two agents, of which the first waits from the second env step of an episode of four on."""

    def __init__(self) -> None:
        super().__init__(batch_size=[])
        group = {"observation": Unbounded((2, 1))}
        self.observation_spec = Composite(agents=Composite(group, shape=(2,)))
        action = Composite({"action": Categorical(3, shape=torch.Size([2]))}, shape=(2,))
        self.action_spec = Composite(agents=action)
        reward = Composite({"reward": Unbounded((2, 1))}, shape=(2,))
        self.reward_spec = Composite(agents=reward)
        flags = ("done", "terminated")
        own = Composite({flag: flag_spec(2) for flag in flags}, shape=(2,))
        self.full_done_spec = Composite({flag: flag_spec() for flag in flags}, agents=own)
        self.t = 0

    def _set_seed(self, seed: None | int) -> None: ...

    def _reset(self, tensordict: None | TensorDictBase = None, **_: Any) -> TensorDictBase:
        self.t = 0
        return TensorDict({"agents": TensorDict({"observation": torch.zeros(2, 1)}, [2])}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.t += 1
        dead, done = torch.tensor([[self.t >= 2], [False]]), torch.tensor([self.t == 4])
        own = {"observation": torch.full((2, 1), float(self.t)), "reward": torch.ones(2, 1)}
        agents = TensorDict({**own, "done": dead, "terminated": dead.clone()}, [2])
        return TensorDict({"agents": agents, "done": done, "terminated": done.clone()}, [])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("options", [{}, {"max_episode_steps": 3}, {"time_limit": 3}])
def test_rows_go_on_from_where_they_are(options: dict[str, int], seed: int) -> None:
    """Beside episodes and env steps that are counted here."""
    env, generator = TorchRLEnv(serial(), **options), torch.Generator().manual_seed(seed)
    assert env.resets_rows
    episodes, elapsed = [0] * 4, [0] * 4
    env.reset()
    for _ in range(40):
        rows = torch.rand(4, 1, generator=generator) < 0.2
        if rows.any():
            obs: Any = env.reset_rows(rows)
            for i in rows.flatten().nonzero().flatten().tolist():
                episodes[i], elapsed[i] = episodes[i] + 1, 0
                assert obs[i].tolist() == obs_of(i, episodes[i], 0)
        row, limit = env.step(zeros(env)), options.get("max_episode_steps")
        for i, script in enumerate(MIXED):
            elapsed[i] += 1
            end = script[episodes[i] % len(script)]
            ends, is_cut = elapsed[i] == end.length, elapsed[i] == limit
            assert row["final_obs"][i].tolist() == obs_of(i, episodes[i], elapsed[i])
            assert bool(row["terminated"][i] | row["truncated"][i]) == (ends or is_cut)
            if "time_limit" in options:
                assert bool(row["truncated"][i]) == (ends and elapsed[i] >= 3)
            elif ends:
                assert bool(row["terminated"][i]) == (end.end in (TERMINATED, BOTH))
            if ends or is_cut:
                episodes[i], elapsed[i] = episodes[i] + 1, 0
            assert row["obs"][i].tolist() == obs_of(i, episodes[i], elapsed[i])
    env.close()


def test_agents_of_an_environment_begin_together() -> None:
    env = TorchRLEnv(SerialEnv(2, Duo))
    env.reset()
    valid = [env.step(zeros(env))["valid"].flatten().tolist() for _ in range(3)]
    assert valid == [[True] * 4, [True] * 4, [False, True] * 2]  # the first ones wait
    with pytest.raises(EnvError, match=r"has 2 in each: `rows` has some of them only"):
        env.reset_rows(torch.tensor([[True], [False], [False], [False]]))
    env.reset_rows(torch.tensor([[True], [True], [False], [False]]))
    row = env.step(zeros(env))
    assert row["valid"].flatten().tolist() == [True, True, False, True]
    assert row["obs"].flatten().tolist() == [1, 1, 0, 0]
    assert row["first"].flatten().tolist() == [False, False, True, True]


def test_a_reset_comes_before() -> None:
    env = TorchRLEnv(serial())
    with pytest.raises(EnvError, match="must be reset before"):
        env.reset_rows(torch.ones(4, 1, dtype=torch.bool))


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_others_than_single_environments_say_that_they_cannot() -> None:
    """They may reset all rows, or none, and would not say so."""
    made: list[Any] = [
        ScriptedEnv(MIXED),
        Team([[1, 2], [2, 1]], [3, 3]),
        SerialEnv(2, lambda: ScriptedEnv(MIXED)),
        TransformedEnv(SelfResetting(MIXED)),
        ParallelEnv(2, [partial(one, i) for i in range(2)], mp_start_method="fork"),
    ]
    for each in made:
        env = TorchRLEnv(each)
        assert not env.resets_rows, each
        with pytest.raises(ConfigError, match=r"`staggered_resets` has no effect: TorchRLEnv .*"):
            AlgorithmConfig(staggered_resets=True, horizons_per_env_reset="restarts").build(env)
        env.close()


def test_a_training_staggers_its_resets() -> None:
    env = TorchRLEnv(SerialEnv(4, lambda: GymEnv("Pendulum-v1")), max_episode_steps=40)
    algorithm: Any = AlgorithmConfig(horizon=10, num_sgd_iters=1, seed=0).build(env)
    assert algorithm.hparams.staggered_resets
    found = []
    for _ in range(8):
        stats = algorithm.collect()
        algorithm.step()
        found.append((stats["env/resets"], stats.get("episodes/count", 0)))
    assert found == [(4, 0), (1, 0), (1, 0), (1, 1), (0, 1), (0, 1), (0, 1), (0, 1)]


class TestSerialEnvsConform(EnvConformance):
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        made = SerialEnv(num_envs, lambda: GymEnv("CartPole-v1"))
        return TorchRLEnv(made, horizon, device=device, max_episode_steps=15)
