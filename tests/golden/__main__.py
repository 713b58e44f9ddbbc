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
    pairs = [(name, way) for name, ways in kept.items() for way in ways]
    wrong = [pair for pair in pairs if now.get(pair[0], {}).get(pair[1]) != kept[pair[0]][pair[1]]]
    print(f"{len(pairs) - len(wrong)} of {len(pairs)} trainings are the same, bit for bit")
    for pair in wrong:
        print("not", *pair)
    for line in runs.differences(kept, now, rel=1e-12):
        print("more than 1e-12:", line)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
