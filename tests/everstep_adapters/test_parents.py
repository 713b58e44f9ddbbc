"""Workers of environments end when the process that made them was killed."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

CODE = """
import time, everstep
env = everstep.make({spec!r}, 2, {option})
env.reset()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "option"),
    [
        ("torchrl:CartPole-v1", "parallel=True"),
        ("gymnasium:CartPole-v1", "vectorization_mode='async'"),
    ],
)
def test_workers_end_with_a_killed_parent(spec: str, option: str) -> None:
    code = "if __name__ == '__main__':" + CODE.format(spec=spec, option=option).replace(
        "\n", "\n  "
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=30)
        for worker in alive:
            worker.kill()
        assert not alive, time.ctime()
