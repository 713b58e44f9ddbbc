"""JAX on the pretended device: the host's JAX computes, in a stream and in memory of the device.

What CUDA and JAX order is the double's: a compiled call waits for the tensors that it takes, its
results come by DLPack with a stream, and its memory is used again once nothing refers to it.
"""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch

from everstep_adapters.jax import actions, devices
from tests.device.machine import Memory, Stream
from tests.device.tensors import DEVICE, CudaTensor
from tests.everstep_adapters.jax.jax_toys import Counter, CounterEnv


class Array:
    """An array of JAX on the device."""

    device = SimpleNamespace(platform="gpu")

    def __init__(self, x: CudaTensor, stream: Stream) -> None:
        self.x, self.stream = x, stream
        self.dtype = np.dtype(str(x.dtype).removeprefix("torch."))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        with torch.cuda.stream(self.stream):  # type: ignore[arg-type]
            return self.x.__dlpack__(stream=stream)


class Device:
    """JAX's stream, and what is computed in it."""

    def __init__(self) -> None:
        self.stream: Any = torch.cuda.Stream()

    def take(self, x: torch.Tensor) -> Array:
        """`jax.numpy.from_dlpack`: JAX's stream waits for PyTorch's."""
        assert isinstance(x, CudaTensor)
        self.stream.wait_stream(torch.cuda.current_stream())
        return Array(CudaTensor(x.inner, x.memory), self.stream)

    def compiled(self, function: Any) -> Any:
        """A compiled function, whose results are in new memory."""

        def call(*arguments: Any) -> Any:
            read: list[Memory] = []

            def host(x: Any) -> Any:
                if not isinstance(x, Array):
                    return x
                read.append(x.x.memory)
                return jax.numpy.asarray(x.x.inner.numpy())

            is_array = lambda x: isinstance(x, Array)  # noqa: E731
            found = function(*jax.tree.map(host, arguments, is_leaf=is_array))
            with torch.cuda.stream(self.stream):
                made = jax.tree.map(self._placed, found)
                written = [x.x.memory for x in jax.tree.leaves(made, is_leaf=is_array)]
                CudaTensor.machine.launch("a call of JAX", read, written)
            return made

        return call

    def _placed(self, x: Any) -> Array:
        return Array(CudaTensor(torch.from_numpy(np.array(x))), self.stream)


class PretendedEnv(CounterEnv):
    """Counters whose functions run on the pretended device."""

    def __init__(self, env: Any, /, *arguments: Any, **options: Any) -> None:
        self.jax_device = Device()
        with mock.patch.object(devices, "to_torch", return_value=DEVICE):
            super().__init__(env, *arguments, **options)
        program, read = self._program, self._program.restore
        for name in ("start", "advance", "hold"):
            setattr(program, name, self.jax_device.compiled(getattr(program, name)))
        restore = self.jax_device.compiled(read)

        def restored(carry: Any) -> Any:
            """Computed there, and read by the host."""
            is_array = lambda x: isinstance(x, Array)  # noqa: E731
            back = lambda x: jax.numpy.asarray(x.x.inner.numpy())  # noqa: E731
            return jax.tree.map(back, restore(carry), is_leaf=is_array)

        program.restore = restored

    def step(self, action: Any) -> Any:
        taking = SimpleNamespace(from_dlpack=self.jax_device.take)
        with mock.patch.object(actions, "jnp", taking):
            return super().step(action)


def make(num_envs: int, horizon: Any = None, *, device: Any = "cuda") -> CounterEnv:
    """Counters on the device: the pretended one, or JAX's own."""
    is_real = jax.default_backend() == "gpu"
    env = (CounterEnv if is_real else PretendedEnv)(
        Counter(), horizon, num_envs=num_envs, device=device
    )
    env.seed(0)
    return env
