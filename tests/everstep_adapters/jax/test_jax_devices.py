"""A batch is computed on JAX's device with the index of its rows', in a process with two."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

PROGRAM = """
import jax, torch
from tests.everstep_adapters.jax.jax_toys import Counter, CounterEnv
import everstep_adapters.jax.devices as devices
from everstep.errors import AdapterError

def where(env):
    return {x.device.id for x in env._carry}

def stepped(env, n=3):
    env.seed(0)
    rows = [env.reset().tolist()]
    for _ in range(n):
        row = env.step(torch.ones(4, 1, dtype=torch.int64))
        rows.append((row["obs"].tolist(), row["rewards"].tolist()))
    return rows

first, second, plain = (
    CounterEnv(Counter(), num_envs=4, device=device) for device in ("cpu:0", "cpu:1", "cpu")
)
rows = stepped(second)
assert stepped(first) == rows == stepped(plain)
assert (where(first), where(second), where(plain)) == ({0}, {1}, {0})

state = second.state_dict()
other = CounterEnv(Counter(), num_envs=4, device="cpu:1")
other.load_state_dict(state)
action = torch.zeros(4, 1, dtype=torch.int64)
assert torch.equal(other.step(action)["obs"], second.step(action)["obs"])
assert where(other) == {1}

with jax.default_device(jax.devices()[1]):
    assert devices.choose(None).id == 1
    default = CounterEnv(Counter(), num_envs=4)
assert stepped(default) == rows and where(default) == {1}
assert devices.choose("cuda:1").id == 0  # rows on a GPU of what is computed on the host

class Gpu:
    platform, local_hardware_id = "gpu", 3

assert devices.to_torch(Gpu()) == torch.device("cuda:3")
try:
    CounterEnv(Counter(), num_envs=4, device="cpu:2")
except AdapterError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_index_of_the_device_is_kept() -> None:
    flags = "--xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "`device` is cpu:2, and JAX sees the devices" in found.stdout
    assert "only, so" in found.stdout
