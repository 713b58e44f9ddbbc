"""TorchRL environments as Everstep environments.

`TorchRLEnv` steps them by `EnvBase.step_and_maybe_reset`, so an episode that ends is reset in the
same env step: the row that is done is also `first`, its `obs` opens the next episode, and
`final_obs` is what the environment returned under `next`, before the reset. An environment that
resets itself has lost that observation: its rows have no `final_obs`, or NaN in it.

The agents of a multi-agent environment are rows of their own. One that is done before the others
waits for its environment's reset; its rows until then, and the one of the reset, are not `valid`.

The rows of an Everstep environment that `to_torchrl(invalid_rows="keep")` exported are unchanged:
`valid` and `is_init` are used as the environment returns them.
"""

from .env import TorchRLEnv

__all__ = ["TorchRLEnv"]
