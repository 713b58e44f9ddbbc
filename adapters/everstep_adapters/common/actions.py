"""Actions on their way from a policy to an environment."""

from typing import Literal

ActionBounds = Literal["clip", "rescale"]
