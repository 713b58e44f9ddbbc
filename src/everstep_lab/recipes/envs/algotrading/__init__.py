"""An asset that is bought and sold, and a model that sees a window of its prices."""

from .env import CHANGE, GAIN, Action, AlgoTrading, AlgoTradingConfig
from .parts import POSITION, SCALE, Heads, position
from .views import ViewsModel

__all__ = [
    "CHANGE",
    "GAIN",
    "POSITION",
    "SCALE",
    "Action",
    "AlgoTrading",
    "AlgoTradingConfig",
    "Heads",
    "ViewsModel",
    "position",
]
