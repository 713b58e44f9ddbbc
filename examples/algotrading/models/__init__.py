"""Three ways to see the price's history; see `../README.md`."""

from everstep_lab.recipes.envs import ViewsModel

from .lstm import LSTMModel
from .transformer import TransformerModel

__all__ = ["LSTMModel", "TransformerModel", "ViewsModel"]
