"""Skip connections around modules."""

import torch
from torch import nn

from ..functional import SKIP_KINDS, skip_connection
from .module import Module


class SequentialSkipConnection(Module[[torch.Tensor, torch.Tensor], torch.Tensor]):
    """Modules in sequence, with a skip connection around each.

        y ← join(skip(x, y))        then, for each module:  y ← join(skip(y, module(y)))

    After a concatenation, the join is a linear layer back to `embed_dim` features; otherwise it is
    the identity. Without modules the result is the first line.

    Args:
        embed_dim: Features of `x`, of `y`, of every module's input and output, and of the result.
        kind: Kind of the connections; see `everstep.nn.skip_connection`.

    Raises:
        ValueError: If the kind is unknown.

    """

    #: Kind of the connections.
    kind: None | str

    def __init__(self, embed_dim: int, kind: None | str = "cat") -> None:
        super().__init__()
        if kind not in SKIP_KINDS:
            raise ValueError(f"`kind` must be one of {SKIP_KINDS}; got {kind!r}.")
        self.kind = kind
        self._embed_dim = embed_dim
        self._layers = nn.ModuleList([self._join()])  # join, module, join, module, join, …

    def _join(self) -> nn.Module:
        if self.kind == "cat":
            return nn.Linear(2 * self._embed_dim, self._embed_dim)
        return nn.Identity()

    def append(self, module: nn.Module, /) -> int:
        """Add a module to the end; returns the number of output features.

        Args:
            module: From `[…, embed_dim]` to `[…, embed_dim]`.

        """
        self._layers.extend([module, self._join()])
        return self.out_features

    def forward(self, x: torch.Tensor, y: torch.Tensor, /) -> torch.Tensor:
        """The last module's output, connected and joined, `[…, embed_dim]`.

        Args:
            x: Input of the module that returned `y`, `[…, embed_dim]`.
            y: `[…, embed_dim]`.

        """
        first, *others = self._layers
        y = first(skip_connection(x, y, kind=self.kind))
        for module, join in zip(others[::2], others[1::2], strict=True):
            y = join(skip_connection(y, module(y), kind=self.kind))
        return y

    @property
    def in_features(self) -> int:
        """Features of the inputs."""
        return self._embed_dim

    @property
    def out_features(self) -> int:
        """Features of the result."""
        return self._embed_dim
