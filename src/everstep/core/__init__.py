"""Parts that algorithms are made of: rollouts, advantages, losses, normalisers, checkpoints."""
