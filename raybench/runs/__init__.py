"""The commands `train`, `scale`, `diagnose` and `compare`, and what all commands share: options,
checks and the life cycle of runs."""
