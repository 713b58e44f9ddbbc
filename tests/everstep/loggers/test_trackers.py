"""TensorBoard and Weights & Biases, with the real libraries: training never waits for them."""

import json
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import everstep
from everstep import TrainConfig
from everstep.core.installation import install_command
from everstep.errors import ConfigError
from everstep.loggers import TensorBoardLogger, read_metrics
from everstep.loggers import delivery as delivering
from everstep.loggers.delivery import Delivery

SMALL = {"num_envs": 4, "horizon": 16, "seed": 0, "progress": False}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # without a key of a user
    return tmp_path


# ---- which trackers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loggers", "message"),
    [
        ("[tensorbord]", "loggers.0: tensorbord: .*did you mean tensorboard"),
        (
            "[{wandb: {project: 1, entity: me}}, 3]",
            "loggers.1: expected a logger, the name of a tracker",
        ),
        ("[{tensorboard: {dir: x}}]", "loggers.0: tensorboard: dir: unknown option"),
        ("[]", "loggers: "),
    ],
)
def test_what_is_no_tracker_is_told(loggers: str, message: str, here: Path) -> None:
    (here / "train.yaml").write_text(f"env_cls: gymnasium:CartPole-v1\nloggers: {loggers}\n")
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_file("train.yaml")


def test_what_is_no_tracker_is_told_in_python(here: Path) -> None:
    with pytest.raises(ConfigError, match="comet: unknown tracker"):
        everstep.Trainer(everstep.DiscreteDummyEnv(4, 8), run_dir="run", loggers=["comet"])
    assert not list(here.iterdir())


# ---- the queue -------------------------------------------------------------------------------


class Broken(Delivery):
    """A tracker that answers as it is told."""

    tracker = "Broken"

    def __init__(self, *, fails: bool, seconds: float = 0.0, queue_size: int = 100) -> None:
        super().__init__("nowhere", queue_size=queue_size, record="metrics.jsonl")
        self.fails, self.seconds = fails, seconds
        self.received: list[int] = []
        self.start()

    def _connect(self) -> None:
        time.sleep(self.seconds)
        if self.fails:
            raise ConnectionError("nobody there")

    def _send_head(self) -> None: ...

    def _send_points(self, points: Any) -> None:
        self.received += [point.step for point in points]

    def _send_text(self, name: str, text: str) -> None: ...

    def _send_media(self, media: Any) -> None: ...

    def _flush(self) -> None: ...

    def _end(self, status: Any) -> None: ...


def test_a_dead_tracker_costs_one_warning_and_the_oldest_points(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivering, "_PERIOD", 0.01)
    monkeypatch.setattr(delivering, "_LONGEST_PAUSE", 0.01)
    dead = Broken(fails=True)
    for step in range(1000):
        dead.put_metrics({"x": 1.0, "env/steps": 2.0}, step)
    dead.settled.wait(5)
    dead.close("FINISHED", patience=0.1, limit=1)
    assert (dead.waiting, dead.lost) == (100, 900)
    [record] = [x for x in caplog.records if x.levelno >= logging.WARNING]
    assert "Broken at nowhere failed with ConnectionError: nobody there" in record.message
    assert "metrics.jsonl has every statistic" in record.message


def test_putting_never_waits_for_a_slow_tracker() -> None:
    slow = Broken(fails=False, seconds=60.0)
    before = time.process_time(), time.monotonic()
    for step in range(1000):
        slow.put_metrics({"x": 1.0}, step)
        slow.put_media("weights", np.zeros(3), step)
    assert time.monotonic() - before[1] < 30  # it would take more than 60 s
    slow.close("FINISHED", patience=0.05, limit=0.1)
    assert len(slow._media) == 100


def test_what_a_tracker_takes_arrives_in_order() -> None:
    fine = Broken(fails=False, queue_size=10_000)
    for step in range(5000):
        fine.put_metrics({"x": 1.0}, step)
    fine.close("FINISHED", patience=5, limit=60)
    assert fine.received == list(range(5000))


class Storing(Broken):
    """A tracker whose store of files fails until it is told otherwise."""

    def __init__(self, *, fails_for: int) -> None:
        self.left = fails_for
        self.stored: list[str] = []
        super().__init__(fails=False)

    def _send_text(self, name: str, text: str) -> None:
        self.left -= 1
        if self.left >= 0:
            raise OSError("no bucket")
        self.stored.append(f"{name}: {text}")

    def _send_media(self, media: Any) -> None:
        self._send_text(media.name, str(media.step))


@pytest.mark.parametrize("while_closing", [False, True])
def test_texts_and_media_are_tried_until_they_are_stored(
    while_closing: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivering, "_PERIOD", 60.0 if while_closing else 0.01)
    monkeypatch.setattr(delivering, "_CLOSING_PAUSE", 0.01)
    store = Storing(fails_for=7)
    store.put_text("config.yaml", "lr: 1")
    for step in (1, 2):
        store.put_media("weights", np.zeros(3), step)
    store.put_metrics({"x": 1.0}, 3)
    limit = time.monotonic() + 60
    while not while_closing and len(store.stored) < 3 and time.monotonic() < limit:
        time.sleep(0.01)
    store.close("FINISHED", patience=30, limit=60)
    assert sorted(store.stored) == ["config.yaml: lr: 1", "weights: 1", "weights: 2"]
    assert store.received == [3]
    [record] = caplog.records
    assert "does not store config.yaml: OSError: no bucket" in record.message


def test_texts_and_media_that_are_never_stored_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivering, "_CLOSING_PAUSE", 0.01)
    store = Storing(fails_for=10**6)
    store.settled.wait(5)
    store.put_text("config.yaml", "lr: 1")
    store.put_text("config.yaml", "lr: 2")  # the last one counts
    for step in range(102):  # the queue holds 100
        store.put_media("weights", np.zeros(3), step)
    store.put_metrics({"x": 1.0}, 3)
    store.close("FINISHED", patience=30, limit=60)
    assert (store.received, store.waiting, store.lost) == ([3], 0, 0)
    failed, counted = (record.message for record in caplog.records)
    assert "does not store" in failed
    assert counted.startswith("103 parameters, texts or media were not delivered to Broken.")


class Answer(OSError):
    """An error of `requests`, by the status of the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} Client Error")
        self.response = SimpleNamespace(status_code=status)


class Refusing(Storing):
    """A tracker whose store of files answers with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[str] = []
        super().__init__(fails_for=0)

    def _send_text(self, name: str, text: str) -> None:
        self.asked.append(name)
        raise OSError("upload failed") from Answer(self.status)


@pytest.mark.parametrize(("status", "asked"), [(403, 1), (404, 1), (413, 3)])
def test_files_that_are_refused_for_good_are_not_sent_again(
    status: int, asked: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each alone if its size is refused, and else all of them."""
    monkeypatch.setattr(delivering, "_PERIOD", 0.01)
    monkeypatch.setattr(delivering, "_CLOSING_PAUSE", 0.01)
    store = Refusing(status)
    for step, name in enumerate(("a", "b", "c")):
        store.put_media(name, np.zeros(3), step)
    store.put_metrics({"x": 1.0}, 3)
    store.close("FINISHED", patience=30, limit=60)
    assert store.asked == ["a", "b", "c"][:asked]
    assert store.received == [3]
    first, counted = (record.message for record in caplog.records)
    assert f"does not store a: {status}, OSError: upload failed. Training continues: " in first
    assert counted.startswith("3 parameters, texts or media were not delivered")


# ---- TensorBoard -----------------------------------------------------------------------------


def events(directory: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(directory), {"tensors": 0, "images": 0})
    found.Reload()
    return found


def scalars(found: Any, tag: str) -> dict[int, float]:
    """Values by step, as TensorBoard shows them."""
    return {x.step: float(x.tensor_proto.float_val[0]) for x in found.Tensors(tag)}


@pytest.mark.slow
def test_tensorboard_has_statistics_hyperparameters_histograms_and_videos(here: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.plugins.hparams import plugin_data_pb2

    with everstep.Trainer(
        everstep.DiscreteDummyEnv(4, 16), run_dir="run", loggers=["tensorboard"], seed=0
    ) as trainer:
        trainer.run(total_env_steps=256)
        gif = here / "play.gif"
        gif.write_bytes(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;")
        trainer.logger.log_histogram("weights", np.arange(9.0), step=256)
        trainer.logger.log_video("video", gif, step=256)
    assert trainer.mlflow is None
    found = events(here / "run")
    records = read_metrics("run/metrics.jsonl")
    expected = {r["step"]: r["losses/total"] for r in records}
    assert scalars(found, "losses/total") == pytest.approx(expected, rel=1e-6)
    assert "weights" in found.Tags()["histograms"]
    assert "video" in found.Tags()["images"]
    data = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info
    assert start.hparams["gamma"].number_value == trainer.algorithm.params["gamma"]
    assert start.hparams["total_env_steps"].number_value == 256
    assert "config.yaml/text_summary" in found.Tags()["tensors"]


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_tensorboard(here: Path) -> None:
    pytest.importorskip("tensorboard")
    with everstep.Trainer(
        "CartPole-v1", run_dir="run", loggers=["tensorboard"], lr_schedule=None, **SMALL
    ) as trainer:
        trainer.run(total_env_steps=256)
        trainer.save()
        trainer.step()  # after the checkpoint: it is repeated
    with everstep.Trainer.load("run", total_env_steps=512, progress=False) as trainer:
        assert list(trainer.trackers) == ["tensorboard"]
        trainer.run()
    steps = [record["step"] for record in read_metrics("run/metrics.jsonl")]
    assert list(scalars(events(here / "run"), "losses/total")) == steps


def test_without_tensorboard_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, here: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    logger = TensorBoardLogger(here, record="metrics.jsonl")
    logger.log_metrics({"x": 1.0}, step=1)
    logger.close()
    [record] = caplog.records
    assert install_command("tensorboard") in record.message


# ---- Weights & Biases ------------------------------------------------------------------------


def records_of(data: bytes) -> list[bytes]:
    """Records of LevelDB's log format: blocks of 32 KiB, in which records may be split."""
    found, place, part = [], 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(part)
            part = b""
    return found


def offline_run(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Configuration, history and end of a run in the library's own files."""
    from wandb.proto import wandb_internal_pb2

    [file] = directory.glob("wandb/offline-run-*/*.wandb")
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    end: dict[str, Any] = {}
    for data in records_of(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        for part in (record.run.config, record.config):
            config |= {x.key: json.loads(x.value_json) for x in part.update}
        if record.HasField("history"):
            keys = {
                x.key or "/".join(x.nested_key): json.loads(x.value_json)
                for x in record.history.item
            }
            history.append(keys | {"_step": record.history.step.num})
        if record.HasField("exit"):
            end |= {"exit_code": record.exit.exit_code}
        if record.HasField("run"):
            end |= {"id": record.run.run_id, "project": record.run.project}
    return config, history, end


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_a_run_is_kept_offline_without_a_key(here: Path) -> None:
    pytest.importorskip("wandb")
    with everstep.Trainer(
        "CartPole-v1", run_dir="run", loggers=[{"wandb": {"tags": ["mine"]}}], **SMALL
    ) as trainer:
        trainer.run(total_env_steps=256)
        trainer.logger.log_histogram("weights", np.arange(9.0), step=1)
    config, history, end = offline_run(here / "run")
    while "exit_code" not in end:  # the library's process writes the file
        time.sleep(0.1)
        config, history, end = offline_run(here / "run")
    assert config["gamma"] == trainer.algorithm.params["gamma"]
    assert config["total_env_steps"] == 256
    run_id = trainer.trackers["wandb"].run_id
    assert end == {"exit_code": 0, "id": run_id, "project": "gymnasium-CartPole-v1"}
    losses = {x["_step"]: x["losses/total"] for x in history if "losses/total" in x}
    expected = {r["step"]: r["losses/total"] for r in read_metrics("run/metrics.jsonl")}
    assert losses == pytest.approx(expected)
    assert any(x.get("weights/_type") == "histogram" for x in history)
    with everstep.Trainer.load("run", total_env_steps=512, progress=False) as resumed:
        assert resumed.trackers["wandb"].run_id == run_id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library
def test_an_unreachable_server_costs_one_warning(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with everstep.Trainer("CartPole-v1", run_dir="run", loggers=["wandb"], **SMALL) as trainer:
        trainer.run(total_env_steps=256)
    assert read_metrics("run/metrics.jsonl")[-1]["step"] == trainer.state["env/steps"]
    ours = [x for x in caplog.records if x.name.startswith("everstep") and x.levelno > logging.INFO]
    assert [x.message.split(" at ")[0] for x in ours] == ["Weights & Biases"]
    assert trainer.trackers["wandb"].undelivered > 0


def test_the_server_is_used_with_a_key(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    from everstep.loggers.wandb_logger import _default_mode

    assert _default_mode(here) == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    assert _default_mode(here) == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert _default_mode(here) == "offline"
