"""The default hyperparameters beside those of stable-baselines3."""
