"""Saved states: exact, crash-safe, and harmless to load whatever is in the file."""

import copy
import io
import json
import math
import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from everstep.core.checkpoints import check_state, load_file, load_state, save_file, save_state
from everstep.errors import CheckpointError

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and resource limits")

SCALARS = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**64, -(10**5000)],
    "floats": [0.1 + 0.2, -0.0, 5e-324, sys.float_info.max, math.inf, -math.inf],
    "texts": ["", "ünï\n\0", "\ud800", "$"],
    "keys": {"$": 1, 3: "three", -(2**70): {}, "3": "text"},
    "tags": [{"$": 1}, {"$": "tensor", "index": 0}, {"$": "tuple", "items": []}],
    "nested": ({"a": [(), [[]], {}]}, (1, (2.0,))),
}
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def directory_round_trip(state, path):
    save_state(path, state)
    return load_state(path)


def file_round_trip(state, path):
    save_file(path, state)
    return load_file(path)


round_trips = pytest.mark.parametrize("round_trip", [directory_round_trip, file_round_trip])


def same(a, b):
    """True where two states are equal in structure, type and every bit."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and raw(a) == raw(b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b) if isinstance(a, float) else a == b


def raw(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def random_tensor(dtype, shape):
    content = torch.randint(0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize))
    return content.to(torch.uint8).view(dtype).reshape(shape)


@round_trips
def test_scalars_and_structure_come_back_exactly(round_trip, tmp_path):
    state = copy.deepcopy(SCALARS)
    assert same(round_trip(state, tmp_path / "state"), SCALARS)
    assert same(state, SCALARS)


@round_trips
def test_nan_comes_back(round_trip, tmp_path):
    assert math.isnan(round_trip([math.nan], tmp_path / "state")[0])


@round_trips
@pytest.mark.parametrize("state", [None, 3, [], {}, (), torch.tensor(1.0), "text"])
def test_a_state_may_be_anything_it_may_hold(round_trip, tmp_path, state):
    assert same(round_trip(state, tmp_path / "state"), state)


@round_trips
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(round_trip, tmp_path, dtype):
    """NaN payloads included: the bits are random."""
    state = [random_tensor(dtype, shape) for shape in [(), (0,), (3, 0, 2), (7,), (2, 3, 4)]]
    assert same(round_trip(state, tmp_path / "state"), state)


@round_trips
def test_tensors_of_any_layout_come_back_dense_and_writable(round_trip, tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "transposed": base.T,
        "strided": base[:, ::2],
        "expanded": base[:1].expand(3, 6),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(base.clone()),
    }
    loaded = round_trip(state, tmp_path / "state")
    for name, tensor in loaded.items():
        assert torch.equal(tensor, state[name]), name
        assert type(tensor) is torch.Tensor
        tensor.add_(1)


def test_an_optimizer_and_the_generators_go_on_where_they_were(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)

    def train():
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()

    train()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "python": random.getstate(),
    }
    save_state(tmp_path / "checkpoint", state)
    loaded = load_state(tmp_path / "checkpoint")
    train()
    expected, draws = copy.deepcopy(model.state_dict()), (torch.randn(3), random.random())
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["rng"])
    random.setstate(loaded["python"])
    train()
    assert same(dict(model.state_dict()), dict(expected))
    assert same((torch.randn(3), random.random()), draws)


def test_map_location(tmp_path):
    save_state(tmp_path / "a", [torch.ones(2), 3])
    save_file(tmp_path / "b", [torch.ones(2), 3])
    for loaded in (load_state(tmp_path / "a", "meta"), load_file(tmp_path / "b", "meta")):
        assert loaded[0].device.type == "meta"
        assert loaded[1] == 3


def test_any_numpy_can_read_the_tensors(tmp_path):
    save_state(tmp_path / "a", [torch.arange(3.0), torch.ones(2, dtype=torch.bfloat16)])
    [path] = (tmp_path / "a").glob("*.npz")
    with np.load(path) as arrays:
        assert arrays["0"].tolist() == [0.0, 1.0, 2.0]
        assert arrays["1"].tolist() == [0x3F80, 0x3F80]
    save_file(tmp_path / "policy.pkl", {"w": torch.arange(2)})
    with np.load(tmp_path / "policy.pkl", allow_pickle=False) as arrays:
        assert arrays["0"].tolist() == [0, 1]


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    for i in range(3):
        save_state(tmp_path / "state", [i, torch.tensor(i)])
        save_file(tmp_path / "files" / "policy[1].pt", [i, torch.tensor(i)])
    (tmp_path / "state" / "config.yaml").write_text("mine")
    (tmp_path / "state" / "tensors-0000000000000000.npz").touch()  # as after a kill
    for left in ("state/.state.json.00.tmp.json", "files/.policy[1].pt.00.tmp.pt"):
        (tmp_path / left).touch()
        os.utime(tmp_path / left, (0, 0))  # long ago
    save_state(tmp_path / "state", [7])
    save_file(tmp_path / "files" / "policy[1].pt", [7])
    assert load_state(tmp_path / "state") == load_file(tmp_path / "files" / "policy[1].pt") == [7]
    assert len(list((tmp_path / "state").iterdir())) == 3
    assert (tmp_path / "state" / "config.yaml").read_text() == "mine"
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["policy[1].pt"]


class Custom:
    pass


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, Custom()]}, r"`state\['a'\]\[1\]`.*Custom"),
        ({"a": {1.5: 2}}, r"`state\['a'\]`.*1\.5"),
        ({True: 1}, "True"),
        ({"a": {None: 1}}, "None"),
        ([torch.eye(2).to_sparse()], "sparse"),
        ([torch.empty(2, device="meta")], "meta"),
        ({"a": {1, 2}}, "set"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path, state, path):
    for save in (save_state, save_file):
        with pytest.raises(CheckpointError, match=path):
            save(tmp_path / "new" / "x", state)
    assert not (tmp_path / "new").exists()


# Damage.

STATE = {"lr": 0.125, "steps": [1, 2, 3], "w": torch.arange(50.0), "m": (torch.ones(3, 3), True)}


@pytest.fixture
def saved(tmp_path):
    save_state(tmp_path / "checkpoint", STATE)
    save_file(tmp_path / "policy.pt", STATE)
    [archive] = (tmp_path / "checkpoint").glob("*.npz")
    document = tmp_path / "checkpoint" / "state.json"
    directory = tmp_path / "checkpoint"
    return {
        "document": (document, lambda: load_state(directory)),
        "archive": (archive, lambda: load_state(directory)),
        "file": (tmp_path / "policy.pt", lambda: load_file(tmp_path / "policy.pt")),
    }


parts = pytest.mark.parametrize("part", ["document", "archive", "file"])


@parts
def test_a_missing_file_is_named(saved, part):
    path, load = saved[part]
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{path.name}: no such file"):
        load()


@parts
def test_a_truncated_file_is_named(saved, part):
    path, load = saved[part]
    content = path.read_bytes()
    for length in [0, 1, *range(2, len(content), max(len(content) // 100, 1)), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=path.name):
            load()


@pytest.mark.slow
@parts
def test_a_flipped_bit_never_changes_a_value(saved, part):
    """It is an error, except in bytes that carry nothing, such as a member's date."""
    path, load = saved[part]
    content = path.read_bytes()
    draw = random.Random(0)
    errors = []
    for _ in range(1000):
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = load()
        except CheckpointError as error:
            errors.append(str(error))
        else:
            assert same(loaded, STATE)
    assert len(errors) > 700
    assert all(path.name in error for error in errors)


@parts
def test_rubbish_is_refused(saved, part):
    path, load = saved[part]
    draw = random.Random(0)
    for length in (1, 100, 10_000):
        path.write_bytes(draw.randbytes(length))
        with pytest.raises(CheckpointError, match=path.name):
            load()


def rewritten(saved, change):
    """The loader of a checkpoint whose document was changed by someone who knows the format."""
    import hashlib

    path, load = saved["document"]
    document = json.loads(path.read_text())
    change(document)
    body = json.dumps(document["body"], separators=(",", ":")).encode()
    document["sha256"] = hashlib.sha256(body).hexdigest()
    path.write_text(json.dumps(document))
    return load


def test_rewriting_alone_changes_nothing(saved):
    assert same(rewritten(saved, lambda document: None)(), STATE)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d.update(version=2), "version is 2"),
        (lambda d: d.update(format="other"), "not a saved state"),
        (lambda d: d.pop("version"), "version"),
        (lambda d: d["body"].pop("tensors"), "tensors"),
        (lambda d: d["body"].update(archive="../tensors-0000000000000000.npz"), "beside it"),
        (lambda d: d["body"].update(archive=None), "state.json"),
        (lambda d: d["body"]["tensors"][0].update(shape=[51]), r"0\.npy must be"),
        (lambda d: d["body"]["tensors"][0].update(shape=[10**18]), r"0\.npy must be"),
        (lambda d: d["body"]["tensors"][0].update(shape="x"), r"0\.npy must be"),
        (lambda d: d["body"]["tensors"][0].update(dtype="int32"), r"0\.npy must be"),
        (lambda d: d["body"]["tensors"][0].update(dtype="load"), "unknown dtype"),
        (lambda d: d["body"]["tensors"][0].update(sha256="0"), "checksum"),
        (lambda d: d["body"]["tensors"].append(d["body"]["tensors"][0]), r"2\.npy is missing"),
        (lambda d: d["body"].update(state={"$": "tensor", "index": 9}), "npz"),
        (lambda d: d["body"].update(state={"$": "code"}), "'code'"),
        (lambda d: d["body"].update(state={"$": "int", "value": "x"}), "npz"),
    ],
)
def test_a_document_that_lies_is_refused(saved, change, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        rewritten(saved, change)()


def test_deep_nesting_is_refused(saved):
    path, load = saved["document"]
    path.write_text('{"format": "everstep state", "body": ' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        load()


class Malice:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def replace_member(path, name, content, **options):
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    members[name] = content
    with zipfile.ZipFile(path, "w", **options) as archive:
        for member, data in members.items():
            archive.writestr(member, data)


@pytest.mark.parametrize("part", ["archive", "file"])
@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Malice()),
        npy(np.array([Malice()], dtype=object)),
        npy(np.array([Malice()] * 50, dtype=object)),
        npy(np.arange(50.0)),  # float64
        npy(np.arange(51, dtype=np.float32)),
        npy(np.arange(50, dtype=np.float32)[::-1]),
        npy(np.asfortranarray(np.ones((5, 10), np.float32))),
        b"",
        npy(np.arange(50, dtype=np.float32)) + b"more",
        npy(np.arange(50, dtype=np.float32))[:-1],
    ],
)
def test_a_member_that_was_exchanged_is_refused(saved, part, content):
    path, load = saved[part]
    replace_member(path, "0.npy", content)
    with pytest.raises(CheckpointError, match=path.name):
        load()


@pytest.mark.parametrize("part", ["archive", "file"])
def test_a_zip_bomb_is_refused_before_it_is_read(saved, part):
    path, load = saved[part]
    replace_member(path, "0.npy", bytes(50_000_000), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(CheckpointError, match="compressed"):
        load()


@pytest.mark.parametrize("part", ["archive", "file"])
def test_members_that_overlap_are_refused(saved, part):
    """Thousands of names for the same bytes would multiply them."""
    path, load = saved[part]
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(100, 200):
            member = copy.copy(archive.getinfo("0.npy"))
            member.filename = f"{i}.npy"
            archive.filelist.append(member)
        archive.writestr("more", b"")  # so that the list of members is written again
    with pytest.raises(CheckpointError, match="larger than the file"):
        load()


def test_a_pickle_is_refused_by_name(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        load_file(tmp_path / "model.pt")


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(CheckpointError, match="is a directory: name a file in it"):
        load_file(tmp_path)
    (tmp_path / "policy").touch()
    with pytest.raises(CheckpointError, match=r"is a directory: load .*policy"):
        load_file(tmp_path)


# The disk.


@pytest.fixture
def operations(monkeypatch):
    """The requests to the disk, in order: files synchronised, by inode and size, and new names."""
    done = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        status = os.fstat(descriptor)
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        done.append((kind, status.st_ino, status.st_size if kind == "file" else None))
        fsync(descriptor)

    def watched_replace(source, target, **options):
        replace(source, target, **options)
        done.append(("name", os.stat(target).st_ino, os.path.basename(target)))

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    # `Path.replace` may have bound the function when it was defined.
    monkeypatch.setattr(Path, "replace", lambda path, target: watched_replace(path, target))
    return done


def on_disk(path):
    status = path.stat()
    return ("file", status.st_ino, status.st_size)


@needs_posix
def test_a_directory_counts_once_all_of_it_is_on_the_disk(tmp_path, operations):
    """Both files, whole, and their names; then the document's name, which makes them count."""
    directory = tmp_path / "state"
    for i in range(2):
        operations.clear()
        save_state(directory, {"w": torch.full((100_000,), float(i)), "i": i})
        document = directory / "state.json"
        (archive,) = directory.glob("tensors-*.npz")
        names = ("directory", directory.stat().st_ino, None)
        counts = ("name", document.stat().st_ino, "state.json")
        before = operations[: operations.index(counts)]
        assert {on_disk(archive), on_disk(document)} <= set(before)
        assert names in before[before.index(("name", archive.stat().st_ino, archive.name)) :]
        assert operations[operations.index(counts) + 1] == names


@needs_posix
def test_a_file_counts_once_all_of_it_is_on_the_disk(tmp_path, operations):
    path = tmp_path / "state"
    for i in range(2):
        operations.clear()
        save_file(path, {"w": torch.full((100_000,), float(i)), "i": i})
        counts = ("name", path.stat().st_ino, "state")
        assert operations == [on_disk(path), counts, ("directory", tmp_path.stat().st_ino, None)]


# Crashes.

KILLED = """
import os, signal, sys
import torch
from everstep.core.checkpoints import check_state, load_file, load_state, save_file, save_state
save, load = (save_state, load_state) if sys.argv[1] == "directory" else (save_file, load_file)
path = sys.argv[2]

def state(i):
    return {"i": i, "w": torch.full((1000,), float(i))}

def die_at(count):
    def hook(event, arguments):
        nonlocal count
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir"):
            count -= 1
            if count < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

save(path, state(0))
good, kills, count = 0, 0, 0
while True:
    child = os.fork()
    if child == 0:
        die_at(count)
        save(path, state(good + 1))
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    found = load(path)
    assert torch.equal(found["w"], state(found["i"])["w"])
    assert found["i"] in (good, good + 1) if killed else found["i"] == good + 1, (count, found["i"])
    good, kills, count = found["i"], kills + killed, count + 1
    if not killed:
        break
print(kills, good)
"""

KILLED_ANYWHERE = """
import sys
import torch
from everstep.core.checkpoints import check_state, save_file, save_state
for i in range(10**9):
    state = {"i": i, "w": torch.full((100_000,), float(i))}
    save_state(sys.argv[1] + "/directory", state)
    save_file(sys.argv[1] + "/file", state)
    print(i, flush=True)
"""

FULL_DISK = """
import resource, sys
import torch
from everstep.core.checkpoints import check_state, load_file, load_state, save_file, save_state
for save, load, path in ((save_state, load_state, "/d"), (save_file, load_file, "/f")):
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    save(sys.argv[1] + path, ["old", torch.zeros(10)])
    for limit in (10, 300, 5000, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
        try:
            save(sys.argv[1] + path, ["new", torch.zeros(100_000)])
        except OSError as error:
            print(error.errno)
        assert load(sys.argv[1] + path)[0] == "old"
"""


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@needs_posix
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_killed_at_every_step_of_a_save(tmp_path, kind):
    """The process is killed before its first file operation, its second, and so on."""
    result = run_script(KILLED, kind, tmp_path / "state")
    assert result.returncode == 0, result.stderr
    kills, saves = map(int, result.stdout.split())
    assert kills >= 4
    assert 1 <= saves <= kills  # some kills came before the save counted, some after


@pytest.mark.slow
@needs_posix
def test_killed_at_any_moment(tmp_path):
    draw = random.Random(0)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(20 + draw.randrange(20)):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for loaded in (load_state(tmp_path / "directory"), load_file(tmp_path / "file")):
        assert loaded["i"] >= last
        assert torch.equal(loaded["w"], torch.full((100_000,), float(loaded["i"])))


@pytest.mark.slow
@needs_posix
def test_a_full_disk_leaves_the_old_state_and_no_rest(tmp_path):
    result = run_script(FULL_DISK, tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 8
    assert len(list((tmp_path / "d").iterdir())) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"d", "f"}


def test_reading_while_another_process_saves(tmp_path, monkeypatch):
    """A reader whose archive is replaced before it is opened takes the newer state."""
    from everstep.core import checkpoints

    read = checkpoints._read_document
    newer = iter([["second", torch.ones(2)], ["third", torch.ones(3)]])

    def read_slowly(directory, within):
        body = read(directory, within)
        for state in newer:
            save_state(directory, state)
            break
        return body

    save_state(tmp_path / "state", ["first", torch.ones(1)])
    monkeypatch.setattr(checkpoints, "_read_document", read_slowly)
    assert same(load_state(tmp_path / "state"), ["third", torch.ones(3)])


# ---- NumPy, bytes and generators --------------------------------------------------------------

NUMPY_VALUES = [
    np.arange(6).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(5, np.uint16),
    np.zeros((0, 3), np.float16),
    np.array(["a", "bc"]),
    np.array([1], ">f4"),
    np.array(["2020"], "M8[s]"),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8", (2,))]),
    np.zeros(2, np.dtype([("a", "i1"), ("b", [("c", "i8")])], align=True)),
    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])[0],
    *(np.dtype(x).type(1) for x in ("f2", "f4", "f8", "i1", "i8", "u8", "?", "c8", "longdouble")),
    *(np.float64("nan"), np.float32("-inf"), np.str_("x"), np.bytes_(b"y")),
    np.datetime64("2020-01-01"),
]


@pytest.mark.parametrize("value", NUMPY_VALUES, ids=repr)
def test_numpy_comes_back_with_its_type_and_dtype(tmp_path, value):
    state = {"a": [value, (value,)]}
    save_file(tmp_path / "file", state)
    save_state(tmp_path / "state", state)
    for loaded in (load_file(tmp_path / "file"), load_state(tmp_path / "state", "meta")):
        for found in (loaded["a"][0], loaded["a"][1][0]):
            assert type(found) is type(value)
            assert (found.dtype, found.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(found, value)
            if isinstance(found, np.ndarray):
                assert found.flags.writeable


def test_numbers_bytes_and_states_of_generators_come_back(tmp_path):
    state = {
        "ints": [2**63 - 1, 2**63, -(2**200)],
        "bytes": [b"", b"\x00\xff", bytearray(b"abc"), None, 1.5j],
        "generators": [np.random.default_rng(1).bit_generator.state, random.getstate()],
        "old": np.random.RandomState(2).get_state(),
        "mt": np.random.MT19937(3).state,
    }
    save_file(tmp_path / "file", state)
    loaded = load_file(tmp_path / "file")
    np.testing.assert_equal(loaded, state)
    assert [type(x) for x in loaded["bytes"]] == [type(x) for x in state["bytes"]]
    generator = np.random.default_rng()
    generator.bit_generator.state = loaded["generators"][0]
    assert generator.random() == np.random.default_rng(1).random()
    old = np.random.RandomState()
    old.set_state(loaded["old"])
    assert old.rand() == np.random.RandomState(2).rand()


def looping():
    state = {"a": []}
    state["a"].append(state)
    return state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"a": [1, 2, np.random.default_rng(0)]},
            r"`state\['a'\]\[2\]`.*_generator.Generator",
        ),
        ({"a": np.array([None])}, r"`state\['a'\]`.*dtype is object"),
        ((np.ma.array([1]),), r"`state\[0\]`.*MaskedArray.*`numpy.asarray`"),
        ([{1}], r"`state\[0\]`.*builtins.set"),
        (looping(), "contains itself"),
    ],
)
def test_what_cannot_be_saved_is_named_before_anything_is_written(tmp_path, state, message):
    (tmp_path / "file").write_text("old")
    for save in (lambda: check_state(state), lambda: save_file(tmp_path / "file", state)):
        with pytest.raises(CheckpointError, match=message):
            save()
    assert [x.read_text() for x in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "|O"},
        {"dtype": "<f8"},
        {"shape": [10**12]},
        {"shape": [-3]},
        {"dtype": "|V9999999"},
    ],
    ids=str,
)
def test_an_array_that_claims_another_size_or_objects_is_refused(tmp_path, changes, monkeypatch):
    from everstep.core import checkpoints

    def changed(self, value, path):
        entry = encode(self, value, path)
        return {"$": "array", **entry, **changes} if isinstance(value, np.ndarray) else entry

    encode = checkpoints._Encoder.encode
    monkeypatch.setattr(checkpoints._Encoder, "encode", changed)
    save_file(tmp_path / "file", [np.arange(3, dtype=np.uint8)])
    with pytest.raises(CheckpointError, match="file"):
        load_file(tmp_path / "file")
