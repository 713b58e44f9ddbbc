"""The notebooks of `examples/`: each runs from its first cell to its last, and has no outputs."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))

#: The result of each: the mean return of an evaluation, the policy at each position, updates.
LAST = {
    "first_run": r"\((4[5-9]\d|500)\.",
    "custom_environment": r"(?s)^(?!.*'left').*'right'",
    "looking_at_results": r"gamma-0\.9-2 3\d,\d+ env steps, KL 0\.",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_printed(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    run = [cell for cell in cells if cell["cell_type"] == "code"]
    assert run
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in run)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    nbclient: Any = pytest.importorskip("nbclient")
    nbformat: Any = pytest.importorskip("nbformat")
    pytest.importorskip("matplotlib")
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root / "src"), str(root / "adapters")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    texts = [out.get("text", "") or out.get("data", {}).get("text/plain", "") for out in outputs]
    assert re.search(LAST[path.stem], "\n".join(texts))
