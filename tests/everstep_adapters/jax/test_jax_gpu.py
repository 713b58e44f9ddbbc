"""JAX and PyTorch on one GPU: rows are the host's, and no memory is used again too early."""

from typing import Any

import pytest
import torch

from everstep import AlgorithmConfig

jax = pytest.importorskip("jax")

from tests.everstep_adapters.jax.jax_toys import Counter, CounterEnv  # noqa: E402

pytestmark = pytest.mark.gpu(real=True)

#: Enough rows that their memory is used again at once.
MANY = 2**18


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX takes no more of the device than it needs, if this is the first test that uses it."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")


def made(device: str, num_envs: int = MANY) -> CounterEnv:
    """Counters whose keys are those of a seed."""
    env = CounterEnv(Counter(), num_envs=num_envs, device=device)
    env.seed(0)
    return env


def actions(num_envs: int, device: str) -> torch.Tensor:
    """The same actions on each device."""
    return (torch.arange(num_envs).unsqueeze(-1) % 2).to(device)


def test_rows_on_a_gpu_are_those_of_the_host() -> None:
    there = made("cuda", 64)
    with jax.default_device(jax.devices("cpu")[0]):
        here = made("cpu", 64)
        torch.testing.assert_close(there.reset().cpu(), here.reset())
        for _ in range(20):
            row, expected = there.step(actions(64, "cuda")), here.step(actions(64, "cpu"))
            for key, value in expected.items():
                assert row[key].is_cuda
                torch.testing.assert_close(row[key].cpu(), value)


def busy() -> None:
    """Keep PyTorch's stream busy, so that what is enqueued next is read late."""
    torch.cuda._sleep(40_000_000)  # some 20 ms


@pytest.mark.parametrize("call", ["reset", "load", "state"])
def test_rows_are_read_before_their_memory_is_used_again(call: str) -> None:
    """A copy of the last row waits while JAX computes again, with no actions to wait for."""
    env, twin = made("cuda"), made("cuda")
    act = actions(MANY, "cuda")
    env.reset()
    twin.reset()
    state = env.state_dict()
    for _ in range(5):
        expected = {key: value.cpu() for key, value in twin.step(act).items()}
        row = env.step(act)
        busy()
        read = {key: value.clone() for key, value in row.items()}
        del row
        if call == "reset":
            env.reset()
            twin.reset()
        elif call == "load":
            env.load_state_dict(state)
            twin.load_state_dict(state)
        else:
            env.state_dict()
        for key, value in expected.items():
            assert torch.equal(read[key].cpu(), value), key


def test_vector_steps_do_not_wait_for_pytorch() -> None:
    """Actions carry the order: the host is free while the device computes."""
    env, act = made("cuda"), actions(MANY, "cuda")
    env.reset()
    for _ in range(3):
        env.step(act)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            env.step(act)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_environment_on_a_gpu_is_trained_in() -> None:

    def make(num_envs: int, horizon: Any = None, *, device: Any = "cpu") -> CounterEnv:
        return CounterEnv(Counter(), horizon, num_envs=num_envs, device=device)

    algorithm = AlgorithmConfig(num_envs=256, horizon=16, seed=0, device="cuda").build(make)
    for _ in range(3):
        stats = {**algorithm.collect(), **algorithm.step()}
    assert all(x == x for key, x in stats.items() if key.startswith(("losses", "rewards")))
