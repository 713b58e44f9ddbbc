"""Parts that adapters of several environment types share."""
