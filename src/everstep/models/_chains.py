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


_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input

#: Activations that can be run in place, and whose derivatives follow from what they return.
_ELEMENTWISE: dict[type[nn.Module], _Elementwise] = {
    nn.ReLU: _Elementwise(torch.relu_, lambda g, y: _relu_backward(g, y, 0, grad_input=g)),
    nn.Sigmoid: _Elementwise(torch.sigmoid_, lambda g, y: _sigmoid_backward(g, y, grad_input=g)),
    nn.Tanh: _Elementwise(torch.tanh_, lambda g, y: _tanh_backward(g, y, grad_input=g)),
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
        or any(
            p._backward_hooks or p._post_accumulate_grad_hooks
            for p in module.parameters(recurse=False)
        )
    )


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of a model is compiled by `torch.compile`."""
    for module in model.modules():
        if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            return True
        own = (vars(cls) for cls in type(module).__mro__ if cls is not nn.Module)
        for members in (vars(module), *own):
            if any(_is_compiled(member) for member in members.values()):
                return True
    return False


def _is_compiled(member: object) -> bool:
    """Whether it is what `torch.compile` returned, and not what it was told to leave alone."""
    return (
        callable(member)
        and hasattr(member, "_torchdynamo_orig_callable")
        and not getattr(member, "_torchdynamo_disable", False)
    )


def is_own(thing: object, name: str, cls: type) -> bool:
    """Whether a method is the one of that class: not overridden, nor replaced on the object."""
    return getattr(type(thing), name) is getattr(cls, name) and name not in vars(thing)


#: Numbers of a layer that are computed at once: half a megabyte stays in the cache.
MOST_NUMBERS = 2**17


class Chain:
    """A chain of linear layers and activations, without gradients.

    Its weights are copied, so that it is good for as long as they do not change.

    Args:
        network: The chain; `is_chain` of it is true.
        rows: Rows that are there to be computed; wide layers take fewer of them at once.

    """

    def __init__(self, network: nn.Sequential, rows: int) -> None:
        layers = _linear(network)
        rows = min(rows, max(1, MOST_NUMBERS // max(layer.out_features for layer in layers)))
        activations = [activation.apply for activation in _activations(network)]
        self._hidden = [
            (
                layer.bias,
                _transposed(layer),
                activate,
                layer.weight.new_empty(rows, len(layer.weight)),
            )
            for layer, activate in zip(layers, activations, strict=False)
        ]
        self._bias, self._weight = layers[-1].bias, _transposed(layers[-1])
        self._rows, self._dtype = rows, self._weight.dtype

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Fill `out` `[B, width]` with what the network makes of `x` `[B, …]`."""
        rows = x.shape[0]
        if rows > self._rows:
            for piece, place in zip(x.split(self._rows), out.split(self._rows), strict=True):
                self(piece, place)
            return
        x = as_vectors(x, self._dtype)
        for bias, weight, activate, hidden in self._hidden:
            place = hidden if rows == self._rows else hidden[:rows]
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
        self._layers, self._activations = _linear(network), _activations(network)
        self._dtype = self._layers[0].weight.dtype
        self._tensors: list[_Tensors] = []
        self._column: None | torch.Tensor = None
        self._places: dict[int, _Places] = {}
        self._seen: list[torch.Tensor] = []

    def runs(self, network: nn.Sequential) -> bool:
        """Whether these are still that network's layers."""
        return self._layers == _linear(network) and self._activations == _activations(network)

    def begin(self) -> None:
        """Look up the parameters and their gradients, which must stay what they are from here on.

        Looking them up layer by layer takes as long as a small layer does.
        """
        self._tensors = [
            _Tensors(
                layer.bias,
                layer.weight.detach(),
                layer.weight.detach().t(),
                None if layer.bias is None else layer.bias.grad,
                layer.weight.grad,
            )
            for layer in self._layers
        ]
        bias = self._tensors[-1].bias
        self._column = None if bias is None else bias.detach().unsqueeze(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the network makes of `x` `[B, …]`, `[width, B]`, until the next call.

        Libraries are up to three times faster with few outputs as rows, and so is what follows.
        """
        x = as_vectors(x, self._dtype)
        places, self._seen = self._places_of(x.shape[0]), [x]
        for tensors, activation, place in zip(
            self._tensors, self._activations, places.outputs, strict=False
        ):
            _affine(tensors.bias, x, tensors.transposed, place)
            x = activation.apply(place)
            self._seen.append(x)
        return _affine(self._column, self._tensors[-1].weight, x.t(), places.outputs[-1])

    def backward(self, gradient: torch.Tensor) -> None:
        """Add to the parameters' gradients, given that by what `forward` returned, `[width, B]`."""
        places, gradient = self._places_of(gradient.shape[1]), gradient.t()
        for i in reversed(range(len(self._tensors))):
            tensors, seen = self._tensors[i], self._seen[i]
            if tensors.by_weight is not None:
                _add_product(tensors.by_weight, gradient, seen)
            if tensors.by_bias is not None:
                tensors.by_bias.add_(gradient.sum(0))
            if i:
                gradient = torch.mm(gradient, tensors.weight, out=places.gradients[i - 1])
                self._activations[i - 1].differentiate(gradient, seen)

    def _places_of(self, rows: int) -> "_Places":
        """Storage for as many rows."""
        if rows not in self._places:
            *hidden, last = [layer.weight for layer in self._layers]
            outputs = [weight.new_empty(rows, len(weight)) for weight in hidden]
            # A gradient takes the place of what the layer above has returned: nobody looks there
            # by then.
            gradients = [
                torch.empty_like(x) if above is None or above.shape != x.shape else above
                for x, above in zip(outputs, [*outputs[1:], None], strict=False)
            ]
            self._places[rows] = _Places([*outputs, last.new_empty(len(last), rows)], gradients)
        return self._places[rows]


class _Tensors(NamedTuple):
    """The tensors of a linear layer."""

    bias: None | torch.Tensor
    weight: torch.Tensor
    transposed: torch.Tensor
    by_bias: None | torch.Tensor
    by_weight: None | torch.Tensor


class _Places(NamedTuple):
    """Where layers put what they return, `[B, width]`, the last one `[width, B]`, and gradients."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]


def _add_product(total: torch.Tensor, gradient: torch.Tensor, seen: torch.Tensor) -> None:
    """Add gradientᵀ·seen to `total` `[out, in]`."""
    if 4 * seen.shape[1] <= gradient.shape[1]:
        # Libraries are up to five times faster with the narrow matrix first.
        total.add_(torch.mm(seen.t(), gradient).t())
    else:
        total.addmm_(gradient.t(), seen)


def as_vectors(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` `[B, …]` as linear layers take it, `[B, D]`."""
    x = x if x.ndim == 2 else x.flatten(1)
    return x if x.dtype == dtype else x.to(dtype)


def _transposed(layer: nn.Linear) -> torch.Tensor:
    return layer.weight.detach().t().contiguous()


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
    """x·weight + bias, in `out`."""
    if bias is None:
        return torch.mm(x, weight, out=out)
    return torch.addmm(bias, x, weight, out=out)
