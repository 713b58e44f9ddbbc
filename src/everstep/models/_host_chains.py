"""Chains of linear layers and activations on a few rows, run by NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

Array = npt.NDArray[Any]

#: Multiplications in a product of matrices beyond which NumPy's OpenBLAS starts threads, which
#: know nothing of PyTorch's.
MOST_MULTIPLICATIONS = 2**18


def _relu(x: Array) -> None:
    np.maximum(x, 0, out=x)


def _sigmoid(x: Array) -> None:
    # (1 + tanh(x/2))/2, which does not overflow.
    np.multiply(x, 0.5, out=x)
    np.tanh(x, out=x)
    np.multiply(x, 0.5, out=x)
    np.add(x, 0.5, out=x)


def _tanh(x: Array) -> None:
    np.tanh(x, out=x)


#: Activations, in place, by the modules that they stand for: all that a chain may have.
_ACTIVATIONS: dict[type[nn.Module], Callable[[Array], None]] = {
    nn.ReLU: _relu,
    nn.Sigmoid: _sigmoid,
    nn.Tanh: _tanh,
}


class HostChain:
    """A chain of linear layers and activations, without gradients, on rows of NumPy's.

    Acting on 8 rows with layers of 64 takes a third of the time that it takes with PyTorch, and
    leaves more of the processor's caches to what comes next.

    Args:
        network: The chain, on the CPU; `is_chain` and `HostChain.suits` of it are true.
        rows: Rows of each call.

    """

    def __init__(self, network: nn.Sequential, rows: int) -> None:
        layers: list[Any] = list(network)[::2]
        # Transposed and contiguous: read across, a small product takes three times as long.
        weights = [np.ascontiguousarray(layer.weight.detach().numpy().T) for layer in layers]
        biases = [None if x.bias is None else x.bias.detach().numpy().copy() for x in layers]
        activations = [_ACTIVATIONS[type(module)] for module in list(network)[1::2]]
        outputs = [np.empty((rows, w.shape[1]), w.dtype) for w in weights[:-1]]
        self._hidden = list(zip(weights, biases, activations, outputs, strict=False))
        self._weight, self._bias = weights[-1], biases[-1]

    @staticmethod
    def suits(network: nn.Sequential, rows: int) -> bool:
        """Whether all products are small enough."""
        weights: list[Any] = [layer.weight for layer in list(network)[::2]]
        return all(rows * weight.numel() <= MOST_MULTIPLICATIONS for weight in weights)

    def __call__(self, x: Array, out: Array) -> None:
        """Fill `out` `[rows, width]` with what the network makes of `x` `[rows, …]`."""
        x = x.reshape(len(x), -1).astype(self._weight.dtype, copy=False)
        for weight, bias, activate, output in self._hidden:
            _affine(x, weight, bias, output)
            activate(output)
            x = output
        _affine(x, self._weight, self._bias, out)


def _affine(x: Array, weight: Array, bias: None | Array, out: Array) -> None:
    """x·weight + bias, `[rows, width]`, in `out`."""
    np.dot(x, weight, out)
    if bias is not None:
        np.add(out, bias, out)
