"""Compare what the trainings compute now with what is kept; or keep it.

On the machine that kept it, bit for bit; on others, which round differently, to 1e-9 as the tests
do. For a comparison bit for bit on another one: `python -m tests.golden --runs` before the change,
`python -m tests.golden` after it, and `git checkout tests/golden/runs.json`.

`--write` keeps numbers, files and names of now; `--runs`, `--files` and `--names` one of them.
"""

import hashlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from everstep_lab.benchmarks._machine import _cpu_model
from tests.golden import files, names, runs
from tests.ranks import run_ranks

FILE = Path(__file__).parent / "runs.json"


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if not arguments:
        return compare(json.loads(FILE.read_text()), recorded())
    if {"--write", "--runs"} & {*arguments}:
        now = recorded()
        lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(x)}" for k, x in now.pop("runs").items())
        FILE.write_text(f'{json.dumps(now)[:-1]},\n"runs": {{\n{lines}\n}}}}\n')
    if {"--write", "--files"} & {*arguments}:
        files.write()
    if {"--write", "--names"} & {*arguments}:
        names.write()
    return 0


def recorded() -> dict[str, Any]:
    """Results of this machine, and its name."""
    with tempfile.TemporaryDirectory() as directory:
        found = runs.run_all(Path(directory), run_ranks)
    return {"machine": this_machine(), "draws": runs.draws(), "runs": found}


def this_machine() -> str:
    """The processor, PyTorch's version, and a digest of how they round, which no name tells."""
    x = torch.linspace(-3, 3, 512, dtype=torch.float64).view(64, 8)
    image, kernel = x.view(1, 1, 16, 32), x[:3, :3].reshape(1, 1, 3, 3)
    found = [x @ x[:4].T, x.T @ x, x.bfloat16() @ x.T.bfloat16(), torch.conv2d(image, kernel)]
    found += [x.exp(), x.tanh(), x.sigmoid(), x.softmax(1), x.sum(), x.std(0), x.norm(dim=1)]
    bits = b"".join(each.double().numpy().tobytes() for each in found)
    rounding = hashlib.sha256(bits).hexdigest()[:8]
    return f"{_cpu_model()} with PyTorch {torch.__version__}, rounding {rounding}"


def compare(kept: dict[str, Any], now: dict[str, Any]) -> int:
    """Print what differs; 1 if something does that should not, 2 if nothing can be compared."""
    if [*runs.differences(kept["draws"], now["draws"])]:
        print(f"nothing to compare: random numbers of {now['machine']} are not {kept['machine']}'s")
        return 2
    is_same = kept["machine"] == now["machine"]
    ways = [(name, way) for name, each in kept["runs"].items() for way in each]
    wrong = [
        f"{name}, {way}: {what}"
        for name, way in ways
        for what, digest in kept["runs"][name][way]["digest"].items()
        if now["runs"].get(name, {}).get(way, {}).get("digest", {}).get(what) != digest
    ]
    apart = [*runs.differences(kept["runs"], now["runs"], rel=1e-12 if is_same else 1e-9)]
    print(f"{len(wrong)} of {2 * len(ways)} digests of {len(ways)} trainings differ")
    if not is_same:
        print(
            f"They are of {kept['machine']}; this is {now['machine']}, which may round differently:"
        )
        print(f"{len(apart)} numbers differ by more than 1e-9. To compare bit for bit here, run")
        print("`python -m tests.golden --runs` before the change.")
    for line in wrong if is_same else ():
        print("not bit for bit:", line)
    for line in apart:
        print("more than 1e-12:" if is_same else "more than 1e-9:", line)
    return int(bool(apart or (is_same and wrong)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
