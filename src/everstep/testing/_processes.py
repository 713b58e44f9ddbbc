"""The same environment in processes of another hash order, whose rows must be the same.

Python draws the hashes of texts anew in each process, and the order of a set follows them: an
environment that depends on it repeats its rows in one process, and gives others in the next one.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

import torch

from ._causes import own_classes, play, repeats
from ._player import Player
from ._results import CheckResult, NotApplicable, Unplayable, Violation
from ._subject import Subject

_NAME = "processes"

_RULE = "Another process with the same seed gives the same rows."

_HASHES = (
    "rows that depend on the hashes of texts, which Python draws anew in each process, and which "
    "order its sets: {place} differs",
    "Sort sets before iterating over them (`sorted(…)`), or use lists and dictionaries, which keep "
    "their order; use `hashlib` or `zlib.crc32` instead of `hash`.",
)

_OTHER = (
    "rows that depend on the process, such as on its number, its start or places in its memory "
    "(`id`): {place} differs",
    "Draw from a generator that `seed` seeds.",
)


def digests(subject: Subject) -> list[str]:
    """A digest of each reset and vector step of an environment."""
    start, rows = play(subject)
    return [_digest(start), *(_digest(row.tensors().values()) for row in rows)]


def check_processes(subject: Subject, words: Sequence[str]) -> CheckResult:
    """Whether another process's rows are those of this one.

    Args:
        subject: The environment under test.
        words: The command that prints its `digests`, without the interpreter.

    """
    try:
        _compare(subject, words)
    except NotApplicable as reason:
        return CheckResult(_NAME, _RULE, "not applicable", reason=str(reason))
    except Unplayable:
        unplayable = "the environment cannot be played; see the other checks"
        return CheckResult(_NAME, _RULE, "not applicable", reason=unplayable)
    except Violation as broken:
        return CheckResult(_NAME, _RULE, "failed", violation=broken)
    return CheckResult(_NAME, _RULE, "passed")


def _compare(subject: Subject, words: Sequence[str]) -> None:
    with Player(subject, seed=subject.seed) as player:
        if not hasattr(player.env, "seed") or not subject.deterministic_by_seed:
            raise NotApplicable("a seed does not determine the environment's rows")
        if not own_classes(player.env):
            raise NotApplicable("all classes in this process are Gymnasium's or Everstep's")
    if not repeats(subject):
        raise NotApplicable("the environment does not follow its seed; see the check `seed`")
    hashes = os.environ.get("PYTHONHASHSEED", "")
    other_hashes = "1" if hashes != "1" else "2"
    own, other = digests(subject), _other_digests(words, other_hashes)
    differ = [i for i, (a, b) in enumerate(zip(own, other, strict=True)) if a != b]
    if differ:
        place = f"vector step {differ[0]}" if differ[0] else "an observation of a reset"
        is_of_hashes = _other_digests(words, other_hashes) == other
        received, fix = _HASHES if is_of_hashes else _OTHER
        raise Violation("`seed`", _RULE, received.format(place=place), fix)


def _other_digests(words: Sequence[str], hashes: str) -> list[str]:
    """Digests that a process prints whose texts have other hashes."""
    process = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
    )
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NotApplicable(f"another process could not play the environment: {last}")
    found: list[str] = json.loads(process.stdout.splitlines()[-1])
    return found


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for x in tensors:
        digest.update(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
