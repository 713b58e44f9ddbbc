"""Folders for the hub: what the hub reads of them, and that they are runs that can be played."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.__main__ import main
from everstep.visualization import read_run, write_report
from everstep.visualization._comparison import shown
from everstep.visualization.publishing import publish_run
from tests.everstep.visualization.conftest import PAINTED, Train

pytestmark = pytest.mark.slow


def front_matter(card: Path) -> dict[str, Any]:
    _, head, _ = card.read_text(encoding="utf-8").split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(head)
    return found


def test_a_folder_has_the_policy_and_what_the_hub_reads(
    seeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    run = Path(shutil.copytree(seeds / "seed-0", tmp_path / "run"))
    (run / "play.mp4").write_bytes(b"video")
    out = tmp_path / "shared" / "cartpole"
    assert main(["publish", str(run), str(out)]) == 0
    assert "hf upload NAME/MODEL" in capsys.readouterr().out
    names = {"policy", "config.yaml", "metrics.jsonl", "results.json", "curves.png", "README.md"}
    assert {path.name for path in out.iterdir()} == names | {"replay.mp4"}
    head = front_matter(out / "README.md")
    assert head["pipeline_tag"] == "reinforcement-learning"
    assert {"CartPole-v1", "everstep"} < set(head["tags"])
    [index] = head["model-index"]
    [result] = index["results"]
    results = json.loads((out / "results.json").read_text())
    assert result["metrics"][0]["value"] == results["eval/episodes/return_mean"]
    text = (out / "README.md").read_text(encoding="utf-8")
    deviation = read_run(run).curve("eval/episodes/return_std")[1][-1]
    row = "| standard deviation of `eval/episodes/return_mean` over its episodes |"
    assert f"{row} {shown(float(deviation))} |" in text
    assert "pip install everstep" not in text
    assert "pypi.org" not in text
    assert result["dataset"]["name"] == "CartPole-v1"
    assert main(["eval", str(out), "--episodes", "2"]) == 0  # it is played as a run is
    assert main(["publish", str(run), str(out)]) == 2  # nothing is overwritten


def test_the_best_policy_is_shared(train: Train, tmp_path: Path) -> None:
    key = "eval/episodes/return_mean"
    options = {"steps_per_eval": 1, "eval_episodes": 2, "best": key, "total_env_steps": 512}
    run = train(env_cls=f"{PAINTED}.PaintedEnv", **options)
    card = publish_run(run, tmp_path / "out")
    assert (tmp_path / "out" / "policy").read_bytes() == (run / "best" / "policy").read_bytes()
    best = json.loads((run / "best" / "best.json").read_text())["value"]
    [index] = front_matter(card)["model-index"]
    assert index["results"][0]["metrics"][0]["value"] == best


def test_the_hubs_own_library_reads_the_card(seeds: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = publish_run(seeds / "seed-0", tmp_path / "out")
    data = hub.ModelCard.load(card).data
    [result] = data.eval_results
    assert (result.task_type, result.dataset_name) == ("reinforcement-learning", "CartPole-v1")
    assert data.library_name == "everstep"


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

LOOK = """<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)));
addEventListener("load", () => setTimeout(() => {
  const box = document.querySelector("figure svg").getBoundingClientRect();
  document.title = JSON.stringify({
    errors, width: box.width, height: box.height, wide: document.documentElement.scrollWidth,
    rows: document.querySelectorAll("table tr").length,
    frames: [...document.querySelectorAll("img, video")].map(x => x.naturalWidth || x.videoWidth),
    outside: performance.getEntriesByType("resource").map(x => x.name)
      .filter(name => !name.startsWith("data:")),
  });
}, 500));
</script>"""


def test_a_browser_shows_the_report(seeds: Path, tmp_path: Path) -> None:
    """Curves have a size, the picture is decoded, and nothing is fetched from elsewhere."""
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("needs a browser: " + ", ".join(BROWSERS))
    gif = tmp_path / "play.gif"
    image.new("RGB", (64, 48), (200, 30, 30)).save(gif)
    page = write_report(seeds / "seed-0", tmp_path / "report.html", video=gif)
    page.write_text(page.read_text().replace("<head>", f"<head>{LOOK}", 1))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=900,1200", "--dump-dom"]
    done = subprocess.run(
        [browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=120
    )
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    found = json.loads(title.replace("&quot;", '"'))
    assert found["errors"] == []
    assert found["outside"] == []
    assert found["frames"] == [64]
    assert found["width"] > 400
    assert found["height"] > 200
    assert found["wide"] <= 900
    assert found["rows"] > 6
