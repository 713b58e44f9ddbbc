"""Chains of linear layers and activations, run with as few operations as can be."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from ..nn import Head


class _Elementwise(NamedTuple):
    """An activation that knows nothing of the shape of what it is given."""

    #: Applies it in place.
    apply: Callable[[torch.Tensor], torch.Tensor]
    #: Multiplies a gradient `[B, D]` by its derivative, in place, given what it returned.
    differentiate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _tanh_backward(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)
    return found


def _relu_backward(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.threshold_backward.grad_input(
        gradient, y, 0, grad_input=gradient
    )
    return found


def _sigmoid_backward(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.sigmoid_backward.grad_input(
        gradient, y, grad_input=gradient
    )
    return found


#: Activations that can be run in place, and whose derivatives follow from what they return.
_ELEMENTWISE: dict[type[nn.Module], _Elementwise] = {
    nn.ReLU: _Elementwise(torch.relu_, _relu_backward),
    nn.Sigmoid: _Elementwise(torch.sigmoid_, _sigmoid_backward),
    nn.Tanh: _Elementwise(torch.tanh_, _tanh_backward),
}


def is_chain(network: nn.Module) -> bool:
    """Whether a network is a chain that these classes can run in its place."""
    if type(network) is not nn.Sequential or len(network) % 2 == 0:
        return False
    modules = list(network)
    return (
        all(type(module) in (nn.Linear, Head) for module in modules[::2])
        and all(type(module) in _ELEMENTWISE for module in modules[1::2])
        and not any(is_watched(module) for module in network.modules())
    )


def is_watched(module: nn.Module) -> bool:
    """Whether somebody has hooks on what a module is given or gives, or on its gradients."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or any(p._backward_hooks for p in module.parameters(recurse=False))
    )


def is_own(thing: object, name: str, cls: type) -> bool:
    """Whether a method is the one of that class: not overridden, nor replaced on the object."""
    return getattr(type(thing), name) is getattr(cls, name) and name not in vars(thing)


class Chain:
    """A chain of linear layers and activations, without gradients.

    Its weights are copied, so that it is good for as long as they do not change.

    Args:
        network: The chain; `is_chain` of it is true.
        rows: Rows that are computed at once, so that what one layer hands to the next stays in the
            cache.

    """

    def __init__(self, network: nn.Sequential, rows: int) -> None:
        layers = _linear(network)
        hidden = [layer.weight.new_empty(rows, layer.out_features) for layer in layers[:-1]]
        transposed = [layer.weight.detach().t().contiguous() for layer in layers]
        self._hidden = list(
            zip(
                (layer.bias for layer in layers),
                transposed,
                (activation.apply for activation in _activations(network)),
                hidden,
                strict=False,
            )
        )
        self._bias, self._weight = layers[-1].bias, transposed[-1]
        self._rows = rows

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Fill `out` `[B, width]` with what the network makes of `x` `[B, D]`."""
        if len(x) > self._rows:
            for piece, place in zip(x.split(self._rows), out.split(self._rows), strict=True):
                self(piece, place)
            return
        is_full = len(x) == self._rows
        for bias, weight, activate, hidden in self._hidden:
            place = hidden if is_full else hidden[: len(x)]
            _affine(bias, x, weight, place)
            x = activate(place)
        _affine(self._bias, x, self._weight, out)


class TrainedChain:
    """A chain of linear layers and activations, and its gradients, written out.

    What the layers return is kept in storage that is used again for the next rows, and gradients
    are added to those that the parameters have.

    Args:
        network: The chain; `is_chain` of it is true.

    """

    def __init__(self, network: nn.Sequential) -> None:
        self._layers = _linear(network)
        self._activations = _activations(network)
        self._storage: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._ones: dict[int, torch.Tensor] = {}
        self._seen: list[torch.Tensor] = []

    def runs(self, network: nn.Sequential) -> bool:
        """Whether these are still that network's layers."""
        return self._layers == _linear(network) and self._activations == _activations(network)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the network makes of `x` `[B, D]`, `[B, width]`, until the next call."""
        self._seen = [x]
        places = self._places(x)
        for layer, activation, (place, _) in zip(
            self._layers, self._activations, places, strict=False
        ):
            x = activation.apply(_affine(layer.bias, x, layer.weight.t(), out=place))
            self._seen.append(x)
        last = self._layers[-1]
        return _affine(last.bias, x, last.weight.t(), out=places[-1][0])

    def backward(self, gradient: torch.Tensor) -> None:
        """Add to the parameters' gradients, given that by what `forward` returned, `[B, width]`."""
        places, ones = self._places(gradient), self._ones[len(gradient)]
        for i in reversed(range(len(self._layers))):
            layer, seen = self._layers[i], self._seen[i]
            if layer.weight.grad is not None:
                layer.weight.grad.addmm_(gradient.t(), seen)
            if layer.bias is not None and layer.bias.grad is not None:
                layer.bias.grad.addmv_(gradient.t(), ones)
            if i:
                gradient = torch.mm(gradient, layer.weight, out=places[i - 1][1])
                self._activations[i - 1].differentiate(gradient, seen)

    def _places(self, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Storage of what each layer returns, and of the gradient by it, for as many rows."""
        rows = len(x)
        if rows not in self._storage:
            self._storage[rows] = [
                (x.new_empty(rows, layer.out_features), x.new_empty(rows, layer.out_features))
                for layer in self._layers
            ]
            self._ones[rows] = x.new_ones(rows)
        return self._storage[rows]


def _linear(network: nn.Sequential) -> list[nn.Linear]:
    return [module for module in network if isinstance(module, nn.Linear)]


def _activations(network: nn.Sequential) -> list[_Elementwise]:
    return [_ELEMENTWISE[type(module)] for module in list(network)[1::2]]


def _affine(
    bias: None | torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """x·weight + bias, `[B, width]`, in `out`."""
    if bias is None:
        return torch.mm(x, weight, out=out)
    return torch.addmm(bias, x, weight, out=out)
