"""Videos while training: they are there, and the training is the same as without them."""

from pathlib import Path

import pytest

from everstep.loggers import read_metrics
from tests.everstep.visualization.conftest import PAINTED, Train
from tests.everstep.visualization.test_videos import frames_of

pytestmark = pytest.mark.slow

RECORD = "everstep.visualization.recording.RecordVideos"


def numbers(run_dir: Path) -> list[dict[str, float]]:
    """Statistics without those of the machine."""
    return [
        {k: v for k, v in r.items() if k != "time" and not k.startswith(("profiling/", "memory/"))}
        for r in read_metrics(run_dir / "metrics.jsonl")
    ]


def test_videos_do_not_change_the_training(train: Train) -> None:
    pytest.importorskip("PIL")
    painted = {"env_cls": f"{PAINTED}.PaintedEnv"}
    plain = train(**painted)
    recorded = train(**painted, callbacks=[{RECORD: {"every": 2, "suffix": ".gif"}}])
    assert numbers(recorded) == numbers(plain)
    steps = [record["step"] for record in numbers(plain)]
    names = [f"step-{step:09d}.gif" for step in steps[1::2]]
    files = sorted((recorded / "videos").iterdir())
    assert [file.name for file in files] == names
    assert [int(frame[-1, 0].mean().round()) for frame in frames_of(files[0])][:2] == [0, 20]


def test_video_every_is_a_key_of_files(train: Train) -> None:
    pytest.importorskip("imageio_ffmpeg")
    recorded = train(env_cls=f"{PAINTED}.PaintedEnv", video_every=3)
    files = list((recorded / "videos").iterdir())
    assert len(files) == 1
    assert files[0].stat().st_size > 1000
    assert "video_every: 3" in (recorded / "config.yaml").read_text()


def test_what_cannot_be_recorded_costs_one_warning(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    recorded = train(env_cls="everstep.DiscreteDummyEnv", video_every=1)
    [warning] = [x for x in caplog.records if "No more videos" in x.message]
    assert "render" in warning.message
    assert len(numbers(recorded)) == 4
