"""Servers and clients that end, hang or lie: an error in time, and nothing left behind.

The tests marked `exhaustive` draw as often as the page says: 200 servers and 50 clients.
"""

import fcntl
import gc
import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everstep.errors import AdapterError, CheckpointError, EnvError
from everstep_adapters.bridge import BridgeEnv, client, server

TOYS = "tests.everstep_adapters.bridge.bridge_toys"

#: Seconds in which an error must come, and nothing may be left.
SOON = 5.0


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable's value that all processes started in the test inherit."""
    value = f"everstep-test-{uuid.uuid4().hex}"
    monkeypatch.setenv("EVERSTEP_TEST_MARK", value)
    return value


def left_of(mark: str) -> list[str]:
    """Processes and segments of a test, other than this process."""
    found = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if mark in name]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) == os.getpid() or mark.encode() not in _read(entry / "environ"):
                continue
            found.append(f"{entry.name}: {_read(entry / 'cmdline')!r}")
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
    return found


def _read(path: Path) -> bytes:
    return path.read_bytes()


def assert_nothing_left(mark: str) -> None:
    end = time.monotonic() + SOON
    while left_of(mark):
        assert time.monotonic() < end, left_of(mark)
        time.sleep(0.05)


draws = pytest.mark.parametrize(
    "draws",
    [
        pytest.param(20, marks=pytest.mark.long),
        pytest.param(200, marks=pytest.mark.exhaustive),
    ],
)


@draws
@pytest.mark.parametrize("processes", [1, 2])
def test_servers_killed_at_random_moments_are_errors(draws: int, processes: int, mark: str) -> None:
    """Each is an error within five seconds, while the environment is made, reset or stepped."""
    random = np.random.default_rng(processes)
    for draw in range(draws // processes):
        found: list[int] = []
        start = client.Connection.start

        def started(*args: Any, found: Any = found, start: Any = start) -> Any:
            connection = start(*args)
            found.append(connection.process.pid)
            return connection

        killed: list[float] = []

        def kill(found: Any = found, killed: Any = killed) -> None:
            while len(found) < processes:
                time.sleep(0.001)
            time.sleep(float(random.uniform(0, 0.6)))
            os.kill(found[int(random.integers(processes))], signal.SIGKILL)
            killed.append(time.monotonic())

        thread = threading.Thread(target=kill)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.Connection, "start", started)
            thread.start()
            with pytest.raises(EnvError, match=r"killed by signal 9|ended"):
                _play(
                    BridgeEnv.make(
                        f"{TOYS}:Household", 2, python=sys.executable, processes=processes
                    )
                )
        raised = time.monotonic()
        thread.join()
        assert raised - killed[0] < SOON, draw
        assert_nothing_left(mark)


def _play(env: BridgeEnv) -> None:
    try:
        while True:
            env.reset()
            for _ in range(3):
                env.step(torch.zeros(2, 1, dtype=torch.int64))
    finally:
        env.close()


#: Forks a client a line of its input, as a new interpreter would take seconds to import.
CLIENTS = """
import os, sys
from tests.everstep_adapters.bridge.test_failures import BridgeEnv, TOYS, _play
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        _play(BridgeEnv.make(TOYS + ":Household", 2, python=sys.executable, processes=int(line)))
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    "draws",
    [pytest.param(5, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.exhaustive)],
)
def test_clients_killed_at_random_moments_leave_nothing(draws: int, mark: str) -> None:
    random = np.random.default_rng(0)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLIENTS], **pipes) as clients:
        for draw in range(draws):
            clients.stdin.write(f"{1 + draw % 2}\n")  # type: ignore[union-attr]
            clients.stdin.flush()  # type: ignore[union-attr]
            pid = int(clients.stdout.readline())  # type: ignore[union-attr]
            time.sleep(float(random.uniform(0, 1.0)))
            os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + SOON
            while len(left := left_of(mark)) > 1:  # the one that forks
                assert time.monotonic() < end, left
                time.sleep(0.05)
        clients.stdin.close()  # type: ignore[union-attr]
    assert_nothing_left(mark)


def test_what_an_environment_started_ends_with_it(mark: str) -> None:
    env = BridgeEnv.make(f"{TOYS}:Household", 2, python=sys.executable)
    env.reset()
    assert len(left_of(mark)) >= 4  # two segments; the server and two processes
    env.close()
    assert_nothing_left(mark)


@pytest.mark.parametrize("end", ["close", "server", pytest.param("client", marks=pytest.mark.slow)])
def test_what_left_the_group_of_a_server_ends_with_it(mark: str, end: str) -> None:
    """Closed, or one side killed."""
    if end == "client":
        code = (
            "import os, signal, sys; from everstep_adapters.bridge import BridgeEnv; "
            f"env = BridgeEnv.make('{TOYS}:Estranged', 2, python=sys.executable); env.reset(); "
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
        assert_nothing_left(mark)
        return
    env = BridgeEnv.make(f"{TOYS}:Estranged", 2, python=sys.executable)
    env.reset()
    assert len([x for x in left_of(mark) if "sleep" in x]) == 2
    if end == "server":
        os.kill(env.env._connections[0].process.pid, signal.SIGKILL)
        with pytest.raises(EnvError, match="killed by signal 9"):
            env.step(torch.zeros(2, 1, dtype=torch.int64))
    env.close()
    assert_nothing_left(mark)


def test_a_fork_of_the_client_steps_nothing() -> None:
    env: Any = client.start(sys.executable, f"{TOYS}:Old", 2)
    env.reset()
    pid = os.fork()
    if pid == 0:
        try:
            env.step(np.zeros(2, np.int64))
        except EnvError as error:
            env.close()
            os._exit(0 if f"is that of the process {os.getppid()}" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    obs, *_ = env.step(np.zeros(2, np.int64))
    assert obs[:, 1].tolist() == [1, 1]
    env.close()


def test_a_process_may_have_more_files_than_select_takes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    own, other = socket.socketpair()
    try:
        high = socket.socket(fileno=fcntl.fcntl(own, fcntl.F_DUPFD, 2000))
        found = client.Connection(high, "python", 1.0)
        other.sendall(message(server.DONE, b"{}"))
        assert found.ask(server.RESET) == b"{}"
        with pytest.raises(EnvError, match="did not answer within 1 s"):
            found.ask(server.RESET)
    finally:
        own.close()
        other.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_fork_that_goes_on_does_not_answer(mark: str) -> None:
    env = BridgeEnv.make(f"{TOYS}:Runaway", 2, python=sys.executable)
    env.reset()
    for t in range(1, 4):
        row: Any = env.step(torch.zeros(2, 1, dtype=torch.int64))
        assert row["obs"][:, 1].tolist() == [t, t]
    env.close()
    assert_nothing_left(mark)


@pytest.mark.slow
def test_its_output_is_not_the_clients(mark: str) -> None:
    """A server prints nothing to the output of its client, which may be data."""
    code = (
        "import sys; from everstep_adapters.bridge import BridgeEnv; "
        f"env = BridgeEnv.make('{TOYS}:Old', 1, python=sys.executable, kwargs={{'noise': True}}); "
        "env.reset(); env.step(env.action_spec.rand((1,))); print('42'); env.close()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "42\n"
    assert "a line on standard output" in run.stderr
    assert_nothing_left(mark)


def test_an_interrupted_answer_is_not_the_next_ones() -> None:
    env = BridgeEnv.make(f"{TOYS}:Old", 1, python=sys.executable, kwargs={"hangs_at": 1})
    env.reset()
    main = threading.main_thread().ident
    # A shell lets the programs in its background ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))  # type: ignore[arg-type]
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        env.step(torch.zeros(1, 1, dtype=torch.int64))
    signal.signal(signal.SIGINT, before)
    with pytest.raises(EnvError, match="ended"):
        env.reset()
    env.close()


def test_an_answer_that_nobody_read_is_dropped() -> None:
    env: Any = client.start(sys.executable, f"{TOYS}:Old", 2)
    env.reset(seed=3)
    env.step_async(np.zeros(2, np.int64))
    first, _ = env.reset(seed=3)
    assert first[:, 1].tolist() == [0, 0] or first.flags.c_contiguous
    obs, *_ = env.step(np.zeros(2, np.int64))
    assert obs[:, 1].tolist() == [1, 1]
    env.close()


def test_the_shared_memory_cannot_be_cut_off() -> None:
    """A server that shrinks it would kill the client, which reads it."""
    env: Any = client.start(sys.executable, f"{TOYS}:Shrinks", 1)
    env.reset()
    obs, *_ = env.step(np.zeros(1, np.int64))
    assert obs[:, 0].tolist() == [1]  # it was refused
    env.close()


# ---- messages ---------------------------------------------------------------------------------

#: Bytes of the numbers 1 and 2.
BOUND = "AACAPwAAAEA="

OPENED = json.dumps(
    {
        "num_envs": 2,
        "mode": "SAME_STEP",
        "final": True,
        "resets_rows": True,
        "kind": "x",
        "limit": "y",
        "python": "3.8",
        "packages": {"numpy": "1"},
        "observation": {
            "kind": "Dict",
            "spaces": [
                [
                    "a",
                    {
                        "kind": "Box",
                        "shape": [2],
                        "dtype": "<f4",
                        "low": -1,
                        "high": "AACAPwAAAEA=",
                    },
                ],
                ["b", {"kind": "Tuple", "spaces": [{"kind": "MultiBinary", "shape": [3]}]}],
                ["c", {"kind": "MultiDiscrete", "nvec": [2, 3], "dtype": "<i8"}],
            ],
        },
        "action": {"kind": "Discrete", "n": 2, "start": 0, "dtype": "<i8"},
    }
).encode()

FAILURE = json.dumps(
    {"refused": False, "type": "E", "message": "m", "traceback": "t", "packages": {"numpy": "1"}}
).encode()


def message(kind: int, payload: bytes = b"") -> bytes:
    return server._HEADER.pack(b"EVST", server.PROTOCOL, kind, len(payload)) + payload


def mutated(messages: list[bytes], random: np.random.Generator) -> list[bytes]:
    """The messages, one of which has bytes changed, taken out, repeated or put in."""
    found = list(messages)
    which = int(random.integers(len(found)))
    data = bytearray(found[which])
    for _ in range(int(random.integers(1, 4))):
        at, size = int(random.integers(len(data))), int(random.integers(1, 9))
        change = int(random.integers(5))
        if change < 2:
            data[at] = int(random.integers(256))
        elif change == 2:
            del data[at : at + size]
        elif change == 3:
            data[at:at] = data[at : at + size]
        else:
            data[at:at] = random.bytes(size)
        data = data or bytearray(1)
    if random.integers(2) and len(data) >= server._HEADER.size:  # a header that fits it
        data[8:16] = (len(data) - server._HEADER.size).to_bytes(8, "little")
    found[which] = bytes(data)
    return found


@pytest.fixture
def without_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("something is unpickled")

    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


mutations = pytest.mark.parametrize(
    "number",
    [pytest.param(500, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.exhaustive)],
)


#: Whether messages carry the rows, as those of a server on another machine do.
carrying = pytest.mark.parametrize("carries", [False, True], ids=["shared memory", "messages"])

#: Rows of `OPENED`: observations, rewards, flags, of which one row has a final observation.
RESULT = bytes(54 + 16) + bytes([0, 1, 0, 0, 0, 1]) + bytes(27)


@carrying
@mutations
@pytest.mark.usefixtures("without_pickle")
def test_mutated_answers_of_a_server(number: int, carries: bool) -> None:
    """Each is refused by an error of ours, or is an answer that a server may give."""
    random, refused = np.random.default_rng(0), 0
    infos = {"speed": [1.0, None]}
    frame = b'{"shape": [2, 1, 3]}'
    frame = len(frame).to_bytes(4, "little") + frame + bytes(6)
    answers = [
        message(server.DONE, len(OPENED).to_bytes(4, "little") + OPENED),
        message(server.DONE),
        message(server.DONE, split({}, RESULT) if carries else b""),
        message(server.DONE, split(infos, RESULT) if carries else json.dumps(infos).encode()),
        message(server.DONE, frame),
        message(server.FAILED, FAILURE),
    ]
    assert _ask(answers, carries) == 0
    for _ in range(number):
        refused += _ask(mutated(answers, random), carries)
    print(f"\n{number} mutated, {refused} refused")
    assert refused > number / 3


def connection(own: socket.socket, carries: bool) -> client.Connection:
    found = client.Connection(own, "python", 5.0)
    found.carries = carries
    return found


def _ask(answers: list[bytes], carries: bool) -> int:
    """Whether one of the answers to each kind of message is refused."""
    own, other = socket.socketpair()
    other.sendall(b"".join(answers))
    other.shutdown(socket.SHUT_WR)
    try:
        env = client.opened([connection(own, carries)], "x:y", 2)
        env.reset()
        env.step(np.zeros(2, np.int64))
        assert env.render().dtype == np.uint8
        try:
            env.reset()
        except EnvError as error:
            return int("In python (Python" not in str(error))
        return 1
    except (AdapterError, EnvError):
        return 1
    finally:
        own.close()
        other.close()


@carrying
@mutations
@pytest.mark.usefixtures("without_pickle")
def test_mutated_messages_to_a_server(number: int, carries: bool) -> None:
    """Each gets an answer of the protocol; the server ends in order when its client has."""
    random, refused = np.random.default_rng(1), 0
    messages = [message(kind, json.dumps(body).encode() if body else b"") for kind, body in TALK]
    messages = carried(messages, carries)
    assert serve(messages, carries) == [server.DONE] * 4 + [server.FAILED]  # `Old` renders nothing
    for _ in range(number):
        kinds = serve(mutated(messages, random), carries)
        assert set(kinds) <= {server.DONE, server.FAILED}
        refused += kinds != [server.DONE] * 4 + [server.FAILED]
    print(f"\n{number} mutated, {refused} refused")
    assert refused > number / 3


def carried(messages: list[bytes], carries: bool) -> list[bytes]:
    """The messages as they are to a server on another machine: with the rows, of which two."""
    rows = {server.RESET: b"\1\1", server.STEP: bytes(16)}
    found = []
    for each in messages:
        _, _, kind, _ = server._HEADER.unpack_from(each)
        payload = each[server._HEADER.size :]
        if carries and kind not in (server.CALL, server.RESTORE):
            payload = len(payload).to_bytes(4, "little") + payload + rows.get(kind, b"")
        found.append(message(kind, payload))
    return found


PLACES = {
    "actions": [0],
    "obs": [64],
    "final": [128],
    "rewards": 192,
    "terminated": 256,
    "truncated": 320,
    "has_final": 384,
    "mask": 448,
}
TALK: list[tuple[int, Any]] = [
    (server.OPEN, {"entry": f"{TOYS}:Old", "kwargs": {"limit": 5}, "num_envs": 2}),
    (server.MAP, {"bytes": 512, "layout": PLACES}),
    (server.RESET, {"seed": 3, "options": {}}),
    (server.STEP, None),
    (server.RENDER, None),
]


def serve(messages: list[bytes], carries: bool) -> list[int]:
    """Kinds of a server's answers, which must be well-formed."""
    return [kind for kind, _ in answers_to(messages, carries)]


def answers_to(messages: list[bytes], carries: bool) -> list[tuple[int, bytes]]:
    """Kinds and payloads of a server's answers, which must be well-formed."""
    own, other = socket.socketpair()
    descriptor = os.memfd_create("test")
    os.write(descriptor, b"\0" * 448 + b"\1" * 64)  # all rows are reset
    socket.send_fds(own, [b"".join(messages)], [descriptor])
    os.close(descriptor)
    own.shutdown(socket.SHUT_WR)
    server.serve(server.Channel(other, spinning=0.0, carries=carries))
    other.close()
    answers = b""
    while True:
        try:
            part = own.recv(2**20)
        except ConnectionResetError:  # it did not read all; what it sent comes after this
            continue
        if not part:
            break
        answers += part
    own.close()
    found = []
    while answers:
        magic, protocol, kind, size = server._HEADER.unpack_from(answers)
        assert (magic, protocol) == (b"EVST", server.PROTOCOL)
        payload, answers = answers[16 : 16 + size], answers[16 + size :]
        assert len(payload) == size
        assert not payload or kind == server.DONE or json.loads(payload)["message"]
        found.append((kind, payload))
    return found


# ---- calls and states ---------------------------------------------------------------------------


def split(body: Any, after: bytes = b"") -> bytes:
    text = json.dumps(body).encode()
    return len(text).to_bytes(4, "little") + text + after


def call(method: str, *arguments: Any, **changes: Any) -> bytes:
    arena = server.Arena()
    trees = [arena.encode(x) for x in arguments]
    given = [[name, arena.encode(x)] for name, x in changes.items()]
    body = {"method": method, "args": trees, "set": given, "listen": True, "extras": ["x"]}
    return message(server.CALL, split(body, arena.after))


def state(tree: Any) -> bytes:
    arena = server.Arena()
    arena.is_whole = True
    body = arena.encode(tree)
    return message(server.RESTORE, split(body, arena.after))


def opening(entry: str, **kwargs: Any) -> bytes:
    body = {"entry": entry, "kwargs": kwargs, "num_envs": 2}
    return message(server.OPEN, json.dumps(body).encode())


TASK = opening(
    "tests.everstep_adapters.bridge.numpy_tasks:vec_task", style="A", scripts=[[3], [2, 4]]
)
STATE = {"state": np.zeros(2, np.float32), "t": 2}
STATE["random"] = list(np.random.RandomState(0).get_state())
TALKS = {
    "call": [
        TASK,
        message(server.MAP, json.dumps({"bytes": 512, "layout": {}}).encode()),
        call("step", np.zeros((2, 1)), reset_buf=np.ones(2, np.int64)),
        call("reset_idx", np.array([1])),
        call("seed", 3),
        call("get", "obs_buf"),
        call("compute_observations"),
    ],
    "state": [
        opening(f"{TOYS}:Stateful"),
        message(server.MAP, json.dumps({"bytes": 512, "layout": PLACES}).encode()),
        message(server.RESET, json.dumps({"seed": 3, "options": {}}).encode()),
        message(server.STATE),
        state({"rows": [{"layers": [], "own": STATE}] * 2, "elapsed": [1, 2]}),
        message(server.STEP),
    ],
}

#: Bytes by which a test's process may grow.
GROWTH = 2**28


@pytest.fixture
def bounded() -> Iterator[None]:
    """Memory is bounded, and nothing is left: no file is open that was not."""
    files, before = len(os.listdir("/proc/self/fd")), _resident()
    yield
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files
    assert _resident() - before < GROWTH


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@carrying
@mutations
@pytest.mark.usefixtures("without_pickle", "bounded")
@pytest.mark.parametrize("talk", ["call", "state"])
def test_mutated_calls_and_states_to_a_server(number: int, talk: str, carries: bool) -> None:
    """Each gets an answer of the protocol; what is malformed is refused, without a traceback."""
    random, refused, messages = np.random.default_rng(2), 0, carried(TALKS[talk], carries)
    good = [server.DONE] * len(messages)
    assert serve(messages, carries) == good
    for _ in range(number):
        answers = answers_to(mutated(messages, random), carries)
        for kind, payload in answers:
            assert kind in (server.DONE, server.FAILED)
            if kind == server.FAILED:
                assert_not_ours(json.loads(payload))
        refused += [kind for kind, _ in answers] != good
    print(f"\n{number} mutated, {refused} refused")
    assert refused > number / 3


def assert_not_ours(failure: dict[str, Any]) -> None:
    """It is a refusal, or an error that was raised by what is hosted."""
    files = [x for x in failure["traceback"].splitlines() if x.startswith("  File ")]
    assert failure["refused"] or "server.py" not in files[-1], failure["traceback"]


@carrying
@mutations
@pytest.mark.usefixtures("without_pickle", "bounded")
@pytest.mark.parametrize("talk", ["call", "state"])
def test_mutated_results_of_calls_and_states(number: int, talk: str, carries: bool) -> None:
    """Each is refused by an error of ours, or is an answer that a server may give."""
    random, refused = np.random.default_rng(3), 0
    messages = carried(TALKS[talk], carries)
    if carries and talk == "call":
        del messages[1]  # a client shares no memory of calls then
    answers = [message(kind, payload) for kind, payload in answers_to(messages, carries)]
    assert _hear(answers, talk, carries) == 0
    for _ in range(number):
        refused += _hear(mutated(answers, random), talk, carries)
    print(f"\n{number} mutated, {refused} refused")
    assert refused > number / 3


def _hear(answers: list[bytes], talk: str, carries: bool) -> int:
    """Whether an answer to a talk is refused."""
    own, other = socket.socketpair()
    other.sendall(b"".join(answers))
    other.shutdown(socket.SHUT_WR)
    try:
        env: Any = client.opened([connection(own, carries)], "x:y", 2)
        if talk == "call":
            names = ("step", "reset_idx", "compute_observations")
            if not all(hasattr(env, name) for name in names):  # it says that it has none
                return 1
            env.step(torch.zeros(2, 1))
            env.reset_idx(torch.tensor([1]))
            env.seed(3)
            assert len(env.obs_buf) >= 0
            env.compute_observations()
            return 0
        env.reset()
        if not hasattr(env, "state_dict"):  # it says that it has none
            return 1
        found = env.state_dict()
        env.load_state_dict(found)
        env.step(np.zeros(2, np.int64))
        return 0
    except (AdapterError, EnvError, CheckpointError):
        return 1
    finally:
        own.close()
        other.close()


def test_an_array_without_elements_crosses_without_shared_memory() -> None:
    arena = server.Arena()
    tree = arena.encode({"ids": np.zeros((0, 3), np.int64), "obs": np.ones(2)})
    found = server.decoded(tree, b"", arena.after, np.array)
    assert found["ids"].shape == (0, 3)
    assert found["obs"].tolist() == [1, 1]
