"""Does a tracker slow training? Time of a train step under trackers that fail, against none.

    python -m everstep_lab.studies.trackers

Trains CartPole-v1 in rounds; in each, every tracker gets the same training, one after the other.
Prints the median over rounds of the ratio of a train step's time to that without a tracker.
"""

import argparse
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

import torch

import everstep


def serve(delay: float, connection: Connection) -> None:
    """A server that answers everything with an error after `delay` seconds."""

    class Failing(BaseHTTPRequestHandler):
        def answer(self) -> None:
            time.sleep(delay)
            self.send_response(500)
            self.end_headers()

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    connection.send(server.server_port)
    server.serve_forever()


def server(delay: float) -> str:
    """Address of such a server, in a process of its own."""
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=serve, args=(delay, there), daemon=True).start()
    return f"http://127.0.0.1:{here.recv()}"


def seconds_a_step(uri: str | None, steps: int, directory: Path) -> float:
    """Median seconds of a train step with that tracker, or with none."""
    os.environ["MLFLOW_TRACKING_URI"] = uri or ""
    env = everstep.make("gymnasium:CartPole-v1", 8, horizon=128)
    trainer = everstep.Trainer(
        env,
        seed=0,
        sgd_minibatch_size=256,
        model_config={"hiddens": (64, 64), "activation_fn": "tanh"},
        run_dir=tempfile.mkdtemp(dir=directory),
        track=uri is not None,
    )
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - start)
    lines = (trainer.run_dir / "metrics.jsonl").read_text().count("\n")
    assert lines == steps, "metrics.jsonl must be complete"
    trainer.close()
    env.close()
    return statistics.median(times[min(5, steps // 2) :])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("everstep").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        trackers = {
            "sqlite file": f"sqlite:///{directory}/mlflow.db",
            "refused connection": "http://127.0.0.1:9",
            "error 500": server(0.0),
            "error after 5 s": server(5.0),
        }
        ratios: dict[str, list[float]] = {key: [] for key in ["none, again", *trackers]}
        for _ in range(options.rounds):
            base = seconds_a_step(None, options.steps, directory)
            ratios["none, again"].append(seconds_a_step(None, options.steps, directory) / base)
            for key, uri in trackers.items():
                ratios[key].append(seconds_a_step(uri, options.steps, directory) / base)
        print(f"train step without a tracker: {1000 * base:.1f} ms")
        for key, found in ratios.items():
            print(
                f"{key:20} median ratio {statistics.median(found):.3f}, "
                f"from {min(found):.3f} to {max(found):.3f}"
            )


if __name__ == "__main__":
    main()
