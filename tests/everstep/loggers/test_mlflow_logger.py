"""MLflow as a sink: everything arrives, and no tracker stops, slows or fails training."""

import contextlib
import importlib
import json
import logging
import math
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from everstep.core.installation import install_command
from everstep.loggers import JsonlLogger, LoggerGroup, MlflowLogger, read_metrics
from everstep.loggers.delivery import redacted
from everstep.loggers.mlflow_store import Target, accepted_name, flat_params, ui_command

mlflow = pytest.importorskip("mlflow")

# SQLAlchemy 2.1 deprecates a loader strategy that MLflow's store uses.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*noload:DeprecationWarning")]


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch, tmp_path):
    """Each test starts without a configured tracker, and must leave MLflow that way."""
    for name in ("TRACKING_URI", "EXPERIMENT_ID", "EXPERIMENT_NAME", "RUN_ID"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    assert mlflow.active_run() is None
    monkeypatch.undo()
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)  # `set_experiment` leaves it for ever
    mlflow.tracking.fluent._active_experiment_id = None
    assert not mlflow.is_tracking_uri_set()
    assert not list(tmp_path.glob("mlruns"))


@pytest.fixture(scope="module")
def root(tmp_path_factory, empty_store):
    """Directory with a store."""
    root = tmp_path_factory.mktemp("runs with a space")
    shutil.copy(empty_store, root)
    return root


def stored(logger):
    return mlflow.MlflowClient(logger.tracking_uri).get_run(logger.run_id)


def history(logger, name):
    client = mlflow.MlflowClient(logger.tracking_uri)
    return [(m.step, m.value) for m in client.get_metric_history(logger.run_id, name)]


def warned(caplog):
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in records if record.name.startswith("everstep")]


def test_every_point_and_parameter_arrives(root, caplog):
    logger = MlflowLogger(root, experiment_name="round trip", run_name="first")
    logger.log_params({"lr": 3e-4, "model": {"hiddens": [64, 64], "empty": {}}, "cls": dict})
    for step in range(0, 25000, 10):
        logger.log_metrics({"losses/vf": step / 7, "monitors/kl_div": -step}, step=step)
    logger.close()
    run = stored(logger)
    assert run.data.params == {
        "lr": "0.0003",
        "model.hiddens": "[64, 64]",
        "model.empty": "{}",
        "cls": "builtins.dict",
    }
    assert history(logger, "losses/vf") == [(step, step / 7) for step in range(0, 25000, 10)]
    assert history(logger, "monitors/kl_div") == [(step, -step) for step in range(0, 25000, 10)]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")
    assert logger.undelivered == 0
    assert warned(caplog) == []


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_the_run_ends_with_its_status(root, status):
    logger = MlflowLogger(root)
    assert stored(logger).info.status == "RUNNING"
    logger.close(status)
    logger.close("FINISHED")  # the second does nothing
    assert stored(logger).info.status == status


def test_nothing_is_queued_after_close(root):
    logger = MlflowLogger(root)
    logger.close()
    logger.log_metrics({"a": 1.0}, step=0)
    logger.log_params({"a": 1})
    assert logger.undelivered == 0


def test_default_store_is_beside_the_runs(root):
    logger = MlflowLogger(root, experiment_name="place")
    logger.close()
    run = stored(logger)
    experiment = mlflow.MlflowClient(logger.tracking_uri).get_experiment(logger.experiment_id)
    assert logger.tracking_uri == f"sqlite:///{root}/mlflow.db"
    assert str(logger.ui_command()).endswith(
        f"mlflow ui --backend-store-uri 'sqlite:///{root}/mlflow.db'"
    )
    assert (root / "mlflow.db").is_file()
    assert experiment.name == "place"
    assert run.info.artifact_uri.startswith((root / "mlflow-artifacts").as_uri())


def test_the_command_installs_the_page_where_it_is_missing(tmp_path, monkeypatch):
    target = Target("sqlite:///runs/mlflow.db")
    show = "mlflow ui --backend-store-uri sqlite:///runs/mlflow.db"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # of installed packages
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mlflow_skinny-3.10.dist-info").mkdir()
    (tmp_path / "mlflow_skinny-3.10.dist-info" / "METADATA").write_text("Name: mlflow-skinny\n")
    python = shlex.quote(sys.executable)
    install = f"{install_command('ui')} && "
    assert ui_command(target, None, None) == f"{install}{python} -m {show}"
    (tmp_path / "mlflow-3.10.dist-info").mkdir()
    (tmp_path / "mlflow-3.10.dist-info" / "METADATA").write_text("Name: mlflow\n")
    importlib.invalidate_caches()
    assert ui_command(target, None, None) == f"{python} -m {show}"
    program = tmp_path / "mlflow"  # of this interpreter's environment
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert ui_command(target, None, None) == show


def test_many_and_long_parameters(root, caplog):
    params = {f"p{i}": i for i in range(250)} | {"long": "x" * 10_000}
    logger = MlflowLogger(root)
    logger.log_params(params)
    logger.close()
    found = stored(logger).data.params
    assert {name: int(found[name]) for name in list(params)[:-1]} == {
        f"p{i}": i for i in range(250)
    }
    assert found["long"] == "x" * 499 + "…"
    assert warned(caplog) == []


def test_a_parameter_keeps_its_first_value(root, caplog):
    logger = MlflowLogger(root)
    logger.log_params({"lr": 1})
    logger.log_metrics({"a": 1.0}, step=0)
    while logger.undelivered:
        time.sleep(0.01)
    logger.log_params({"lr": 2, "gamma": 3})
    logger.log_metrics({"a": 2.0}, step=1)
    logger.close()
    assert stored(logger).data.params == {"lr": "1", "gamma": "3"}
    assert history(logger, "a") == [(0, 1.0), (1, 2.0)]
    assert warned(caplog) == []


def test_values_and_names_that_mlflow_does_not_take(root, caplog):
    logger = MlflowLogger(root)
    metrics = {"a[0]%|é": 1.0, "/b//c/": 2.0, "nan": math.nan, "inf": math.inf}
    logger.log_metrics(metrics, step=0)
    logger.close()
    found = stored(logger).data.metrics
    assert set(found) == {"a_0___é", "b/c", "nan", "inf"}
    assert math.isnan(found["nan"])
    assert found["inf"] >= sys.float_info.max  # SQLite's store clamps
    assert warned(caplog) == []


def test_accepted_names_are_accepted():
    from mlflow.utils.validation import _validate_metric_name

    letters = "ab1/./.. :-_[]%|é\n"
    for i in range(3000):
        name = "".join(
            letters[(i * 7919 + j * j * 31 + j * i) % len(letters)] for j in range(i % 9)
        )
        _validate_metric_name(accepted_name(name))
    _validate_metric_name(accepted_name("x/" * 500))
    for name in ("losses/vf", "episodes/return_mean_100", "env/steps", "a b:c-d.e"):
        assert accepted_name(name) == name


def test_flat_params_law():
    params = {"a": {"b": {"c": 1}, "d": None}, "e": [{"f": 1}], 3: "g"}
    assert flat_params(params) == {"a.b.c": "1", "a.d": "None", "e": "[{'f': 1}]", "3": "g"}


def test_passwords_are_not_shown():
    assert redacted("postgresql://me:secret@host/db") == "postgresql://***@host/db"
    assert redacted("sqlite:////a/b.db") == "sqlite:////a/b.db"


# Whose run it is.


def test_own_run_is_active_until_close(root):
    logger = MlflowLogger(root)
    assert mlflow.active_run().info.run_id == logger.run_id
    mlflow.log_param("by_the_caller", 1)  # goes to our store and run
    logger.close()
    assert mlflow.active_run() is None
    assert stored(logger).data.params == {"by_the_caller": "1"}


def test_joins_the_callers_run_and_leaves_it_open(root, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/mlflow.db")
    with mlflow.start_run() as run:
        mlflow.log_param("lr", "mine")
        logger = MlflowLogger("elsewhere")
        assert logger.run_id == run.info.run_id
        assert logger.experiment_id == run.info.experiment_id
        assert mlflow.get_tracking_uri() == logger.tracking_uri
        logger.log_params({"lr": "yours", "gamma": 1})
        logger.log_metrics({"a": 1.0}, step=1)
        logger.close("FAILED")
        assert mlflow.active_run().info.run_id == run.info.run_id
        assert stored(logger).info.status == "RUNNING"
    assert stored(logger).info.status == "FINISHED"
    assert stored(logger).data.params == {"lr": "mine", "gamma": "1"}
    assert history(logger, "a") == [(1, 1.0)]


@pytest.mark.parametrize("first_out", [0, 1])
def test_a_second_logger_gets_its_own_run(root, first_out):
    loggers = [MlflowLogger(root), MlflowLogger(root)]
    assert loggers[0].run_id != loggers[1].run_id
    assert mlflow.active_run().info.run_id == loggers[1].run_id
    for i, logger in enumerate(loggers):
        logger.log_params({"lr": i})
    loggers[first_out].close()
    assert mlflow.active_run().info.run_id == loggers[1 - first_out].run_id
    loggers[1 - first_out].close()
    assert [stored(logger).data.params for logger in loggers] == [{"lr": "0"}, {"lr": "1"}]


def test_two_loggers_with_different_stores(root, tmp_path, empty_store):
    """The store that the active run lives in is the one that MLflow points at."""
    shutil.copy(empty_store, tmp_path)
    first = MlflowLogger(root)
    second = MlflowLogger(tmp_path)
    assert second.tracking_uri != first.tracking_uri == f"sqlite:///{root}/mlflow.db"
    assert mlflow.get_tracking_uri() == second.tracking_uri
    second.close()
    assert mlflow.get_tracking_uri() == first.tracking_uri
    first.close()


def test_a_run_that_the_caller_ended_keeps_its_status(root):
    logger = MlflowLogger(root)
    logger.log_metrics({"a": 1.0}, step=0)
    mlflow.end_run("KILLED")
    logger.close("FINISHED")
    assert stored(logger).info.status == "KILLED"
    assert history(logger, "a") == [(0, 1.0)]


def test_close_from_another_thread(root):
    logger = MlflowLogger(root)
    thread = threading.Thread(target=logger.close)
    thread.start()
    thread.join()
    assert mlflow.active_run() is None
    assert stored(logger).info.status == "FINISHED"


def test_the_callers_store_and_experiment_are_used(root):
    uri = f"sqlite:///{root}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.set_experiment("the caller's")
    logger = MlflowLogger("elsewhere")
    logger.close()
    assert (logger.tracking_uri, logger.experiment_id) == (uri, experiment.experiment_id)
    named = MlflowLogger("elsewhere", experiment_name="mine")
    named.close()
    assert named.experiment_id != experiment.experiment_id
    assert mlflow.get_tracking_uri() == uri
    mlflow.set_tracking_uri(None)


def test_a_tracking_uri_of_its_own_leaves_the_callers(root, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    logger = MlflowLogger(tmp_path, tracking_uri=f"sqlite:///{root}/mlflow.db")
    assert mlflow.get_tracking_uri() == logger.tracking_uri
    logger.close()
    assert mlflow.get_tracking_uri() == "http://127.0.0.1:9"
    mlflow.set_tracking_uri(None)


def test_a_deleted_experiment_is_left_alone(root, caplog):
    first = MlflowLogger(root, experiment_name="gone")
    first.close()
    client = mlflow.MlflowClient(first.tracking_uri)
    client.delete_experiment(first.experiment_id)
    second = MlflowLogger(root, experiment_name="gone")
    second.close()
    assert client.get_experiment(second.experiment_id).name == "gone-2"
    assert client.get_experiment(first.experiment_id).lifecycle_stage == "deleted"
    [message] = warned(caplog)
    assert f"restore --experiment-id {first.experiment_id}" in message
    third = MlflowLogger(root, experiment_name="gone")
    third.close()
    assert third.experiment_id == second.experiment_id


# Trackers that fail.


class Tracker(BaseHTTPRequestHandler):
    """The few calls of MLflow's REST protocol that a run needs, kept in memory."""

    def do_GET(self):
        self._answer({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.loads(body))

    def log_message(self, *arguments):
        pass

    def _answer(self, request):
        server = self.server
        server.requests += 1
        if server.mode == "hang":
            server.stopping.wait()
        if server.mode == "slow":
            server.stopping.wait(0.15)
        if any(place in self.path for place in server.refusing):
            status, answer = server.refusing_with
        elif self.path.endswith("/log-batch") and len(json.dumps(request)) > server.largest:
            status, answer = 413, "<h1>Request Entity Too Large</h1>"
        else:
            status, answer = (500, {}) if server.mode == "500" else self._route(request)
        body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        with contextlib.suppress(OSError):  # the client may have given up
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _route(self, request):
        info = {"run_id": "a" * 32, "experiment_id": "1", "status": "RUNNING", "start_time": 1}
        experiment = {"experiment_id": "1", "name": "everstep", "lifecycle_stage": "active"}
        if "/experiments/get" in self.path:
            return 200, {"experiment": experiment}
        if self.path.endswith("/runs/log-batch"):
            metrics = request.get("metrics", ())
            if wrong := [x["key"] for x in metrics if x["key"] in self.server.refused]:
                code = "INVALID_PARAMETER_VALUE"
                return 400, {"error_code": code, "message": f"Invalid metric name: {wrong[0]}"}
            for metric in metrics:
                self.server.points[metric["key"]].append((metric["step"], metric["value"]))
            return 200, {}
        if self.path.endswith("/runs/update"):
            self.server.status = request["status"]
            return 200, {"run_info": info}
        if self.path.endswith("/runs/create") or "/runs/get?" in self.path:
            return 200, {"run": {"info": info, "data": {}}}
        return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": self.path}


@contextlib.contextmanager
def tracker(mode):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tracker)
    server.daemon_threads = True
    server.mode, server.requests, server.status = mode, 0, None
    server.points = defaultdict(list)
    server.refused = set()
    server.refusing, server.refusing_with, server.largest = (), None, math.inf
    server.stopping = threading.Event()
    server.uri = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def closed_port():
    """A port that nobody listens on, and that nobody else is given meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield SimpleNamespace(uri=f"http://127.0.0.1:{taken.getsockname()[1]}")


def failing_tracker(mode):
    return closed_port() if mode == "refused" else tracker(mode)


@pytest.fixture
def connecting_threads(monkeypatch):
    """Threads that opened a connection."""
    threads = set()
    connect = socket.socket.connect

    def watched(self, address):
        threads.add(threading.current_thread())
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    return threads


def train(uri, directory, *, steps=50, **options):
    """Log as a trainer would, to the record and to MLflow."""
    record = JsonlLogger(directory / "metrics.jsonl")
    sink = MlflowLogger(directory, tracking_uri=uri, record=record.path, **options)
    group = LoggerGroup([record, sink])
    group.log_params({"lr": 1e-3})
    for step in range(steps):
        group.log_metrics({"a": step / 3, "b": -step}, step=step)
    group.close()
    return sink


@pytest.mark.parametrize("mode", ["refused", "500", "hang"])
@pytest.mark.parametrize("retries", [0, 7])
def test_a_failing_tracker_costs_one_warning(
    mode, retries, tmp_path, caplog, monkeypatch, connecting_threads
):
    """Without retries the thread sees the failure; with MLflow's 7 it is stuck in them."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(retries))
    with failing_tracker(mode) as server:
        sink = train(server.uri, tmp_path, wait=0.3, patience=0.3)
        assert sink.run_id is None
        assert mlflow.active_run() is None
        assert threading.current_thread() not in connecting_threads
        give_up = time.monotonic() + 30  # a busy machine has not connected yet
        while not connecting_threads and time.monotonic() < give_up:
            time.sleep(0.01)
        assert connecting_threads
    [message] = warned(caplog)
    assert server.uri in message
    assert f"{tmp_path}/metrics.jsonl has every statistic" in message
    assert [record["a"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [
        step / 3 for step in range(50)
    ]
    assert sink.undelivered == 100


@pytest.mark.slow
def test_a_slow_tracker_gets_everything(tmp_path, caplog, connecting_threads):
    """The constructor gives up waiting; `close` does not while answers arrive.

    A dozen and a half of requests take 0.15 s each, and more where the machine is busy.
    """
    with tracker("slow") as server:
        sink = train(server.uri, tmp_path, steps=5000, wait=0.1, patience=20.0)
        assert server.points["a"] == [(step, step / 3) for step in range(5000)]
        assert server.status == "FINISHED"
        assert threading.current_thread() not in connecting_threads
    assert len(warned(caplog)) == 1
    assert sink.undelivered == 0
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 5000


def test_a_healthy_server(tmp_path, caplog):
    with tracker("ok") as server:
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri)
        assert logger.run_id == "a" * 32
        assert logger.ui_command() == f"{server.uri}/#/experiments/1/runs/{'a' * 32}"
        logger.log_metrics({"nan": math.nan, "inf": math.inf, "a": 1.0}, step=3)
        logger.close("FAILED")
        assert server.points == {"nan": [(3, "NaN")], "inf": [(3, "Infinity")], "a": [(3, 1.0)]}
        assert server.status == "FAILED"
    assert warned(caplog) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_refused_statistic_costs_no_other(seed, tmp_path, caplog):
    """However many there are: all others arrive, and those that do not are counted."""
    draw = random.Random(seed)
    names = [f"m{i}" for i in range(draw.choice((3, 60, 400)))]
    with tracker("ok") as server:
        server.refused = set(draw.sample(names, draw.choice((1, 2, len(names) // 3))))
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri, patience=30.0)
        for step in range(20):
            logger.log_metrics(dict.fromkeys(names, step), step=step)
        logger.close()
        assert server.points.keys() == set(names) - server.refused
        assert all(len(points) == 20 for points in server.points.values())
        assert server.requests < 30 + 24 * len(server.refused)
    assert logger.undelivered == 20 * len(server.refused)
    assert any("refuses" in message for message in warned(caplog))


def test_a_run_that_refuses_everything_is_not_asked_for_each_statistic(tmp_path, caplog):
    names = [f"m{i}" for i in range(100)]
    with tracker("ok") as server:
        server.refused = set(names)
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri, patience=30.0)
        for step in range(100):
            logger.log_metrics(dict.fromkeys(names, step), step=step)
        logger.close()
        assert server.requests < 250
    assert logger.undelivered == 10_000


#: Bodies of refusals as MLflow's server, a proxy and a gateway write them.
BODIES = ({"error_code": "PERMISSION_DENIED"}, "<h1>No</h1>", {"message": "Forbidden"}, {}, "")


@pytest.mark.few(5)
@pytest.mark.parametrize("status", [401, 403, 404, 405, 410, 501])
@pytest.mark.parametrize("where", ["/experiments/get", "/runs/create", "/log-batch", "/update"])
@pytest.mark.parametrize("body", BODIES, ids=str)
def test_what_refuses_for_good_is_told_once_and_not_asked_again(
    status, where, body, tmp_path, caplog, monkeypatch
):
    """In no form of a body is it taken for an error that passes."""
    monkeypatch.setattr("everstep.loggers.delivery._PERIOD", 0.01)
    monkeypatch.setattr("everstep.loggers.delivery._LONGEST_PAUSE", 0.02)
    if where == "/experiments/get" and (status == 404 or "error_code" in body):
        pytest.skip("MLflow takes a 404 there for an experiment that is to be created")
    with tracker("ok") as server:
        server.refusing, server.refusing_with = (where,), (status, body)
        sink = train(server.uri, tmp_path, steps=20, wait=30.0, patience=30.0)
        requests = server.requests
        for step in range(20, 40):
            sink.log_metrics({"a": step}, step=step)
        time.sleep(0.1)
        assert server.requests == requests
    first, *counted = warned(caplog)
    assert f"refuses this run: {status}, " in first
    assert "nothing more is sent there: check " in first
    assert f"{tmp_path}/metrics.jsonl has every statistic" in first
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 20
    lost = 0 if where == "/update" else 40
    assert sink.undelivered == lost
    assert len(counted) == (lost > 0)
    assert all(line.startswith("40 points") for line in counted)


@pytest.mark.parametrize("status", [408, 429, 502, 503])
def test_what_passes_is_asked_again(status, tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("everstep.loggers.delivery._PERIOD", 0.01)
    with tracker("ok") as server:
        server.refusing, server.refusing_with = ("/log-batch",), (status, "busy")
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri, patience=30.0)
        logger.log_metrics({"a": 1.0}, step=1)
        give_up = time.monotonic() + 30
        while not warned(caplog) and time.monotonic() < give_up:
            time.sleep(0.01)
        server.refusing = ()
        logger.close()
        assert server.points == {"a": [(1, 1.0)]}
    assert len(warned(caplog)) == 1


@pytest.mark.parametrize("largest", [150, 400, 3000])
def test_batches_of_a_server_that_takes_small_ones_are_halved(largest, tmp_path, caplog):
    with tracker("ok") as server:
        server.largest = largest
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri, patience=30.0)
        logger.log_params({f"p{i}": i for i in range(30)} | {"long": "x" * 400})
        for step in range(50):
            logger.log_metrics(dict.fromkeys("abcd", step), step=step)
        logger.close()
        steps = [(step, step) for step in range(50)]
        assert {name: sorted(points) for name, points in server.points.items()} == dict.fromkeys(
            "abcd", steps
        )
    assert logger.undelivered == 0
    is_lost = largest < 500  # the long parameter alone is larger
    assert len(warned(caplog)) == 2 * is_lost
    if is_lost:
        assert "refuses a request: 413, " in warned(caplog)[0]
        assert warned(caplog)[1].startswith("1 parameters, texts or media were not delivered")


def test_statistics_whose_names_become_one_keep_apart(root):
    logger = MlflowLogger(root)
    logger.log_metrics({"a?b": 1.0, "a_b": 2.0, "a!b": 3.0, "y" * 300: 4.0, "y" * 301: 5.0}, step=1)
    logger.close()
    found = stored(logger).data.metrics
    assert sorted(found.values()) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert {"a_b", "a_b_2", "a_b_3"} <= found.keys()


def test_an_outage_loses_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("everstep.loggers.delivery._PERIOD", 0.01)
    monkeypatch.setattr("everstep.loggers.delivery._LONGEST_PAUSE", 0.02)
    with tracker("ok") as server:
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri, patience=30.0)
        for phase, mode in enumerate(["ok", "500", "ok", "500", "ok"]):
            server.mode = mode
            for step in range(100 * phase, 100 * (phase + 1)):
                logger.log_metrics({"a": step}, step=step)
            seen = server.requests
            while server.requests < seen + 2 and mode == "500":
                time.sleep(0.01)  # until the tracker has refused
        logger.close()
        assert server.points["a"] == [(step, float(step)) for step in range(500)]
    assert len(warned(caplog)) == 1
    assert logger.undelivered == 0


def test_a_full_queue_drops_the_oldest(tmp_path, caplog):
    with tracker("hang") as server:
        options = {"queue_size": 10, "wait": 0.1, "patience": 0.1}
        logger = MlflowLogger(tmp_path, tracking_uri=server.uri, **options)
        for step in range(25):
            logger.log_metrics({"a": step}, step=step)
        waiting = [point.step for point in logger._delivery._points]
        assert waiting == list(range(15, 25))
        assert logger.undelivered == 25
        logger.close()
    assert logger.undelivered == 25
    assert len(warned(caplog)) == 1


def test_losses_after_a_recovery_are_reported(root, caplog):
    """Nothing failed, but the queue was too small: the only warning comes at the end."""
    logger = MlflowLogger(root, queue_size=10)
    logger.log_metrics({f"m{i}": i for i in range(25)}, step=0)
    logger.close()
    [message] = warned(caplog)
    assert message.startswith("15 points were not delivered")
    assert set(stored(logger).data.metrics) == {f"m{i}" for i in range(15, 25)}


def test_refused_metrics_do_not_hold_up_the_close(root, caplog):
    """A run that was deleted meanwhile refuses everything, for good."""
    logger = MlflowLogger(root)
    mlflow.MlflowClient(logger.tracking_uri).delete_run(logger.run_id)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.close()
    [message] = warned(caplog)
    assert "refuses" in message
    assert logger.undelivered == 1


def test_a_store_that_cannot_be_made(tmp_path, caplog):
    (tmp_path / "file").touch()
    logger = MlflowLogger(tmp_path, tracking_uri=f"sqlite:///{tmp_path}/file/mlflow.db", patience=0)
    logger.log_metrics({"a": 1.0}, step=0)
    logger.close()
    [message] = warned(caplog)
    assert "FileExistsError" in message


def test_logging_is_left_as_it_was(root):
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic", "urllib3.connectionpool")]

    def configuration():
        state = [(log.level, log.disabled, log.propagate, list(log.handlers)) for log in loggers]
        places = [place for log in loggers for place in (log, *log.handlers)]
        return state, {filter_ for place in places for filter_ in place.filters}

    state, filters = configuration()
    logger = MlflowLogger(root)
    thread = logger._delivery._thread
    logger.close()
    thread.join()
    assert configuration()[0] == state
    assert configuration()[1] <= filters  # those of threads that are stuck may have gone


# In processes of their own.


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


WITHOUT_MLFLOW = """
import sys
sys.modules["mlflow"] = None
from pathlib import Path
from everstep.loggers import JsonlLogger, LoggerGroup, MlflowLogger
record = JsonlLogger(Path(sys.argv[1]) / "metrics.jsonl")
sink = MlflowLogger(sys.argv[1], record=record.path)
group = LoggerGroup([record, sink])
group.log_params({"a": 1})
for step in range(10):
    group.log_metrics({"a": step}, step=step)
group.close()
assert (sink.run_id, sink.experiment_id, sink.tracking_uri, sink.ui_command()) == (None,) * 4
"""


@pytest.mark.slow
def test_without_mlflow(tmp_path):
    result = run_script(WITHOUT_MLFLOW, tmp_path)
    assert result.returncode == 0, result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith("MLflow cannot be imported")
    assert "metrics.jsonl has every statistic" in line
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 10


FIRST_USE = """
import sys
from everstep.loggers import MlflowLogger
sys.stdin.readline()
logger = MlflowLogger(sys.argv[1], experiment_name="shared", wait=300.0, patience=60.0)
for step in range(100):
    logger.log_metrics({"a": step}, step=step)
print(logger.run_id)
if len(sys.argv) > 2:
    raise SystemError("on purpose")
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_share_a_fresh_store_and_end_their_runs(tmp_path):
    """Neither closes its logger: that is done at exit, after an error as FAILED."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, str(tmp_path), *extra],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for extra in ([], ["fail"])
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    (finished, errors), (failed, traceback) = [process.communicate() for process in processes]
    assert errors == ""  # not a word of the tables that were created
    assert "on purpose" in traceback
    assert "MLflow" not in traceback
    for output, status in ((finished, "FINISHED"), (failed, "FAILED")):
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        run = SimpleNamespace(tracking_uri=uri, run_id=output.strip())
        assert history(run, "a") == [(step, float(step)) for step in range(100)]
        assert stored(run).info.status == status
