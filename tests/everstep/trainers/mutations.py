"""Change files of a run at random: `python -m tests.everstep.trainers.mutations 10000`.

Files are flipped, cut, filled, swapped, or written anew with valid checksums and hostile contents.
Loading one must give the state that was saved, or another that is valid, or an error of Everstep's
after which the trainer is as it was. It must not run code, open other files, or need more memory
than twice the size of the file.
"""

import argparse
import copy
import io
import json
import os
import pickle
import random
import resource
import shutil
import sys
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everstep import DiscreteDummyEnv, Policy, Trainer
from everstep.core.checkpoints import _checksum, load_state
from everstep.errors import EverstepError
from everstep.trainers._checkpointing import checkpoints_of

#: Memory in bytes that loading needs beside twice the size of the files, at most.
SLACK = 2_000_000

#: Events of Python that mean that code was run or something was changed.
_FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")
_FORBIDDEN += ("socket.connect", "ctypes.dlopen", "os.remove", "os.rename", "shutil.rmtree")

HOSTILE: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63 - 1, -(2**63), 1e308, "", "x" * 1000, "../../etc/passwd"),
    *([], {}, [[]] * 50, {"$": "tensor", "index": 10**9}, {"$": "tensor", "index": -1}),
    *({"$": "tensor"}, {"$": "tuple", "items": 3}, {"$": "dict", "items": [[[], 1]]}),
    *({"$": "float", "value": "nan"}, {"$": "float", "value": "1e999"}, {"$": "pickle"}),
    *({"$": "int", "value": "0x" + "f" * 500}, [10**9, 10**9], [2**62], "__class__", "/dev/zero"),
]


class Watch:
    """Python's audit events while a file is loaded."""

    def __init__(self) -> None:
        self.place: None | Path = None
        self.seen: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if self.place is None:
            return
        name = str(arguments[0]) if arguments else ""
        imported = event == "import" and name not in sys.modules and name.split(".")[0] != "torch"
        if event in _FORBIDDEN or imported:
            self.seen.append(f"{event} {arguments!r:.80}")
        own = (str(self.place), str(Path(torch.__file__).parent))  # PyTorch imports parts late
        if event == "open" and not name.startswith(own):
            self.seen.append(f"open {arguments!r:.80}")


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 16])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _fill(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    block = rng.choice([bytes(64), b"\xff" * 64, rng.randbytes(64), content[:512]])
    end = start + rng.choice([0, len(block)])
    return content[:start] + block + content[end:]


class Canary:
    """Is unpickled by removing a file."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def _pickled(content: bytes, rng: random.Random) -> bytes:
    stream = io.BytesIO()
    if rng.random() < 0.5:
        torch.save(Canary(), stream)
    else:
        pickle.dump(Canary(), stream)
    return stream.getvalue()


def _rezipped(content: bytes, rng: random.Random) -> bytes:
    """The archive with one hostile member."""
    stream = io.BytesIO()
    try:
        old = zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile:
        return rng.randbytes(100)
    names = old.namelist()
    chosen = rng.choice(names)
    kind = rng.choice(["bomb", "object", "huge", "version", "twice", "path", "missing", "claim"])
    with zipfile.ZipFile(stream, "w") as new:
        for name in names:
            body = old.read(name)
            if name != chosen:
                new.writestr(zipfile.ZipInfo(name), body)
            elif kind == "bomb":
                new.writestr(name, bytes(20_000_000), compress_type=zipfile.ZIP_DEFLATED)
            elif kind == "object":
                member = io.BytesIO()
                np.save(member, np.array([Canary()], dtype=object), allow_pickle=True)
                new.writestr(zipfile.ZipInfo(name), member.getvalue())
            elif kind == "huge":
                member = io.BytesIO()
                shape = rng.choice([(2**40,), (2**31, 2**31), (0, 2**62), (-1,)])
                np.lib.format.write_array_header_1_0(
                    member, {"descr": "<f4", "fortran_order": False, "shape": shape}
                )
                new.writestr(zipfile.ZipInfo(name), member.getvalue() + bytes(16))
            elif kind == "version":
                new.writestr(zipfile.ZipInfo(name), b"\x93NUMPY\x03\x00" + body[8:])
            elif kind == "twice":
                new.writestr(zipfile.ZipInfo(name), body)
                new.writestr(zipfile.ZipInfo("again/" + name), body)
            elif kind == "path":
                new.writestr(zipfile.ZipInfo("../../" + name), body)
            elif kind == "claim":
                new.writestr(zipfile.ZipInfo(name), body)
                new.infolist()[-1].file_size = rng.choice([2**31, 2**40, 0])
    return stream.getvalue()


def _nodes(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            _nodes(item, found)
    return found


def _crafted(document: bytes, rng: random.Random) -> bytes:
    """The document with hostile values, and the checksum that they have."""
    try:
        whole = json.loads(document)
        body = whole["body"]
    except (ValueError, KeyError, TypeError):
        return document
    for _ in range(rng.choice([1, 1, 3])):
        owner, key = rng.choice(_nodes(body, []))
        how = rng.random()
        if how < 0.7 or isinstance(owner, list):
            owner[key] = copy.deepcopy(rng.choice(HOSTILE))
        elif how < 0.85:
            del owner[key]
        else:
            owner[rng.choice(["$", "x", "__init__"])] = owner.pop(key)
    if rng.random() < 0.1:
        body["archive"] = rng.choice(["../policy", "/etc/passwd", "tensors-0.npz", "\0", ".", ""])
    tensors = body.get("tensors")
    if rng.random() < 0.1 and tensors and isinstance(tensors, list):
        entry = rng.choice(tensors)
        if isinstance(entry, dict):
            entry["dtype"] = rng.choice(["_dynamo", "Tensor", "load", "object", "onnx", "float64"])
    whole["sha256"] = _checksum(body)
    return json.dumps(whole).encode()


RAW: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _cut, _fill, _pickled, _rezipped)


class Victim:
    """A trained run, its files, and a trainer to load them into.

    Args:
        place: A directory for all of it.

    """

    def __init__(self, place: Path) -> None:
        arguments: dict[str, Any] = {"num_envs": 2, "horizon": 8, "model_config": {"hiddens": [8]}}
        arguments |= {"track": False, "progress": False, "seed": 0, "keep_last": 2}
        run = place / "run"
        with Trainer(DiscreteDummyEnv, run_dir=run, checkpoint_every=1, **arguments) as trainer:
            trainer.run(total_env_steps=64)
        self.place, self.trainer = place / "mutated", trainer
        newest, before = checkpoints_of(run)
        self.checkpoint = {path.name: path.read_bytes() for path in newest.iterdir()}
        self.older = {path.name: path.read_bytes() for path in before.iterdir()}
        self.policy = (run / "policy").read_bytes()
        self.policy_before = self._policy_of(run / "policy")
        self.before = ""
        self.load(self.checkpoint, None)
        self.before = self._stored()
        self.load(None, self.policy)  # everything is imported

    def _stored(self) -> str:
        return _text(self.trainer.state_dict())

    def _policy_of(self, path: Path) -> str:
        policy = Policy.load(path)
        obs = torch.zeros(2, *policy._spec[0].shape)
        return _text([dict(policy.model.state_dict()), policy.predict(obs.numpy())[0].tolist()])

    def write(self, checkpoint: None | dict[str, bytes], policy: None | bytes) -> int:
        """Write files; their size."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        files = {"policy": policy} if checkpoint is None else checkpoint
        for name, content in files.items():
            if content is not None:
                (self.place / name).write_bytes(content)
        return sum(len(content or b"") for content in files.values())

    def load(
        self, checkpoint: None | dict[str, bytes], policy: None | bytes
    ) -> tuple[str, int, int]:
        """Write files and load them; "same", "other" or "refused", the memory used, their size."""
        size = self.write(checkpoint, policy)
        WATCH.place = self.place
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        try:
            if checkpoint is None:
                with torch.random.fork_rng(devices=[]):  # a new model draws its weights
                    result = self._policy_of(self.place / "policy")
                outcome = "same" if result == self.policy_before else "other"
            else:
                state = load_state(self.place)
                peak = tracemalloc.get_traced_memory()[1]
                self.trainer.load_state_dict(state)
                outcome = "same" if self._stored() == self.before else "other"
        except EverstepError:
            outcome = "refused"
        finally:
            WATCH.place = None
        if checkpoint is None or outcome == "refused":
            peak = tracemalloc.get_traced_memory()[1]
        if outcome == "refused":
            assert self._stored() == self.before, "the trainer was changed"
        elif outcome == "other" and checkpoint is not None:
            self.write(self.checkpoint, None)
            self.trainer.load_state_dict(load_state(self.place))
            assert self._stored() == (self.before or self._stored()), "it does not come back"
        assert not WATCH.seen, WATCH.seen
        return outcome, peak - held, size

    def mutated(self, rng: random.Random) -> tuple[str, None | dict[str, bytes], None | bytes]:
        """The kind of a mutation, and the files that it made."""
        is_policy = rng.random() < 0.3
        if is_policy:
            kind = rng.choice([*RAW, _crafted])
            return f"policy {kind.__name__}", None, self._mutated_policy(kind, rng)
        files = dict(self.checkpoint)
        kind = rng.choice([*RAW, _crafted, "swap", "none"])
        name = rng.choice([*files])
        if kind == "swap":
            other = rng.choice([{"x": self.policy}, self.older, self.checkpoint])
            files[name] = rng.choice([*other.values()])
        elif kind == "none":
            del files[name]
        elif kind is _crafted:
            files["state.json"] = _crafted(files["state.json"], rng)
        else:
            files[name] = kind(files[name], rng)
        return f"checkpoint {getattr(kind, '__name__', kind)}", files, None

    def _mutated_policy(self, kind: Any, rng: random.Random) -> bytes:
        if kind is not _crafted:
            return kind(self.policy, rng)
        stream, old = io.BytesIO(), zipfile.ZipFile(io.BytesIO(self.policy))
        with zipfile.ZipFile(stream, "w") as new:
            for name in old.namelist():
                body = old.read(name)
                new.writestr(
                    zipfile.ZipInfo(name), _crafted(body, rng) if name == "state.json" else body
                )
        return stream.getvalue()


def _text(value: Any) -> str:
    """All of a state, exactly."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{[*value.shape]}{value.cpu().flatten().tolist()}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_text(x)}" for key, x in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return repr(value)


WATCH = Watch()


def mutate(times: int, seed: int = 0, first: int = 0) -> Counter[str]:
    """Load mutated files; how often each kind was refused, the same, or another valid one."""
    counts: Counter[str] = Counter()
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as place:
        victim = Victim(Path(place))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(first, first + times):
            rng = random.Random(f"{seed} {i}")
            kind, *files = victim.mutated(rng)
            try:
                outcome, used, size = victim.load(*files)
                if used > 2 * size + SLACK:  # something of the process may have grown meanwhile
                    outcome, used, size = victim.load(*files)
                assert used <= 2 * size + SLACK, (used, size)
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
                assert grown < 200, f"the process grew by {grown:.0f} MiB"
            except BaseException:
                print(f"mutation {seed} {i}: {kind}", file=sys.stderr)
                raise
            counts[f"{kind}: {outcome}"] += 1
    tracemalloc.stop()
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    given = parser.parse_args()
    results = mutate(given.times, given.seed, given.first)
    for text, count in sorted(results.items()):
        print(f"{count:6d}  {text}")
    print(f"{sum(results.values())} of {given.times}")
