"""Making, seeding, resetting and closing TorchRL environments, and their failures."""

import os
import signal
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    Unbounded,
)
from torchrl.envs import (
    ParallelEnv,
    PendulumEnv,
    SerialEnv,
)

import everstep
from everstep.errors import AdapterError, EnvError
from everstep.testing import EnvConformance
from everstep_adapters import TorchRLEnv
from tests.everstep_adapters.torchrl.torchrl_toys import SCRIPTS, ScriptedEnv, observing, zeros
from tests.toys import TERMINATED, Episode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]


def test_environments_are_found_without_importing_torchrl() -> None:
    assert TorchRLEnv.matches(PendulumEnv())
    assert not TorchRLEnv.matches(object())
    with pytest.raises(AdapterError, match=r"must be a `torchrl.envs.EnvBase`; got Dummy"):
        TorchRLEnv(type("Dummy", (), {})())


def test_environments_are_made_by_name() -> None:
    gym = everstep.make("torchrl:CartPole-v1", 3, horizon=5)
    assert (type(gym.env), gym.num_envs, gym.horizon) == (SerialEnv, 3, 5)
    assert gym.episode_keys == {"terminated", "truncated", "first", "final_obs"}
    batched = everstep.make("torchrl:tests.everstep_adapters.torchrl.torchrl_toys:InPlace", 4)
    assert batched.env.batch_size == (4,)
    dotted = everstep.make("torchrl:torchrl.envs.PendulumEnv", 2, max_episode_steps=7)
    assert dotted.num_envs == 2
    assert "7 env steps" in dotted.describe()["limit"]
    options = {"parallel": True, "vector_kwargs": {"mp_start_method": "fork"}}
    processes = everstep.make("torchrl:Pendulum-v1", 2, **options)
    assert isinstance(processes.env, ParallelEnv)
    processes.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nonsense-v3", "TorchRL cannot make 'Nonsense-v3'"),
        ("no_such_module:Env", "no class that can be imported.*CartPole-v1"),
        ("torchrl.envs:NoSuchEnv", "no class that can be imported"),
        ("torchrl.data:Composite", "no class of `torchrl.envs.EnvBase`"),
    ],
)
def test_names_that_lead_nowhere_are_errors(name: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        everstep.make(f"torchrl:{name}", 2)


def test_stateless_environments_have_as_many_rows_as_asked_for() -> None:
    env = TorchRLEnv(PendulumEnv(), num_envs=5, observation_keys=["th", "thdot"])
    assert env.num_envs == 5
    env.seed(3)
    first = env.reset()
    assert first["th"].unique().numel() == 5
    again = TorchRLEnv(PendulumEnv(), num_envs=5, observation_keys=["th", "thdot"])
    again.seed(3)
    assert torch.equal(first["th"], again.reset()["th"])
    for _ in range(4):
        row = env.step(zeros(env))
    assert row["obs"]["th"].shape == (5, 1)
    assert not (row["terminated"] | row["truncated"] | row["first"]).any()


def test_a_config_is_what_reset_is_called_with() -> None:
    env = TorchRLEnv(observing(seen=Unbounded((2, 1))))
    config = {"options": {"gravity": 3.0}}
    env.reset(config=config)
    env.reset()
    assert env.env.resets == [{"options": {"gravity": 3.0}}, {}]


def test_a_seed_is_the_environments() -> None:
    env = TorchRLEnv(observing(seen=Unbounded((2, 1))))
    env.seed(11)
    assert env.env.seeded == 11


def test_steps_need_a_reset() -> None:
    env = TorchRLEnv(observing(seen=Unbounded((2, 1))))
    with pytest.raises(EnvError, match="must be reset before it is stepped"):
        env.step(zeros(env))


class Failing(ScriptedEnv):
    def _step(self, tensordict: Any) -> Any:
        if self.elapsed[0] == 2:
            raise ZeroDivisionError("no mass")
        return super()._step(tensordict)


def test_what_an_environment_raises_is_an_error_that_names_it() -> None:
    env = TorchRLEnv(Failing([[Episode(9, TERMINATED)]]))
    env.reset()
    env.step(zeros(env))
    env.step(zeros(env))
    with pytest.raises(EnvError, match=r"Failing failed in `step.*ZeroDivisionError: no mass"):
        env.step(zeros(env))
    with pytest.raises(EnvError, match="must be reset"):
        env.step(zeros(env))
    assert env.reset().tolist() == [[0.0, 1.0, 0.0]]


def test_what_an_environment_does_not_return_is_told() -> None:
    env = TorchRLEnv(observing(seen=Unbounded((2, 1)), values={}))
    env.env._observe = lambda: TensorDict({}, [2])
    with pytest.raises(EnvError, match="did not return `seen`"):
        env.reset()
    env = TorchRLEnv(observing(seen=Unbounded((2, 3)), values={"seen": torch.zeros(2, 4)}))
    with pytest.raises(EnvError, match=r"`seen` with shape \(2, 4\); its spec says \(2, 3\)"):
        env.reset()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("name", "message"),
    [("SIGKILL", "worker 1 dead|worker 1"), ("SIGSTOP", "`step_timeout` is 0.5 s; pass more")],
)
def test_processes_that_die_or_hang_are_errors_and_all_end(name: str, message: str) -> None:
    scripts = SCRIPTS["mixed"]
    makers = [partial(ScriptedEnv, [scripts[i]], [], first_row=i) for i in range(2)]
    env = TorchRLEnv(ParallelEnv(2, makers, mp_start_method="fork"), step_timeout=0.5)
    env.reset()
    env.step(zeros(env))
    workers = list(env.env._workers)
    os.kill(workers[1].pid, getattr(signal, name))
    with pytest.raises(EnvError, match=rf"ParallelEnv failed.*({message}).*"):
        env.step(zeros(env))
    with pytest.raises(EnvError, match="was closed after"):
        env.reset()
    env.close()
    assert not any(process._closed is False and process.is_alive() for process in workers)


# The rules of the protocol.


class TestGymEnvsConform(EnvConformance):
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        return everstep.make("torchrl:CartPole-v1", num_envs, horizon=horizon, device=device)


class TestScriptedEnvsConform(EnvConformance):
    episodes_end = True

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        scripts = [SCRIPTS["mixed"][i % 4] for i in range(num_envs)]
        return TorchRLEnv(ScriptedEnv(scripts), horizon, device=device)


class TestStatelessEnvsConform(EnvConformance):
    episodes_end = False

    def make_env(self, num_envs: int, horizon: int, device: Any) -> Any:
        options = {"num_envs": num_envs, "observation_keys": ["th", "thdot"]}
        return TorchRLEnv(PendulumEnv(), horizon, device=device, **options)
