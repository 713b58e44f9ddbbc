"""Skip connections around modules."""

import torch
from torch import nn

from ..functional import SKIP_KINDS, skip_connection
from .module import Module


class SequentialSkipConnection(Module[[torch.Tensor, torch.Tensor], torch.Tensor]):
    """Modules in a row, with a skip connection around each of them.

        y ← join(skip(x, y))        then, for each module:  y ← join(skip(y, module(y)))

    What was concatenated is projected back to `embed_dim` features by a linear layer of its own;
    otherwise the join does nothing. Without modules it is the first line alone.

    Args:
        embed_dim: Features of `x`, of `y`, of every module's input and output, and of the result.
        kind: How to connect; see `everstep.nn.skip_connection`.

    Raises:
        ValueError: For an unknown kind.

    """

    #: How what goes into a module and what comes out of it are connected.
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
            x: What `y` was made from, `[…, embed_dim]`.
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
