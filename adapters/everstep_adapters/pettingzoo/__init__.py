"""Agents of PettingZoo's parallel environments as the rows of one Everstep environment.

Each agent of each environment is a row, ordered environment by environment; they share a policy.

* An agent that is done ends: its row is `terminated` or `truncated`, with its last observation in
  `final_obs`. Until its environment is reset its rows are not `valid`, with rewards of 0.
* An environment is reset in the env step in which the last of its agents ended: all its rows are
  `first`, and `obs` opens the next episode.
* An agent that joins later is `first` in the row that it joins in, and not `valid` until then.
"""

from .env import PettingZooEnv

__all__ = ["PettingZooEnv"]
