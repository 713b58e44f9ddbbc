"""Environments of a server that listens, as one on another machine does; here it is this one."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep.errors import AdapterError, EnvError
from everstep_adapters.bridge import BridgeEnv, server
from everstep_adapters.isaacgym import IsaacGymEnv
from tests.everstep_adapters.bridge import numpy_tasks
from tests.everstep_adapters.bridge.test_bridge import (
    TOYS,
    assert_alike,
    assert_continues,
    gone,
    is_running,
)
from tests.everstep_adapters.bridge.test_tasks import SCRIPTS, TASKS
from tests.everstep_adapters.bridge.test_tasks import assert_alike as assert_tasks_alike


class Listening:
    """A server that listens, its address, and its key file."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        self.process = subprocess.Popen(
            [sys.executable, server.__file__, "--listen", "127.0.0.1:0", "--key", str(self.key)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self.said("listening on").split()[-1]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def said(self, begin: str) -> str:
        """The next line that begins so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(begin):
                return line.strip()
        raise AssertionError(f"the server has ended without {begin!r}")

    @property
    def options(self) -> dict[str, Any]:
        return {"server": self.address, "key": self.key}

    def connect(self) -> socket.socket:
        return socket.create_connection(server.address_of(self.address), 10)

    def clients(self) -> list[int]:
        """Processes that serve a client."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split() if is_running(int(pid))]


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    found = Listening(tmp_path_factory.mktemp("server"))
    yield found
    found.close()


def actions(env: Any) -> torch.Tensor:
    return torch.zeros(env.num_envs, 1, dtype=torch.int64)


# ---- rows -------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("entry", "options"),
    [
        ("gymnasium:CartPole-v1", {}),
        (f"{TOYS}:mixed", {}),
        (f"{TOYS}:OldVector", {}),
        (f"{TOYS}:gymnasium_vector", {"kwargs": {"mode": "NEXT_STEP"}}),
        (f"{TOYS}:gymnasium_vector", {"kwargs": {"mode": "SAME_STEP"}}),
    ],
)
def test_rows_are_those_of_shared_memory(
    listening: Listening, entry: str, options: Any, processes: int
) -> None:
    """Observations, final observations, infos, seeds and resets, bit for bit."""
    here = BridgeEnv.make(entry, 5, python=sys.executable, processes=processes, **options)
    there = BridgeEnv.make(entry, 5, processes=processes, **listening.options, **options)
    with here as own, there as env:
        assert_alike(env, own, steps=120)


def test_several_servers_share_the_rows(listening: Listening) -> None:
    addresses = [listening.address] * 3
    with (
        BridgeEnv.make("gymnasium:CartPole-v1", 7, python=sys.executable) as own,
        BridgeEnv.make("gymnasium:CartPole-v1", 7, server=addresses, key=listening.key) as env,
    ):
        assert len(env.env._connections) == 3
        assert_alike(env, own)


def test_states_cross(listening: Listening) -> None:
    assert_continues(lambda: BridgeEnv.make(f"{TOYS}:Stateful", 3, **listening.options))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["A", "legged"])
def test_tasks_are_those_in_process(listening: Listening, style: str) -> None:
    given = SCRIPTS["both"]
    own = IsaacGymEnv(numpy_tasks.torch_task(len(given), style, given))
    kwargs = {"scripts": given, "style": style}
    with BridgeEnv.make(
        f"{TASKS}:torch_task", len(given), kwargs=kwargs, **listening.options
    ) as env:
        assert_tasks_alike(env, own)


@pytest.mark.slow
def test_a_large_batch_crosses(listening: Listening) -> None:
    """Messages of megabytes, and batches that no message can hold are refused before a step."""
    kwargs = {"shape": [64, 64, 3]}
    with BridgeEnv.make(f"{TOYS}:picture", 300, kwargs=kwargs, **listening.options) as env:
        first: Any = env.reset()
        assert first.shape[0] == 300
        for k in range(1, 4):
            obs: Any = env.step(actions(env))["obs"]
            assert (obs == k).all()
    with pytest.raises(AdapterError, match="a message can have at most 268,435,456"):
        BridgeEnv.make(
            f"{TOYS}:picture", 300, kwargs={"shape": [1024, 1024, 1]}, **listening.options
        )


@pytest.mark.slow
def test_it_trains_from_a_name_and_goes_on(listening: Listening, tmp_path: Path) -> None:
    kwargs = {"server": listening.address, "key": str(listening.key)}
    options: dict[str, Any] = {"num_envs": 4, "horizon": 8, "track": False, "progress": False}
    name, run_dir = "bridge:gymnasium:CartPole-v1", tmp_path / "run"
    with everstep.Trainer(name, env_kwargs=kwargs, run_dir=run_dir, **options) as trainer:
        trainer.run(total_env_steps=64)
    trainer.algorithm.env.close()
    text = (run_dir / "config.yaml").read_text()
    assert listening.key.read_text().strip() not in text
    with everstep.Trainer.load(run_dir, track=False) as trainer:
        trainer.run(additional_env_steps=32)
    trainer.algorithm.env.close()
    assert trainer.state["env/steps"] == 96


# ---- who may --------------------------------------------------------------------------------


def test_only_who_has_the_key_is_served(listening: Listening, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not the key of this server")
    other.chmod(0o600)
    for _ in range(2):
        with pytest.raises(AdapterError, match="its key may be another one"):
            BridgeEnv.make("gymnasium:CartPole-v1", 2, server=listening.address, key=other)
    with BridgeEnv.make("gymnasium:CartPole-v1", 2, **listening.options) as env:
        env.reset()


def test_a_server_without_the_key_learns_nothing(tmp_path: Path) -> None:
    """One that repeats what the client sends, and one that sends anything."""
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    key.chmod(0o600)
    greeting = b"EVST\x01\x00" + bytes(32)
    for answer in (greeting + bytes(32), b"HTTP/1.1 200 OK\r\n" + bytes(100), greeting[:20]):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            script = (
                "import socket,sys;s=socket.socket(fileno=int(sys.argv[1]));c,_=s.accept();"
                "c.sendall(bytes.fromhex(sys.argv[2]));c.shutdown(1);c.recv(1000);c.recv(1000)"
            )
            command = [sys.executable, "-c", script, str(listener.fileno()), answer.hex()]
            process = subprocess.Popen(command, pass_fds=[listener.fileno()])
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(AdapterError, match=r"cannot be used: (the other|what answers)"):
                BridgeEnv.make("gymnasium:CartPole-v1", 2, server=address, key=key)
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (None, 0o600, "cannot be read"),
        ("short", 0o600, "has 5 bytes; it must have 16 or more"),
        ("0123456789abcdef", 0o640, "others may read the key"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, content: None | str, mode: int, says: str) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content)
        key.chmod(mode)
    with pytest.raises(AdapterError, match=says):
        BridgeEnv.make("gymnasium:CartPole-v1", 2, server="127.0.0.1:9", key=key)
    if content is not None:
        command = [sys.executable, server.__file__, "--listen", "127.0.0.1:0", "--key", str(key)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1
        assert says in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"server": "127.0.0.1:9"}, "`server` and `key`"),
        ({"python": sys.executable, "key": "key"}, "`server` and `key`"),
        ({"server": "127.0.0.1:9", "key": "key", "python": "python"}, "give one"),
        ({"server": [], "key": "key"}, "needs `python`"),
    ],
)
def test_options_that_exclude_each_other(options: Any, says: str) -> None:
    with pytest.raises(AdapterError, match=says):
        BridgeEnv.make("gymnasium:CartPole-v1", 2, **options)


@pytest.mark.parametrize("address", ["localhost", ":7000", "host:port", "host:70000"])
def test_addresses_that_are_refused(listening: Listening, address: str) -> None:
    with pytest.raises(AdapterError, match="must be written HOST:PORT"):
        BridgeEnv.make("gymnasium:CartPole-v1", 2, server=address, key=listening.key)


@pytest.mark.slow
def test_strangers_that_say_nothing_keep_nobody_out(listening: Listening) -> None:
    silent = [listening.connect() for _ in range(5)]
    garbage = listening.connect()
    garbage.sendall(np.random.default_rng(0).bytes(10_000))
    with BridgeEnv.make("gymnasium:CartPole-v1", 2, **listening.options) as env:
        env.reset()
    listening.said("turned away 127.0.0.1")
    for each in (*silent, garbage):
        each.close()
    end = time.monotonic() + 10
    while listening.clients():
        assert time.monotonic() < end
        time.sleep(0.1)


def trickle(connection: socket.socket, seconds: float) -> None:
    """Send the greeting of an end of a bridge byte by byte, and whatever after it."""
    with connection, suppress(OSError):  # the other end closes
        for byte in b"EVST\x01\x00" + bytes(64):
            connection.sendall(bytes([byte]))
            time.sleep(seconds)


@pytest.mark.parametrize("is_server", [False, True])
def test_bytes_that_come_one_by_one_prolong_nothing(
    monkeypatch: pytest.MonkeyPatch, is_server: bool
) -> None:
    monkeypatch.setattr(server, "PROVING", 0.3)
    own, other = socket.socketpair()
    begun = time.monotonic()
    with ThreadPoolExecutor() as pool, own:
        pool.submit(trickle, other, 0.05)  # 3.5 s
        with pytest.raises(
            server.Refused, match=r"has not shown within 0\.3 s that it has the key"
        ):
            server.authenticate(own, b"0123456789abcdef", is_server=is_server)
        assert time.monotonic() - begun < 1.5
        own.close()


@pytest.mark.slow
def test_a_client_and_a_listener_wait_for_a_trickle_no_longer(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        pool.submit(trickle, listening.connect(), 1.0)
        pool.submit(lambda: trickle(listener.accept()[0], 0.05))
        monkeypatch.setattr(server, "PROVING", 0.3)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(AdapterError, match=r"cannot be used: .* within 0\.3 s"):
            BridgeEnv.make("gymnasium:CartPole-v1", 2, server=address, key=listening.key)
        listening.said("turned away 127.0.0.1: the other end has not shown within 10 s")


@pytest.mark.slow
def test_more_clients_than_it_may_have_are_turned_away(tmp_path: Path) -> None:
    found = Listening(tmp_path)
    silent = [found.connect() for _ in range(server.MOST_CLIENTS)]
    end = time.monotonic() + 30
    while len(found.clients()) < server.MOST_CLIENTS and time.monotonic() < end - 22:
        time.sleep(0.1)
    with pytest.raises(AdapterError, match=r"cannot be used"):
        BridgeEnv.make("gymnasium:CartPole-v1", 2, **found.options)
    for each in silent:
        each.close()
    found.close()


# ---- ends -------------------------------------------------------------------------------------


def serving(listening: Listening, env: Any) -> int:
    """The process that serves an environment, the only one."""
    env.reset()
    end = time.monotonic() + 5
    while len(listening.clients()) > 1 and time.monotonic() < end:
        time.sleep(0.1)  # those of earlier tests end
    [pid] = listening.clients()
    return pid


def test_nothing_is_left_when_an_environment_is_closed(listening: Listening) -> None:
    with BridgeEnv.make("gymnasium:CartPole-v1", 2, **listening.options) as env:
        pid = serving(listening, env)
    assert gone(pid)


@pytest.mark.slow
def test_a_server_that_is_killed_or_hangs_is_an_error(listening: Listening) -> None:
    with BridgeEnv.make("gymnasium:CartPole-v1", 2, **listening.options) as env:
        os.kill(serving(listening, env), signal.SIGKILL)
        with pytest.raises(EnvError, match="its connection was closed"):
            env.step(actions(env))
    hanging = {"kwargs": {"hangs_at": 1}, "step_timeout": 1.0}
    with BridgeEnv.make(f"{TOYS}:Old", 2, **hanging, **listening.options) as env:
        pid = serving(listening, env)
        with pytest.raises(EnvError, match="did not answer within 1 s"):
            env.step(actions(env))
        assert gone(pid, within=8)  # although it computes


@pytest.mark.slow
def test_nothing_is_left_when_the_listener_or_the_client_is_killed(tmp_path: Path) -> None:
    found = Listening(tmp_path)
    script = (
        "import sys, time\n"
        "from everstep_adapters.bridge import BridgeEnv\n"
        f"env = BridgeEnv.make('gymnasium:CartPole-v1', 2, server={found.address!r}, "
        f"key={str(found.key)!r})\n"
        "env.reset(); print('ready', flush=True); time.sleep(100)"
    )
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    [pid] = found.clients()
    client.kill()
    client.communicate()
    assert gone(pid, within=8)
    with BridgeEnv.make("gymnasium:CartPole-v1", 2, **found.options) as env:
        pid = serving(found, env)
        found.close()
        assert gone(pid, within=8)
        with pytest.raises(EnvError):
            env.step(actions(env))


# ---- what it sends ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", [-1, 1])
def test_a_result_of_another_size_is_refused(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    with BridgeEnv.make("gymnasium:CartPole-v1", 2, **listening.options) as env:
        env.reset()
        [each] = env.env._connections
        split = each.split

        def other(payload: bytes) -> Any:
            found, data = split(payload)
            return found, data[:change] if change < 0 else data + b"x"

        monkeypatch.setattr(each, "split", other)
        with pytest.raises(EnvError, match="sent no result"):
            env.step(actions(env))
