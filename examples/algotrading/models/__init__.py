"""Three ways to see the price's history; see `../README.md`."""

from .lstm import LSTMModel
from .transformer import TransformerModel
from .views import ViewsModel

__all__ = ["LSTMModel", "TransformerModel", "ViewsModel"]
