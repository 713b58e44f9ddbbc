"""Modules whose calls are typed."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from torch import nn

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Module(ABC, Generic[_P, _T], nn.Module):
    """A module that declares what it is called with and what it returns.

    `Module[[torch.Tensor, int], torch.Tensor]` takes a tensor and an integer and returns a tensor.
    Type checkers then check its calls; when the program runs it is a plain PyTorch module.
    """

    @abstractmethod
    def forward(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What the module computes."""

    if TYPE_CHECKING:

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            """What `forward` returns, with the module's hooks run."""
