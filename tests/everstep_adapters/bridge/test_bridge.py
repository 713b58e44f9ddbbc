"""Environments in another Python; here that is the tests' own, in another process.

`test_pythons.py` has those of other versions.
"""

import gc
import io
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

import everstep
from everstep.errors import AdapterError, CheckpointError, ConfigError, EnvError
from everstep.testing import run_checks
from everstep.trainers._resuming import resume
from everstep_adapters.bridge import BridgeEnv, client, server
from everstep_adapters.gymnasium import GymnasiumEnv
from everstep_adapters.gymnasium.rows import fitting
from tests.everstep_adapters.bridge import bridge_toys

TOYS = "tests.everstep_adapters.bridge.bridge_toys"


@contextmanager
def bridge(entry: str, num_envs: int = 3, **options: Any) -> Iterator[BridgeEnv]:
    env = BridgeEnv.make(entry, num_envs, python=sys.executable, **options)
    try:
        yield env
    finally:
        env.close()


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, TensorDict):
        assert set(one.keys()) == set(other.keys())
        for key in sorted(one.keys()):
            assert_equal(one[key], other[key])
        return
    assert one.dtype == other.dtype
    assert torch.equal(one, other)


def assert_alike(bridged: Any, own: Any, steps: int = 60) -> None:
    """Rollouts with the same seeds and actions are equal, bit for bit."""
    for env in (bridged, own):
        env.seed(11)
    assert bridged.episode_keys == own.episode_keys
    assert str(bridged.observation_spec) == str(own.observation_spec)
    assert_equal(bridged.reset(), own.reset())
    torch.manual_seed(0)
    for _ in range(steps):
        action = own.action_spec.rand(torch.Size([own.num_envs]))
        assert_equal(bridged.step(action), own.step(action))
    assert bridged.metrics() == own.metrics()


@pytest.mark.few(1)
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_copies_are_as_in_process(id: str) -> None:
    own = GymnasiumEnv(
        SyncVectorEnv([lambda: gymnasium.make(id)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    )
    with bridge(f"gymnasium:{id}") as env:
        assert_alike(env, own, steps=250)
    own.close()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_vector_environments_keep_their_mode(mode: str) -> None:
    own = GymnasiumEnv(bridge_toys.gymnasium_vector(3, mode))
    with bridge(f"{TOYS}:gymnasium_vector", kwargs={"mode": mode}) as env:
        assert env.autoreset_mode.name == mode
        assert_alike(env, own, steps=120)
    own.close()


def test_every_space_crosses_and_memory_that_a_reset_overwrites_is_right() -> None:
    with bridge(f"{TOYS}:mixed") as env:
        env.seed(11)
        obs: Any = env.reset()
        oracle = [bridge_toys.mixed() for _ in range(3)]
        rows = [one.reset(seed=11 + i)[0] for i, one in enumerate(oracle)]
        for _ in range(40):
            for i, row in enumerate(rows):
                assert np.array_equal(obs["image"][i].permute(1, 2, 0).numpy(), row["image"]) or (
                    np.array_equal(obs["image"][i].numpy(), row["image"])
                )
                assert obs["state"][i].tolist() == np.float32(row["state"]).tolist()
                assert int(obs["parts"]["0"][i]) == row["parts"][0] - 2
                assert obs["many"][i].tolist() == row["many"].tolist()
            action = env.action_spec.rand(torch.Size([3]))
            returned = env.step(action)
            for i, one in enumerate(oracle):
                final, reward, terminated, truncated, _ = one.step(action[i].numpy())
                final = {**final, "state": final["state"].copy()}
                assert float(returned["rewards"][i]) == np.float32(reward)
                assert bool(returned["terminated"][i]) == terminated
                assert bool(returned["truncated"][i]) == truncated
                known = returned["final_obs"]["state"][i].tolist()
                if terminated or truncated:
                    assert known == np.float32(final["state"]).tolist()
                    rows[i] = one.reset()[0]
                else:
                    rows[i] = final
            obs = returned["obs"].clone()


@pytest.mark.few(1)
@pytest.mark.parametrize("entry", ["gymnasium:CartPole-v1", f"{TOYS}:mixed", f"{TOYS}:OldVector"])
def test_several_servers_share_the_rows(entry: str) -> None:
    """Seeds, resets, infos and final observations are those of one server."""
    with bridge(entry, 5, processes=2) as env, bridge(entry, 5) as own:
        assert len(env.env._connections) == 2
        assert_alike(env, own, steps=60)


def test_servers_without_a_row_are_refused() -> None:
    with pytest.raises(AdapterError, match="`processes` must be between 1 and `num_envs`"):
        BridgeEnv.make("gymnasium:CartPole-v1", 2, python=sys.executable, processes=3)


def test_infos_are_metrics() -> None:
    with bridge(f"{TOYS}:mixed") as env:
        env.reset()
        env.step(env.action_spec.rand(torch.Size([3])))
        assert env.metrics() == {"speed": 1.0, "deep/x": 2.0}


def test_gyms_old_interface_tells_time_outs_from_ends() -> None:
    with bridge(f"{TOYS}:Old", 2) as env:
        env.seed(3)
        first = env.reset()
        assert first[:, 0].tolist() == [
            np.float32(np.random.RandomState(3 + i).rand()) for i in range(2)
        ]
        ends = []
        for _ in range(5):
            row = env.step(torch.tensor([[0], [1]]))
            ends.append((row["terminated"].flatten().tolist(), row["truncated"].flatten().tolist()))
        assert ends[2] == ([False, True], [False, False])
        assert ends[4] == ([False, False], [True, False])
        assert row["final_obs"][0, 1] == 5
        assert row["obs"][0, 1] == row["obs"][0, 0]  # the array that `step` and `reset` share


@pytest.mark.parametrize("terminal", [True, False])
def test_old_vector_environments(terminal: bool) -> None:
    with bridge(f"{TOYS}:OldVector", 2, kwargs={"terminal": terminal}) as env:
        env.reset()
        for _ in range(5):
            row = env.step(torch.tensor([[0], [0]]))
        assert row["truncated"].all()
        found = row["final_obs"][:, 1]
        assert found.tolist() == [5, 5] if terminal else bool(found.isnan().all())


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "entry",
    [f"{TOYS}:mixed", "gymnasium:CartPole-v1", f"{TOYS}:Old", f"{TOYS}:OldVector"],
)
def test_it_obeys_the_protocol(entry: str) -> None:
    def make(num_envs: int, horizon: None | int = None, device: Any = "cpu") -> BridgeEnv:
        options: Any = {"horizon": horizon, "device": device}
        return BridgeEnv.make(entry, num_envs, python=sys.executable, **options)

    broken = [str(result) for result in run_checks(make) if result.status == "failed"]
    assert broken == []


@pytest.mark.parametrize(
    ("entry", "options", "limit"),
    [
        ("gymnasium:CartPole-v1", {}, 500),
        ("gymnasium:CartPole-v1", {"processes": 2}, 500),
        (f"{TOYS}:mixed", {}, None),
    ],
)
def test_the_limit_of_episodes_crosses(entry: str, options: Any, limit: None | int) -> None:
    with bridge(entry, **options) as env:
        assert env.max_episode_steps == limit


def test_the_limit_of_the_adapter_resets_single_rows() -> None:
    with bridge("gymnasium:CartPole-v1", 2, max_episode_steps=4) as env:
        env.reset()
        for _ in range(4):
            row = env.step(torch.zeros(2, 1, dtype=torch.int64))
        assert row["truncated"].all()
        assert not torch.equal(row["obs"], row["final_obs"])


@pytest.mark.slow
def test_it_trains_from_a_name(tmp_path: Path) -> None:
    factory = everstep.factory(
        "bridge:gymnasium:CartPole-v1", env_kwargs={"python": sys.executable}
    )
    with everstep.Trainer(
        factory, seed=0, num_envs=4, horizon=16, run_dir=tmp_path / "r"
    ) as trainer:
        trainer.run(total_env_steps=128)
    assert (tmp_path / "r" / "policy").exists()


@pytest.mark.slow
def test_a_run_goes_on_when_its_interpreter_has_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.symlink_to(sys.prefix)
    python = [str(x / "bin" / "python") for x in (before, after)]
    options: dict[str, Any] = {"num_envs": 2, "horizon": 8, "track": False, "progress": False}
    name, run_dir = "bridge:gymnasium:CartPole-v1", tmp_path / "run"
    kwargs = {"python": python[0]}
    with everstep.Trainer(name, env_kwargs=kwargs, run_dir=run_dir, **options) as trainer:
        trainer.run(total_env_steps=32)
    trainer.algorithm.env.close()
    before.rename(after)
    with pytest.raises(ConfigError, match="cannot be started"):
        everstep.Trainer.load(run_dir, track=False)
    with pytest.raises(ConfigError, match="cannot change in a run that is resumed"):
        resume(run_dir, [f"env_kwargs.python={python[1]}", "env_kwargs.gravity=3"])
    with resume(run_dir, [f"env_kwargs.python={python[1]}"], track=False) as trainer:
        trainer.run(additional_env_steps=16)
        assert trainer.state["env/steps"] == 48
    trainer.algorithm.env.close()


def assert_continues(make: Any, spec_steps: int = 13) -> None:
    """A second environment continues from the first one's state as the first one does."""
    with make() as env, make() as other:
        env.seed(3)
        env.reset()
        other.reset()
        actions = [env.action_spec.rand(torch.Size([env.num_envs])) for _ in range(spec_steps)]
        for action in actions[:6]:
            env.step(action)
        buffer = io.BytesIO()
        torch.save(env.state_dict(), buffer)  # as a checkpoint has it
        rows = [env.step(action).clone() for action in actions[6:]]
        buffer.seek(0)
        other.load_state_dict(torch.load(buffer, weights_only=True))
        for row, action in zip(rows, actions[6:], strict=True):
            assert_equal(other.step(action), row)


@pytest.mark.few(1)
@pytest.mark.parametrize("entry", ["Stateful", "limited"])
@pytest.mark.parametrize("processes", [1, 2])
def test_the_state_of_environments_that_offer_it_crosses(entry: str, processes: int) -> None:
    kwargs = {"python": sys.executable, "processes": processes}
    assert_continues(lambda: BridgeEnv.make(f"{TOYS}:{entry}", 3, **kwargs))


def test_a_state_that_does_not_fit_is_refused() -> None:
    with bridge(f"{TOYS}:Stateful", 2) as env, bridge(f"{TOYS}:Stateful", 3) as other:
        env.reset()
        other.reset()
        with pytest.raises(CheckpointError):
            other.load_state_dict(env.state_dict())
    with bridge(f"{TOYS}:Old", 2) as env:
        assert env.state_dict() is None


# ---- refusals and failures --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "options", "says"),
    [
        ("gymnasium:NoSuch-v0", {}, "NoSuch"),
        ("no_such_library:x", {}, "-m pip install no_such_library"),
        (f"{TOYS}:absent", {}, "has no absent"),
        (f"{TOYS}:nothing", {}, "which is no environment"),
        (f"{TOYS}:same", {}, "same environment"),
        (f"{TOYS}:odd_space", {}, "no arrays of a fixed shape"),
        ("CartPole-v1", {}, "library:name"),
        (f"{TOYS}:Old", {"kwargs": {"limit": {1, 2}}}, "cross as JSON"),
        *[
            (f"{TOYS}:Old", {"step_timeout": value}, "`step_timeout` of BridgeEnv: expected")
            for value in (0.0, -1, float("nan"), "5", True)
        ],
        *[
            (f"{TOYS}:Old", {"processes": value}, "`processes` of BridgeEnv: expected")
            for value in (0, 1.5, "2", None)
        ],
        (f"{TOYS}:Old", {"kwargs": [1]}, "`kwargs` of BridgeEnv: expected a mapping"),
        (f"{TOYS}:Old", {"python": 3}, "`python` of BridgeEnv: expected"),
    ],
)
def test_refusals_say_why(entry: str, options: Any, says: str) -> None:
    with pytest.raises((AdapterError, EnvError), match=says):
        BridgeEnv.make(entry, 2, **{"python": sys.executable, **options})


def test_the_interpreter_is_needed_and_must_start(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="needs `python`"):
        BridgeEnv.make("gymnasium:CartPole-v1", 1)
    with pytest.raises(AdapterError, match="must be an interpreter"):
        BridgeEnv.make("gymnasium:CartPole-v1", 1, python=tmp_path / "python")
    with pytest.raises(EnvError, match=r"exit status 1.*everstep doctor --python /bin/false"):
        BridgeEnv.make("gymnasium:CartPole-v1", 1, python="/bin/false")


def test_a_path_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "with a space").symlink_to(sys.prefix)
    python = "~/with a space/bin/python"
    assert BridgeEnv.examine(python)["numpy"]
    with BridgeEnv.make(f"{TOYS}:Old", 1, python=python) as env:
        env.reset()


def test_a_server_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STARTING", 1.5)
    with pytest.raises(EnvError, match=r"did not answer within 1\.5 s"):
        BridgeEnv.make(f"{TOYS}:sleeps", 1, python=sys.executable, step_timeout=0.5)


def test_a_wrong_shape_is_named() -> None:
    with bridge(f"{TOYS}:wrong_shape") as env, pytest.raises(AdapterError, match=r"\[3\].*\[2\]"):
        env.reset()


def test_an_error_has_the_servers_traceback_and_versions() -> None:
    with bridge(f"{TOYS}:Old", kwargs={"fails_at": 2}) as env:
        env.reset()
        env.step(torch.zeros(3, 1, dtype=torch.int64))
        with pytest.raises(EnvError) as caught:
            env.step(torch.zeros(3, 1, dtype=torch.int64))
        text = str(caught.value)
        assert "ZeroDivisionError: the physics exploded" in text
        assert "bridge_toys.py" in text
        assert f"numpy {np.__version__}" in text
        env.reset()  # the server goes on


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not is_running(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [({"dies_at": 2}, "exit status 7"), ({"hangs_at": 2}, "did not answer within 1 s")],
)
def test_a_server_that_dies_or_hangs_is_named(kwargs: Any, says: str) -> None:
    with bridge(f"{TOYS}:Old", kwargs=kwargs, step_timeout=1.0) as env:
        pid = env.env._connections[0].process.pid
        env.reset()
        env.step(torch.zeros(3, 1, dtype=torch.int64))
        with pytest.raises(EnvError, match=says):
            env.step(torch.zeros(3, 1, dtype=torch.int64))
        assert gone(pid)
        with pytest.raises(EnvError):
            env.step(torch.zeros(3, 1, dtype=torch.int64))


def test_a_server_that_prints_and_forks_harms_nothing(capfd: Any) -> None:
    with bridge(f"{TOYS}:Old", 2, kwargs={"noise": True}) as env:
        env.reset()
        for _ in range(4):
            row = env.step(torch.zeros(2, 1, dtype=torch.int64))
        assert row["obs"][:, 1].tolist() == [4, 4]
    assert "a line on standard output" in capfd.readouterr().err


def test_a_killed_server_is_an_error_although_a_fork_holds_its_socket() -> None:
    with bridge(f"{TOYS}:Old", 1, kwargs={"noise": True}) as env:
        env.reset()
        env.step(torch.zeros(1, 1, dtype=torch.int64))
        os.kill(env.env._connections[0].process.pid, signal.SIGKILL)
        with pytest.raises(EnvError, match="killed by signal 9"):
            env.step(torch.zeros(1, 1, dtype=torch.int64))


@pytest.mark.slow
def test_nothing_is_left_when_the_environment_is_forgotten() -> None:
    env = BridgeEnv.make(f"{TOYS}:Old", 1, python=sys.executable)
    pid = env.env._connections[0].process.pid
    del env
    gc.collect()
    assert gone(pid)


@pytest.mark.slow
def test_nothing_is_left_when_the_client_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from everstep_adapters.bridge import BridgeEnv; "
        f"env = BridgeEnv.make({TOYS + ':Old'!r}, 1, python=sys.executable, "
        "kwargs={'hangs_at': 1}); env.reset(); "
        "print(env.env._connections[0].process.pid, flush=True); "
        "env.env.step_async([0]); time.sleep(1000)"
    )
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    assert gone(pid)
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(10))
def test_a_server_killed_at_a_random_moment_is_an_error(victim: int) -> None:
    random = np.random.default_rng(victim)
    env = BridgeEnv.make(f"{TOYS}:Old", 2, python=sys.executable)
    pid = env.env._connections[0].process.pid
    moment = time.monotonic() + random.uniform(0, 0.05)
    env.reset()

    def play() -> None:
        nonlocal moment
        while True:
            if time.monotonic() > moment:
                os.kill(pid, signal.SIGKILL)
                moment = float("inf")
            env.step(torch.zeros(2, 1, dtype=torch.int64))

    with pytest.raises(EnvError):
        play()
    assert gone(pid)
    env.close()


# ---- a hostile server -------------------------------------------------------------------------

FAKE = """
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[2]))
answers = {answers!r}
for answer in answers:
    if not s.recv(65536):
        break
    s.sendall(answer)
s.recv(65536)
"""


def opening(payload: bytes) -> bytes:
    """A description of an environment as a server sends it: with the size of its JSON before it."""
    return len(payload).to_bytes(4, "little") + payload


def message(kind: int, payload: bytes, magic: bytes = b"EVST", protocol: int = 1) -> bytes:
    return server._HEADER.pack(magic, protocol, kind, len(payload)) + payload


def fake(tmp_path: Path, answers: list[bytes]) -> str:
    """An interpreter that answers with these bytes, whatever it is asked."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE.replace("argv[2]", "argv[1]").format(answers=answers))
    run = tmp_path / "python"
    run.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$3"\n')
    run.chmod(0o755)
    return str(run)


GOOD = (
    b'{"num_envs": 1, "mode": "SAME_STEP", "final": true, "resets_rows": true, "kind": "x", '
    b'"limit": "y", "python": "3.8", "packages": {}, '
    b'"observation": {"kind": "Box", "shape": [2], "dtype": "<f4", "low": -1, "high": 1}, '
    b'"action": {"kind": "Discrete", "n": 2, "start": 0, "dtype": "<i8"}}'
)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        message(server.DONE, opening(GOOD), protocol=2),
        message(server.DONE, opening(GOOD), magic=b"EVIL"),
        server._HEADER.pack(b"EVST", 1, server.DONE, 2**60),
        message(server.OPEN, GOOD),
        message(server.DONE, b"[1, 2]"),
        message(server.DONE, b"[" * 100_000),
        message(server.DONE, opening(GOOD.replace(b"[2]", b"[4294967296, 4]"))),
        message(server.DONE, opening(GOOD.replace(b"[2]", b"[-1]"))),
        message(server.DONE, opening(GOOD.replace(b"<f4", b"|O"))),
        message(server.DONE, opening(GOOD.replace(b'"num_envs": 1', b'"num_envs": 7'))),
        message(server.DONE, opening(GOOD.replace(b"SAME_STEP", b"NO_STEP"))),
        message(server.DONE, opening(GOOD.replace(b'"n": 2', b'"n": -2'))),
        message(server.DONE, b'{"observation": ' + b'{"kind": "Tuple", "spaces": [' * 500),
        message(server.FAILED, b'{"refused": 3, "packages": 4}'),
    ],
)
def test_a_hostile_answer_is_refused(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises((AdapterError, EnvError)):
        client.start(fake(tmp_path, [answer]), "x:y", 1, step_timeout=10)


@pytest.mark.slow
def test_mutated_answers_are_refused_or_harmless(tmp_path: Path) -> None:
    """Any change of any byte of the answers gives an `EverstepError`, or an environment."""
    random = np.random.default_rng(0)
    opened, done = message(server.DONE, opening(GOOD)), message(server.DONE, b"")
    for _ in range(40):
        answers = [bytearray(opened), bytearray(done), bytearray(done), bytearray(done)]
        for _ in range(int(random.integers(1, 4))):
            one = answers[int(random.integers(len(answers)))]
            one[int(random.integers(len(one)))] = int(random.integers(256))
        try:
            env = client.start(
                fake(tmp_path, [bytes(x) for x in answers]), "x:y", 1, step_timeout=1
            )
        except (AdapterError, EnvError):
            continue
        try:
            env.reset()
            env.step(np.zeros(1, np.int64))
        except (AdapterError, EnvError):
            pass
        finally:
            env.close()


def test_bounds_of_arrays_cross_as_bytes() -> None:
    box = gymnasium.spaces.Box(np.array([0.0, -5]), np.array([np.inf, 5]), dtype=np.float64)
    from everstep_adapters.bridge.specs import space_from

    assert space_from(server.space_of(box)) == box
    assert struct.calcsize("<4sHHQ") == server._HEADER.size


# ---- what an environment returns --------------------------------------------------------------

DTYPES = [*"?bhilBHILefdFSO"]


@pytest.mark.few(20)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("dtype", [*"?bhilBHILefd"])
@pytest.mark.parametrize("own", DTYPES)
def test_numbers_of_another_dtype_are_those_or_refused_as_in_process(dtype: str, own: str) -> None:
    """NumPy's assignment would wrap, truncate or parse them in silence."""
    random = np.random.default_rng(ord(dtype) * 128 + ord(own))
    for scale in (1, 2, 200, 70_000):
        values = random.integers(-scale * random.integers(2), scale, 5).astype(own)
        try:
            expected: Any = fitting(values, np.dtype(dtype), "obs")
        except EnvError:
            with pytest.raises(server.Refused, match=r"the observation has .* its space"):
                server._fitting(values, (5,), np.dtype(dtype), ())
            continue
        out = np.empty(5, dtype)
        out[...] = server._fitting(values, (5,), np.dtype(dtype), ())
        assert np.array_equal(out, expected)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("np.array([300, 0])", r"values from 0 to 300, .* uint8"),
        ("np.array([0.5, 0])", r"the dtype float64, .* uint8"),
        ("[0.5, 0.5]", r"the dtype float64, .* uint8"),
        ("np.array(['1', '2'])", r"the dtype <U1, .* uint8"),
        ("None", r"the shape \[\]"),
    ],
)
def test_an_observation_that_its_space_has_not_is_refused(expression: str, says: str) -> None:
    with bridge(f"{TOYS}:odd", 1, dtype="uint8", obs=expression) as env:
        env.reset()
        with pytest.raises(AdapterError, match=says):
            env.step(torch.zeros(1, 1, dtype=torch.int64))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("value", [None, "3", 1j, [1.0, None], {}])
def test_rewards_that_are_no_numbers_are_named(value: Any, count: int) -> None:
    rewards: Any = server._rewards  # type: ignore[attr-defined]
    assert rewards([[x] for x in range(count)], count).tolist() == [*range(count)]
    with pytest.raises(ValueError, match="`reward` must be"):
        rewards([value] * count, count)


def test_a_reward_is_one_number() -> None:
    for value, expected in ((2, 2), (np.float16(1.5), 1.5), (np.array([1.5]), 1.5), (True, 1)):
        assert server._reward(value) == expected  # type: ignore[attr-defined]
    with bridge(f"{TOYS}:odd", 1, reward="None") as env:
        env.reset()
        with pytest.raises(EnvError, match="`reward` must be one number; got None"):
            env.step(torch.zeros(1, 1, dtype=torch.int64))


def test_names_and_arrays_of_infos_are_those_in_process() -> None:
    info = "{'x': 1.0, '_x': 2.0, '_y': 3, 'z': np.array([4.0]), 'w': np.zeros(2), 5: 6}"
    own = GymnasiumEnv(
        SyncVectorEnv(
            [lambda: bridge_toys.odd(info=info)] * 2, autoreset_mode=AutoresetMode.SAME_STEP
        )
    )
    with bridge(f"{TOYS}:odd", 2, info=info) as env:
        for each in (env, own):
            each.reset()
            each.step(torch.zeros(2, 1, dtype=torch.int64))
        assert env.metrics() == own.metrics() == {"x": 1.0, "z": 4.0}
    assert server._columns([{"x": 1.0, "_x": 2.0}], 1) == {"x": [1.0]}  # type: ignore[attr-defined]


def test_a_seed_of_numpy_is_one() -> None:
    with bridge("gymnasium:CartPole-v1", 2) as env:
        env.seed(np.int64(3))  # type: ignore[arg-type]
        first: Any = env.reset()
        first = first.clone()
        env.seed(3)
        assert torch.equal(env.reset(), first)  # type: ignore[arg-type]
        env.env.reset(seed=0)
        with pytest.raises(AdapterError, match=r"it must be 0 or more, and less than 2\*\*63"):
            env.env.reset(seed=2**63)


def test_a_dtype_that_cannot_cross_is_refused() -> None:
    with pytest.raises(AdapterError, match="a Box of the dtype float128 cannot cross"):
        BridgeEnv.make(f"{TOYS}:odd", 1, python=sys.executable, dtype="longdouble")


def test_the_arguments_of_the_server_are_not_those_of_the_environment() -> None:
    with bridge(f"{TOYS}:parses", 1) as env:
        env.reset()


def test_an_environment_that_exits_is_an_error_with_its_traceback() -> None:
    with pytest.raises(EnvError, match=r"SystemExit: no licence for the simulator[\s\S]*leaves"):
        BridgeEnv.make(f"{TOYS}:leaves", 1, python=sys.executable)
    for expression, says in (("sys.exit(3)", "SystemExit: 3"), ("1 / 0", "ZeroDivisionError")):
        with bridge(f"{TOYS}:odd", 1, step=expression) as env:
            env.reset()
            with pytest.raises(EnvError, match=says):
                env.step(torch.zeros(1, 1, dtype=torch.int64))
            env.reset()  # the server goes on


class _Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "says"),
    [(_Textless(), "its text cannot be had"), (ValueError("x" * 2**20), "x" * 100)],
)
def test_any_error_is_one_message(error: Exception, says: str) -> None:
    try:
        raise error
    except Exception as caught:
        failure: Any = server._failure(caught)  # type: ignore[attr-defined]
    assert says in failure["message"]
    assert "Traceback" in failure["traceback"] or len(failure["traceback"]) == server.LONGEST
    assert len(str(failure)) < 3 * server.LONGEST


@pytest.mark.parametrize("version", ["0.9.4", "0.21.0", "0.24.1", "0.26.2"])
def test_old_gym_has_the_render_mode_in_render(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Videos are of environments that are made with `render_mode`, which gym 0.25 introduced."""
    is_new = version == "0.26.2"

    class Rendering(bridge_toys.Old):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__()
            assert kwargs == ({"render_mode": "rgb_array"} if is_new else {})

        def render(self, *, mode: str) -> Any:
            assert mode == "rgb_array"
            return np.zeros((2, 3, 3), np.uint8)

    gym: Any = ModuleType("gym")
    gym.make, gym.__version__ = lambda name, **kwargs: Rendering(**kwargs), version
    monkeypatch.setitem(sys.modules, "gym", gym)
    host = server.host_of("gym:X-v0", {"render_mode": "rgb_array"}, 1)  # type: ignore[no-untyped-call]
    assert host.render().shape == (2, 3, 3)


def test_an_environment_that_renders_no_frame_is_named() -> None:
    with bridge("gymnasium:CartPole-v1", 1) as env:
        env.reset()
        with pytest.raises(AdapterError, match="make it with render_mode='rgb_array'"):
            env.env.render()


def test_flags_that_are_neither_true_nor_false_are_named() -> None:
    flags: Any = server._flags  # type: ignore[attr-defined]
    for value in (True, np.bool_(True), 1, 1.0, [True], np.ones(1)):
        assert flags(value, "done") is True
    assert flags([0, True, np.bool_(False)], "done", 3).tolist() == [False, True, False]
    for value, count in ((None, None), ("False", None), (0.3, None), ([], None), ([True], 3)):
        with pytest.raises(ValueError, match="`done` must be True or False; got "):
            flags(value, "done", count)
    with bridge(f"{TOYS}:without_flags", 1) as env:
        env.reset()
        with pytest.raises(EnvError, match="`terminated` must be True or False; got None"):
            env.step(torch.zeros(1, 1, dtype=torch.int64))
