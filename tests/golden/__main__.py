"""Compare what the trainings compute now with what is kept, bit for bit; or keep it.

`--write` keeps numbers, files and names of now; `--runs`, `--files` and `--names` one of them.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.golden import files, names, runs
from tests.ranks import run_ranks

FILE = Path(__file__).parent / "runs.json"


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if not arguments:
        return compare(json.loads(FILE.read_text())["runs"], found())
    if {"--write", "--runs"} & {*arguments}:
        lines = (f"{json.dumps(name)}: {json.dumps(x)}" for name, x in found().items())
        text = ",\n".join(lines)
        FILE.write_text(f'{{"draws": {json.dumps(runs.draws())},\n"runs": {{\n{text}\n}}}}\n')
    if {"--write", "--files"} & {*arguments}:
        files.write()
    if {"--write", "--names"} & {*arguments}:
        names.write()
    return 0


def found() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        return runs.run_all(Path(directory), run_ranks)


def compare(kept: Any, now: Any) -> int:
    ways = [(name, way) for name, each in kept.items() for way in each]
    wrong = [
        f"{name}, {way}: {what}"
        for name, way in ways
        for what, digest in kept[name][way]["digest"].items()
        if now.get(name, {}).get(way, {}).get("digest", {}).get(what) != digest
    ]
    print(f"{len(wrong)} of {2 * len(ways)} digests of {len(ways)} trainings differ")
    for line in wrong:
        print("not bit for bit:", line)
    for line in runs.differences(kept, now, rel=1e-12):
        print("more than 1e-12:", line)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
