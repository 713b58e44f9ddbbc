"""Modules with typed calls."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from torch import nn

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Module(ABC, Generic[_P, _T], nn.Module):
    """A PyTorch module with the types of its arguments and its result, for type checkers.

    `Module[[torch.Tensor, int], torch.Tensor]` takes a tensor and an integer and returns a tensor.
    """

    @abstractmethod
    def forward(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The module's result."""

    if TYPE_CHECKING:

        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            """The result of `forward`, with the module's hooks."""
