"""Multi-layer perceptrons without autograd: forward, and forward with a written-out backward.

Weights are read from the modules, and `eligible` has checked that calling the modules would do
nothing else. Storage is allocated once and reused.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input

#: Activations whose derivative follows from their output: a function that applies them, and one
#: that multiplies a gradient `[B, D]` by the derivative, given the output; both in place.
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[..., torch.Tensor], Callable[..., Any]]] = {
    nn.ReLU: (torch.relu_, lambda g, y: _relu_backward(g, y, 0, grad_input=g)),
    nn.Sigmoid: (torch.sigmoid_, lambda g, y: _sigmoid_backward(g, y, grad_input=g)),
    nn.Tanh: (torch.tanh_, lambda g, y: _tanh_backward(g, y, grad_input=g)),
}

#: Numbers of a layer's output that are computed at once: half a megabyte stays in the cache.
MAX_NUMBERS = 2**17


class InferenceMLP:
    """Forward pass of a perceptron without autograd.

    The weights are copied (transposed), so it is valid while they do not change.

    Args:
        network: Linear layers with activations between them.
        rows: Largest usual batch; wide layers are computed in smaller pieces.

    """

    def __init__(self, network: nn.Sequential, rows: int) -> None:
        layers, activations = _split(network)
        rows = min(rows, max(1, MAX_NUMBERS // max(layer.out_features for layer in layers)))
        *hidden, self._last = [(_affine_of(x), x.weight.detach().t().contiguous()) for x in layers]
        self._hidden = [
            (affine, weight, apply, weight.new_empty(rows, weight.shape[1]))
            for (affine, weight), (apply, _) in zip(hidden, activations, strict=True)
        ]
        self._rows, self._dtype = rows, layers[-1].weight.dtype

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write the outputs for `x` `[B, …]` into `out` `[B, width]`."""
        rows = x.shape[0]
        if rows > self._rows:
            for part, place in zip(x.split(self._rows), out.split(self._rows), strict=True):
                self(part, place)
            return
        x = _vectors(x, self._dtype)
        for affine, weight, apply, place in self._hidden:
            x = apply(affine(x, weight, out=place if rows == self._rows else place[:rows]))
        affine, weight = self._last
        affine(x, weight, out=out)


class TrainingMLP:
    """Forward pass of a perceptron with stored activations, and its backward pass.

    Gradients are added to `p.grad`; parameters without one are skipped.
    """

    def __init__(self) -> None:
        self._tensors: list[_Tensors] = []
        self._storage: dict[int, tuple[Any, Any, torch.Tensor]] = {}
        self._inputs: list[torch.Tensor] = []

    def begin(self, network: nn.Sequential) -> None:
        """Begin an update: look up parameters and gradients, which must not be replaced meanwhile.

        Looking them up layer by layer would take as long as a small layer does.
        """
        layers, self._activations = _split(network)
        before = [(tensors.weight.shape, tensors.weight.dtype) for tensors in self._tensors]
        if before != [(layer.weight.shape, layer.weight.dtype) for layer in layers]:
            self._storage.clear()
        self._tensors = [
            _Tensors(
                None if layer.bias is None else layer.bias.detach(),
                layer.weight.detach(),
                layer.weight.detach().t(),
                None if layer.bias is None else layer.bias.grad,
                layer.weight.grad,
            )
            for layer in layers
        ]
        bias = self._tensors[-1].bias
        self._column = None if bias is None else bias.unsqueeze(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs for `x` `[B, …]`, transposed: `[width, B]`, valid until the next call.

        With few outputs, BLAS and what follows are up to three times faster in this layout.
        """
        x = _vectors(x, self._tensors[0].weight.dtype)
        (outputs, _, _), self._inputs = self._storage_of(x.shape[0]), [x]
        for tensors, (apply, _), place in zip(
            self._tensors, self._activations, outputs, strict=False
        ):
            x = apply(_affine(tensors.bias, x, tensors.transposed, place))
            self._inputs.append(x)
        return _affine(self._column, self._tensors[-1].weight, x.t(), outputs[-1])

    def backward(self, gradient: torch.Tensor) -> None:
        """Add to the parameters' gradients, given the gradient `[width, B]` of the output."""
        _, places, ones = self._storage_of(gradient.shape[1])
        for i in reversed(range(len(self._tensors))):
            tensors, x = self._tensors[i], self._inputs[i]
            if tensors.weight_grad is not None:
                _add_product(tensors.weight_grad, gradient, x)
            if tensors.bias_grad is not None:
                tensors.bias_grad.addmv_(gradient, ones)
            if i:
                gradient = torch.mm(gradient.t(), tensors.weight, out=places[i - 1]).t()
                self._activations[i - 1][1](places[i - 1], x)

    def _storage_of(self, rows: int) -> tuple[Any, Any, torch.Tensor]:
        """Outputs of the layers `[B, width]`, the last `[width, B]`; hidden gradients; ones."""
        if rows not in self._storage:
            *hidden, last = [tensors.weight for tensors in self._tensors]
            outputs = [weight.new_empty(rows, len(weight)) for weight in hidden]
            # A gradient may overwrite the output of the layer above, which is not read any more.
            gradients = [
                torch.empty_like(x) if above is None or above.shape != x.shape else above
                for x, above in zip(outputs, [*outputs[1:], None], strict=False)
            ]
            outputs.append(last.new_empty(len(last), rows))
            self._storage[rows] = outputs, gradients, last.new_ones(rows)
        return self._storage[rows]


class _Tensors(NamedTuple):
    """Tensors of one linear layer."""

    bias: None | torch.Tensor
    weight: torch.Tensor
    transposed: torch.Tensor
    bias_grad: None | torch.Tensor
    weight_grad: None | torch.Tensor


def _split(network: nn.Sequential) -> tuple[list[nn.Linear], list[Any]]:
    """Linear layers, and the activations between them."""
    layers = [module for module in network if isinstance(module, nn.Linear)]
    return layers, [ACTIVATIONS[type(module)] for module in list(network)[1::2]]


def _affine_of(layer: nn.Linear) -> Any:
    """A function of x and the transposed weight: x·weight + bias."""
    return torch.mm if layer.bias is None else partial(torch.addmm, layer.bias.detach())


def _vectors(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` `[B, …]` as `[B, D]` of that dtype."""
    x = x if x.ndim == 2 else x.flatten(1)
    return x if x.dtype == dtype else x.to(dtype)


def _affine(
    bias: None | torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """x·weight + bias, written to `out`."""
    if bias is None:
        return torch.mm(x, weight, out=out)
    return torch.addmm(bias, x, weight, out=out)


def _add_product(total: torch.Tensor, gradient: torch.Tensor, x: torch.Tensor) -> None:
    """Add the product of `gradient` `[out, B]` and `x` `[B, in]` to `total` `[out, in]`."""
    if 4 * x.shape[1] <= gradient.shape[0]:
        # BLAS is up to five times faster with the narrow matrix first.
        total.add_(torch.mm(x.t(), gradient.t()).t())
    else:
        total.addmm_(gradient, x)
