"""Two perceptrons of the same shape, computed as one where there are few rows."""

from collections.abc import Sequence

import torch
from torch import nn

from ..nn import Head

#: Activations that know nothing of the shape of what they are given.
_ELEMENTWISE = (nn.ELU, nn.GELU, nn.LeakyReLU, nn.ReLU, nn.SELU, nn.Sigmoid, nn.SiLU, nn.Tanh)

#: Rows from which on two networks are faster one after the other.
MAX_ROWS = 512

#: Weights `[2, in, out]` and biases `[2, 1, out]` of each layer.
_Packed = list[tuple[torch.Tensor, torch.Tensor]]


class Pair:
    """Two chains of linear layers and activations that differ in the last width at most.

    Both see the same input. With few rows an operation costs more than its arithmetic: layers are
    multiplied in batches of two, at the price of one. Their weights are copied: a pair is good for
    as long as they do not change.

    Args:
        chains: The chains, as `matches` takes them.

    """

    def __init__(self, chains: Sequence[nn.Sequential]) -> None:
        layers = [[m for m in chain if isinstance(m, nn.Linear)] for chain in chains]
        self._layers = list(zip(*layers, strict=True))
        self._widths = [chain[-1].out_features for chain in layers]
        self._activation = chains[0][1] if len(self._layers) > 1 else nn.Identity()
        self._packed = self._pack()

    @staticmethod
    def matches(chains: Sequence[nn.Module]) -> bool:
        """Whether the chains are alike, and are seen by nobody else on the way."""
        shapes = []
        for chain in chains:
            if type(chain) is not nn.Sequential:
                return False
            linear, others = list(chain)[::2], list(chain)[1::2]
            kinds = {type(m) for m in others}
            hooked = any(m._forward_hooks or m._forward_pre_hooks for m in chain.modules())
            plain = all(type(m) in (nn.Linear, Head) for m in linear) and len(kinds) <= 1
            if hooked or not plain or not kinds <= set(_ELEMENTWISE) or len(chain) % 2 == 0:
                return False
            widths = [(m.in_features, m.out_features) for m in linear[:-1]]
            shapes.append((kinds, widths, linear[-1].in_features, linear[-1].weight.dtype))
        return all(shape == shapes[0] for shape in shapes)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the chains make of `x` `[B, D]`, `[B, width]` each, without gradients."""
        activate = self._activation.forward
        weight, bias = self._packed[0]
        y = torch.baddbmm(bias, x.expand(2, *x.shape), weight)
        for weight, bias in self._packed[1:]:
            y = torch.baddbmm(bias, activate(y), weight)
        first, second = y.unbind(0)
        if first.shape[-1] != self._widths[0]:
            first = first[:, : self._widths[0]]
        if second.shape[-1] != self._widths[1]:
            second = second[:, : self._widths[1]]
        return first, second

    @torch.no_grad()
    def _pack(self) -> _Packed:
        """The parameters in batches of two."""
        packed = []
        for both in self._layers:
            width = max(one.out_features for one in both)
            weights = torch.stack([_padded(one.weight, width) for one in both])
            biases = torch.stack([_padded(_bias(one), width) for one in both])
            packed.append((weights.mT.contiguous(), biases.unsqueeze(1)))
        return packed


def _padded(x: torch.Tensor, width: int) -> torch.Tensor:
    """`x` with zeros up to `width` rows."""
    return x if len(x) == width else torch.cat([x, x.new_zeros(width - len(x), *x.shape[1:])])


def _bias(layer: nn.Linear) -> torch.Tensor:
    return layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
