"""Search of hyperparameters with Optuna; `everstep tune` runs it.

Optuna is imported by the functions that need it.
"""

from ._space import Space, read_space
from ._study import open_study, optimize
from ._writing import best_text, draw_importances

__all__ = ["Space", "best_text", "draw_importances", "open_study", "optimize", "read_space"]
